from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound="Event")


@dataclass(frozen=True)
class Event:
    """Something that happened to a pet or an order."""

    id: str
    """The id of the event. Send it as `after` to continue after this event. Opaque; its format may change."""
    type_: str
    """The type of an event. Types may be added, so ignore types that you do not know."""
    pet_id: int
    """The id of the pet, or of the first pet for `pets.imported`."""
    at: datetime.datetime
    """When it happened (RFC 3339, UTC)."""
    last_pet_id: int | None = None
    """Only for `pets.imported`: the id of the last pet. Some ids in the range may belong to other pets."""
    order_id: int | None = None
    """Only for order events: the id of the order."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            id=values["id"],
            type_=values["type"],
            pet_id=values["petId"],
            at=datetime.datetime.fromisoformat(values["at"].replace("Z", "+00:00")),
            last_pet_id=values.get("lastPetId"),
            order_id=values.get("orderId"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "id": self.id,
            "type": self.type_,
            "petId": self.pet_id,
            "at": self.at.isoformat(),
            "lastPetId": self.last_pet_id,
            "orderId": self.order_id,
        }
        return {name: value for name, value in values.items() if value is not None}

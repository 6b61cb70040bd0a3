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
    """Identifies the event, and is the `after` with which to go on after it. Opaque: its form may change."""
    type_: str
    """Type of an event. Others may be added: ignore those that you do not know."""
    pet_id: int
    """Identifier of the pet; of `pets.imported`, of the first one."""
    at: datetime.datetime
    """When it happened (RFC 3339, UTC)."""
    last_pet_id: int | None = None
    """Identifier of the last pet; only of `pets.imported`. Some identifiers in between may belong to pets that were
    added by other requests at the same time."""
    order_id: int | None = None
    """Identifier of the order; only of events of orders."""

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

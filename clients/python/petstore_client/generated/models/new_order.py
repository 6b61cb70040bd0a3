from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound="NewOrder")


@dataclass(frozen=True)
class NewOrder:
    """An order to place."""

    pet_id: int
    """Identifier of an existing pet that is `available`."""
    reference: str | None = None
    """Your own name for the order, such as the number of a basket. Unlike the reference of a pet, it need not be
    unique: give all orders of a basket the same."""
    hold_seconds: int | None = None
    """The number of seconds after which the order expires unless it is completed. At most the shop's own hold, which
    is also the default; `expiresAt` shows the result. Refused if the shop sets no hold."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            pet_id=values["petId"],
            reference=values.get("reference"),
            hold_seconds=values.get("holdSeconds"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "petId": self.pet_id,
            "reference": self.reference,
            "holdSeconds": self.hold_seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

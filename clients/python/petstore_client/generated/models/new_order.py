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
    """Your own name for the order, such as a basket number. Several orders can share it."""
    hold_seconds: int | None = None
    """How many seconds the order reserves the pet. The default is the shop's own hold, and a longer hold is reduced
    to it. `expiresAt` shows the result. Rejected if the shop sets no hold."""

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

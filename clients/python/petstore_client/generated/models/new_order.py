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
    """After how many seconds the order expires if it is not completed. The shop may have a shorter time for all
    orders; `expiresAt` is what counts. By default the shop's, and without one never."""

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

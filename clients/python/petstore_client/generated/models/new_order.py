from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..models.new_metadata import NewMetadata

T = TypeVar("T", bound="NewOrder")


@dataclass(frozen=True)
class NewOrder:
    """An order to place."""

    pet_id: int
    """Identifier of an existing pet that is `available`."""
    reference: str | None = None
    """Your own name for the order, such as a basket number. 1 to 255 characters, not all white space, no control
    characters. Several orders can share it."""
    hold_seconds: int | None = None
    """How many seconds the order reserves the pet. The default is the shop's own hold, and a longer hold is
    rejected. `expiresAt` shows the result. Rejected if the shop sets no hold."""
    metadata: NewMetadata = field(default_factory=dict, hash=False)
    """Your own data: up to 20 strings, with names of 1 to 40 characters (`A-Za-z0-9_-`). Names and values together
    have at most 4,096 bytes of UTF-8. A string keeps a price exact."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            pet_id=values["petId"],
            reference=values.get("reference"),
            hold_seconds=values.get("holdSeconds"),
            metadata=values.get("metadata", {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "petId": self.pet_id,
            "reference": self.reference,
            "holdSeconds": self.hold_seconds,
            "metadata": self.metadata or None,
        }
        return {name: value for name, value in values.items() if value is not None}

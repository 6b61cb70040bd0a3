from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..models.new_metadata import NewMetadata
from ..models.pet_status import PetStatus

T = TypeVar("T", bound="NewPet")


@dataclass(frozen=True)
class NewPet:
    """A pet to create."""

    name: str
    """The pet's name: 1 to 255 characters, at least one of them not white space, and no control characters. Stored
    as sent."""
    category_id: int
    """The id of the pet's category. Any 64-bit integer is accepted."""
    status: PetStatus | None = None
    """Availability status of a pet."""
    reference: str | None = None
    """Your own number for this pet, such as its chip or stock number. 1 to 255 characters, not all white space, no
    control characters. Unique among pets."""
    metadata: NewMetadata = field(default_factory=dict, hash=False)
    """Your own data: up to 20 strings, with names of 1 to 40 characters (`A-Za-z0-9_-`). Names and values together
    have at most 4,096 bytes of UTF-8. A string keeps a price exact."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            name=values["name"],
            category_id=values["categoryId"],
            status=values.get("status"),
            reference=values.get("reference"),
            metadata=values.get("metadata", {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "name": self.name,
            "categoryId": self.category_id,
            "status": self.status,
            "reference": self.reference,
            "metadata": self.metadata or None,
        }
        return {name: value for name, value in values.items() if value is not None}

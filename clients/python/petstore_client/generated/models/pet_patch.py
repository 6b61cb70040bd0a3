from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..models.pet_status import PetStatus

T = TypeVar("T", bound="PetPatch")


@dataclass(frozen=True)
class PetPatch:
    """A change to a pet: a field that is left out keeps its value."""

    name: str | None = None
    """The pet's name: 1 to 255 characters, at least one of them not white space, and no control characters. Stored
    as sent."""
    category_id: int | None = None
    """The id of the pet's category. Any 64-bit integer is accepted."""
    status: PetStatus | None = None
    """Availability status of a pet."""
    reference: str | None = None
    """Your own number for this pet, such as its chip or stock number. 1 to 255 characters, not all white space, no
    control characters. Unique among pets. Can be changed, but not removed."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            name=values.get("name"),
            category_id=values.get("categoryId"),
            status=values.get("status"),
            reference=values.get("reference"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "name": self.name,
            "categoryId": self.category_id,
            "status": self.status,
            "reference": self.reference,
        }
        return {name: value for name, value in values.items() if value is not None}

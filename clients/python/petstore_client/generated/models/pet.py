from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..models.metadata import Metadata
from ..models.pet_status import PetStatus

T = TypeVar("T", bound="Pet")


@dataclass(frozen=True)
class Pet:
    """A pet in the inventory."""

    id: int
    """Unique identifier, assigned by the service on creation."""
    name: str
    """The animal's name."""
    category_id: int
    """Identifier of the category the animal belongs to."""
    status: PetStatus | None = None
    """Availability status of a pet."""
    reference: str | None = None
    """Your own number for this pet. Absent unless you set it."""
    metadata: Metadata = field(default_factory=dict, hash=False)
    """Your own data: strings by name."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            id=values["id"],
            name=values["name"],
            category_id=values["categoryId"],
            status=values.get("status"),
            reference=values.get("reference"),
            metadata=values.get("metadata", {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "id": self.id,
            "name": self.name,
            "categoryId": self.category_id,
            "status": self.status,
            "reference": self.reference,
            "metadata": self.metadata or None,
        }
        return {name: value for name, value in values.items() if value is not None}

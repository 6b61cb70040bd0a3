from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..._remove import Remove
from ..models.metadata_patch import MetadataPatch
from ..models.pet_status import PetStatus


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
    reference: str | Remove | None = None
    """Your own number for this pet, such as its chip or stock number. 1 to 255 characters, not all white space, no
    control characters. Unique among pets. `null` removes it."""
    metadata: MetadataPatch | Remove | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "name": self.name,
            "categoryId": self.category_id,
            "status": self.status,
            "reference": self.reference,
            "metadata": self.metadata,
        }
        return {name: value for name, value in values.items() if value is not None}

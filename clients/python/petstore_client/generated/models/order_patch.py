from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..._remove import Remove
from ..models.metadata_patch import MetadataPatch


@dataclass(frozen=True)
class OrderPatch:
    """A change to an order: a field that is left out keeps its value."""

    hold_seconds: int | None = None
    """How many seconds the order reserves the pet from now on. Only while the order is `placed`. At most the shop's
    own hold. `expiresAt` shows the result."""
    reference: str | Remove | None = None
    """Your own name for the order, such as a basket number. Several orders can share it. `null` removes it."""
    metadata: MetadataPatch | Remove | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "holdSeconds": self.hold_seconds,
            "reference": self.reference,
            "metadata": self.metadata,
        }
        return {name: value for name, value in values.items() if value is not None}

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..models.metadata import Metadata
from ..models.order_status import OrderStatus

T = TypeVar("T", bound="Order")


@dataclass(frozen=True)
class Order:
    """An order for one pet."""

    id: int
    """Unique identifier, assigned by the service."""
    pet_id: int
    """Identifier of the pet."""
    status: OrderStatus
    """Status of an order."""
    created_at: datetime.datetime
    """When the order was placed (RFC 3339, UTC)."""
    updated_at: datetime.datetime
    """When it last changed (RFC 3339, UTC)."""
    expires_at: datetime.datetime | None = None
    """When the order expires, unless it is completed or cancelled first (RFC 3339, UTC). Absent if the order never
    expires."""
    reference: str | None = None
    """Your own name for the order, such as a basket number. Several orders can share it."""
    metadata: Metadata = field(default_factory=dict, hash=False)
    """Your own data: strings by name."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            id=values["id"],
            pet_id=values["petId"],
            status=values["status"],
            created_at=datetime.datetime.fromisoformat(values["createdAt"].replace("Z", "+00:00")),
            updated_at=datetime.datetime.fromisoformat(values["updatedAt"].replace("Z", "+00:00")),
            expires_at=datetime.datetime.fromisoformat(values["expiresAt"].replace("Z", "+00:00"))
            if "expiresAt" in values
            else None,
            reference=values.get("reference"),
            metadata=values.get("metadata", {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "id": self.id,
            "petId": self.pet_id,
            "status": self.status,
            "createdAt": self.created_at.isoformat(),
            "updatedAt": self.updated_at.isoformat(),
            "expiresAt": self.expires_at.isoformat() if self.expires_at else None,
            "reference": self.reference,
            "metadata": self.metadata or None,
        }
        return {name: value for name, value in values.items() if value is not None}

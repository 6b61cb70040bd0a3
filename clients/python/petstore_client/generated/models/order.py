from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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
    """When its status last changed (RFC 3339, UTC)."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            id=values["id"],
            pet_id=values["petId"],
            status=values["status"],
            created_at=datetime.datetime.fromisoformat(values["createdAt"].replace("Z", "+00:00")),
            updated_at=datetime.datetime.fromisoformat(values["updatedAt"].replace("Z", "+00:00")),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "id": self.id,
            "petId": self.pet_id,
            "status": self.status,
            "createdAt": self.created_at.isoformat(),
            "updatedAt": self.updated_at.isoformat(),
        }
        return {name: value for name, value in values.items() if value is not None}

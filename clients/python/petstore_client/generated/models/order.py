from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from attrs import define as _attrs_define
from attrs import field as _attrs_field

from ..models.order_status import OrderStatus, check_order_status

T = TypeVar("T", bound="Order")


@_attrs_define
class Order:
    """An order for one pet.

    Example:
        {'id': 4711, 'petId': 7, 'status': 'placed', 'createdAt': '2026-11-15T09:30:00.000Z', 'updatedAt':
            '2026-11-15T09:30:00.000Z'}

    Attributes:
        id (int): Unique identifier, assigned by the service.
        pet_id (int): Identifier of the pet.
        status (OrderStatus): Status of an order.
        created_at (datetime.datetime): When the order was placed (RFC 3339, UTC).
        updated_at (datetime.datetime): When its status last changed (RFC 3339, UTC).
    """

    id: int
    pet_id: int
    status: OrderStatus
    created_at: datetime.datetime
    updated_at: datetime.datetime
    additional_properties: dict[str, Any] = _attrs_field(init=False, factory=dict)

    def to_dict(self) -> dict[str, Any]:
        id = self.id

        pet_id = self.pet_id

        status: str = self.status

        created_at = self.created_at.isoformat()

        updated_at = self.updated_at.isoformat()

        field_dict: dict[str, Any] = {}
        field_dict.update(self.additional_properties)
        field_dict.update(
            {
                "id": id,
                "petId": pet_id,
                "status": status,
                "createdAt": created_at,
                "updatedAt": updated_at,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> Self:
        d = dict(src_dict)
        id = d.pop("id")

        pet_id = d.pop("petId")

        status = check_order_status(d.pop("status"))

        created_at = datetime.datetime.fromisoformat(d.pop("createdAt"))

        updated_at = datetime.datetime.fromisoformat(d.pop("updatedAt"))

        order = cls(
            id=id,
            pet_id=pet_id,
            status=status,
            created_at=created_at,
            updated_at=updated_at,
        )

        order.additional_properties = d
        return order

    @property
    def additional_keys(self) -> list[str]:
        return list(self.additional_properties.keys())

    def __getitem__(self, key: str) -> Any:
        return self.additional_properties[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.additional_properties[key] = value

    def __delitem__(self, key: str) -> None:
        del self.additional_properties[key]

    def __contains__(self, key: str) -> bool:
        return key in self.additional_properties

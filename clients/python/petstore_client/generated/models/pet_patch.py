from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

from attrs import define as _attrs_define

from ..models.pet_status import PetStatus, check_pet_status
from ..types import UNSET, Unset

T = TypeVar("T", bound="PetPatch")


@_attrs_define
class PetPatch:
    """A change to a pet: a field that is left out keeps its value.

    Example:
        {'status': 'sold'}

    Attributes:
        name (str | Unset): The pet's name: at least one character that is not white space, and no control characters.
            Stored as sent.
        category_id (int | Unset): Identifier of the pet's category. Any 64-bit integer: it is not checked.
        status (PetStatus | Unset): Availability status of a pet.
    """

    name: str | Unset = UNSET
    category_id: int | Unset = UNSET
    status: PetStatus | Unset = UNSET

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        category_id = self.category_id

        status: str | Unset = UNSET
        if not isinstance(self.status, Unset):
            status = self.status

        field_dict: dict[str, Any] = {}

        field_dict.update({})
        if name is not UNSET:
            field_dict["name"] = name
        if category_id is not UNSET:
            field_dict["categoryId"] = category_id
        if status is not UNSET:
            field_dict["status"] = status

        return field_dict

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> Self:
        d = dict(src_dict)
        name = d.pop("name", UNSET)

        category_id = d.pop("categoryId", UNSET)

        _status = d.pop("status", UNSET)
        status: PetStatus | Unset
        if isinstance(_status, Unset):
            status = UNSET
        else:
            status = check_pet_status(_status)

        pet_patch = cls(
            name=name,
            category_id=category_id,
            status=status,
        )

        return pet_patch

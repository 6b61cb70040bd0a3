from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound="NewOrder")


@dataclass(frozen=True)
class NewOrder:
    """An order to place."""

    pet_id: int
    """Identifier of an existing pet that is `available`."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            pet_id=values["petId"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "petId": self.pet_id,
        }
        return {name: value for name, value in values.items() if value is not None}

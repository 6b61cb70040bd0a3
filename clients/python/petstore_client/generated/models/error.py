from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound="Error")


@dataclass(frozen=True)
class Error:
    """The body of every error response, except to a request that is not valid HTTP."""

    code: str
    """Error code for programs. A code never changes its meaning. New codes may be added."""
    message: str
    """What is wrong, and what to send instead. The wording may change."""
    status: int
    field: str | None = None
    """The body field, query parameter or header that is wrong, if any."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Reads decoded JSON. Ignores members that it does not know."""
        return cls(
            code=values["code"],
            message=values["message"],
            status=values["status"],
            field=values.get("field"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what to encode as JSON."""
        values = {
            "code": self.code,
            "message": self.message,
            "status": self.status,
            "field": self.field,
        }
        return {name: value for name, value in values.items() if value is not None}

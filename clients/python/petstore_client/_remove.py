"""`REMOVE`, which stands for `null` in a change."""

from __future__ import annotations

from enum import Enum


class Remove(Enum):
    """The type of `REMOVE`."""

    REMOVE = "REMOVE"

    def __repr__(self) -> str:
        return self.name


REMOVE = Remove.REMOVE
"""Removes what it is passed for: `reference=REMOVE`, `metadata=REMOVE`, or a member: `metadata={"price": REMOVE}`.

None is the same as leaving the argument out: nothing changes."""

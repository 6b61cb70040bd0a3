"""Checks the types in the metadata that callers pass, before anything is sent. The service checks the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ._remove import REMOVE, Remove
from .models import Metadata, MetadataPatch

T = TypeVar("T")


def checked_metadata(metadata: Metadata | None) -> Metadata:
    """Returns the metadata of a new pet or order."""
    return {} if metadata is None else _members(metadata, str, "a string")


def checked_metadata_patch(metadata: MetadataPatch | Remove | None) -> MetadataPatch | Remove | None:
    """Returns a change to metadata. Rejects None in it, which could mean "unchanged", as everywhere else, or `null`."""
    if metadata is None or metadata is REMOVE:
        return metadata
    return _members(metadata, (str, Remove), "a string or `REMOVE`")


def _members(metadata: Mapping[str, T], types: type | tuple[type, ...], expected: str) -> dict[str, T]:
    if not isinstance(metadata, Mapping):
        raise TypeError("`metadata` must be a mapping, such as `{'price': '129.00'}`.")
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise TypeError("The names in `metadata` must be strings.")
        if not isinstance(value, types):
            raise TypeError(f"`metadata[{name!r}]` must be {expected}, not a value of type {type(value).__name__}.")
    return dict(metadata)

"""How far the iterations over pets, orders and events have come, for `Items` and `AsyncItems`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from . import _core
from ._core import MAX_LIMIT, Call, Core, Page, Request
from .models import Event, EventType, Pet, PetStatus, Sort

T = TypeVar("T")


class Position(Generic[T]):
    """How far an iteration has come. `items` have been read but not returned."""

    def __init__(
        self, core: Core, request: Request, cursor: str | None, read: Callable[[Mapping[str, Any]], T]
    ) -> None:
        self._core, self._request, self._read = core, request, read
        self._cursor = _core.optional_text("cursor", cursor)
        self._ended = False
        self.items: deque[T] = deque()

    def call(self) -> Call[Page[T]] | None:
        """Returns the call for the next page, or None after the last one."""
        return None if self._ended else self._core.page(self._request, self._cursor, self._read)

    def advance(self, page: Page[T]) -> Page[T]:
        self._cursor, self._ended = page.cursor, page.cursor is None
        return page


class NamedPetsPosition(Position[Pet]):
    """Before or after the only page of the pets with some references."""

    def __init__(self, core: Core, references: Sequence[str], filters: Sequence[tuple[str, str]]) -> None:
        self._core, self._references, self._filters = core, _core.unique_references(references), filters
        self._ended = False
        self.items = deque()

    def call(self) -> Call[Page[Pet]] | None:
        return None if self._ended else self._core.pets_by_reference(self._references, self._filters)


def pets_position(
    core: Core,
    status: PetStatus | None,
    category_id: int | None,
    references: Sequence[str] | None,
    sort: Sort | None,
    limit: int,
    cursor: str | None,
) -> Position[Pet]:
    filters = _core.pet_filters(status, category_id, sort)
    if references is None:
        return Position(core, _core.list_pets(filters, limit), cursor, Pet.from_dict)
    if limit != MAX_LIMIT or cursor is not None:
        raise ValueError("`limit` and `cursor` cannot be set with `references`: all of these pets are on one page.")
    return NamedPetsPosition(core, references, filters)


class FeedPosition(Position[Event]):
    """How far a reader of the feed has come. If it `follows`, it never ends; otherwise, it ends with an empty page."""

    def __init__(
        self,
        core: Core,
        after: str | None,
        types: Sequence[EventType] | None,
        limit: int,
        wait_seconds: int,
        follows: bool,
    ) -> None:
        self._core, self._after, self._types = core, _core.optional_text("after", after), _core.event_types(types)
        self._limit, self._wait_seconds = _core.integer("limit", limit), _core.integer("wait_seconds", wait_seconds)
        self._follows = follows
        self._ended = False
        self.items = deque()

    def call(self) -> Call[Page[Event]] | None:
        if self._ended:
            return None
        wait = self._next_wait()
        return self._core.events(self._after, self._limit, wait, self._types, outlives_outages=self._follows)

    def advance(self, page: Page[Event]) -> Page[Event]:
        # With `types`, a page can be empty although there are more events; then it leads further.
        leads_further = bool(page.items) or (bool(self._types) and page.cursor != self._after)
        self._ended = not (leads_further or self._follows or self._next_wait() < self._wait_seconds)
        self._after = page.cursor
        return page

    def _next_wait(self) -> int:
        # "now" becomes a position at once: a retry would move it, and so skip what happened while the request waited.
        return 0 if self._after == "now" else self._wait_seconds

"""`Mirror`, a copy of all pets in an SQLite file that the event feed keeps current.

- The copy is complete, and never goes back. A build takes its position in the feed, then reads the list, then follows
  the feed from that position: never two at the same time, because a page of the list that was read before an event and
  stored after it would bring back an old row. The build is shown once it has followed the feed past the list's end.
- It skips nothing. An event only says which pet has changed: the pet is read after the event, and stored in the same
  transaction as the position after the event.
- It heals itself. Whatever fails is tried again, until the mirror is closed.

`_mirror_file.py` says what the file guarantees.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ._client import Petstore
from ._core import MAX_LIMIT, Attempt, Page, Sleep
from ._mirror_file import MirrorFile, connect
from ._transport import Transport
from .errors import (
    APIConnectionError,
    ClientClosedError,
    CursorExpiredError,
    PetstoreError,
    RateLimitError,
    ServiceUnavailableError,
)
from .models import Event, Pet

logger = logging.getLogger("petstore_client.mirror")

# After an error that retries may not heal, such as a full disk, and at least between two builds.
PAUSE_SECONDS = 30.0
# One transaction stores the pets of so many events, or a few more: one event can name 2,000.
BATCH = 1_000


class Mirror:
    """A copy of all pets in an SQLite file, kept current by a thread until the mirror is closed.

    The table `pets` has the columns `id`, `name`, `category_id`, `status`, `reference` and `metadata`, a JSON object.
    Other processes can read the file with any SQLite library, and can add views, triggers and indexes to `pets`. They
    must not change its rows, and the indexes must not be unique. The file must be on a local disk.

    A new file is built. An existing one continues where it stopped. Raises a `RuntimeError` if another mirror keeps the
    file current, and a `ValueError` if the file is not a copy of this service.

    The mirror shares the client's connections. The API key needs the scopes `pets:read` and `events:read`. Any thread
    can use the mirror. In the child of a fork, it raises a `RuntimeError`: open it after the fork, in one process.
    """

    def __init__(self, client: Petstore, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).resolve()
        self._process = os.getpid()
        self._changed = threading.Condition()  # notified when `_state` is replaced
        self._callers_client = client
        self._callers_on_attempt = client._core.on_attempt
        self._client = client.with_options(max_time_seconds=math.inf, on_attempt=self._on_attempt)
        self._client._transport = self._transport = _Transport(client._transport)
        self._clock = client._core.clock
        self._next_build = -math.inf
        self._failures = 0  # attempts that have failed
        self._feed_lag = 0.0  # for how many seconds the feed is held back
        self._file = MirrorFile(self._path, str(client._core.base_url))
        self._state = _State(self._file.position, self._file.current_at)
        self._thread = threading.Thread(target=self._run, name="petstore-mirror", daemon=True)
        self._thread.start()

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        """Returns the rows of a query, which sees the copy as of one moment and cannot change it.

        Before the copy has ever been complete, `pets` is empty: call `wait_until_current` first.
        """
        self._check_process()
        with contextlib.closing(connect(self._path, mode="ro")) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(sql, parameters).fetchall()

    def wait_until_current(self, timeout_seconds: float | None = None) -> None:
        """Waits until the copy is complete and has every change that is in the event feed now.

        Raises a `TimeoutError` after `timeout_seconds`, and the mirror's `error` if it has one.
        """
        self._check_process()
        deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._catches_up(deadline):
            pass

    @property
    def is_current(self) -> bool:
        """Whether the copy has all changes that the service knew at the last request, which succeeded.

        It is false while a long write transaction, such as an import, holds the event feed back.
        """
        self._check_process()
        return self._state.is_current

    @property
    def lag(self) -> float | None:
        """How many seconds ago the copy was last known to be current. None if it has never been complete.

        While nothing changes, the service confirms every 25 seconds that the copy is current.
        """
        self._check_process()
        current_at = self._state.current_at
        return None if current_at is None else max(0.0, time.time() - current_at)

    @property
    def error(self) -> Exception | None:
        """Why the mirror does not continue, such as a missing scope or a full disk. It tries again every 30 seconds.

        None while it continues or waits for the end of an outage.
        """
        self._check_process()
        return self._state.error

    def close(self) -> None:
        """Stops the mirror. The client stays open. In the child of a fork, does nothing."""
        if self._process != os.getpid():
            return
        self._transport.close()
        self._thread.join()
        self._file.close()

    def __enter__(self) -> Mirror:
        self._check_process()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Mirror {str(self._path)!r}>"

    # In the threads of callers

    def _check_process(self) -> None:
        """Raises a `RuntimeError` in the child of a fork.

        There, no thread keeps the copy current. SQLite believes that it still has the locks of the parent, so even a
        new connection could read a row that is being changed, or damage the file.
        """
        if self._process != os.getpid():
            raise RuntimeError(f"The mirror {self._path} belongs to another process. Open it after the fork.")

    def _catches_up(self, deadline: float) -> bool:
        """Waits for the events that are in the feed now. Returns False if a build has ended in the meantime."""
        start = self._wait(lambda state: state.position is not None, deadline)
        try:
            end = start.events + self._count_events(start.position, deadline)
        except CursorExpiredError:
            end = sys.maxsize  # the mirror will build again
        reached = self._wait(lambda state: state.builds != start.builds or state.events >= end, deadline)
        return reached.builds == start.builds

    def _count_events(self, position: str | None, deadline: float) -> int:
        client = self._callers_client.with_options(max_time_seconds=max(deadline - time.monotonic(), 0.001))
        count = 0
        try:
            for page in client.events.list(after=position).pages():
                count += len(page.items)
                if _is_last(page):
                    break
        except (APIConnectionError, RateLimitError, ServiceUnavailableError) as error:
            raise TimeoutError(f"{self._path} may not be current: {error}") from error
        return count

    def _wait(self, condition: Callable[[_State], bool], deadline: float) -> _State:
        timeout = None if deadline == math.inf else deadline - time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._state.error is not None or condition(self._state), timeout)
            state = self._state
        if state.error is not None:
            raise state.error
        if not condition(state):
            raise TimeoutError(f"{self._path} is not current.")
        return state

    # In the thread of the mirror

    def _run(self) -> None:
        while True:
            try:
                if self._state.position is None:
                    self._build()
                self._follow()
            except CursorExpiredError:
                logger.warning("%s: the position in the event feed has expired, building again", self._path)
                self._publish(position=None, is_current=False)
            except ClientClosedError as error:
                self._publish(is_current=False, error=error)
                return
            except Exception as error:
                is_unexpected = not isinstance(error, (PetstoreError, sqlite3.Error))
                message = "%s is not kept current, trying again in %d s: %s"
                logger.error(message, self._path, PAUSE_SECONDS, error, exc_info=is_unexpected)
                self._publish(is_current=False, error=error)
                self._pause(PAUSE_SECONDS)

    def _build(self) -> None:
        self._pause(self._next_build - self._clock())
        try:
            started, count = self._clock(), 0
            position = self._client.events.position()
            self._file.begin_build()
            for listed in self._client.pets.list().pages():
                self._file.build(listed.items)
                count += len(listed.items)
                if count % 100_000 == 0:
                    logger.info("%s: %d pets read", self._path, count)
            for page in self._client.events.list(after=position).pages():
                current_at = time.time() - self._feed_lag
                for changes in _changes(page):
                    self._file.build(self._read(changes), changes.pet_ids)
                    position = changes.position
                if _is_last(page):
                    break
            self._file.end_build(position, current_at)
        finally:
            self._next_build = self._clock() + PAUSE_SECONDS
        logger.info("%s: built from %d pets in %.1f s", self._path, count, self._clock() - started)
        builds = self._state.builds + 1
        is_current = self._feed_lag == 0
        self._publish(position=position, current_at=current_at, is_current=is_current, error=None, builds=builds)

    def _follow(self) -> None:
        logger.info("%s: following the event feed", self._path)
        for page in self._client.events.follow(after=self._state.position).pages():
            lag = self._feed_lag
            known_at = time.time() - lag
            for changes in _changes(page):
                pets, position = self._read(changes), changes.position
                is_end = _is_last(page) and position == page.cursor
                is_current = is_end and lag == 0
                current_at = known_at if is_end else self._state.current_at
                self._file.store(pets, changes.pet_ids, position, current_at)
                events = self._state.events + changes.events
                self._publish(
                    position=position, current_at=current_at, is_current=is_current, error=None, events=events
                )

    def _read(self, changes: _Changes) -> list[Pet]:
        """Reads the pets that have changed.

        If the service was away, it may have been restored from a backup, and these pets do not belong in the copy.
        Then the position has expired.
        """
        failures = self._failures
        pets = self._client.pets.get_many(changes.pet_ids)
        if self._failures != failures:
            next(self._client.events.list(after=changes.position, limit=1).pages(), None)
        return pets

    def _publish(self, **changes: Any) -> None:
        with self._changed:
            self._state = replace(self._state, **changes)
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        """Waits, at most until the mirror is closed."""
        if seconds > 0:
            self._transport.perform(Sleep(seconds))

    def _on_attempt(self, attempt: Attempt) -> None:
        if attempt.error is not None:
            self._failures += 1
            self._publish(is_current=False)
        # Only pages of events have it, and not those of a service before 1.3.0.
        self._feed_lag = float(attempt.headers.get("Petstore-Feed-Lag", self._feed_lag))
        if self._callers_on_attempt is not None:
            self._callers_on_attempt(attempt)


@dataclass(frozen=True)
class _State:
    """What the threads of callers see."""

    position: str | None
    """In the feed. None during a build."""
    current_at: float | None
    is_current: bool = False
    error: Exception | None = None
    builds: int = 0
    events: int = 0
    """How many have been stored, without those of builds."""


class _Changes(NamedTuple):
    """The pets that some events name, the number of these events, and the position after them."""

    pet_ids: list[int]
    events: int
    position: str


def _changes(page: Page[Event]) -> Iterator[_Changes]:
    """Divides a page into parts that are stored in one transaction each."""
    pet_ids: dict[int, None] = {}
    events = 0
    for event in page.items:
        events += 1
        if not event.type_.startswith("order."):  # if the pet changes, too, it has its own event
            pet_ids.update(dict.fromkeys(range(event.pet_id, (event.last_pet_id or event.pet_id) + 1)))
        if len(pet_ids) >= BATCH:
            yield _Changes(list(pet_ids), events, event.id)
            pet_ids, events = {}, 0
    assert page.cursor is not None
    yield _Changes(list(pet_ids), events, page.cursor)


def _is_last(page: Page[Event]) -> bool:
    """Returns whether there were no more events when the service sent the page."""
    return len(page.items) < MAX_LIMIT


class _Transport(Transport):
    """The connections of a client. Closing it ends the waits of the mirror, but leaves the connections open."""

    def __init__(self, original: Transport) -> None:
        super().__init__(original._connections, original._sleep)
        original._closed.add_done_callback(lambda _: self.close())

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(Exception):  # it was closed before
            self._closed.set_result(None)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m petstore_client.mirror",
        description="Keeps a copy of all pets in an SQLite file, until it is stopped. When it is started again, it "
        "continues where it stopped. Set the environment variables PETSTORE_URL and PETSTORE_KEY. The key needs the "
        "scopes pets:read and events:read.",
        epilog="Any number of programs can read the file at the same time, for example: "
        """sqlite3 pets.sqlite "SELECT id, name FROM pets WHERE status = 'available'" """,
    )
    parser.add_argument("file", help="the SQLite file, on a local disk; created if it does not exist")
    file = parser.parse_args().file
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with Petstore() as client, Mirror(client, file) as mirror:
            was_current = False
            while not stopped.wait(0.5):
                was_current |= mirror.is_current
                # An error at the start is probably a wrong setting. Later errors are retried.
                if mirror.error is not None and not was_current:
                    raise mirror.error
    except (ValueError, RuntimeError, PetstoreError, sqlite3.Error) as error:
        sys.exit(f"{file}: {error}")


if __name__ == "__main__":
    main()

"""Tests `Mirror` with a service in memory: through a transport, or as a server if another process keeps the copy.

python -m unittest discover clients/python/tests
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

import petstore_client as sdk
from petstore_client import Mirror, Petstore, _mirror_file

REX = {"id": 1, "name": "Rex", "categoryId": 3}
EXPIRED = httpx.Response(410, json={"code": "cursor_expired", "message": "The position has expired."})
FORBIDDEN = httpx.Response(403, json={"code": "insufficient_scope", "message": "The scope is missing."})
UNAVAILABLE = httpx.Response(503, json={"code": "unavailable", "message": "Try again."})

Request = httpx.Request
Reaction = Callable[[Request], "httpx.Response | None"]


def is_position(request: Request) -> bool:
    return bool(request.url.params.get("after") == "now")


def is_list(request: Request) -> bool:
    return request.url.path == "/v1/pets" and "id" not in request.url.params


def is_read(request: Request) -> bool:
    return request.url.path == "/v1/pets" and "id" in request.url.params


def is_feed(request: Request) -> bool:
    return request.url.path == "/v1/events" and not is_position(request)


class Service:
    """Pets and their events. `react` sees each request first, may change pets, and may respond instead."""

    def __init__(self) -> None:
        self.pets: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.pauses: list[float] = []
        self.react: Reaction = lambda request: None
        self.restored = 0  # how often a backup has been restored
        self.held_back: tuple[int, float] | None = None  # how many events are shown, and how long the next has waited
        self._changed = threading.Condition(threading.RLock())
        self._closed = False

    def put(self, id: int, **fields: Any) -> None:
        with self._changed:
            kind = "pet.updated" if id in self.pets else "pet.created"
            self.pets[id] = {**REX, **self.pets.get(id, {}), "id": id, **fields}
            self.record(kind, id)

    def delete(self, id: int) -> None:
        with self._changed:
            del self.pets[id]
            self.record("pet.deleted", id)

    def record(self, kind: str, id: int, **fields: Any) -> None:
        with self._changed:
            number = len(self.events) + 1
            event = {"id": f"{self.restored}-{number}", "type": kind, "petId": id, "at": "2026-11-15T09:30:00.000Z"}
            self.events.append({**event, **fields})
            self._changed.notify_all()

    def restore(self, pets: dict[int, dict[str, Any]]) -> None:
        """Restores a backup: old positions expire."""
        with self._changed:
            self.pets, self.events, self.restored = dict(pets), [], self.restored + 1
            self._changed.notify_all()

    def hold_back(self, seconds: float) -> None:
        """Shows no later events, as behind a long write transaction."""
        with self._changed:
            self.held_back = len(self.events), seconds
            self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self.held_back = None
            self._changed.notify_all()

    def asked(self, kind: Callable[[Request], bool]) -> list[Request]:
        return [request for request in self.requests if kind(request)]

    def handle(self, request: Request) -> httpx.Response:
        self.requests.append(request)
        reaction = self.react(request)
        if reaction is not None:
            return reaction
        params = request.url.params
        return self._feed(params) if request.url.path == "/v1/events" else self._pets(params)

    def _pets(self, params: httpx.QueryParams) -> httpx.Response:
        with self._changed:
            if "id" in params:
                ids = [int(id) for id in params.get_list("id")]
                assert len(ids) <= 100
                return httpx.Response(200, json=[self.pets[id] for id in sorted(ids) if id in self.pets])
            later = sorted(id for id in self.pets if id > int(params.get("cursor", 0)))
            page = later[: int(params["limit"])]
            link = f'<http://shop.example/v1/pets?cursor={page[-1]}>; rel="next"' if len(page) < len(later) else None
            return httpx.Response(200, json=[self.pets[id] for id in page], headers={"Link": link} if link else {})

    def _feed(self, params: httpx.QueryParams) -> httpx.Response:
        with self._changed:
            after = params["after"]
            restored, start = map(int, after.split("-")) if after != "now" else (self.restored, len(self.events))
            wait = int(params.get("wait", 0))
            if self.held_back is None:
                self._changed.wait_for(
                    lambda: len(self.events) > start or restored != self.restored or self._closed or self.held_back,
                    timeout=wait,
                )
            else:
                self._changed.wait(timeout=0.05)
            if restored != self.restored:
                return EXPIRED
            shown, lag = self.held_back or (len(self.events), 0)
            page = self.events[start : min(shown, start + int(params["limit"]))]
            link = f'<http://shop.example/v1/events?after={restored}-{start + len(page)}>; rel="next"'
            return httpx.Response(200, json=page, headers={"Link": link, "Petstore-Feed-Lag": f"{lag:.3f}"})

    def close(self) -> None:
        """Ends the waits for events."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class WithService(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        directory = self.enter(tempfile.TemporaryDirectory())
        self.path = Path(directory) / "pets.sqlite"
        self.addCleanup(self.service.close)
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> Any:
        result = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return result

    def client(self, **options: Any) -> Petstore:
        transport = httpx.MockTransport(self.service.handle)
        settings: dict[str, Any] = {
            "api_key": "psk_secret",
            "base_url": "http://shop.example",
            "http_client": httpx.Client(transport=transport),
            "sleep": self.service.pauses.append,
        }
        return Petstore(**{**settings, **options})

    @contextlib.contextmanager
    def mirror(self, **options: Any) -> Iterator[Mirror]:
        """Opens a mirror and waits until it is current."""
        with Mirror(self.client(**options), self.path) as mirror:
            mirror.wait_until_current(20)
            yield mirror

    def names(self) -> dict[int, str]:
        return dict(self.execute("SELECT id, name FROM pets"))

    def expected_names(self) -> dict[int, str]:
        return {id: pet["name"] for id, pet in self.service.pets.items()}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Reads or writes the file as another process does."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def eventually(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)


class MirrorTest(WithService):
    # The copy

    def test_the_copy_has_every_field_of_every_pet(self) -> None:
        self.service.put(1)
        metadata = {"price": "129.00", "näme": "Ünï\n🐕"}
        self.service.put(2, name="Tom", categoryId=-(2**63), status="sold", reference="A-1", metadata=metadata)
        with self.mirror() as mirror:
            rows = [tuple(row) for row in mirror.query("SELECT * FROM pets ORDER BY id")]
            assert rows[0] == (1, "Rex", 3, None, None, "{}")
            assert rows[1][:5] == (2, "Tom", -(2**63), "sold", "A-1")
            assert json.loads(rows[1][5]) == metadata
            [row] = mirror.query("SELECT name FROM pets WHERE id = :id", {"id": 2})
            assert row["name"] == "Tom"

    def test_the_copy_has_a_change_when_it_is_current_again(self) -> None:
        for id in range(1, 251):
            self.service.put(id)
        with self.mirror() as mirror:
            self.service.put(7, name="Tom", metadata={"price": "1"})
            self.service.delete(8)
            self.service.put(251, status="available")
            mirror.wait_until_current(20)
            assert self.names() == self.expected_names()
            self.service.put(7, metadata={})
            mirror.wait_until_current(20)
            assert mirror.query("SELECT metadata FROM pets WHERE id = 7")[0]["metadata"] == "{}"
        assert len(self.service.asked(is_list)) == 3

    def test_the_copy_is_not_current_while_the_feed_is_held_back(self) -> None:
        self.service.put(1, status="available")
        with self.mirror() as mirror:
            assert mirror.is_current
            self.service.hold_back(27.0)
            self.service.put(1, status="sold")
            self.eventually(lambda: not mirror.is_current)
            self.eventually(lambda: mirror.lag is not None and 27 <= mirror.lag < 60)
            self.service.release()
            self.eventually(lambda: mirror.is_current)
            assert mirror.lag is not None and mirror.lag < 20
            [row] = mirror.query("SELECT status FROM pets")
            assert row["status"] == "sold"

    def test_a_change_that_is_made_during_the_build_is_in_it(self) -> None:
        for id in range(1, 301):
            self.service.put(id)
        seen: list[tuple[int, str | None]] = []

        def react(request: Request) -> None:
            with contextlib.suppress(sqlite3.OperationalError):  # there is no table yet
                names = self.names()
                seen.append((len(names), names.get(5)))
            if is_list(request) and request.url.params.get("cursor") == "200":
                for id in range(301, 520):
                    self.service.put(id)
                self.service.put(5, name="changed")
                self.service.delete(6)

        self.service.react = react
        with self.mirror():
            assert self.names() == self.expected_names()
            assert self.names()[5] == "changed"
        # Nobody saw a part of it, or anything before the feed was followed past the end of the list.
        assert set(seen) == {(0, None), (len(self.service.pets), "changed")}

    def test_the_position_is_read_before_the_list_and_the_feed_after_it(self) -> None:
        for id in range(1, 201):
            self.service.put(id)
        with self.mirror():
            pass
        kinds = [is_position, is_list, is_list, is_feed]
        assert [kind(request) for kind, request in zip(kinds, self.service.requests)] == [True] * 4

    def test_an_import_is_read_by_ids(self) -> None:
        with self.mirror() as mirror:
            for id in range(1, 4001):
                if id % 2 == 0:
                    self.service.pets[id] = {**REX, "id": id}
            # An event can name pets with gaps.
            with self.service._changed:
                self.service.record("pets.imported", 1, lastPetId=2000)
                self.service.record("pets.imported", 2001, lastPetId=4000)
                self.service.put(4001)
            mirror.wait_until_current(20)
            assert self.names() == self.expected_names()
        assert len(self.service.asked(is_read)) == 41

    def import_pets(self) -> None:
        """Adds 4,001 pets at once. Their events are on one page, whose pets are stored in three parts."""
        with self.service._changed:
            self.service.pets = {id: {**REX, "id": id} for id in range(1, 4002)}
            self.service.record("pets.imported", 1, lastPetId=2000)
            self.service.record("pets.imported", 2001, lastPetId=4000)
            self.service.record("pet.created", 4001)

    def test_an_error_in_the_middle_of_a_large_page_skips_nothing(self) -> None:
        failures = itertools.count()

        def react(request: Request) -> httpx.Response | None:
            return FORBIDDEN if "3500" in request.url.params.get_list("id") and next(failures) == 0 else None

        with self.mirror() as mirror:
            self.service.react = react
            self.import_pets()
            self.eventually(lambda: len(self.service.pauses) > 0)
            self.eventually(lambda: mirror.error is None)
            mirror.wait_until_current(20)
            assert self.names() == self.expected_names()

    def test_waiting_does_not_end_in_the_middle_of_a_large_page(self) -> None:
        waiting, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)

        def react(request: Request) -> None:
            ids = request.url.params.get_list("id")
            if is_feed(request) and "wait" not in request.url.params:
                waiting.set()
            if "2001" in ids:
                waiting.wait(20)
            if "4001" in ids:
                released.wait(20)

        with self.mirror() as mirror:
            self.service.react = react
            self.import_pets()
            self.eventually(lambda: len(self.names()) == 2000)
            with self.assertRaises(TimeoutError):
                mirror.wait_until_current(0.3)
            released.set()
            mirror.wait_until_current(20)
            assert self.names() == self.expected_names()

    def test_the_pets_of_a_page_are_read_once_and_those_of_orders_not_at_all(self) -> None:
        self.service.put(1)
        with self.mirror() as mirror:
            with self.service._changed:
                for _ in range(30):
                    self.service.put(1, name="Tom")
                    self.service.record("order.placed", 2, orderId=1)
                self.service.record("pet.groomed", 3)  # a type that is added later
            mirror.wait_until_current(20)
            assert self.names() == {1: "Tom"}
        [request] = self.service.asked(is_read)
        assert request.url.params.get_list("id") == ["1", "3"]

    # Position and rows

    def test_a_restart_continues_without_a_build(self) -> None:
        for id in range(1, 131):
            self.service.put(id)
        with self.mirror():
            pass
        self.service.put(131)
        self.service.delete(1)
        self.service.requests.clear()
        with self.mirror() as mirror:
            assert self.names() == self.expected_names()
            assert mirror.is_current
        assert self.service.asked(is_list) == self.service.asked(is_position) == []

    def test_pets_are_not_stored_without_the_position(self) -> None:
        with self.mirror() as mirror:
            self.execute("CREATE TRIGGER no BEFORE UPDATE ON petstore_mirror BEGIN SELECT RAISE(ABORT, 'full'); END")
            self.service.put(1)
            self.eventually(lambda: mirror.error is not None)
            assert self.names() == {}
            self.execute("DROP TRIGGER no")
            self.eventually(lambda: mirror.error is None)
            assert self.names() == {1: "Rex"}

    def test_the_position_is_not_stored_without_the_pets(self) -> None:
        with self.mirror() as mirror:
            [before] = self.execute("SELECT position FROM petstore_mirror")
            self.execute("CREATE TRIGGER no BEFORE INSERT ON pets BEGIN SELECT RAISE(ABORT, 'full'); END")
            self.service.put(1)
            self.eventually(lambda: mirror.error is not None)
            assert self.execute("SELECT position FROM petstore_mirror") == [before]
            self.execute("DROP TRIGGER no")
            self.eventually(lambda: mirror.error is None)
            assert self.names() == {1: "Rex"}

    def test_a_build_that_did_not_end_leaves_nothing(self) -> None:
        for id in range(1, 301):
            self.service.put(id)
        self.service.react = lambda request: FORBIDDEN if request.url.params.get("cursor") == "200" else None
        with Mirror(self.client(), self.path) as mirror:
            self.eventually(lambda: mirror.error is not None)
            assert (mirror.lag, mirror.is_current, self.names()) == (None, False, {})
        assert self.execute("SELECT count(*) FROM sqlite_master") == [(2,)]
        self.service.react = lambda request: None
        self.service.delete(1)
        with self.mirror():
            assert self.names() == self.expected_names()

    # Rebuilds

    OBJECTS = """
        CREATE INDEX by_name ON pets (name);
        CREATE VIEW sold AS SELECT id FROM pets WHERE status = 'sold';
        CREATE TABLE log (what);
        CREATE TRIGGER added AFTER INSERT ON pets BEGIN INSERT INTO log VALUES ('+' || NEW.id); END;
        CREATE TRIGGER changed AFTER UPDATE ON pets BEGIN INSERT INTO log VALUES ('~' || NEW.id); END;
        CREATE TRIGGER gone AFTER DELETE ON pets BEGIN INSERT INTO log VALUES ('-' || OLD.id); END;
    """

    def test_a_rebuild_changes_only_what_differs_and_keeps_what_others_have_created(self) -> None:
        for id in range(1, 151):
            self.service.put(id, reference=None)
        backup = dict(self.service.pets)
        with self.mirror() as mirror:
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                connection.executescript(self.OBJECTS)
            backup[3] = {**backup[3], "status": "sold"}
            del backup[4]
            backup[200] = {**REX, "id": 200}
            self.service.restore(backup)
            mirror.wait_until_current(20)
            assert self.names() == self.expected_names()
            assert self.execute("SELECT id FROM sold") == [(3,)]
            assert self.execute("SELECT what FROM log ORDER BY what") == [("+200",), ("-4",), ("~3",)]
            objects = self.execute("SELECT name FROM sqlite_master WHERE name IN ('by_name', 'sold', 'added', 'gone')")
            assert len(objects) == 4
            # The mirror follows the new feed.
            self.service.put(5, name="Tom")
            mirror.wait_until_current(20)
            assert self.names()[5] == "Tom"
        assert len(self.service.asked(is_position)) == 2

    def test_during_a_rebuild_the_old_copy_is_shown(self) -> None:
        for id in range(1, 151):
            self.service.put(id)
        with self.mirror() as mirror:
            old = self.names()
            seen: list[tuple[bool, dict[int, str], bool]] = []
            self.service.react = lambda request: seen.append(
                (is_list(request), self.names(), mirror.is_current or mirror.lag is None)
            )
            self.service.restore({id: {**REX, "id": id, "name": "Tom"} for id in range(100, 300)})
            self.eventually(lambda: len(self.names()) == 200)
            assert [(names, wrong) for is_list, names, wrong in seen if is_list] == [(old, False)] * 2

    def test_pets_of_a_restored_service_are_not_mixed_into_the_old_copy(self) -> None:
        self.service.put(1)
        self.service.put(2)
        seen: list[dict[int, str]] = []

        def react(request: Request) -> httpx.Response | None:
            if is_read(request) and not self.service.restored:
                self.service.restore({1: {**REX, "name": "Old"}})
                return UNAVAILABLE
            seen.append(self.names())
            return None

        with self.mirror():
            self.service.react = react
            self.service.put(1, name="New")
            self.eventually(lambda: self.names() == {1: "Old"})
        assert {1: "Old", 2: "Rex"} not in seen

    def test_there_is_a_pause_between_rebuilds(self) -> None:
        self.service.put(1)
        expirations = itertools.count()

        def react(request: Request) -> httpx.Response | None:
            return EXPIRED if is_feed(request) and next(expirations) < 12 else None

        self.service.react = react
        with Mirror(self.client(clock=lambda: 1000.0), self.path) as mirror:
            self.eventually(lambda: mirror.is_current)
        assert self.service.pauses[:10] == [30.0] * 10
        assert len(self.service.asked(is_position)) == len(self.service.pauses) + 1

    # Failures

    def test_an_outage_is_retried_until_it_ends(self) -> None:
        self.service.put(1)
        with self.mirror(max_time_seconds=0) as mirror:
            self.service.react = lambda request: UNAVAILABLE
            self.service.put(2)
            self.eventually(lambda: len(self.service.pauses) > 50)
            assert (mirror.is_current, mirror.error, self.names()) == (False, None, {1: "Rex"})
            lag = mirror.lag
            assert lag is not None
            self.eventually(lambda: (mirror.lag or 0) > lag)
            with self.assertRaises(TimeoutError):
                mirror.wait_until_current(0.1)
            self.service.react = lambda request: None
            mirror.wait_until_current(20)
            assert self.names() == {1: "Rex", 2: "Rex"}
            assert mirror.is_current

    def test_an_outage_during_the_build_is_retried_until_it_ends(self) -> None:
        for id in range(1, 301):
            self.service.put(id)
        failures = itertools.count()
        self.service.react = lambda request: UNAVAILABLE if next(failures) % 20 else None
        with self.mirror(max_time_seconds=5):
            assert self.names() == self.expected_names()
        assert len(self.service.asked(is_position)) == 1

    def test_an_error_that_retries_do_not_heal_is_reported(self) -> None:
        self.service.put(1)
        self.service.react = lambda request: FORBIDDEN if request.url.path == "/v1/events" else None
        healed = threading.Event()

        def sleep(seconds: float) -> None:
            self.service.pauses.append(seconds)
            healed.wait(20)

        with Mirror(self.client(sleep=sleep), self.path) as mirror:
            with self.assertRaises(sdk.PermissionDeniedError):
                mirror.wait_until_current(20)
            assert isinstance(mirror.error, sdk.PermissionDeniedError)
            assert mirror.lag is None
            self.service.react = lambda request: None  # the key gets the scope
            assert self.service.pauses == [30.0]
            healed.set()
            self.eventually(lambda: mirror.error is None)
            mirror.wait_until_current(20)
            assert self.names() == {1: "Rex"}

    def test_waiting_ends_after_its_time(self) -> None:
        self.service.react = lambda request: UNAVAILABLE if is_list(request) else None
        with Mirror(self.client(), self.path) as mirror, self.assertRaises(TimeoutError):
            mirror.wait_until_current(0.05)

    # Threads and processes

    def test_closing_the_mirror_ends_its_wait_and_leaves_the_client_open(self) -> None:
        client = self.client()
        with Mirror(client, self.path) as mirror:
            mirror.wait_until_current(20)
            self.eventually(lambda: len(self.service.asked(is_feed)) >= 2)
        assert not mirror.is_current
        with self.assertRaises(sdk.ClientClosedError):
            mirror.wait_until_current()
        assert list(client.pets.list()) == []

    def test_closing_the_client_stops_the_mirror(self) -> None:
        client = self.client()
        with Mirror(client, self.path) as mirror:
            mirror.wait_until_current(20)
            client.close()
            self.eventually(lambda: isinstance(mirror.error, sdk.ClientClosedError))

    def test_a_second_writer_is_refused(self) -> None:
        link = self.path.with_name("link.sqlite")
        with self.mirror() as mirror:
            link.symlink_to(self.path)
            for path in (self.path, link):
                with self.assertRaisesRegex(RuntimeError, "Another mirror keeps .*pets.sqlite current"):
                    Mirror(self.client(), path)
            self.service.put(1)
            mirror.wait_until_current(20)
            assert self.names() == {1: "Rex"}
        with self.mirror():
            pass

    def test_a_file_of_something_else_is_refused_and_left_alone(self) -> None:
        with self.mirror():
            pass
        content = self.path.read_bytes()
        with self.assertRaisesRegex(ValueError, "copy of http://shop.example/v1, not of http://other.example/v1"):
            Mirror(self.client(base_url="http://other.example"), self.path)
        assert self.path.read_bytes() == content
        self.execute("UPDATE petstore_mirror SET format = 2")
        with self.assertRaisesRegex(ValueError, "has the format 2. This version of petstore_client needs 1"):
            Mirror(self.client(), self.path)
        self.execute("DROP TABLE petstore_mirror")
        with self.assertRaisesRegex(ValueError, "is not a mirror, but has a table `pets`"):
            Mirror(self.client(), self.path)
        self.path.write_text("Pets: none")
        for wrong in (self.path, self.path / "missing" / "pets.sqlite"):
            with self.assertRaises(sqlite3.Error):
                Mirror(self.client(), wrong)
        assert self.path.read_text() == "Pets: none"

    def test_an_sqlite_that_is_too_old_is_refused(self) -> None:
        with mock.patch("sqlite3.sqlite_version_info", (3, 23, 1)), self.assertRaisesRegex(RuntimeError, "3.24.0"):
            Mirror(self.client(), self.path)
        assert not self.path.exists()

    def test_a_query_cannot_write(self) -> None:
        with self.mirror() as mirror, self.assertRaisesRegex(sqlite3.OperationalError, "readonly"):
            mirror.query("DELETE FROM pets")

    def test_many_threads_can_query_while_pets_change(self) -> None:
        """Each query sees whole transactions: two pets that are always changed together have the same name."""
        with self.mirror() as mirror:
            for name in ("a", "b"):
                self.service.put(1, name=name)
                self.service.put(2, name=name)
            mirror.wait_until_current(20)
            wrong: list[Any] = []
            stop = threading.Event()

            def read() -> None:
                while not stop.is_set():
                    rows = mirror.query("SELECT name FROM pets")
                    if len({row["name"] for row in rows}) != 1:
                        wrong.append(rows)

            threads = [threading.Thread(target=read) for _ in range(8)]
            for thread in threads:
                thread.start()
            for number in range(100):
                with self.service._changed:
                    self.service.put(1, name=str(number))
                    self.service.put(2, name=str(number))
                mirror.wait_until_current(20)
            stop.set()
            for thread in threads:
                thread.join()
            assert wrong == []

    def test_a_reader_that_never_ends_does_not_block_the_writer(self) -> None:
        with self.mirror() as mirror, contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM pets").fetchone() == (0,)
            with mock.patch.object(_mirror_file, "LARGE_WAL_BYTES", 0):
                for id in range(1, 11):
                    self.service.put(id)
                    mirror.wait_until_current(20)
            assert len(self.names()) == 10
            assert reader.execute("SELECT count(*) FROM pets").fetchone() == (0,)

    def test_readers_that_overlap_do_not_let_the_file_grow(self) -> None:
        limit = 100_000
        patches: list[Any] = [
            mock.patch.object(_mirror_file, "LARGE_WAL_BYTES", limit),
            mock.patch.object(_mirror_file, "CHECKPOINT_INTERVAL_SECONDS", 0.0),
            mock.patch.object(_mirror_file, "CHECKPOINT_BUSY_SECONDS", 20.0),
        ]
        for patch in patches:
            self.enter(patch)
        stop = threading.Event()
        turns = [threading.Semaphore(1), threading.Semaphore(0)]

        def read(own: threading.Semaphore, other: threading.Semaphore) -> None:
            """Begins to read before the other reader ends."""
            with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as reader:
                while not stop.is_set():
                    own.acquire()
                    reader.execute("BEGIN")
                    reader.execute("SELECT count(*) FROM pets").fetchone()
                    other.release()
                    own.acquire()
                    reader.execute("COMMIT")
                    other.release()

        with self.mirror() as mirror:
            sizes = []
            threads = [threading.Thread(target=read, args=[turns[n], turns[1 - n]], daemon=True) for n in (0, 1)]
            for thread in threads:
                thread.start()
            for number in range(150):
                self.service.put(1, name=f"{number:0200}")
                mirror.wait_until_current(20)
                sizes.append(os.path.getsize(f"{self.path}-wal"))
            stop.set()
            for turn in turns * 4:
                turn.release()
            for thread in threads:
                thread.join(20)
        assert max(sizes) < 2 * limit, max(sizes)


class ProgramTest(WithService):
    """The program, with the service as a server."""

    def setUp(self) -> None:
        super().setUp()
        service = self.service

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                response = service.handle(Request("GET", f"http://shop.example{self.path}"))
                with contextlib.suppress(OSError):  # the client was killed
                    self.send_response(response.status_code)
                    self.send_header("Content-Length", str(len(response.content)))
                    for name in ("Link", "Content-Type"):
                        if name in response.headers:
                            self.send_header(name, response.headers[name])
                    self.end_headers()
                    self.wfile.write(response.content)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        self.environment = {
            "PYTHONPATH": str(Path(sdk.__file__).parents[1]),
            "PETSTORE_URL": f"http://127.0.0.1:{server.server_port}",
            "PETSTORE_KEY": "psk_secret",
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-B", "-m", "petstore_client.mirror", *arguments],
            env={**os.environ, **self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        return program

    def fails(self, *arguments: str, **environment: str) -> str:
        program = self.start(*arguments, **environment)
        output, _ = program.communicate(timeout=20)
        assert program.returncode == 1, output
        assert "Traceback" not in output
        return output

    def is_copied(self) -> bool:
        with contextlib.suppress(sqlite3.OperationalError):  # there is no table yet
            return self.names() == self.expected_names()
        return False

    def test_the_program_keeps_a_copy_until_it_is_stopped(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.service.put(1, name=f"Rex {number}")
            program = self.start(str(self.path))
            self.eventually(self.is_copied)
            self.service.put(2, name=f"Tom {number}")
            self.eventually(self.is_copied)
            program.send_signal(number)
            output, _ = program.communicate(timeout=20)
            assert program.returncode == 0, output
            assert "GET" not in output
        assert len(self.service.asked(is_list)) == 1

    def test_a_killed_program_continues_where_it_was(self) -> None:
        for id in range(1, 150):
            self.service.put(id)
        for number in range(5):
            program = self.start(str(self.path))
            self.service.put(number + 1, name=f"changed {number}")
            self.service.delete(149 - number)
            self.eventually(self.is_copied)
            program.kill()
            program.wait()
        assert len(self.service.asked(is_list)) == 2

    def test_wrong_settings_are_explained(self) -> None:
        path = str(self.path)
        assert "PETSTORE_URL" in self.fails(path, PETSTORE_URL="")
        assert "PETSTORE_KEY" in self.fails(path, PETSTORE_KEY="")
        self.service.react = lambda request: FORBIDDEN
        assert "The scope is missing. (insufficient_scope, status 403" in self.fails(path)
        self.service.react = lambda request: None
        with Mirror(self.client(base_url=self.environment["PETSTORE_URL"]), path):
            assert "Another mirror keeps" in self.fails(path)
        assert "unable to open" in self.fails(str(self.path.parent / "missing" / "pets.sqlite"))

    def test_the_help_says_what_the_program_needs(self) -> None:
        output, _ = self.start("--help").communicate(timeout=20)
        for text in ("PETSTORE_URL", "PETSTORE_KEY", "pets:read", "events:read", "continues where it stopped"):
            assert text in output, output


if __name__ == "__main__":
    unittest.main()

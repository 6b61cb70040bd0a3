"""Tests that every answer belongs to its request: after a fork, in several event loops, and if a client is closed.

They use real processes and sockets.

python -m unittest discover clients/python/tests
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import http.server
import json
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

import petstore_client as sdk

Work = Callable[[], Any]


class Service:
    """Answers an order with the pet that was asked for, after a moment, so that concurrent calls overlap.

    `seen` has the port of the client's end, the process that has sent the request, and the path, of each request.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str]] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                time.sleep(0.01)
                times = dict.fromkeys(("createdAt", "updatedAt"), "2026-11-15T09:30:00.000Z")
                self.answer({"id": asked["petId"], "petId": asked["petId"], "status": "placed", **times})

            def do_GET(self) -> None:
                waits = "wait=" in self.path
                if waits:
                    service.waiting.release()
                    service.closed.wait(60)
                self.answer([{"id": 1, "name": "Rex", "categoryId": 3}] if "/pets" in self.path else [])

            def answer(self, body: Any) -> None:
                service.seen.append((self.client_address[1], self.headers["X-Process"], self.path))
                content = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                if self.path.startswith("/v1/events"):
                    self.send_header("Link", '</v1/events?after=A>; rel="next"')
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.waiting = threading.Semaphore(0)  # counts the requests that wait for events
        self.closed = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client has closed its connection
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def ports_of(self, process: str) -> set[int]:
        return {port for port, sender, _ in self.seen if sender == process}


class WithService(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        # A fork of a process with threads, and connections of an event loop that is closed, are what this is about.
        silence = warnings.catch_warnings()
        silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)
        self.addCleanup(gc.collect)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", ResourceWarning)

    def client(self, **options: Any) -> sdk.Petstore:
        shop = sdk.Petstore(api_key="psk_secret", base_url=self.service.address, **options)
        self.addCleanup(shop.close)
        return shop

    def async_client(self, **options: Any) -> sdk.AsyncPetstore:
        return sdk.AsyncPetstore(api_key="psk_secret", base_url=self.service.address, **options)

    @contextlib.contextmanager
    def follower(self, shop: sdk.Petstore) -> Iterator[None]:
        """Waits for events in another thread until the client is closed."""

        def follow() -> None:
            with contextlib.suppress(sdk.ClientClosedError):
                next(shop.events.follow(after="A", headers={"X-Process": "follower"}))

        thread = threading.Thread(target=follow)
        thread.start()
        assert self.service.waiting.acquire(timeout=20)
        try:
            yield
        finally:
            shop.close()
            thread.join()


def started(work: Work) -> Work:
    """Runs the work in a child of a fork. Returns what waits for its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a lock that the fork has copied must not hang the tests
        try:
            result = pickle.dumps((work(), None))
        except BaseException:
            result = pickle.dumps((None, traceback.format_exc()))
        os.write(writer, result)
        os._exit(0)
    os.close(writer)

    def wait() -> Any:
        with open(reader, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        assert answer, "the child has hung"
        result, problem = pickle.loads(answer)
        assert problem is None, problem
        return result

    return wait


def in_child(work: Work) -> Any:
    return started(work)()


def place(shop: sdk.Petstore, process: str, first: int = 1, count: int = 1) -> None:
    for pet_id in range(first, first + count):
        assert shop.orders.place(pet_id=pet_id, headers={"X-Process": process}).pet_id == pet_id


async def place_async(shop: sdk.AsyncPetstore, process: str, first: int = 1, count: int = 1) -> None:
    for pet_id in range(first, first + count):
        assert (await shop.orders.place(pet_id=pet_id, headers={"X-Process": process})).pet_id == pet_id


@unittest.skipUnless(hasattr(os, "fork"), "needs os.fork")
class ForkTest(WithService):
    def test_every_answer_belongs_to_its_request_after_a_fork(self) -> None:
        original = self.client()
        place(original, "parent 0")  # its connection is open now
        for case, used in enumerate([original, original.with_options(timeout_seconds=5)]):
            children = [
                started(functools.partial(place, used, f"child {case} {child}", 1000 * child, 20)) for child in (1, 2)
            ]
            place(used, "parent 0", 3000, 20)
            for wait in children:
                wait()
        senders: dict[int, set[str]] = {}
        for port, process, _ in self.service.seen:
            senders.setdefault(port, set()).add(process)
        assert len(senders) == 5
        assert all(len(processes) == 1 for processes in senders.values()), senders

    def test_an_iterator_can_be_continued_on_both_sides_of_a_fork(self) -> None:
        shop = self.client()
        pets = shop.pets.list(headers={"X-Process": "shared"})
        assert [pet.id for pet in pets] == [1]
        more = shop.pets.list(headers={"X-Process": "shared"})
        assert in_child(lambda: [pet.id for pet in more]) == [1]
        assert [pet.id for pet in more] == [1]
        assert len(self.service.ports_of("shared")) == 2

    def test_the_connections_of_the_parent_outlive_the_child(self) -> None:
        shop = self.client()
        place(shop, "parent")

        def use_and_close() -> None:
            place(shop, "child")
            shop.close()
            gc.collect()
            with self.assertRaises(sdk.ClientClosedError):
                place(shop, "child")

        in_child(use_and_close)
        in_child(shop.close)
        place(shop, "parent")
        assert len(self.service.ports_of("parent")) == 1

    def test_a_client_that_was_closed_before_the_fork_is_closed(self) -> None:
        shop = self.client()
        place(shop, "parent")
        shop.close()

        def place_after_close() -> None:
            with self.assertRaises(sdk.ClientClosedError):
                place(shop, "child")

        in_child(place_after_close)

    def test_a_child_needs_nothing_that_a_thread_of_the_parent_holds(self) -> None:
        shop = self.client()

        def use_and_close() -> None:
            place(shop, "child")
            shop.close()

        with self.follower(shop):
            for _ in range(10):
                in_child(use_and_close)
            place(shop, "parent")  # the parent is not closed

    def test_a_child_can_follow_and_close(self) -> None:
        shop = self.client()
        place(shop, "parent")

        def follow_and_close() -> None:
            threading.Timer(0.2, shop.close).start()
            with self.assertRaises(sdk.ClientClosedError):
                next(shop.events.follow(after="A"))

        in_child(follow_and_close)

    def test_a_fork_before_the_first_call_is_always_possible(self) -> None:
        for options in ({}, {"http_client": httpx.Client()}):
            shop = self.client(**options)
            children = [started(functools.partial(place, shop, f"child {child}", 9 * child, 5)) for child in (1, 2)]
            place(shop, "parent", 30, 5)
            for wait in children:
                wait()

    def test_an_http_client_of_the_caller_is_refused_in_a_child_before_anything_is_sent(self) -> None:
        http = httpx.Client()
        used, other = self.client(http_client=http), self.client(http_client=http)
        place(used, "parent")

        def refused() -> Any:
            used.close()  # closes nothing of the parent
            found = []
            for shop in (self.client(http_client=http), other):
                try:
                    place(shop, "child")
                except sdk.PetstoreError as error:
                    found.append(error)
            return found

        first, second = in_child(refused)
        for error in (first, second):
            assert (type(error), error.code, error.outcome_unknown) == (sdk.ClientMovedError, "client_moved", False)
            assert "after the fork" in error.message
        assert self.service.ports_of("child") == set()
        place(used, "parent")
        assert len(self.service.ports_of("parent")) == 1

    def test_a_client_for_asyncio_can_be_used_in_a_child(self) -> None:
        shop = self.async_client()

        def run(process: str, first: int = 1, count: int = 1) -> None:
            asyncio.run(place_async(shop, process, first, count))

        run("parent")
        children = [started(functools.partial(run, f"child {child}", 9 * child, 5)) for child in (1, 2)]
        run("parent", 30, 5)
        for wait in children:
            wait()
        assert not self.service.ports_of("child 1") & self.service.ports_of("child 2")

    def test_a_mirror_is_refused_in_a_child_and_goes_on_in_the_parent(self) -> None:
        def use(mirror: sdk.Mirror) -> list[str]:
            uses: list[Work] = [
                lambda: mirror.query("SELECT 1"),
                lambda: mirror.wait_until_current(1),
                lambda: mirror.is_current,
                lambda: mirror.lag,
                lambda: mirror.error,
                mirror.__enter__,
            ]
            problems = []
            for work in uses:
                try:
                    work()
                except RuntimeError as error:
                    problems.append(str(error))
            mirror.close()  # leaves the parent's file alone
            return problems

        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "pets.sqlite"
            with sdk.Mirror(self.client(), path) as mirror:
                problems = in_child(lambda: use(mirror))
                assert len(problems) == 6
                assert all("after the fork" in problem for problem in problems), problems
                # The parent still has the file and its lock.
                assert mirror.query("SELECT count(*) FROM pets")[0][0] in (0, 1)
                with self.assertRaisesRegex(RuntimeError, "Another mirror"):
                    sdk.Mirror(self.client(), path)


class LoopTest(WithService):
    def test_a_client_can_be_used_in_one_event_loop_after_the_other(self) -> None:
        shop = self.async_client()
        for loop in range(3):
            asyncio.run(place_async(shop, str(loop), 10 * loop + 1, 3))
        asyncio.run(shop.close())
        assert len({port for port, _, _ in self.service.seen}) == 3
        assert len(self.service.seen) == 9
        with self.assertRaises(sdk.ClientClosedError):
            asyncio.run(place_async(shop, "late"))

    def test_a_client_keeps_no_connection_of_a_loop_that_is_closed(self) -> None:
        shop = self.async_client()
        loops = []

        async def use() -> None:
            await place_async(shop, "0")
            loops.append(asyncio.get_running_loop())

        for _ in range(5):
            asyncio.run(use())
        assert [place[1] for place in shop._transport._connections.places()] == loops[-1:]

    def test_a_client_can_be_used_in_event_loops_of_several_threads(self) -> None:
        shop = self.async_client()
        failures: list[BaseException] = []

        def run(number: int) -> None:
            try:
                asyncio.run(place_async(shop, str(number), 100 * number, 20))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=[number]) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        ports = [self.service.ports_of(str(number)) for number in range(1, 5)]
        assert [len(some) for some in ports] == [1, 1, 1, 1]

    def test_closing_a_client_ends_the_waits_in_all_event_loops(self) -> None:
        shop = self.async_client()
        ended: list[str] = []

        async def follow() -> None:
            try:
                await shop.events.follow(after="A").__anext__()
            except sdk.ClientClosedError as error:
                ended.append(error.code)

        thread = threading.Thread(target=lambda: asyncio.run(follow()))
        thread.start()
        assert self.service.waiting.acquire(timeout=20)
        asyncio.run(place_async(shop, "0"))
        asyncio.run(shop.close())
        thread.join(20)
        assert ended == ["client_closed"]

    def test_an_http_client_of_the_caller_is_refused_in_a_second_loop_before_anything_is_sent(self) -> None:
        shop = self.async_client(http_client=httpx.AsyncClient())
        asyncio.run(place_async(shop, "first"))
        with self.assertRaises(sdk.ClientMovedError) as raised:
            asyncio.run(place_async(shop, "second"))
        assert (raised.exception.code, raised.exception.outcome_unknown) == ("client_moved", False)
        assert "in each event loop" in raised.exception.message
        copy = pickle.loads(pickle.dumps(raised.exception))
        assert (type(copy), vars(copy)) == (type(raised.exception), vars(raised.exception))
        assert [process for _, process, _ in self.service.seen] == ["first"]


class ClosedTest(WithService):
    def test_an_http_client_that_its_owner_has_closed_is_a_closed_client(self) -> None:
        http = httpx.Client()
        shop = self.client(http_client=http)
        http.close()
        with self.assertRaises(sdk.ClientClosedError):
            place(shop, "0")

        async def run() -> None:
            http = httpx.AsyncClient()
            shop = self.async_client(http_client=http)
            await http.aclose()
            with self.assertRaises(sdk.ClientClosedError):
                await place_async(shop, "0")

        asyncio.run(run())

    def test_a_call_that_is_interrupted_by_closing_has_an_unknown_outcome(self) -> None:
        def interrupted(_: httpx.Request) -> httpx.Response:
            own.close()
            raise RuntimeError("as httpx raises it in such a case")

        own = httpx.Client(transport=httpx.MockTransport(interrupted))
        with self.assertRaises(sdk.ClientClosedError) as raised:
            place(self.client(http_client=own), "0")
        assert raised.exception.outcome_unknown

    def test_a_call_of_asyncio_that_is_interrupted_by_closing_has_an_unknown_outcome(self) -> None:
        async def interrupted(_: httpx.Request) -> httpx.Response:
            await own.aclose()
            raise RuntimeError("as httpx raises it in such a case")

        own = httpx.AsyncClient(transport=httpx.MockTransport(interrupted))
        with self.assertRaises(sdk.ClientClosedError) as raised:
            asyncio.run(place_async(self.async_client(http_client=own), "0"))
        assert raised.exception.outcome_unknown

    def test_closing_a_client_during_calls_raises_nothing_but_errors_of_the_sdk(self) -> None:
        failures: list[BaseException] = []

        def run(shop: sdk.Petstore) -> None:
            try:
                place(shop, "0", 1, 10_000)
            except BaseException as error:
                failures.append(error)

        for _ in range(10):
            shop = self.client()
            threads = [threading.Thread(target=run, args=[shop]) for _ in range(8)]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            shop.close()
            for thread in threads:
                thread.join()
        assert {type(error) for error in failures} == {sdk.ClientClosedError}, failures

    def test_closing_a_client_for_asyncio_during_calls_raises_nothing_but_errors_of_the_sdk(self) -> None:
        async def run() -> list[Any]:
            shop = self.async_client()
            calls = [asyncio.ensure_future(place_async(shop, "0", 1, 10_000)) for _ in range(8)]
            await asyncio.sleep(0.05)
            await shop.close()
            return await asyncio.gather(*calls, return_exceptions=True)

        for _ in range(10):
            assert {type(error) for error in asyncio.run(run())} == {sdk.ClientClosedError}


if __name__ == "__main__":
    unittest.main()

"""How the two clients send requests and wait, `Petstore` with threads and `AsyncPetstore` with tasks.

Only this differs between them: everything else of `Petstore` is generated from `AsyncPetstore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import Any, Generic, Tuple, TypeVar

import httpx

from ._core import Outcome, Send, Sleep, checked_function
from .errors import ClientClosedError, ClientMovedError

T = TypeVar("T")
Place = TypeVar("Place", bound=Hashable)
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
ProcessAndLoop = Tuple[int, asyncio.AbstractEventLoop]


# Where an HTTP client was used first. Several clients can share one of the caller's.
_first_place: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()


class Connections(Generic[Place, Http]):
    """The HTTP clients of a client, one for each place: a process, or an event loop of a process.

    A connection works only where it was opened. After a fork, parent and child would get each other's answers. So each
    place has its own connections. Those of another place are neither used nor closed: to close a connection of the
    parent with TLS would end it for the parent, too.

    There is no lock, because a fork can copy a lock that another thread holds.
    """

    def __init__(self, http: Http | None, new: type[Http]) -> None:
        if http is not None and not isinstance(http, new):
            raise TypeError(
                f"`http_client` must be an httpx.{new.__name__}, not a value of type {type(http).__name__}."
            )
        self._new: type[Http] | None = None if http is not None else new
        self._first: Http = http if http is not None else new()  # invalid settings are reported at once
        self._by_place: dict[Place, Http] = {}

    def at(self, place: Place) -> Http | None:
        """Returns the HTTP client for this place. None if it is the caller's own, and has been used at another one."""
        http = self._by_place.get(place)
        if http is not None:
            return http
        if _first_place.setdefault(self._first, place) == place:
            http = self._first
        elif self._new is not None:
            http = self._new()
        else:
            return None
        return self._by_place.setdefault(place, http)

    def places(self) -> list[Place]:
        return list(self._by_place)

    def forget(self, place: Place) -> None:
        self._by_place.pop(place, None)


class Transport:
    """Performs the steps of calls in the threads of their callers. Any thread can close it, which ends all waits.

    Each process of a fork closes it for itself.
    """

    def __init__(self, connections: Connections[int, httpx.Client], sleep: Callable[[float], None] | None) -> None:
        self._connections, self._sleep = connections, checked_function("sleep", sleep, optional=True)
        self._is_closed = False
        self._closed_in: dict[int, Future[None]] = {}

    @property
    def _closed(self) -> Future[None]:
        """Ends the waits in this process. A fork can copy a future whose lock another thread holds."""
        return self._closed_in.setdefault(os.getpid(), Future())

    def perform(self, step: Sleep | Send) -> Outcome:
        if isinstance(step, Sleep):
            if self._sleep is not None:
                self._sleep(step.seconds)
            else:
                wait([self._closed], step.seconds)
            return None
        http = self._connections.at(os.getpid())
        if http is None:
            return ClientMovedError()
        if self._is_closed or http.is_closed:
            return ClientClosedError()
        try:
            return self._send_and_wait(http, step) if step.waits else http.request(**step.arguments)
        except httpx.RequestError as error:
            return error
        except Exception as error:
            return _outcome_of_close(http, error)

    def _send_and_wait(self, http: httpx.Client, step: Send) -> httpx.Response | ClientClosedError:
        """Sends a request in a thread: nothing else can end the wait for a response when the client is closed."""
        response: Future[Any] = Future()

        def send() -> None:
            try:
                response.set_result(http.request(**step.arguments))
            except BaseException as error:
                response.set_exception(error)

        threading.Thread(target=contextvars.copy_context().run, args=[send], daemon=True).start()
        wait([response, self._closed], return_when=FIRST_COMPLETED)
        if not response.done():
            return ClientClosedError()
        result: httpx.Response = response.result()
        return result

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(InvalidStateError):  # it was closed before
            self._closed.set_result(None)
        http = self._connections.at(os.getpid())
        if http is not None:
            http.close()


class AsyncTransport:
    """Performs the steps of calls in the tasks of their callers. Any task can close it, which ends all waits."""

    def __init__(
        self,
        connections: Connections[ProcessAndLoop, httpx.AsyncClient],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._connections, self._sleep = connections, checked_function("sleep", sleep, optional=False)
        self._is_closed = False
        self._waits: dict[asyncio.Future[Any], ProcessAndLoop] = {}

    async def perform(self, step: Sleep | Send) -> Outcome:
        if isinstance(step, Sleep):
            await self._unless_closed(self._sleep(step.seconds))
            return None
        http = self._http()
        if http is None:
            return ClientMovedError()
        if self._is_closed or http.is_closed:
            return ClientClosedError()
        try:
            if not step.waits:
                return await http.request(**step.arguments)
            response = await self._unless_closed(http.request(**step.arguments))
            return ClientClosedError() if response is None else response
        except httpx.RequestError as error:
            return error
        except Exception as error:
            return _outcome_of_close(http, error)

    def _http(self) -> httpx.AsyncClient | None:
        """Returns the HTTP client for this event loop, and forgets those of loops that are closed."""
        here = _process_and_loop()
        for process, loop in self._connections.places():
            if process == here[0] and loop.is_closed():
                self._connections.forget((process, loop))
        return self._connections.at(here)

    async def _unless_closed(self, work: Awaitable[T]) -> T | None:
        """Returns the result of the work, or None if the client is closed first."""
        task = asyncio.ensure_future(work)
        self._waits[task] = _process_and_loop()
        try:
            await asyncio.wait({task})
        finally:
            # If the caller's own task was cancelled, the work is not done.
            task.cancel()
            self._waits.pop(task, None)
        return None if task.cancelled() else task.result()

    async def close(self) -> None:
        self._is_closed = True
        self._http()
        here = _process_and_loop()
        for process, loop in self._connections.places():
            if (process, loop) == here:
                await self._close_here()
            elif process == here[0] and loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close_here(), loop)

    async def _close_here(self) -> None:
        here = _process_and_loop()
        for task, place in list(self._waits.items()):
            if place == here:
                task.cancel()
        http = self._connections.at(here)
        if http is not None:
            await http.aclose()


def _process_and_loop() -> ProcessAndLoop:
    return os.getpid(), asyncio.get_running_loop()


def _outcome_of_close(http: httpx.Client | httpx.AsyncClient, error: Exception) -> Outcome:
    """Returns the outcome of a request that was interrupted because the client was closed. Raises any other error.

    httpx has no one exception for this. Whether the request was sent is not known.
    """
    if not http.is_closed:
        raise error
    return httpx.ReadError(f"the client was closed: {error}")

"""How the two clients send requests and wait, `Petstore` with threads and `AsyncPetstore` with tasks.

Only this differs between them: everything else of `Petstore` is generated from `AsyncPetstore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import Any, TypeVar

import httpx

from ._core import Outcome, Send, Sleep
from .errors import ClientClosedError

T = TypeVar("T")


class Transport:
    """Performs the steps of calls in the threads of their callers. Any thread can close it, which ends all waits."""

    def __init__(self, http: httpx.Client, sleep: Callable[[float], None] | None) -> None:
        self._http, self._sleep = http, sleep
        self._closed: Future[None] = Future()

    def perform(self, step: Sleep | Send) -> Outcome:
        if isinstance(step, Sleep):
            if self._sleep is not None:
                self._sleep(step.seconds)
            else:
                wait([self._closed], step.seconds)
            return None
        if self._closed.done():
            return ClientClosedError()
        try:
            return self._send_and_wait(step) if step.waits else self._http.request(**step.arguments)
        except httpx.RequestError as error:
            return error

    def _send_and_wait(self, step: Send) -> httpx.Response | ClientClosedError:
        """Sends a request in a thread: nothing else can end the wait for a response when the client is closed."""
        response: Future[Any] = Future()

        def send() -> None:
            try:
                response.set_result(self._http.request(**step.arguments))
            except BaseException as error:
                response.set_exception(error)

        threading.Thread(target=contextvars.copy_context().run, args=[send], daemon=True).start()
        wait([response, self._closed], return_when=FIRST_COMPLETED)
        if not response.done():
            return ClientClosedError()
        result: httpx.Response = response.result()
        return result

    def close(self) -> None:
        with contextlib.suppress(InvalidStateError):  # it was closed before
            self._closed.set_result(None)
        self._http.close()


class AsyncTransport:
    """Performs the steps of calls in the tasks of their callers. Any task can close it, which ends all waits."""

    def __init__(self, http: httpx.AsyncClient, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._http, self._sleep = http, sleep
        self._closed = False
        self._waits: set[asyncio.Future[Any]] = set()

    async def perform(self, step: Sleep | Send) -> Outcome:
        if isinstance(step, Sleep):
            await self._unless_closed(self._sleep(step.seconds))
            return None
        if self._closed:
            return ClientClosedError()
        try:
            if not step.waits:
                return await self._http.request(**step.arguments)
            response = await self._unless_closed(self._http.request(**step.arguments))
            return ClientClosedError() if response is None else response
        except httpx.RequestError as error:
            return error

    async def _unless_closed(self, work: Awaitable[T]) -> T | None:
        """Returns the result of the work, or None if the client is closed first."""
        task = asyncio.ensure_future(work)
        self._waits.add(task)
        try:
            await asyncio.wait({task})
        finally:
            # If the caller's own task was cancelled, the work is not done.
            task.cancel()
            self._waits.discard(task)
        return None if task.cancelled() else task.result()

    async def close(self) -> None:
        self._closed = True
        for task in self._waits:
            task.cancel()
        await self._http.aclose()

"""`Petstore` and `AsyncPetstore`: the same calls, without and with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random as random_module
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any, Generic, List, TypeVar  # List: in the classes below, `list` is a method

import httpx

from . import _core
from ._core import (
    MAX_LIMIT,
    MAX_WAIT_SECONDS,
    Attempt,
    Call,
    CallOptions,
    ClientOptions,
    Core,
    Method,
    Outcome,
    Page,
    QueryValue,
    Request,
    ResponseInfo,
    Send,
    Sleep,
)
from .errors import ClientClosedError
from .models import Event, EventType, Order, OrderStatus, Pet, PetStatus

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Petstore:
    """A client of the service. It is safe to share between threads.

    - `api_key`, `base_url`: by default, the environment variables PETSTORE_KEY and PETSTORE_URL. The URL may or may not
      end in `/v1`.
    - `timeout_seconds`: how long an attempt may take.
    - `max_time_seconds`: how long a call may take with all its attempts and the pauses between them; for a list, each
      page. The last attempt gets only what is left of it. 0 turns retries off: `timeout_seconds` alone limits the one
      attempt. Neither limit includes the time for which `events` asks the service to wait.
    - `headers`: headers to send in addition, such as `traceparent`.
    - `on_attempt`: called after each attempt, for example to count retries.
    - `http_client`: for proxies, certificates or tests.
    - `sleep`, `clock`, `random`: for tests.

    Every call raises a `PetstoreError` if it fails. An invalid option, here or of a call, is a bug in your program: it
    raises a `ValueError` or a `TypeError` before anything is sent.

    Every call also accepts `CallOptions`: `timeout_seconds`, `max_time_seconds` and `headers` for this call.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout_seconds: float = 10.0,
        max_time_seconds: float = 60.0,
        headers: Mapping[str, str] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
        http_client: httpx.Client | None = None,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        core = Core.from_settings(
            api_key, base_url, timeout_seconds, max_time_seconds, headers, on_attempt, clock, random
        )
        self._set(core, http_client or httpx.Client(), sleep, Future())

    def _set(self, core: Core, http: httpx.Client, sleep: Callable[[float], None] | None, closed: Future[Any]) -> None:
        self._core, self._http, self._sleep, self._closed = core, http, sleep, closed
        self.pets = Pets(self)
        self.orders = Orders(self)
        self.events = Events(self)

    def with_options(self, **options: Unpack[ClientOptions]) -> Petstore:
        """Returns a client with some settings changed that shares the connections of this one. Headers are added."""
        return self._with_core(self._core.with_options(options))

    def _with_core(self, core: Core) -> Petstore:
        client = object.__new__(type(self))
        client._set(core, self._http, self._sleep, self._closed)
        return client

    def with_response(self, call: Callable[[Petstore], T]) -> tuple[T, ResponseInfo]:
        """Makes a call, and returns its result with the status, the headers and the request id of its response.

        For example `with_response(lambda shop: shop.pets.get(1))`. If the call sends several requests, the response is
        the last one.
        """
        attempts: list[Attempt] = []
        result = call(self._with_core(self._core.recording(attempts)))
        return result, _core.response_of(attempts)

    def request(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, QueryValue] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Sends a request to any path under `/v1/`, for operations that this version of the SDK does not have.

        It has the same authentication, retries and errors as all calls. `body` is sent as JSON. A `POST` has an
        `Idempotency-Key`. Returns the JSON of the response, or None if the response is empty.
        """
        core = self._core.for_call(options)
        return self._run(core.request(method, path, query, body, idempotency_key))

    def close(self) -> None:
        """Closes the connections, also those of the clients that `with_options` returned.

        Any thread can call it. Calls that wait for events or for their next attempt end at once, with a
        `ClientClosedError`, and so does every later call.
        """
        with contextlib.suppress(InvalidStateError):  # it was closed before
            self._closed.set_result(None)
        self._http.close()

    def __enter__(self) -> Petstore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Petstore {self._core.base_url!r}>"

    def _run(self, call: Call[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = call.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self._sleep_or_send(step)

    def _sleep_or_send(self, step: Sleep | Send) -> Outcome:
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


class Pets:
    """The operations on pets."""

    def __init__(self, client: Petstore) -> None:
        self._client = client

    def create(
        self,
        *,
        name: str,
        category_id: int,
        status: PetStatus | None = None,
        reference: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Pet:
        """Adds a pet, once, however many attempts it takes.

        `reference` is your own number for the pet, such as its chip or stock number. If another pet has it, raises
        `ConflictError` with the code `reference_taken`.

        Pass your own `idempotency_key` to repeat the call later, for example after a crash, without adding another pet.
        """
        core = self._client._core.for_call(options)
        return self._client._run(core.create_pet(name, category_id, status, reference, idempotency_key))

    def get(self, pet_id: int, **options: Unpack[CallOptions]) -> Pet:
        """Returns the pet, or raises `NotFoundError`."""
        core = self._client._core.for_call(options)
        return self._client._run(core.get_pet(pet_id))

    def get_many(self, pet_ids: Sequence[int], **options: Unpack[CallOptions]) -> List[Pet]:
        """Returns the pets with these ids, in this order, without those that do not exist."""
        core = self._client._core.for_call(options)
        return self._client._run(core.get_pets(pet_ids))

    def update(
        self,
        pet_id: int,
        *,
        name: str | None = None,
        category_id: int | None = None,
        status: PetStatus | None = None,
        reference: str | None = None,
        if_match: str | None = "*",
        **options: Unpack[CallOptions],
    ) -> Pet:
        """Changes what is given, and returns the pet.

        With the `etag` of a pet as `if_match`, raises `PreconditionFailedError` if the pet has changed since. If its
        `outcome_unknown` is true, the change may be your own, by an attempt whose response was lost. Without
        `if_match`, a retry can overwrite a change that another client made between the attempts.
        """
        core = self._client._core.for_call(options)
        return self._client._run(core.update_pet(pet_id, name, category_id, status, reference, if_match))

    def list(
        self,
        *,
        status: PetStatus | None = None,
        category_id: int | None = None,
        references: Sequence[str] | None = None,
        limit: int = MAX_LIMIT,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Items[Pet]:
        """Iterates over all matching pets, or over all, in ascending order of id.

        A pet that exists at the start, and still matches, appears exactly once. `limit` is the page size, at most 100.

        `references` selects the pets with these references, any number of them, and leaves out those that no pet has.
        All of these pets are on one page, so `limit` and `cursor` cannot be set.
        """
        core = self._client._core.for_call(options)
        return Items(self._client, _pets_position(core, status, category_id, references, limit, cursor))


class Orders:
    """The operations on orders."""

    def __init__(self, client: Petstore) -> None:
        self._client = client

    def place(
        self,
        *,
        pet_id: int,
        reference: str | None = None,
        hold_seconds: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Order:
        """Orders an available pet, once, however many attempts it takes. See `Pets.create` for `idempotency_key`.

        `reference` is your own name for the order. After `hold_seconds`, or the shop's time if that is shorter, the
        order expires if it is not completed: see its `expires_at`.
        """
        core = self._client._core.for_call(options)
        return self._client._run(core.place_order(pet_id, reference, hold_seconds, idempotency_key))

    def get(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """Returns the order, or raises `NotFoundError`."""
        core = self._client._core.for_call(options)
        return self._client._run(core.get_order(order_id))

    def complete(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """Sells the pet. Completing a completed order changes nothing and succeeds."""
        core = self._client._core.for_call(options)
        return self._client._run(core.complete_order(order_id))

    def cancel(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """Makes the pet available again. Cancelling a cancelled order changes nothing and succeeds."""
        core = self._client._core.for_call(options)
        return self._client._run(core.cancel_order(order_id))

    def list(
        self,
        *,
        status: OrderStatus | None = None,
        pet_id: int | None = None,
        reference: str | None = None,
        limit: int = MAX_LIMIT,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Items[Order]:
        """Iterates over all matching orders, in the order of placement. Otherwise like `Pets.list`."""
        request = _core.list_orders(status, pet_id, reference, limit)
        return Items(self._client, _Position(self._client._core.for_call(options), request, cursor, Order.from_dict))


class Events:
    """The feed of changes of pets and orders. It is beta: it changes with 90 days' notice."""

    def __init__(self, client: Petstore) -> None:
        self._client = client

    def position(self, **options: Unpack[CallOptions]) -> str:
        """Returns the current end of the feed: the `after` with which to read everything that happens from now on."""
        core = self._client._core.for_call(options)
        return self._client._run(core.position())

    def list(
        self,
        *,
        after: str | None = None,
        types: Sequence[EventType] = (),
        limit: int = MAX_LIMIT,
        wait_seconds: int = 0,
        **options: Unpack[CallOptions],
    ) -> Items[Event]:
        """Iterates over the events so far, and ends when there are no more.

        `after` is the `id` of an event, a position, or `"now"`; by default, the oldest event that is kept comes first.
        `types` leaves out all other types of events. `limit` is the page size, at most 100. With `wait_seconds`, at
        most 25, the iteration ends only when nothing has happened for so long. The last page of `pages` is empty, and
        its `cursor` is the `after` with which to continue.
        """
        return Items(
            self._client,
            _FeedPosition(self._client._core.for_call(options), after, types, limit, wait_seconds, follows=False),
        )

    def follow(
        self, *, after: str | None = None, types: Sequence[EventType] = (), **options: Unpack[CallOptions]
    ) -> Items[Event]:
        """Iterates over the events, and waits for the next one instead of ending. See `list` for `after` and `types`.

        To stop, leave the loop, or close the client in another thread: the iterator raises a `ClientClosedError`.

        Store the `id` of each event that you have handled: to resume in another process, pass it as `after`.

        `max_time_seconds` does not apply: connection errors and the other failures that calls retry are retried until
        the service responds again, unless it is 0. Raises `CursorExpiredError` if the events after `after` are no
        longer kept, and other errors at once. To resume after an error, continue with the same iterator.
        """
        core = self._client._core.for_call(options)
        position = _FeedPosition(core, after, types, MAX_LIMIT, MAX_WAIT_SECONDS, follows=True)
        return Items(self._client, position)


class Items(Iterator[T]):
    """Iterates over the items of all pages. Requests a page when the previous one is used up.

    If a page cannot be read, `next` raises a `PetstoreError`. To resume, continue with the same iterator: it requests
    that page again, and skips and repeats nothing.
    """

    def __init__(self, client: Petstore, position: _Position[T]) -> None:
        self._client, self._position = client, position

    def __next__(self) -> T:
        while not self._position.items:
            page = self._next_page()
            if page is None:
                raise StopIteration
            self._position.items.extend(page.items)
        return self._position.items.popleft()

    def pages(self) -> Iterator[Page[T]]:
        """Iterates over the pages instead, each with the cursor from which a later `list` can continue."""
        while (page := self._next_page()) is not None:
            yield page

    def _next_page(self) -> Page[T] | None:
        call = self._position.call()
        return None if call is None else self._position.advance(self._client._run(call))


class AsyncPetstore:
    """Like `Petstore`, for asyncio: calls are awaited, and lists are for `async for`."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout_seconds: float = 10.0,
        max_time_seconds: float = 60.0,
        headers: Mapping[str, str] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
        http_client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        core = Core.from_settings(
            api_key, base_url, timeout_seconds, max_time_seconds, headers, on_attempt, clock, random
        )
        self._set(core, http_client or httpx.AsyncClient(), sleep, _Waits())

    def _set(
        self, core: Core, http: httpx.AsyncClient, sleep: Callable[[float], Awaitable[None]], waits: _Waits
    ) -> None:
        self._core, self._http, self._sleep, self._waits = core, http, sleep, waits
        self.pets = AsyncPets(self)
        self.orders = AsyncOrders(self)
        self.events = AsyncEvents(self)

    def with_options(self, **options: Unpack[ClientOptions]) -> AsyncPetstore:
        """Returns a client with some settings changed that shares the connections of this one. Headers are added."""
        return self._with_core(self._core.with_options(options))

    def _with_core(self, core: Core) -> AsyncPetstore:
        client = object.__new__(type(self))
        client._set(core, self._http, self._sleep, self._waits)
        return client

    async def with_response(self, call: Callable[[AsyncPetstore], Awaitable[T]]) -> tuple[T, ResponseInfo]:
        """See `Petstore.with_response`."""
        attempts: list[Attempt] = []
        result = await call(self._with_core(self._core.recording(attempts)))
        return result, _core.response_of(attempts)

    async def request(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, QueryValue] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """See `Petstore.request`."""
        core = self._core.for_call(options)
        return await self._run(core.request(method, path, query, body, idempotency_key))

    async def close(self) -> None:
        """See `Petstore.close`. Any task of the same event loop can call it."""
        self._waits.end()
        await self._http.aclose()

    async def __aenter__(self) -> AsyncPetstore:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncPetstore {self._core.base_url!r}>"

    async def _run(self, call: Call[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = call.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await self._sleep_or_send(step)

    async def _sleep_or_send(self, step: Sleep | Send) -> Outcome:
        if isinstance(step, Sleep):
            await self._waits.result(self._sleep(step.seconds))
            return None
        if self._waits.ended:
            return ClientClosedError()
        try:
            if not step.waits:
                return await self._http.request(**step.arguments)
            response = await self._waits.result(self._http.request(**step.arguments))
            return ClientClosedError() if response is None else response
        except httpx.RequestError as error:
            return error


class _Waits:
    """What the calls of a client wait for, until the client is closed."""

    def __init__(self) -> None:
        self.ended = False
        self._tasks: set[asyncio.Future[Any]] = set()

    async def result(self, work: Awaitable[T]) -> T | None:
        """Returns the result of the work, or None if the client is closed first."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            # If the caller's own task was cancelled, the work is not done.
            task.cancel()
            self._tasks.discard(task)
        return None if task.cancelled() else task.result()

    def end(self) -> None:
        self.ended = True
        for task in self._tasks:
            task.cancel()


class AsyncPets:
    """Like `Pets`, for asyncio."""

    def __init__(self, client: AsyncPetstore) -> None:
        self._client = client

    async def create(
        self,
        *,
        name: str,
        category_id: int,
        status: PetStatus | None = None,
        reference: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Pet:
        """See `Pets.create`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.create_pet(name, category_id, status, reference, idempotency_key))

    async def get(self, pet_id: int, **options: Unpack[CallOptions]) -> Pet:
        """See `Pets.get`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.get_pet(pet_id))

    async def get_many(self, pet_ids: Sequence[int], **options: Unpack[CallOptions]) -> List[Pet]:
        """See `Pets.get_many`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.get_pets(pet_ids))

    async def update(
        self,
        pet_id: int,
        *,
        name: str | None = None,
        category_id: int | None = None,
        status: PetStatus | None = None,
        reference: str | None = None,
        if_match: str | None = "*",
        **options: Unpack[CallOptions],
    ) -> Pet:
        """See `Pets.update`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.update_pet(pet_id, name, category_id, status, reference, if_match))

    def list(
        self,
        *,
        status: PetStatus | None = None,
        category_id: int | None = None,
        references: Sequence[str] | None = None,
        limit: int = MAX_LIMIT,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncItems[Pet]:
        """See `Pets.list`."""
        core = self._client._core.for_call(options)
        return AsyncItems(self._client, _pets_position(core, status, category_id, references, limit, cursor))


class AsyncOrders:
    """Like `Orders`, for asyncio."""

    def __init__(self, client: AsyncPetstore) -> None:
        self._client = client

    async def place(
        self,
        *,
        pet_id: int,
        reference: str | None = None,
        hold_seconds: int | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Order:
        """See `Orders.place`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.place_order(pet_id, reference, hold_seconds, idempotency_key))

    async def get(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """See `Orders.get`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.get_order(order_id))

    async def complete(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """See `Orders.complete`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.complete_order(order_id))

    async def cancel(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """See `Orders.cancel`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.cancel_order(order_id))

    def list(
        self,
        *,
        status: OrderStatus | None = None,
        pet_id: int | None = None,
        reference: str | None = None,
        limit: int = MAX_LIMIT,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncItems[Order]:
        """See `Orders.list`."""
        request = _core.list_orders(status, pet_id, reference, limit)
        return AsyncItems(
            self._client, _Position(self._client._core.for_call(options), request, cursor, Order.from_dict)
        )


class AsyncEvents:
    """Like `Events`, for asyncio."""

    def __init__(self, client: AsyncPetstore) -> None:
        self._client = client

    async def position(self, **options: Unpack[CallOptions]) -> str:
        """See `Events.position`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.position())

    def list(
        self,
        *,
        after: str | None = None,
        types: Sequence[EventType] = (),
        limit: int = MAX_LIMIT,
        wait_seconds: int = 0,
        **options: Unpack[CallOptions],
    ) -> AsyncItems[Event]:
        """See `Events.list`."""
        return AsyncItems(
            self._client,
            _FeedPosition(self._client._core.for_call(options), after, types, limit, wait_seconds, follows=False),
        )

    def follow(
        self, *, after: str | None = None, types: Sequence[EventType] = (), **options: Unpack[CallOptions]
    ) -> AsyncItems[Event]:
        """See `Events.follow`. To stop, you can also cancel the task; the same iterator can then be continued."""
        core = self._client._core.for_call(options)
        position = _FeedPosition(core, after, types, MAX_LIMIT, MAX_WAIT_SECONDS, follows=True)
        return AsyncItems(self._client, position)


class AsyncItems(AsyncIterator[T]):
    """Like `Items`, for `async for`."""

    def __init__(self, client: AsyncPetstore, position: _Position[T]) -> None:
        self._client, self._position = client, position

    async def __anext__(self) -> T:
        while not self._position.items:
            page = await self._next_page()
            if page is None:
                raise StopAsyncIteration
            self._position.items.extend(page.items)
        return self._position.items.popleft()

    async def pages(self) -> AsyncIterator[Page[T]]:
        """See `Items.pages`."""
        while (page := await self._next_page()) is not None:
            yield page

    async def _next_page(self) -> Page[T] | None:
        call = self._position.call()
        return None if call is None else self._position.advance(await self._client._run(call))


class _Position(Generic[T]):
    """How far an iteration has come. `items` have been read but not returned."""

    def __init__(
        self, core: Core, request: Request, cursor: str | None, read: Callable[[Mapping[str, Any]], T]
    ) -> None:
        self._core, self._request, self._cursor, self._read = core, request, cursor, read
        self._ended = False
        self.items: deque[T] = deque()

    def call(self) -> Call[Page[T]] | None:
        """Returns the call for the next page, or None after the last one."""
        return None if self._ended else self._core.page(self._request, self._cursor, self._read)

    def advance(self, page: Page[T]) -> Page[T]:
        self._cursor, self._ended = page.cursor, page.cursor is None
        return page


class _NamedPetsPosition(_Position[Pet]):
    """Before or after the only page of the pets with some references."""

    def __init__(self, core: Core, references: Sequence[str], filters: Sequence[tuple[str, str]]) -> None:
        self._core, self._references, self._filters = core, _core.unique_references(references), filters
        self._ended = False
        self.items = deque()

    def call(self) -> Call[Page[Pet]] | None:
        return None if self._ended else self._core.pets_by_reference(self._references, self._filters)


def _pets_position(
    core: Core,
    status: PetStatus | None,
    category_id: int | None,
    references: Sequence[str] | None,
    limit: int,
    cursor: str | None,
) -> _Position[Pet]:
    filters = _core.pet_filters(status, category_id)
    if references is None:
        return _Position(core, _core.list_pets(filters, limit), cursor, Pet.from_dict)
    if limit != MAX_LIMIT or cursor is not None:
        raise ValueError("`limit` and `cursor` cannot be set with `references`: all of these pets are on one page.")
    return _NamedPetsPosition(core, references, filters)


class _FeedPosition(_Position[Event]):
    """How far a reader of the feed has come. If it `follows`, it never ends; otherwise, it ends with an empty page."""

    def __init__(
        self, core: Core, after: str | None, types: Sequence[EventType], limit: int, wait_seconds: int, follows: bool
    ) -> None:
        if isinstance(types, str):
            raise TypeError("`types` must be a list of types, such as `['order.completed']`.")
        self._core, self._after, self._types, self._limit = core, after, list(types), limit
        self._wait_seconds, self._follows = wait_seconds, follows
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

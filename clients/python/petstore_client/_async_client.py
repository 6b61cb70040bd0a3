"""`AsyncPetstore`, the client for asyncio. From this file, async_to_sync.py generates `Petstore` in `_client.py`."""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, List, TypeVar  # List: in the classes below, `list` is a method

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
    ResponseInfo,
)
from ._positions import FeedPosition, Position, pets_position
from ._remove import Remove
from ._transport import AsyncTransport, Connections
from .models import Event, EventType, Metadata, MetadataPatch, Order, OrderStatus, Pet, PetStatus, Sort

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncPetstore:
    """A client of the service for asyncio: calls are awaited, and lists are for `async for`.

    It is safe to share between the tasks of an event loop. Each event loop, and each process of a fork,
    has its own connections.

    - `api_key`, `base_url`: by default, the environment variables PETSTORE_KEY and PETSTORE_URL. The URL may or may not
      end in `/v1`.
    - `timeout_seconds`: how long an attempt may take.
    - `max_time_seconds`: how long a call may take with all its attempts and the pauses between them; for a list, each
      page. The last attempt gets only what is left of it. 0 turns retries off: `timeout_seconds` alone limits the one
      attempt. Neither limit includes the time for which `events` asks the service to wait.
    - `headers`: headers to send in addition, such as `traceparent`.
    - `on_attempt`: called after each attempt, for example to count retries.
    - `http_client`: for proxies, certificates or tests. Its connections work only in the process and the event loop
      of the first call: elsewhere, calls raise a `ClientMovedError`, and send nothing.
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
        http_client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        core = Core.from_settings(
            api_key, base_url, timeout_seconds, max_time_seconds, headers, on_attempt, clock, random
        )
        self._set(core, AsyncTransport(Connections(http_client, httpx.AsyncClient), sleep))

    def _set(self, core: Core, transport: AsyncTransport) -> None:
        self._core, self._transport = core, transport
        self.pets = AsyncPets(self)
        self.orders = AsyncOrders(self)
        self.events = AsyncEvents(self)

    def with_options(self, **options: Unpack[ClientOptions]) -> AsyncPetstore:
        """Returns a client with some settings changed that shares the connections of this one. Headers are added."""
        return self._with_core(self._core.with_options(options))

    def _with_core(self, core: Core) -> AsyncPetstore:
        client = object.__new__(type(self))
        client._set(core, self._transport)
        return client

    async def with_response(self, call: Callable[[AsyncPetstore], Awaitable[T]]) -> tuple[T, ResponseInfo]:
        """Makes a call, and returns its result with the status, the headers and the request id of its response.

        For example `with_response(lambda shop: shop.pets.get(1))`. If the call sends several requests, the response is
        the last one.
        """
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
        """Sends a request to any path under `/v1/`, for operations that this version of the SDK does not have.

        It has the same authentication, retries and errors as all calls. `body` is sent as JSON. Every method except
        `GET` has an `Idempotency-Key`. Returns the JSON of the response, or None if the response is empty.
        """
        core = self._core.for_call(options)
        return await self._run(core.request(method, path, query, body, idempotency_key))

    async def close(self) -> None:
        """Closes the connections, also those of the clients that `with_options` returned.

        Any task can call it. Calls that wait for events or for their next attempt end at once, with a
        `ClientClosedError`, and so does every later call. After a fork, the other process can go on.
        """
        await self._transport.close()

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
            outcome = await self._transport.perform(step)


class AsyncPets:
    """The operations on pets."""

    def __init__(self, client: AsyncPetstore) -> None:
        self._client = client

    async def create(
        self,
        *,
        name: str,
        category_id: int,
        status: PetStatus | None = None,
        reference: str | None = None,
        metadata: Metadata | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Pet:
        """Adds a pet, once, however many attempts it takes.

        `reference` is your own number for the pet, such as its chip or stock number. If another pet has it, raises
        `ConflictError` with the code `reference_taken`. `metadata` is your own data about the pet, such as
        `{"price": "129.00"}`.

        Pass your own `idempotency_key` to repeat the call later, for example after a crash, without adding another pet.
        """
        core = self._client._core.for_call(options)
        return await self._client._run(core.create_pet(name, category_id, status, reference, metadata, idempotency_key))

    async def get(self, pet_id: int, **options: Unpack[CallOptions]) -> Pet:
        """Returns the pet, or raises `NotFoundError`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.get_pet(pet_id))

    async def get_many(self, pet_ids: Sequence[int], **options: Unpack[CallOptions]) -> List[Pet]:
        """Returns the pets with these ids, in this order, without those that do not exist."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.get_pets(pet_ids))

    async def update(
        self,
        pet_id: int,
        *,
        name: str | None = None,
        category_id: int | None = None,
        status: PetStatus | None = None,
        reference: str | Remove | None = None,
        metadata: MetadataPatch | Remove | None = None,
        if_match: str | None = "*",
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Pet:
        """Changes what is given, once, and returns the pet. `REMOVE` removes the reference or the metadata.

        `metadata` changes the members that it names: a string adds or replaces one, and `REMOVE` removes it.

        With the `etag` of a pet as `if_match`, raises `PreconditionFailedError` if the pet has changed since. Pass your
        own `idempotency_key` to repeat the call later, for example after a crash, without changing the pet again.

        A service before 1.3.0 ignores the key: if an attempt whose response was lost has changed the pet, its retry
        raises `PreconditionFailedError` with a true `outcome_unknown`. Without `if_match`, a retry can overwrite a
        change that another client made between the attempts.
        """
        core = self._client._core.for_call(options)
        return await self._client._run(
            core.update_pet(pet_id, name, category_id, status, reference, metadata, if_match, idempotency_key)
        )

    async def delete(
        self,
        pet_id: int,
        *,
        if_match: str | None = "*",
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Deletes the pet, or raises `NotFoundError`.

        A pet that is or was in an order stays: raises `ConflictError` with the code `pet_has_order`. See `update` for
        `if_match` and `idempotency_key`.

        A service before 1.3.0 ignores the key: if an attempt whose response was lost has deleted the pet, its retry
        raises `NotFoundError` with a true `outcome_unknown`.
        """
        core = self._client._core.for_call(options)
        await self._client._run(core.delete_pet(pet_id, if_match, idempotency_key))

    def list(
        self,
        *,
        status: PetStatus | None = None,
        category_id: int | None = None,
        references: Sequence[str] | None = None,
        sort: Sort | None = None,
        limit: int = MAX_LIMIT,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncItems[Pet]:
        """Iterates over all matching pets, in ascending order of id. With `sort="-id"`, the newest pet is first.

        A pet that exists at the start, and still matches, appears exactly once. `limit` is the page size, at most 100.

        `references` selects the pets with these references, any number of them, and leaves out those that no pet has.
        All of these pets are on one page, so `limit` and `cursor` cannot be set.
        """
        core = self._client._core.for_call(options)
        return AsyncItems(self._client, pets_position(core, status, category_id, references, sort, limit, cursor))


class AsyncOrders:
    """The operations on orders."""

    def __init__(self, client: AsyncPetstore) -> None:
        self._client = client

    async def place(
        self,
        *,
        pet_id: int,
        reference: str | None = None,
        hold_seconds: int | None = None,
        metadata: Metadata | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Order:
        """Orders an available pet, once, however many attempts it takes. See `AsyncPets.create` for `idempotency_key`.

        `reference` is your own name for the order, and `metadata` your own data about it. After `hold_seconds`, or by
        default after the shop's own hold, the order expires if it is not completed: see its `expires_at`.
        """
        core = self._client._core.for_call(options)
        return await self._client._run(core.place_order(pet_id, reference, hold_seconds, metadata, idempotency_key))

    async def get(self, order_id: int, **options: Unpack[CallOptions]) -> Order:
        """Returns the order, or raises `NotFoundError`."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.get_order(order_id))

    async def update(
        self,
        order_id: int,
        *,
        hold_seconds: int | None = None,
        reference: str | Remove | None = None,
        metadata: MetadataPatch | Remove | None = None,
        if_match: str | None = "*",
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Order:
        """Changes what is given, once, and returns the order.

        See `AsyncPets.update` for `REMOVE`, `metadata`, `if_match` and `idempotency_key`.

        With `hold_seconds`, the order expires so many seconds from now. If it is no longer `placed`, raises
        `ConflictError` with the code `invalid_transition`. With a service before 1.3.0, a retry starts the time again.
        """
        core = self._client._core.for_call(options)
        return await self._client._run(
            core.update_order(order_id, hold_seconds, reference, metadata, if_match, idempotency_key)
        )

    async def complete(
        self, order_id: int, *, idempotency_key: str | None = None, **options: Unpack[CallOptions]
    ) -> Order:
        """Sells the pet. Completing a completed order changes nothing and succeeds.

        See `AsyncPets.create` for `idempotency_key`.
        """
        core = self._client._core.for_call(options)
        return await self._client._run(core.complete_order(order_id, idempotency_key))

    async def cancel(
        self, order_id: int, *, idempotency_key: str | None = None, **options: Unpack[CallOptions]
    ) -> Order:
        """Makes the pet available again. Cancelling a cancelled order changes nothing and succeeds.

        See `AsyncPets.create` for `idempotency_key`.
        """
        core = self._client._core.for_call(options)
        return await self._client._run(core.cancel_order(order_id, idempotency_key))

    def list(
        self,
        *,
        status: OrderStatus | None = None,
        pet_id: int | None = None,
        reference: str | None = None,
        sort: Sort | None = None,
        limit: int = MAX_LIMIT,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncItems[Order]:
        """Iterates over all matching orders, in the order of placement. Otherwise like `AsyncPets.list`."""
        request = _core.list_orders(status, pet_id, reference, sort, limit)
        return AsyncItems(
            self._client, Position(self._client._core.for_call(options), request, cursor, Order.from_dict)
        )


class AsyncEvents:
    """The feed of changes of pets and orders. It is beta: it may change with a minor release of the service."""

    def __init__(self, client: AsyncPetstore) -> None:
        self._client = client

    async def position(self, **options: Unpack[CallOptions]) -> str:
        """Returns the current end of the feed: the `after` with which to read everything that happens from now on."""
        core = self._client._core.for_call(options)
        return await self._client._run(core.position())

    def list(
        self,
        *,
        after: str | None = None,
        types: Sequence[EventType] | None = None,
        limit: int = MAX_LIMIT,
        wait_seconds: int = 0,
        **options: Unpack[CallOptions],
    ) -> AsyncItems[Event]:
        """Iterates over the events so far, and ends when there are no more.

        `after` is the `id` of an event, a position, or `"now"`; by default, the oldest event that is kept comes first.
        `types` leaves out all other types of events. An empty list of types is an error. `limit` is the page size, at
        most 100. With `wait_seconds`, at most 25, the iteration ends only when nothing has happened for so long. The
        last page of `pages` is empty, and its `cursor` is the `after` with which to continue.
        """
        return AsyncItems(
            self._client,
            FeedPosition(self._client._core.for_call(options), after, types, limit, wait_seconds, follows=False),
        )

    def follow(
        self, *, after: str | None = None, types: Sequence[EventType] | None = None, **options: Unpack[CallOptions]
    ) -> AsyncItems[Event]:
        """Iterates over the events, and waits for the next one instead of ending. See `list` for `after` and `types`.

        To stop, leave the loop, or close the client in another task: the iterator raises a `ClientClosedError`.
        You can also cancel the task, and later continue with the same iterator.

        Store the `id` of each event that you have handled: to resume in another process, pass it as `after`.

        `max_time_seconds` does not apply: connection errors and the other failures that calls retry are retried until
        the service responds again, unless it is 0. Raises `CursorExpiredError` if the events after `after` are no
        longer kept, and other errors at once. To resume after an error, continue with the same iterator.
        """
        core = self._client._core.for_call(options)
        position = FeedPosition(core, after, types, MAX_LIMIT, MAX_WAIT_SECONDS, follows=True)
        return AsyncItems(self._client, position)


class AsyncItems(AsyncIterator[T]):
    """Iterates over the items of all pages. Requests a page when the previous one is used up.

    If a page cannot be read, the iterator raises a `PetstoreError`. To resume, continue with the same iterator: it
    requests that page again, and skips and repeats nothing.
    """

    def __init__(self, client: AsyncPetstore, position: Position[T]) -> None:
        self._client, self._position = client, position

    async def __anext__(self) -> T:
        while not self._position.items:
            page = await self._next_page()
            if page is None:
                raise StopAsyncIteration
            self._position.items.extend(page.items)
        return self._position.items.popleft()

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Iterates over the pages instead, each with the cursor from which a later `list` can continue."""
        while (page := await self._next_page()) is not None:
            yield page

    async def _next_page(self) -> Page[T] | None:
        call = self._position.call()
        return None if call is None else self._position.advance(await self._client._run(call))

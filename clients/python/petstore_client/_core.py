"""Everything about a call except input and output: requests, retries, errors, results.

A call is a generator. It yields what to do, `Send` or `Sleep`, receives the outcome, and in the end returns a result or
raises a `PetstoreError`. `Petstore` and `AsyncPetstore` drive the same generators, so both behave the same.
"""

from __future__ import annotations

import difflib
import json
import logging
import numbers
import operator
import os
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypedDict, TypeVar, Union, get_args
from urllib.parse import quote

import httpx

from . import errors
from ._metadata import checked_metadata, checked_metadata_patch
from ._remove import REMOVE, Remove
from ._version import __version__
from .errors import ClientClosedError, ClientMovedError, NotFoundError, PetstoreError
from .generated.models import NewOrder, NewPet, OrderPatch, PetPatch
from .models import Event, Metadata, MetadataPatch, Order, OrderStatus, Pet, PetStatus, Sort

logger = logging.getLogger("petstore_client")

T = TypeVar("T")

# The first pause between attempts is up to FIRST_PAUSE_SECONDS long. Each later one is up to twice as long as the
# one before, and at most LONGEST_PAUSE_SECONDS.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
# An attempt is not worth starting with less time than this.
SHORTEST_TIMEOUT_SECONDS = 0.1
# A follower sends a request at least this often, whatever `Retry-After` says.
LONGEST_FOLLOWER_PAUSE_SECONDS = 300.0
RETRYABLE = {408, 429, 502, 503, 504}
# Part of the message of a server of version 1.0.0 that does not know the outcome.
OUTCOME_UNKNOWN_IN_1_0_0 = "may or may not have taken effect"
MAX_LIMIT = 100
# The service accepts 8 KiB of path and query. The ids or references of a request leave room for the rest.
MAX_NAMES_BYTES = 6000
# The longest that the service holds back an empty page of events.
MAX_WAIT_SECONDS = 25

Method = Literal["GET", "POST", "PATCH", "PUT", "DELETE"]
METHODS = get_args(Method)
QueryValue = Union[str, int, float, bool, Sequence[Union[str, int]], None]

# The headers that callers cannot set, and what to do instead.
RESERVED_HEADERS = {
    "authorization": "set `api_key`",
    "idempotency-key": "set `idempotency_key`",
    "content-type": "bodies are always sent as JSON",
}
CONNECTION_HEADERS = ["connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "te"]
CONNECTION_HEADERS += ["trailer", "transfer-encoding", "upgrade"]
RESERVED_HEADERS.update(dict.fromkeys(CONNECTION_HEADERS, "it belongs to the connection"))


class CallOptions(TypedDict, total=False):
    """The options of every call. None is the same as the value of the client."""

    timeout_seconds: float | None
    """How long an attempt may take."""
    max_time_seconds: float | None
    """How long the call may take with all its attempts. See `Petstore`."""
    headers: Mapping[str, str] | None
    """Headers to send in addition, such as `traceparent`. They are added to those of the client. The headers that the
    SDK needs for itself, such as `Authorization` and `Content-Type`, are rejected."""


class ClientOptions(CallOptions, total=False):
    """The options of `with_options`."""

    api_key: str | None
    base_url: str | None
    on_attempt: Callable[[Attempt], None] | None


@dataclass(frozen=True)
class Request:
    """A request, with a path below the base URL."""

    method: str
    path: str
    params: Sequence[tuple[str, str]] = ()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: int = 0
    """How long the service may hold back the response. The time limits of the client do not include it."""
    outlives_outages: bool = False
    """Whether `max_time_seconds` does not limit the retries."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a call, for `on_attempt`."""

    number: int
    """1 for the first attempt."""
    method: str
    path: str
    duration_seconds: float
    """How long the attempt took."""
    status: int | None
    """The HTTP status; None if there was no response."""
    headers: Mapping[str, str]
    """The headers of the response; empty if there was none."""
    request_id: str | None
    """Identifies the request in the service's log; None if there was no response."""
    error: PetstoreError | None
    """Why the attempt failed; None if it succeeded."""
    retry_in_seconds: float | None
    """How long until the next attempt; None if this was the last one."""


@dataclass(frozen=True)
class ResponseInfo:
    """The response to a successful call."""

    status: int
    headers: Mapping[str, str]
    request_id: str | None
    """Identifies the request in the service's log: quote it when you report a problem."""


@dataclass(frozen=True)
class Send:
    """Send this request. The outcome is the response, or the exception instead of one."""

    arguments: dict[str, Any]
    waits: bool
    """Whether the service may hold back the response, so that closing the client has to end the request."""


class TimeLeft(Mapping[str, float]):
    """The timeouts of one attempt, as httpx reads them before each step: what is left until the deadline.

    Fixed timeouts would start again with each step: connecting, sending, receiving.
    """

    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        self._deadline, self._clock = deadline, clock

    def __getitem__(self, step: str) -> float:
        left = self._deadline - self._clock()
        return min(max(left, 0.001), 1e6)  # sockets accept neither infinity nor, with this meaning, 0

    def __iter__(self) -> Iterator[str]:
        return iter(("connect", "read", "write", "pool"))

    def __len__(self) -> int:
        return 4


@dataclass(frozen=True)
class Sleep:
    """Wait."""

    seconds: float


Outcome = Union[httpx.Response, httpx.RequestError, ClientClosedError, ClientMovedError, None]
Call = Generator[Union[Send, Sleep], Outcome, T]


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    cursor: str | None
    """Where the next page starts: pass it to `list` to continue there. None on the last page.

    A page of events always has one, which is the `after` of the next page."""


@dataclass(frozen=True)
class Core:
    """The settings of a client, and its calls."""

    base_url: httpx.URL
    own_headers: httpx.Headers = field(repr=False)
    timeout_seconds: float
    max_time_seconds: float
    extra_headers: httpx.Headers = field(repr=False)
    on_attempt: Callable[[Attempt], None] | None
    clock: Callable[[], float]
    random: Callable[[], float]

    @staticmethod
    def from_settings(
        api_key: str | None,
        base_url: str | None,
        timeout_seconds: float,
        max_time_seconds: float,
        headers: Mapping[str, str] | None,
        on_attempt: Callable[[Attempt], None] | None,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> Core:
        own, extra = _own_headers(api_key), _extra_headers({} if headers is None else headers)
        return Core(_base_url(base_url), own, timeout_seconds, max_time_seconds, extra, on_attempt, clock, random)

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "max_time_seconds"):
            if not isinstance(getattr(self, name), numbers.Real):
                kind = type(getattr(self, name)).__name__
                raise TypeError(f"`{name}` must be a number of seconds, not a value of type {kind}.")
        for name in ("on_attempt", "clock", "random"):
            checked_function(name, getattr(self, name), optional=name == "on_attempt")
        # Written so that NaN is rejected as well.
        if not self.timeout_seconds > 0:
            raise ValueError(f"`timeout_seconds` must be a number above 0, not {self.timeout_seconds}.")
        if not self.max_time_seconds >= 0:
            raise ValueError(f"`max_time_seconds` must be a number, at least 0, not {self.max_time_seconds}.")

    def with_options(self, options: ClientOptions) -> Core:
        """Returns these settings with some of them changed. Headers are added."""
        _check_options(options, ClientOptions.__annotations__, "`with_options` accepts")
        return self._changed(options)

    def for_call(self, options: CallOptions) -> Core:
        _check_options(options, CallOptions.__annotations__, "Your own data belongs into `metadata`. All calls accept")
        return self._changed(options)

    def _changed(self, options: Mapping[str, Any]) -> Core:
        changes = {name: value for name, value in options.items() if value is not None}
        if "api_key" in changes:
            changes["own_headers"] = _own_headers(changes.pop("api_key"))
        if "base_url" in changes:
            changes["base_url"] = _base_url(changes["base_url"])
        if "headers" in changes:
            changes["extra_headers"] = self.extra_headers.copy()
            changes["extra_headers"].update(_extra_headers(changes.pop("headers")))
        return replace(self, **changes)

    def recording(self, attempts: list[Attempt]) -> Core:
        """Returns these settings, with which attempts are also added to the list."""

        def on_attempt(attempt: Attempt) -> None:
            attempts.append(attempt)
            if self.on_attempt is not None:
                self.on_attempt(attempt)

        return replace(self, on_attempt=on_attempt)

    # Calls

    def create_pet(
        self,
        name: str,
        category_id: int,
        status: PetStatus | None,
        reference: str | None,
        metadata: Metadata | None,
        idempotency_key: str | None,
    ) -> Call[Pet]:
        own = checked_metadata(metadata)
        body = NewPet(name=name, category_id=category_id, status=status, reference=reference, metadata=own).to_dict()
        response = yield from self._perform(_write("POST", "/pets", idempotency_key, body))
        return _read(response, _pet)

    def get_pet(self, pet_id: int) -> Call[Pet]:
        wanted = _id("pet_id", pet_id, "pet")
        response = yield from self._perform(Request("GET", "/pets", _params(id=wanted)))
        pets = _read(response, _pets)
        request_id = response.headers.get("X-Request-Id")
        if not pets:
            problem = f"No pet has the id {wanted}."
            raise NotFoundError(problem, code="pet_not_found", status=404, request_id=request_id)
        if pets[0].id != wanted or len(pets) > 1:
            problem = f"The response does not have the pet {wanted}, but the pets {[pet.id for pet in pets[:5]]}."
            status = response.status_code
            raise PetstoreError(problem, code="unexpected_response", status=status, request_id=request_id)
        return replace(pets[0], etag=_etag(response))

    def get_pets(self, pet_ids: Sequence[int]) -> Call[list[Pet]]:
        wanted = _items("pet_ids", pet_ids, "ids, such as `[1, 2]`")
        ids = list(dict.fromkeys(_id(f"pet_ids[{index}]", pet_id, "pet") for index, pet_id in enumerate(wanted)))
        found = yield from self._named_pets("id", [str(pet_id) for pet_id in ids], [])
        return [found[pet_id] for pet_id in ids if pet_id in found]

    def pets_by_reference(self, references: Sequence[str], filters: Sequence[tuple[str, str]]) -> Call[Page[Pet]]:
        """Returns all pets with these references that match the filters, on one page."""
        found = yield from self._named_pets("reference", references, filters)
        newest_first = ("sort", "-id") in filters
        return Page([found[pet_id] for pet_id in sorted(found, reverse=newest_first)], None)

    def _named_pets(self, param: str, names: Sequence[str], filters: Sequence[tuple[str, str]]) -> Call[dict[int, Pet]]:
        """Returns the pets with these ids or references, by id. Sends as many requests as that takes."""
        found: dict[int, Pet] = {}
        for some in _parts(param, names):
            params = [*((param, name) for name in some), *filters, *_params(limit=MAX_LIMIT)]
            response = yield from self._perform(Request("GET", "/pets", params))
            found.update((pet.id, pet) for pet in _read(response, _pets))
        return found

    def update_pet(
        self,
        pet_id: int,
        name: str | None,
        category_id: int | None,
        status: PetStatus | None,
        reference: str | Remove | None,
        metadata: MetadataPatch | Remove | None,
        if_match: str | None,
        idempotency_key: str | None,
    ) -> Call[Pet]:
        headers = _if_match(if_match, "pets of a list have no `etag`. Use pets.get to read the pet first.")
        changes = checked_metadata_patch(metadata)
        patch = PetPatch(name=name, category_id=category_id, status=status, reference=reference, metadata=changes)
        path = f"/pets/{_id('pet_id', pet_id, 'pet')}"
        response = yield from self._perform(_write("PATCH", path, idempotency_key, patch.to_dict(), headers))
        return _read(response, _pet)

    def delete_pet(self, pet_id: int, if_match: str | None, idempotency_key: str | None) -> Call[None]:
        headers = _if_match(if_match, "pets of a list have no `etag`. Use pets.get to read the pet first.")
        path = f"/pets/{_id('pet_id', pet_id, 'pet')}"
        response = yield from self._perform(_write("DELETE", path, idempotency_key, headers=headers))
        return _read(response, _nothing)

    def place_order(
        self,
        pet_id: int,
        reference: str | None,
        hold_seconds: int | None,
        metadata: Metadata | None,
        idempotency_key: str | None,
    ) -> Call[Order]:
        pet, own = _id("pet_id", pet_id, "pet"), checked_metadata(metadata)
        body = NewOrder(pet_id=pet, reference=reference, hold_seconds=hold_seconds, metadata=own).to_dict()
        response = yield from self._perform(_write("POST", "/store/orders", idempotency_key, body))
        return _read(response, _order)

    def get_order(self, order_id: int) -> Call[Order]:
        response = yield from self._perform(Request("GET", _order_path(order_id)))
        return _read(response, _order)

    def update_order(
        self,
        order_id: int,
        hold_seconds: int | None,
        reference: str | Remove | None,
        metadata: MetadataPatch | Remove | None,
        if_match: str | None,
        idempotency_key: str | None,
    ) -> Call[Order]:
        headers = _if_match(if_match, "only orders.get and orders.update return the `etag` of an order.")
        patch = OrderPatch(hold_seconds=hold_seconds, reference=reference, metadata=checked_metadata_patch(metadata))
        path = _order_path(order_id)
        response = yield from self._perform(_write("PATCH", path, idempotency_key, patch.to_dict(), headers))
        return _read(response, _order)

    def complete_order(self, order_id: int, idempotency_key: str | None) -> Call[Order]:
        response = yield from self._perform(_write("POST", f"{_order_path(order_id)}/complete", idempotency_key))
        return _read(response, _order)

    def cancel_order(self, order_id: int, idempotency_key: str | None) -> Call[Order]:
        response = yield from self._perform(_write("POST", f"{_order_path(order_id)}/cancel", idempotency_key))
        return _read(response, _order)

    def page(self, request: Request, cursor: str | None, read: Callable[[Mapping[str, Any]], T]) -> Call[Page[T]]:
        params = [*request.params, *_params(cursor=cursor)]
        response = yield from self._perform(replace(request, params=params))
        # Only the cursor of the link is used, so the key is sent to no other host.
        return _read(response, lambda response: Page([read(item) for item in response.json()], _next_cursor(response)))

    def events(
        self,
        after: str | None,
        limit: int,
        wait_seconds: int,
        types: Sequence[str] = (),
        outlives_outages: bool = False,
    ) -> Call[Page[Event]]:
        params = _params(after=after, limit=limit, wait=wait_seconds or None) + [("type", name) for name in types]
        hold = max(wait_seconds, 0)
        request = Request("GET", "/events", params, wait_seconds=hold, outlives_outages=outlives_outages)
        response = yield from self._perform(request)
        return _read(response, _events)

    def position(self) -> Call[str]:
        page = yield from self.events("now", 1, 0)
        assert page.cursor is not None
        return page.cursor

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, QueryValue] | None,
        body: Any,
        idempotency_key: str | None,
    ) -> Call[Any]:
        if method not in METHODS:
            raise ValueError(f"`method` must be one of {', '.join(METHODS)}.")
        if not isinstance(path, str) or not re.fullmatch(r"/v1/[^?#\s]*", path):
            raise ValueError("`path` must start with `/v1/`. Pass parameters as `query`.")
        if method == "GET" and body is not None:
            raise ValueError("A `GET` has no `body`. Pass parameters as `query`.")
        headers = {}
        if method != "GET" or idempotency_key is not None:
            headers = _idempotency_key(idempotency_key)
        request = Request(method, path[len("/v1") :], _query({} if query is None else query), body, headers)
        response = yield from self._perform(request)
        return _read(response, _json)

    # Attempts

    def _perform(self, request: Request) -> Call[httpx.Response]:
        """Sends a request until it gets a response that is not worth a retry, or until `max_time_seconds` is over."""
        timeout = self.timeout_seconds + request.wait_seconds
        # With a `max_time_seconds` of 0, there is one attempt, and only `timeout_seconds` limits it.
        max_time = (self.max_time_seconds or self.timeout_seconds) + request.wait_seconds
        deadline = float("inf") if request.outlives_outages else self.clock() + max_time
        number = 0
        outcome_unknown = False
        previous: PetstoreError | None = None
        while True:
            number += 1
            sent = self.clock()
            attempt_deadline = min(sent + timeout, deadline)
            outcome = yield self._send(request, TimeLeft(attempt_deadline, self.clock))
            if isinstance(outcome, (ClientClosedError, ClientMovedError)):
                outcome.outcome_unknown = outcome_unknown
                raise outcome
            ended = self.clock()
            error = _error(outcome)
            retry_in: float | None = None
            if error is not None:
                # Stays true for the 404 or 412 of a retry: a service before 1.3.0 ignores the key of a PATCH or DELETE,
                # so an earlier attempt of this call may have caused it.
                outcome_unknown |= request.method != "GET" and _may_have_taken_effect(outcome, error)
                error.outcome_unknown = outcome_unknown
                if self.max_time_seconds and _is_retryable(outcome, error):
                    pause = max(self._pause(number), error.retry_after_seconds or 0.0)
                    if request.outlives_outages:
                        pause = min(pause, LONGEST_FOLLOWER_PAUSE_SECONDS)
                    if ended + pause + SHORTEST_TIMEOUT_SECONDS <= deadline:
                        retry_in = pause
            attempt = Attempt(number, request.method, request.path, ended - sent, *_head(outcome), error, retry_in)
            self._report(attempt)
            if error is None:
                assert isinstance(outcome, httpx.Response)
                return outcome
            if retry_in is None:
                if previous is not None and attempt_deadline < sent + timeout and error.status is None:
                    # The attempt had little time. The previous error says more than that there was no response.
                    previous.outcome_unknown = outcome_unknown
                    raise previous
                raise error from (outcome if isinstance(outcome, Exception) else None)
            previous = error
            yield Sleep(retry_in)

    def _send(self, request: Request, timeouts: TimeLeft) -> Send:
        headers = self.own_headers.copy()
        headers.update(self.extra_headers)
        headers.update(request.headers)
        try:
            url = httpx.URL(f"{self.base_url}{request.path}").copy_merge_params(list(request.params))
        except httpx.InvalidURL as error:
            raise ValueError(f"The path or an argument cannot be sent in a URL: {error}") from None
        arguments: dict[str, Any] = {
            "method": request.method,
            "url": url,
            "headers": headers,
            "extensions": {"timeout": timeouts},
        }
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            arguments["content"] = json.dumps(request.body, default=_null)
        return Send(arguments, waits=request.wait_seconds > 0)

    def _pause(self, number: int) -> float:
        """Returns the pause after this attempt: exponential back-off, half of it random so that clients spread out."""
        longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(number - 1, 30), LONGEST_PAUSE_SECONDS)
        return longest / 2 + self.random() * longest / 2

    def _report(self, attempt: Attempt) -> None:
        what = "%s %s: attempt %d got %s after %.3f s"
        status = attempt.status or "no response"
        values = (attempt.method, attempt.path, attempt.number, status, attempt.duration_seconds)
        if attempt.retry_in_seconds is not None:
            logger.info(what + ", retrying in %.3f s: %s", *values, attempt.retry_in_seconds, attempt.error)
        else:
            logger.debug(what, *values)
        if "Deprecation" in attempt.headers:
            sunset = attempt.headers.get("Sunset", "a date to be announced")
            logger.warning("%s %s is deprecated and will be removed on %s", attempt.method, attempt.path, sunset)
        if self.on_attempt is not None:
            self.on_attempt(attempt)


def pet_filters(status: PetStatus | None, category_id: int | None, sort: Sort | None) -> list[tuple[str, str]]:
    category = None if category_id is None else integer("category_id", category_id)
    return _params(status=optional_text("status", status), categoryId=category, sort=optional_text("sort", sort))


def list_pets(filters: Sequence[tuple[str, str]], limit: int) -> Request:
    return Request("GET", "/pets", [*filters, *_params(limit=integer("limit", limit))])


def list_orders(
    status: OrderStatus | None, pet_id: int | None, reference: str | None, sort: Sort | None, limit: int
) -> Request:
    pet = None if pet_id is None else _id("pet_id", pet_id, "pet")
    params = _params(
        status=optional_text("status", status),
        petId=pet,
        reference=optional_text("reference", reference),
        sort=optional_text("sort", sort),
        limit=integer("limit", limit),
    )
    return Request("GET", "/store/orders", params)


def _order_path(order_id: int) -> str:
    return f"/store/orders/{_id('order_id', order_id, 'order')}"


def _id(argument: str, value: object, of: str) -> int:
    """Returns the id if it is one: any integer type above 0, such as those of numpy, but not True."""
    article = "an" if of == "order" else "a"
    expected = f"`{argument}` must be the id of {article} {of}, a positive integer"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{expected}, not a value of type {type(value).__name__}. Pass `{of}.id`.")
    number = operator.index(value)
    if number < 1:
        raise ValueError(f"{expected}, not {number}. Pass `{of}.id`.")
    return number


def integer(argument: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"`{argument}` must be an integer, not a value of type {type(value).__name__}.")
    return operator.index(value)


def unique_references(references: Iterable[str]) -> list[str]:
    """Returns the references, each once, if they are a list of strings."""
    wanted = _items("references", references, "references, such as `['stock-17']`")
    return list(dict.fromkeys(_text(f"references[{index}]", value) for index, value in enumerate(wanted)))


def event_types(types: Iterable[str] | None) -> list[str]:
    """Returns the types, or nothing for all types. An empty list is not the same: it would match no event."""
    if types is None:
        return []
    wanted = _items("types", types, "types, such as `['order.completed']`")
    if not wanted:
        raise ValueError("`types` is empty. Leave it out to get events of all types.")
    return [_text(f"types[{index}]", value) for index, value in enumerate(wanted)]


def _items(argument: str, values: Iterable[T], of: str) -> list[T]:
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"`{argument}` must be a list of {of}.")
    return list(values)


def optional_text(argument: str, value: T) -> T:
    """Returns the value if it is None, which stands for the default, or a string that is not empty.

    Anything else could select other pets or orders than the caller meant.
    """
    if value is not None:
        _text(argument, value)
    return value


def _text(argument: str, value: object) -> str:
    if not _string(argument, value):
        raise ValueError(f"`{argument}` is empty.")
    return str(value)


def checked_function(argument: str, value: T, optional: bool) -> T:
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"`{argument}` must be a function, not a value of type {type(value).__name__}.")
    return value


def _string(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"`{argument}` must be a string, not a value of type {type(value).__name__}.")
    return value


def _null(value: object) -> None:
    """Encodes `REMOVE`, for `json.dumps`."""
    if value is not REMOVE:
        raise TypeError(f"A value of type {type(value).__name__} cannot be sent as JSON.")


def _parts(param: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Divides ids or references into parts that fit into one request each."""
    part: list[str] = []
    size = 0
    for name in names:
        name_size = len(f"&{param}={quote(name, safe='')}")
        if part and (len(part) == MAX_LIMIT or size + name_size > MAX_NAMES_BYTES):
            yield part
            part, size = [], 0
        part.append(name)
        size += name_size
    if part:
        yield part


def _params(**values: str | int | None) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in values.items() if value is not None]


def _write(
    method: Method,
    path: str,
    idempotency_key: str | None,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Request:
    """Returns a request that takes effect once, however many attempts it takes."""
    return Request(method, path, body=body, headers={**(headers or {}), **_idempotency_key(idempotency_key)})


def _idempotency_key(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4()) if key is None else _header("idempotency_key", key)}


def _if_match(etag: str | None, where_from: str) -> dict[str, str]:
    if etag is None:
        raise ValueError(f"`if_match` is None: {where_from}")
    return {} if etag == "*" else {"If-Match": _header("if_match", etag)}


def _query(query: Mapping[str, QueryValue]) -> list[tuple[str, str]]:
    """Returns the parameters. One that is None is left out. No other value is, because that could drop a filter."""
    if not isinstance(query, Mapping):
        raise TypeError("`query` must be a mapping, such as `{'status': 'sold'}`.")
    params: list[tuple[str, str]] = []
    for name, value in query.items():
        if value is None:
            continue
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise ValueError(f"`query[{name!r}]` is empty. Leave it out, or pass None.")
        for one in values:
            if not isinstance(one, (str, int, float)):
                kind = type(one).__name__
                raise TypeError(f"`query[{name!r}]` must be a text or a number, or a list of them, not {kind}.")
            params.append((name, json.dumps(one) if isinstance(one, bool) else str(one)))
    return params


def response_of(attempts: list[Attempt]) -> ResponseInfo:
    """Returns the response to the call that made these attempts."""
    if not attempts or attempts[-1].status is None:
        raise ValueError("The call sent no request, so it has no response.")
    return ResponseInfo(attempts[-1].status, attempts[-1].headers, attempts[-1].request_id)


def _check_options(options: Mapping[str, object], known: Iterable[str], accepts: str) -> None:
    for name in options:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean `{nearest[0]}`? " if nearest else ""
            names = ", ".join(f"`{one}`" for one in known)
            raise TypeError(f"There is no argument `{name}`. {hint}{accepts} {names}.")


def _own_headers(api_key: str | None) -> httpx.Headers:
    key = _setting("api_key", api_key, "PETSTORE_KEY")
    if not key:
        raise ValueError("Set `api_key` or the environment variable PETSTORE_KEY.")
    _header("api_key", key)  # otherwise an exception about the header would show the key
    return httpx.Headers({"Authorization": f"Bearer {key}", "User-Agent": f"petstore-client-python/{__version__}"})


def _extra_headers(headers: Mapping[str, str]) -> httpx.Headers:
    """Returns the headers if callers can set them. No message contains a value, which may be a secret."""
    if not isinstance(headers, Mapping):
        raise TypeError("`headers` must be a mapping, such as `{'traceparent': …}`.")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("The names and values of `headers` must be strings.")
        instead = RESERVED_HEADERS.get(name.lower())
        if instead is not None:
            raise ValueError(f"`headers` must not contain `{name}`: {instead}.")
        visible = value.isascii() and value.isprintable() and value != "" and value.strip() == value
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not visible:
            raise ValueError(f"The header {name!r} must have a valid name, and a value of visible ASCII characters.")
    return httpx.Headers(dict(headers))


def _base_url(base_url: str | None) -> httpx.URL:
    address = _setting("base_url", base_url, "PETSTORE_URL").rstrip("/")
    if not address:
        raise ValueError("Set `base_url` or the environment variable PETSTORE_URL.")
    try:
        url = httpx.URL(address if address.endswith("/v1") else address + "/v1")
    except httpx.InvalidURL as error:
        raise ValueError(f"The base URL is not valid: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise ValueError(f"The base URL must be like http://host:8080, unlike {url!r}.")
    return url


def _setting(option: str, value: str | None, variable: str) -> str:
    """Returns an option, or the environment variable if the option is None. An empty option may be a mistake."""
    return (os.environ.get(variable, "") if value is None else _string(option, value)).strip()


def _header(option: str, value: str) -> str:
    _string(option, value)
    if not value.isascii() or not value.isprintable() or not value or " " in value:
        raise ValueError(f"`{option}` must not be empty, and must contain only visible ASCII characters.")
    return value


def _error(outcome: Outcome) -> PetstoreError | None:
    if isinstance(outcome, httpx.RequestError):
        return errors.from_exception(outcome)
    assert isinstance(outcome, httpx.Response)
    return None if outcome.is_success else errors.from_response(outcome)


def _is_retryable(outcome: Outcome, error: PetstoreError) -> bool:
    if isinstance(outcome, httpx.Response):
        return outcome.status_code in RETRYABLE or error.code == "idempotency_in_progress"
    # Except requests that cannot be sent at all.
    return isinstance(outcome, httpx.TransportError) and not isinstance(
        outcome, (httpx.LocalProtocolError, httpx.UnsupportedProtocol)
    )


def _may_have_taken_effect(outcome: Outcome, error: PetstoreError) -> bool:
    """Returns whether a write that got this outcome may have changed something."""
    if isinstance(outcome, httpx.Response):
        # `unavailable` means that nothing was changed, and `outcome_unknown` that it is not known. A server of version
        # 1.0.0 sends `unavailable` for both. To claim that nothing was changed would be unsafe there: the caller could
        # repeat the change with another idempotency key. The text that 1.0.0 sends in this case is fixed, because that
        # version is released, and later versions never send it with this code.
        if outcome.status_code == 503 and error.code == "unavailable":
            return OUTCOME_UNKNOWN_IN_1_0_0 in error.message
        return outcome.is_server_error or error.code == "idempotency_in_progress"
    never_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.LocalProtocolError)
    return not isinstance(outcome, never_sent)


def _head(outcome: Outcome) -> tuple[int | None, Mapping[str, str], str | None]:
    if isinstance(outcome, httpx.Response):
        return outcome.status_code, outcome.headers, outcome.headers.get("X-Request-Id")
    return None, {}, None


def _read(response: httpx.Response, read: Callable[[httpx.Response], T]) -> T:
    try:
        return read(response)
    # For example the page of a captive portal. RecursionError: JSON that is nested too deeply.
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, httpx.InvalidURL):
        error = errors.from_response(response)
        error.outcome_unknown = response.request.method != "GET"
        raise error from None


def _etag(response: httpx.Response) -> str | None:
    """Returns the version of the only pet or order in a response."""
    etag: str | None = response.headers.get("ETag")
    return etag


def _pet(response: httpx.Response) -> Pet:
    return replace(Pet.from_dict(response.json()), etag=_etag(response))


def _pets(response: httpx.Response) -> list[Pet]:
    return [Pet.from_dict(item) for item in response.json()]


def _json(response: httpx.Response) -> Any:
    """Returns the object or array in a response, or None if the response is empty."""
    body = response.json() if response.content else None
    if not isinstance(body, (dict, list, type(None))) or (body is None and response.content):
        raise ValueError
    return body


def _nothing(response: httpx.Response) -> None:
    if response.status_code != 204:
        raise ValueError


def _events(response: httpx.Response) -> Page[Event]:
    # Every page has a link. Without it, the reader would skip or repeat events.
    position = httpx.URL(response.links["next"]["url"]).params["after"]
    return Page([Event.from_dict(item) for item in response.json()], position)


def _next_cursor(response: httpx.Response) -> str | None:
    link = response.links.get("next")
    return None if link is None else httpx.URL(link["url"]).params["cursor"]


def _order(response: httpx.Response) -> Order:
    return replace(Order.from_dict(response.json()), etag=_etag(response))

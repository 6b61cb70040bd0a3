"""Tests both clients without a network and without waiting: a transport plays a script, and sleeping advances a clock.

python -m unittest discover clients/python/tests
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import email.utils
import functools
import inspect
import io
import itertools
import json
import logging
import os
import pickle
import socket
import threading
import time
import types
import unittest
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Callable, Union
from unittest import mock

import httpx

import petstore_client as sdk
from petstore_client.generated.models import NewOrder, NewPet, OrderPatch, PetPatch

KEY = "psk_secret"
REX = {"id": 1, "name": "Rex", "categoryId": 3, "status": "available"}
ORDER = {
    "id": 5,
    "petId": 1,
    "status": "placed",
    "createdAt": "2026-11-15T09:30:00.000Z",
    "updatedAt": "2026-11-15T09:30:00.000Z",
}
EVENT = {"id": "E1", "type": "pet.created", "petId": 1, "at": "2026-11-15T09:30:00.000Z"}
HTML = "<html><h1>Bad Gateway</h1></html>"

Answer = Union[httpx.Response, Exception]


def error(status: int, code: str, message: str = "Something is wrong.", **headers: str) -> httpx.Response:
    body = {"code": code, "message": message, "status": status}
    return httpx.Response(status, json=body, headers={"X-Request-Id": "abc", **headers})


def created(pet: Any = REX) -> httpx.Response:
    return httpx.Response(201, json=pet, headers={"ETag": '"1"'})


def events(position: str, *ids: str) -> httpx.Response:
    """Returns a page of events. The next one is after `position`."""
    link = f'<https://elsewhere.example/v1/events?limit=100&after={position}>; rel="next"'
    return httpx.Response(200, json=[{**EVENT, "id": id} for id in ids], headers={"Link": link})


# Every write, with the response to it.
WRITES: list[tuple[Callable[..., Any], Callable[[], httpx.Response]]] = [
    (lambda shop, **key: shop.pets.create(name="Rex", category_id=3, **key), created),
    (lambda shop, **key: shop.pets.update(1, name="Rex", **key), lambda: httpx.Response(200, json=REX)),
    (lambda shop, **key: shop.pets.delete(1, **key), lambda: httpx.Response(204)),
    (lambda shop, **key: shop.orders.place(pet_id=1, **key), lambda: httpx.Response(201, json=ORDER)),
    (lambda shop, **key: shop.orders.update(5, hold_seconds=60, **key), lambda: httpx.Response(200, json=ORDER)),
    (lambda shop, **key: shop.orders.complete(5, **key), lambda: httpx.Response(200, json=ORDER)),
    (lambda shop, **key: shop.orders.cancel(5, **key), lambda: httpx.Response(200, json=ORDER)),
    (lambda shop, **key: shop.request("POST", "/v1/vets", **key), lambda: httpx.Response(204)),
    (lambda shop, **key: shop.request("PATCH", "/v1/vets/7", **key), lambda: httpx.Response(204)),
    (lambda shop, **key: shop.request("PUT", "/v1/vets/7", **key), lambda: httpx.Response(204)),
    (lambda shop, **key: shop.request("DELETE", "/v1/vets/7", **key), lambda: httpx.Response(204)),
]


@contextlib.contextmanager
def silent_server() -> Iterator[tuple[str, threading.Semaphore]]:
    """Accepts requests on a real socket and never responds. The semaphore counts the requests that have arrived."""
    asked = threading.Semaphore(0)
    connections: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                connection.recv(65536)
                # The client is about to wait for the response. Closing it before that is the easier case.
                time.sleep(0.1)
                asked.release()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


class World:
    """A service that plays a script, and a clock. `seconds` is how long each request takes."""

    def __init__(self, *script: Answer, seconds: float = 0.0) -> None:
        self.script = list(script)
        self.seconds = seconds
        self.now = 1000.0
        self.requests: list[httpx.Request] = []
        self.timeouts: list[float] = []
        self.pauses: list[float] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        timeout = request.extensions["timeout"]["read"]
        self.timeouts.append(timeout)
        self.now += min(self.seconds, timeout)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def options(self) -> dict[str, Any]:
        return {
            "api_key": KEY,
            "base_url": "http://shop.example",
            "clock": lambda: self.now,
            "random": lambda: 1.0,
        }


class Calls:
    """The tests. The two classes at the end run them, one for each client."""

    def call(self, world: World, call: Callable[[Any], Any], **options: Any) -> Any:
        raise NotImplementedError

    def list(self, world: World, call: Callable[[Any], Any], count: int | None = None, **options: Any) -> Any:
        """Returns the items of an iterator, at most `count` of them."""
        raise NotImplementedError

    def fails(self, world: World, call: Callable[[Any], Any], **options: Any) -> sdk.PetstoreError:
        try:
            result = self.call(world, call, **options)
        except sdk.PetstoreError as error:
            return error
        raise AssertionError(f"succeeded: {result}")

    @staticmethod
    def create(shop: Any) -> Any:
        return shop.pets.create(name="Rex", category_id=3, status="available")

    def test_create_sends_the_pet_with_a_key_and_returns_it(self) -> None:
        world = World(created())
        pet = self.call(world, self.create)
        assert (pet, pet.etag) == (sdk.Pet(1, "Rex", 3, "available"), '"1"')
        [request] = world.requests
        assert (request.method, str(request.url)) == ("POST", "http://shop.example/v1/pets")
        assert request.headers["Authorization"] == "Bearer psk_secret"
        assert request.headers["Content-Type"] == "application/json"
        assert len(request.headers["Idempotency-Key"]) == 36
        assert request.content == b'{"name": "Rex", "categoryId": 3, "status": "available"}'

    def test_every_write_carries_an_idempotency_key(self) -> None:
        for write, answer in WRITES:
            world = World(answer())
            self.call(world, write)
            [request] = world.requests
            assert len(request.headers["Idempotency-Key"]) == 36, request

    def test_the_key_is_the_same_in_all_attempts_of_a_call_and_differs_between_calls(self) -> None:
        for write, answer in WRITES:
            keys: list[str] = []
            for _ in range(2):
                in_progress = error(409, "idempotency_in_progress")
                world = World(httpx.ReadTimeout(""), error(503, "unavailable"), in_progress, answer())
                self.call(world, write)
                keys += [request.headers["Idempotency-Key"] for request in world.requests]
            assert keys == [keys[0]] * 4 + [keys[4]] * 4
            assert keys[0] != keys[4]

    def test_a_key_of_the_caller_is_sent_as_it_is(self) -> None:
        for write, answer in WRITES:
            world = World(httpx.ReadTimeout(""), answer())
            self.call(world, functools.partial(write, idempotency_key="mine:7"))
            assert [request.headers["Idempotency-Key"] for request in world.requests] == ["mine:7"] * 2

    def test_reads_carry_no_idempotency_key(self) -> None:
        calls: list[tuple[Callable[..., Any], Callable[[Any], Any], httpx.Response]] = [
            (self.call, lambda shop: shop.pets.get(1), httpx.Response(200, json=[REX])),
            (self.call, lambda shop: shop.pets.get_many([1]), httpx.Response(200, json=[REX])),
            (self.list, lambda shop: shop.pets.list(), httpx.Response(200, json=[REX])),
            (self.list, lambda shop: shop.pets.list(references=["7"]), httpx.Response(200, json=[REX])),
            (self.call, lambda shop: shop.orders.get(5), httpx.Response(200, json=ORDER)),
            (self.list, lambda shop: shop.orders.list(), httpx.Response(200, json=[ORDER])),
            (self.call, lambda shop: shop.events.position(), events("A")),
            (self.list, lambda shop: shop.events.list(), events("A")),
            (self.call, lambda shop: shop.request("GET", "/v1/pets"), httpx.Response(200, json=[REX])),
        ]
        for make, call, answer in calls:
            world = World(answer)
            make(world, call)
            [request] = world.requests
            assert "Idempotency-Key" not in request.headers, request

    def test_transient_failures_are_retried_whatever_the_body(self) -> None:
        transient: list[Answer] = [
            httpx.ConnectError("refused"),
            httpx.ConnectTimeout("slow"),
            httpx.ReadTimeout("slow"),
            httpx.ReadError("reset"),
            httpx.WriteError("reset"),
            httpx.RemoteProtocolError("closed"),
            error(408, "request_timeout"),
            error(409, "idempotency_in_progress"),
            error(429, "rate_limited"),
            error(503, "unavailable"),
            httpx.Response(502, html=HTML),
            httpx.Response(503, html=HTML),
            httpx.Response(504, text=""),
            httpx.Response(503, json=["not", "an", "error"]),
            httpx.Response(503, json={"code": None}),
        ]
        for answer in transient:
            world = World(answer, created())
            assert self.call(world, self.create).id == 1, answer
            assert len(world.requests) == 2, answer

    def test_other_failures_are_not_retried(self) -> None:
        final: list[tuple[Answer, type[sdk.PetstoreError], str]] = [
            (error(400, "invalid_field"), sdk.BadRequestError, "invalid_field"),
            (error(401, "invalid_api_key"), sdk.AuthenticationError, "invalid_api_key"),
            (error(403, "insufficient_scope"), sdk.PermissionDeniedError, "insufficient_scope"),
            (error(404, "order_not_found"), sdk.NotFoundError, "order_not_found"),
            (error(409, "pet_not_available"), sdk.ConflictError, "pet_not_available"),
            (error(410, "operation_removed"), sdk.BadRequestError, "operation_removed"),
            (error(412, "precondition_failed"), sdk.PreconditionFailedError, "precondition_failed"),
            (error(422, "idempotency_key_reused"), sdk.BadRequestError, "idempotency_key_reused"),
            (error(418, "a_new_code"), sdk.BadRequestError, "a_new_code"),
            (error(500, "internal_error"), sdk.InternalServerError, "internal_error"),
            (httpx.Response(500, html=HTML), sdk.InternalServerError, "unexpected_response"),
            (error(404, "pet_not_found"), sdk.NotFoundError, "pet_not_found"),
            (httpx.Response(302, headers={"Location": "/"}), sdk.PetstoreError, "unexpected_response"),
            (httpx.Response(201, html=HTML), sdk.PetstoreError, "unexpected_response"),
            (httpx.Response(201, json=[]), sdk.PetstoreError, "unexpected_response"),
            (httpx.Response(201, json={"id": 1}), sdk.PetstoreError, "unexpected_response"),
            (httpx.LocalProtocolError("bad header"), sdk.APIConnectionError, "no_response"),
        ]
        for answer, kind, code in final:
            world = World(answer)
            failure = self.fails(world, self.create)
            assert (type(failure), failure.code) == (kind, code), answer
            assert failure.status == (answer.status_code if isinstance(answer, httpx.Response) else None)

    def test_a_404_that_is_not_about_a_pet_or_an_order_says_to_check_the_base_url(self) -> None:
        answers = [
            error(404, "route_not_found"),
            error(404, "not_found"),
            httpx.Response(404, html=HTML),
            httpx.Response(404, json={"error": "Not Found"}),
        ]
        calls: list[Callable[[Any], Any]] = [lambda shop: shop.pets.get(1), lambda shop: shop.orders.get(5)]
        for answer, call in itertools.product(answers, calls):
            failure = self.fails(World(answer), call)
            assert type(failure) is sdk.RouteNotFoundError, answer
            assert not isinstance(failure, sdk.NotFoundError)
            assert "Check the base URL" in failure.message
            assert "http://shop.example/v1/" in failure.message
        portal = self.fails(World(httpx.Response(200, html=HTML)), lambda shop: shop.pets.get(1))
        assert "Check the base URL" in portal.message

    def test_a_strange_response_is_an_error_of_the_sdk(self) -> None:
        deep = "[" * 100_000
        far = {"Date": "Mon, 16 Nov 2026 08:00:00 GMT", "Retry-After": f"Mon, 16 Nov {'9' * 30} 08:00:00 GMT"}
        long = {"Link": f'</v1/pets?cursor={"a" * 70_000}>; rel="next"'}
        cases: list[tuple[Callable[..., Any], Callable[[Any], Any], httpx.Response, bool]] = [
            (self.call, self.create, httpx.Response(201, text=deep), True),
            (self.call, self.create, httpx.Response(500, text=deep), True),
            (self.call, self.create, httpx.Response(503, text="", headers=far), True),
            (self.list, lambda shop: shop.pets.list(), httpx.Response(200, json=[], headers=long), False),
            (self.list, lambda shop: shop.events.list(), httpx.Response(200, json=[], headers=long), False),
        ]
        for make, call, answer, unknown in cases:
            with unittest.TestCase().assertRaises(sdk.PetstoreError) as raised:
                make(World(answer), call, max_time_seconds=0)
            assert (raised.exception.code, raised.exception.outcome_unknown) == ("unexpected_response", unknown)

    def test_an_error_has_all_that_the_service_says(self) -> None:
        failure = self.fails(World(error(429, "rate_limited", **{"Retry-After": "3"})), self.create, max_time_seconds=0)
        assert isinstance(failure, sdk.RateLimitError)
        assert (failure.code, failure.status, failure.request_id) == ("rate_limited", 429, "abc")
        assert (failure.message, failure.retry_after_seconds) == ("Something is wrong.", 3.0)
        assert str(failure) == "Something is wrong. (rate_limited, status 429, request id abc)"
        copy = pickle.loads(pickle.dumps(failure))
        assert (type(copy), vars(copy)) == (type(failure), vars(failure))

    def test_pauses_grow_up_to_a_limit_and_half_of_each_is_random(self) -> None:
        refused = [httpx.ConnectError("refused") for _ in range(10)]
        world = World(*refused, created())
        self.call(world, self.create, random=lambda: 1.0)
        assert [round(pause, 3) for pause in world.pauses] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
        world = World(*refused[:3], created())
        self.call(world, self.create, random=lambda: 0.0)
        assert world.pauses == [0.05, 0.1, 0.2]

    def test_a_pause_is_at_least_retry_after(self) -> None:
        now = 1794800000
        date = {"Date": email.utils.formatdate(now, usegmt=True)}
        in_7_s = {**date, "Retry-After": email.utils.formatdate(now + 7, usegmt=True)}
        headers = [{"Retry-After": "2"}, {"Retry-After": "soon"}, in_7_s, {"Retry-After": in_7_s["Retry-After"]}]
        world = World(*[error(503, "unavailable", **header) for header in headers], created())
        self.call(world, self.create)
        assert world.pauses == [2, 0.2, 7, 0.8]

    def test_max_time_ends_a_call_and_its_last_attempt(self) -> None:
        for max_time, seconds, attempts in [(60.0, 60.0, 6), (12.0, 12.0, 2), (10.15, 10.0, 1), (5.0, 5.0, 1)]:
            world = World(*[httpx.ReadTimeout("") for _ in range(50)], seconds=10)
            failure = self.fails(world, self.create, max_time_seconds=max_time)
            assert isinstance(failure, sdk.APIConnectionError)
            assert (round(world.now - 1000, 6), len(world.requests)) == (seconds, attempts), max_time
            assert world.timeouts[0] == min(10.0, max_time)

    def test_each_step_of_an_attempt_has_what_the_previous_ones_left(self) -> None:
        world = World(created())
        self.call(world, self.create)
        world.now += 7
        timeouts = world.requests[0].extensions["timeout"]
        assert [timeouts.get(step) for step in ("pool", "connect", "write", "read")] == [3.0] * 4
        world.now += 7
        assert 0 < timeouts["read"] < 0.01

    def test_an_attempt_that_max_time_ends_does_not_hide_the_previous_error(self) -> None:
        for status, code in [(503, "unavailable"), (429, "rate_limited")]:
            world = World(error(status, code), httpx.ReadTimeout(""), seconds=4)
            failure = self.fails(world, self.create, max_time_seconds=5)
            assert (failure.code, failure.outcome_unknown, len(world.requests)) == (code, True, 2)

    def test_a_pause_that_would_end_too_late_is_not_waited_for(self) -> None:
        world = World(error(429, "rate_limited", **{"Retry-After": "60"}))
        assert self.fails(world, self.create).retry_after_seconds == 60
        assert world.pauses == []

    def test_a_max_time_of_0_turns_retries_off(self) -> None:
        answers: list[Answer] = [error(503, "unavailable"), error(429, "rate_limited"), httpx.ReadTimeout("")]
        for answer in answers:
            world = World(answer)
            assert self.fails(world, self.create, max_time_seconds=0).code != "unexpected_response"
            assert world.timeouts == [10.0]

    def test_invalid_options_of_a_call_are_rejected_before_anything_is_sent(self) -> None:
        calls: list[Callable[[Any, str], Any]] = [
            *(lambda shop, text, write=write: write(shop, idempotency_key=text) for write, _ in WRITES),
            lambda shop, text: shop.pets.update(1, name="Rex", if_match=text),
            lambda shop, text: shop.pets.delete(1, if_match=text),
            lambda shop, text: shop.orders.update(5, hold_seconds=60, if_match=text),
        ]
        for call, text in itertools.product(calls, ["", "ключ", "a b", "a\nb"]):
            world = World()
            with unittest.TestCase().assertRaises(ValueError):
                self.call(world, functools.partial(call, text=text))
            assert world.requests == []

    def test_a_misspelt_option_of_a_call_is_an_error_before_anything_is_sent(self) -> None:
        calls: list[Callable[[Any], Any]] = [
            lambda shop: shop.pets.create(name="Rex", category_id=3, idempotencykey="k"),
            lambda shop: shop.pets.get(1, if_match="*"),
            lambda shop: shop.pets.get_many([1], limt=1),
            lambda shop: shop.pets.update(1, ifmatch="*"),
            lambda shop: shop.pets.delete(1, ifmatch="*"),
            lambda shop: shop.pets.list(state="sold"),
            lambda shop: shop.orders.place(pet_id=1, hold=5),
            lambda shop: shop.orders.get(1, timeout=5),
            lambda shop: shop.orders.update(1, hold=5),
            lambda shop: shop.orders.complete(1, timeout=5),
            lambda shop: shop.orders.cancel(1, timeout=5),
            lambda shop: shop.orders.list(petid=1),
            lambda shop: shop.events.list(wait=5),
            lambda shop: shop.events.follow(aftre="now"),
            lambda shop: shop.events.position(after="now"),
            lambda shop: shop.with_options(timeout=5),
        ]
        for call in calls:
            world = World()
            with unittest.TestCase().assertRaises(TypeError):
                self.call(world, call)
            assert world.requests == []
        with unittest.TestCase().assertRaises(TypeError):
            self.call(World(), self.create, timeout=5)
        with unittest.TestCase().assertRaises(TypeError) as raised:
            self.call(World(), lambda shop: shop.pets.get(1, timeout=5))
        message = (
            "There is no argument `timeout`. Did you mean `timeout_seconds`? Your own data belongs into `metadata`. "
            "All calls accept `timeout_seconds`, `max_time_seconds`, `headers`."
        )
        assert str(raised.exception) == message

    def test_an_id_that_is_not_a_positive_integer_is_rejected_before_anything_is_sent(self) -> None:
        calls: list[Callable[[Any, Any], Any]] = [
            lambda shop, id: shop.pets.get(id),
            lambda shop, id: shop.pets.get_many([1, id]),
            lambda shop, id: shop.pets.update(id, name="Rex"),
            lambda shop, id: shop.pets.delete(id),
            lambda shop, id: shop.orders.get(id),
            lambda shop, id: shop.orders.update(id, hold_seconds=60),
            lambda shop, id: shop.orders.complete(id),
            lambda shop, id: shop.orders.cancel(id),
            lambda shop, id: shop.orders.place(pet_id=id),
            lambda shop, id: shop.orders.list(pet_id=[] if id is None else id),  # a filter of None is the same as none
        ]
        for call, id in itertools.product(calls, [None, "abc", "7", "", True, [1], 1.0, 0, -1]):
            world = World()
            expected = ValueError if type(id) is int else TypeError
            message = "must be the id of (a pet|an order), a positive integer"
            with unittest.TestCase().assertRaisesRegex(expected, message):
                self.call(world, functools.partial(call, id=id))
            assert world.requests == []
        with unittest.TestCase().assertRaises(TypeError) as raised:
            self.call(World(), lambda shop: shop.pets.get("7"))
        message = "`pet_id` must be the id of a pet, a positive integer, not a value of type str. Pass `pet.id`."
        assert str(raised.exception) == message

    def test_get_returns_no_other_pet_than_the_requested_one(self) -> None:
        for pets in [[{**REX, "id": 2}], [REX, {**REX, "id": 2}]]:
            failure = self.fails(World(httpx.Response(200, json=pets)), lambda shop: shop.pets.get(1))
            assert (type(failure), failure.code) == (sdk.PetstoreError, "unexpected_response")
            assert failure.status == 200

    def test_an_error_says_whether_the_outcome_is_unknown(self) -> None:
        rejected = error(401, "invalid_api_key")
        cases: list[tuple[list[Answer], bool]] = [
            ([rejected], False),
            ([httpx.ConnectError("refused"), rejected], False),
            ([error(429, "rate_limited"), rejected], False),
            ([httpx.ReadTimeout(""), rejected], True),
            ([httpx.RemoteProtocolError("closed"), rejected], True),
            ([httpx.Response(504, html=HTML), rejected], True),
            ([error(409, "idempotency_in_progress"), rejected], True),
            ([httpx.Response(201, html=HTML)], True),
            ([error(503, "unavailable"), rejected], False),
            ([error(503, "outcome_unknown"), rejected], True),
            ([error(503, "outcome_unknown"), error(503, "unavailable"), rejected], True),
            # As deploy/haproxy answers.
            ([error(502, "unavailable"), rejected], True),
            ([error(504, "unavailable"), rejected], True),
            ([httpx.Response(503, html=HTML), rejected], True),
        ]
        for answers, unknown in cases:
            failure = self.fails(World(*answers), self.create)
            assert failure.outcome_unknown is unknown, answers
            assert ("may have taken effect" in str(failure)) is unknown
        failure = self.fails(World(httpx.ReadTimeout(""), rejected), lambda shop: shop.pets.get(1))
        assert not failure.outcome_unknown

    def test_an_unknown_outcome_of_a_server_of_version_1_0_0_is_recognised(self) -> None:
        known = "The service cannot answer at the moment, and nothing was changed: send the request again later."
        lost = (
            "The service lost its database while it stored the change, which may or may not have taken effect: send "
            "the request again with the same `Idempotency-Key`, or look first if you sent none."
        )
        for message, unknown in [(known, False), (lost, True)]:
            failure = self.fails(World(error(503, "unavailable", message)), self.create, max_time_seconds=0)
            assert failure.outcome_unknown is unknown

    def test_an_error_names_the_field_that_is_wrong(self) -> None:
        body = {"code": "invalid_field", "message": "`/name` must not be blank.", "status": 400}
        cases: list[tuple[dict[str, Any], str | None]] = [({"field": "name"}, "name"), ({}, None), ({"field": 7}, None)]
        for member, field in cases:
            failure = self.fails(World(httpx.Response(400, json={**body, **member})), self.create)
            assert (failure.code, failure.field) == ("invalid_field", field)

    def test_codes_and_types_of_events_that_the_sdk_does_not_know_are_passed_on(self) -> None:
        link = {"Link": '</v1/events?after=A>; rel="next"'}
        world = World(httpx.Response(200, json=[{**EVENT, "type": "pet.groomed"}], headers=link))
        [event] = self.list(world, lambda shop: shop.events.follow(), count=1)
        kind: sdk.EventType = event.type_
        assert kind == "pet.groomed"
        assert self.fails(World(error(400, "invalid_moon_phase")), self.create).code == "invalid_moon_phase"

    def test_a_conditional_update_says_if_its_own_attempt_may_have_changed_the_pet(self) -> None:
        def update(shop: Any) -> Any:
            return shop.pets.update(1, status="sold", if_match='"1"')

        world = World(httpx.ReadTimeout(""), error(412, "precondition_failed"))
        failure = self.fails(world, update)
        assert isinstance(failure, sdk.PreconditionFailedError)
        assert failure.outcome_unknown
        assert [request.headers["If-Match"] for request in world.requests] == ['"1"', '"1"']
        assert [request.content for request in world.requests] == [b'{"status": "sold"}'] * 2
        assert not self.fails(World(error(412, "precondition_failed")), update).outcome_unknown

    def test_an_update_without_a_version_is_deliberate(self) -> None:
        world = World(httpx.Response(200, json=REX))
        self.call(world, lambda shop: shop.pets.update(1, name="Rex"))
        assert "If-Match" not in world.requests[0].headers
        listed = sdk.Pet(1, "Rex", 3)
        try:
            self.call(World(), lambda shop: shop.pets.update(1, name="Max", if_match=listed.etag))
        except ValueError as error:
            assert "pets.get" in str(error)
        else:
            raise AssertionError("the update was not conditional")

    def test_get_uses_the_successor_of_the_deprecated_operation(self) -> None:
        world = World(httpx.Response(200, json=[REX], headers={"ETag": '"2"'}))
        pet = self.call(world, lambda shop: shop.pets.get(1))
        assert (pet.name, pet.etag) == ("Rex", '"2"')
        assert str(world.requests[0].url) == "http://shop.example/v1/pets?id=1"
        world = World(httpx.Response(200, json=REX, headers={"ETag": '"3"'}))
        assert self.call(world, lambda shop: shop.pets.update(1, name="Rex", if_match=pet.etag)).etag == '"3"'
        assert world.requests[0].headers["If-Match"] == '"2"'
        missing = World(httpx.Response(200, json=[], headers={"X-Request-Id": "abc"}))
        failure = self.fails(missing, lambda shop: shop.pets.get(7))
        assert isinstance(failure, sdk.NotFoundError)
        assert (failure.code, failure.status, failure.request_id) == ("pet_not_found", 404, "abc")

    def test_get_many_asks_for_100_ids_at_a_time_and_keeps_the_order(self) -> None:
        pets = [{**REX, "id": number} for number in range(1, 251) if number != 7]
        world = World(*[httpx.Response(200, json=pets[start : start + 100]) for start in (0, 100, 200)])
        ids = list(range(250, 0, -1))
        found = self.call(world, lambda shop: shop.pets.get_many([*ids, 1]))
        assert [pet.id for pet in found] == [number for number in ids if number != 7]
        asked = [request.url.params.get_list("id") for request in world.requests]
        assert [len(some) for some in asked] == [100, 100, 50]
        assert {request.url.params["limit"] for request in world.requests} == {"100"}
        assert self.call(World(), lambda shop: shop.pets.get_many([])) == []

    def test_a_pet_has_a_reference(self) -> None:
        tagged = {**REX, "reference": "stock-17"}
        world = World(created(tagged), httpx.Response(200, json={**tagged, "reference": "stock-18"}))
        new = {"name": "Rex", "category_id": 3, "reference": "stock-17"}
        assert self.call(world, lambda shop: shop.pets.create(**new)).reference == "stock-17"
        assert self.call(world, lambda shop: shop.pets.update(1, reference="stock-18")).reference == "stock-18"
        bodies = [json.loads(request.content) for request in world.requests]
        assert bodies == [{"name": "Rex", "categoryId": 3, "reference": "stock-17"}, {"reference": "stock-18"}]
        assert self.call(World(created()), self.create).reference is None
        body = {"code": "reference_taken", "message": "Taken.", "status": 409, "field": "reference"}
        failure = self.fails(World(httpx.Response(409, json=body)), lambda shop: shop.pets.create(**new))
        assert isinstance(failure, sdk.ConflictError)
        assert (failure.code, failure.field) == ("reference_taken", "reference")

    def test_a_pet_is_deleted_and_a_retry_says_that_it_may_have_been_before(self) -> None:
        world = World(error(503, "unavailable"), httpx.Response(204), httpx.Response(204))
        assert self.call(world, lambda shop: shop.pets.delete(1)) is None
        assert self.call(world, lambda shop: shop.pets.delete(1, if_match='"1"')) is None
        assert {f"{request.method} {request.url}" for request in world.requests} == {
            "DELETE http://shop.example/v1/pets/1"
        }
        assert [request.headers.get("If-Match") for request in world.requests] == [None, None, '"1"']
        assert {request.content for request in world.requests} == {b""}
        cases: list[tuple[list[Answer], type[sdk.PetstoreError], bool]] = [
            ([error(404, "pet_not_found")], sdk.NotFoundError, False),
            ([httpx.ReadTimeout(""), error(404, "pet_not_found")], sdk.NotFoundError, True),
            ([error(409, "pet_has_order")], sdk.ConflictError, False),
            ([error(412, "precondition_failed")], sdk.PreconditionFailedError, False),
            ([httpx.Response(200, html=HTML)], sdk.PetstoreError, True),
            ([httpx.Response(200)], sdk.PetstoreError, True),
        ]
        for answers, kind, unknown in cases:
            failure = self.fails(World(*answers), lambda shop: shop.pets.delete(1))
            assert (type(failure), failure.outcome_unknown) == (kind, unknown), answers
        with unittest.TestCase().assertRaisesRegex(ValueError, "pets.get"):
            self.call(World(), lambda shop: shop.pets.delete(1, if_match=None))

    def test_a_pet_has_metadata(self) -> None:
        own = {"price": "129.00", "photo": "https://shop.example/rex.jpg"}
        world = World(created({**REX, "metadata": own}), httpx.Response(200, json=[{**REX, "metadata": own}, REX]))
        pet = self.call(world, lambda shop: shop.pets.create(name="Rex", category_id=3, metadata=own))
        assert (pet.metadata, pet.metadata["price"], pet.to_dict()["metadata"]) == (own, "129.00", own)
        assert json.loads(world.requests[0].content) == {"name": "Rex", "categoryId": 3, "metadata": own}
        with_own, without = self.list(world, lambda shop: shop.pets.list())
        assert (with_own.metadata, without.metadata, "metadata" in without.to_dict()) == (own, {}, False)
        # As before, a pet can be in a set.
        assert {with_own, without} == {pet, without}
        assert with_own != without

    def test_what_a_call_leaves_out_is_not_sent(self) -> None:
        old = {"name": "Rex", "category_id": 3, "status": "sold", "reference": "7"}
        cases: list[tuple[Callable[[Any], Any], Any, bytes]] = [
            (
                lambda shop: shop.pets.create(**old),
                REX,
                b'{"name": "Rex", "categoryId": 3, "status": "sold", "reference": "7"}',
            ),
            (
                lambda shop: shop.pets.update(1, **old),
                REX,
                b'{"name": "Rex", "categoryId": 3, "status": "sold", "reference": "7"}',
            ),
            (
                lambda shop: shop.orders.place(pet_id=1, reference="7", hold_seconds=60),
                ORDER,
                b'{"petId": 1, "reference": "7", "holdSeconds": 60}',
            ),
            (
                lambda shop: shop.pets.create(name="Rex", category_id=3, metadata={}),
                REX,
                b'{"name": "Rex", "categoryId": 3}',
            ),
            (lambda shop: shop.pets.update(1, reference=None, metadata=None), REX, b"{}"),
            (lambda shop: shop.orders.place(pet_id=1, metadata=None), ORDER, b'{"petId": 1}'),
            (lambda shop: shop.orders.update(5, hold_seconds=None, reference=None, metadata=None), ORDER, b"{}"),
        ]
        for call, answer, body in cases:
            world = World(httpx.Response(200, json=answer))
            self.call(world, call)
            assert world.requests[0].content == body

    def test_remove_is_sent_as_null(self) -> None:
        cases: list[tuple[dict[str, Any], bytes]] = [
            ({"reference": sdk.REMOVE}, b'{"reference": null}'),
            ({"reference": pickle.loads(pickle.dumps(sdk.REMOVE))}, b'{"reference": null}'),
            ({"metadata": sdk.REMOVE}, b'{"metadata": null}'),
            ({"metadata": {"price": sdk.REMOVE, "a": "1"}}, b'{"metadata": {"price": null, "a": "1"}}'),
            ({"metadata": types.MappingProxyType({"a": "1"})}, b'{"metadata": {"a": "1"}}'),
            ({"metadata": {}}, b'{"metadata": {}}'),
        ]
        updates: list[tuple[Callable[..., Any], Any]] = [
            (lambda shop, **change: shop.pets.update(1, **change), REX),
            (lambda shop, **change: shop.orders.update(5, **change), ORDER),
        ]
        for (change, body), (update, answer) in itertools.product(cases, updates):
            world = World(error(503, "unavailable"), httpx.Response(200, json=answer))
            self.call(world, functools.partial(update, **change))
            assert [request.content for request in world.requests] == [body] * 2
        assert repr(sdk.REMOVE) == "REMOVE"

    def test_metadata_of_another_type_is_rejected_before_anything_is_sent(self) -> None:
        creates: list[Callable[..., Any]] = [
            lambda shop, own: shop.pets.create(name="Rex", category_id=3, metadata=own),
            lambda shop, own: shop.orders.place(pet_id=1, metadata=own),
        ]
        updates: list[Callable[..., Any]] = [
            lambda shop, own: shop.pets.update(1, metadata=own),
            lambda shop, own: shop.orders.update(5, metadata=own),
        ]
        mapping = "`metadata` must be a mapping, such as `{'price': '129.00'}`."
        cases: list[tuple[list[Callable[..., Any]], Any, str]] = [
            (
                creates,
                {"price": Decimal("129.00")},
                "`metadata['price']` must be a string, not a value of type Decimal.",
            ),
            (creates, {"a": sdk.REMOVE}, "`metadata['a']` must be a string, not a value of type Remove."),
            (creates, sdk.REMOVE, mapping),
            (updates, {"a": 129}, "`metadata['a']` must be a string or `REMOVE`, not a value of type int."),
            (
                updates,
                {"a": "1", "b": None},
                "`metadata['b']` must be a string or `REMOVE`, not a value of type NoneType.",
            ),
            (creates + updates, {7: "x"}, "The names in `metadata` must be strings."),
            (creates + updates, [("a", "1")], mapping),
            (creates + updates, "a", mapping),
        ]
        for calls, own, message in cases:
            for call in calls:
                world = World()
                with unittest.TestCase().assertRaises(TypeError) as raised:
                    self.call(world, functools.partial(call, own=own))
                assert (str(raised.exception), world.requests) == (message, [])

    @staticmethod
    def list_pets(shop: Any, **filters: Any) -> Any:
        return shop.pets.list(**filters)

    def test_a_list_can_be_filtered_by_category_and_references(self) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"category_id": 3}, "?categoryId=3&limit=100"),
            ({"category_id": -(2**63), "status": "sold"}, "?status=sold&categoryId=-9223372036854775808&limit=100"),
            ({"category_id": 0, "limit": 5, "cursor": "A"}, "?categoryId=0&limit=5&cursor=A"),
            ({"references": ["a&b", "ü"]}, "?reference=a%26b&reference=%C3%BC&limit=100"),
            ({"references": ("a",), "status": "sold"}, "?reference=a&status=sold&limit=100"),
            ({"references": None, "category_id": None}, "?limit=100"),
            ({"sort": None}, "?limit=100"),
            ({"sort": "-id", "status": "sold"}, "?status=sold&sort=-id&limit=100"),
        ]
        for filters, target in cases:
            world = World(httpx.Response(200, json=[REX]))
            assert len(self.list(world, functools.partial(self.list_pets, **filters))) == 1
            assert [str(request.url) for request in world.requests] == [f"http://shop.example/v1/pets{target}"]

    def test_a_list_asks_for_100_references_at_a_time_and_has_one_page(self) -> None:
        found = [httpx.Response(200, json=[{**REX, "id": id} for id in ids]) for ids in ([8, 9], [1, 9], [5])]
        world = World(found[0], httpx.Response(502, html=HTML), *found[1:])
        references = [f"stock-{number}" for number in range(250)]
        wanted = [*references, "stock-0"]
        [page] = self.list(world, lambda shop: shop.pets.list(references=wanted, category_id=3).pages())
        assert ([pet.id for pet in page.items], page.cursor) == ([1, 5, 8, 9], None)
        asked = [request.url.params.get_list("reference") for request in world.requests]
        assert asked == [references[:100], references[100:200], references[100:200], references[200:]]
        assert {request.url.params["limit"] for request in world.requests} == {"100"}
        assert {request.url.params["categoryId"] for request in world.requests} == {"3"}
        assert self.list(World(), lambda shop: shop.pets.list(references=[])) == []

    def test_the_newest_come_first_on_every_page(self) -> None:
        link = {"Link": '</v1/pets?sort=-id&limit=2&cursor=A>; rel="next"'}
        pages = [[{**REX, "id": 9}, {**REX, "id": 7}], [{**REX, "id": 2}]]
        world = World(httpx.Response(200, json=pages[0], headers=link), httpx.Response(200, json=pages[1]))
        assert [pet.id for pet in self.list(world, lambda shop: shop.pets.list(sort="-id", limit=2))] == [9, 7, 2]
        targets = [str(request.url).replace("http://shop.example", "") for request in world.requests]
        assert targets == ["/v1/pets?sort=-id&limit=2", "/v1/pets?sort=-id&limit=2&cursor=A"]
        # References that need several requests.
        world = World(*[httpx.Response(200, json=[{**REX, "id": id} for id in ids]) for ids in ([8, 9], [10, 1])])
        references = [f"stock-{number}" for number in range(101)]
        found = self.list(world, lambda shop: shop.pets.list(references=references, sort="-id"))
        assert [pet.id for pet in found] == [10, 9, 8, 1]
        assert {request.url.params["sort"] for request in world.requests} == {"-id"}
        world = World(httpx.Response(200, json=[ORDER]))
        assert len(self.list(world, lambda shop: shop.orders.list(pet_id=1, sort="-id"))) == 1
        assert str(world.requests[0].url) == "http://shop.example/v1/store/orders?petId=1&sort=-id&limit=100"

    def test_a_list_of_long_references_keeps_each_url_short(self) -> None:
        references = [f"{number:03}" + "ü" * 252 for number in range(10)]
        world = World(*[httpx.Response(200, json=[]) for _ in range(10)])
        assert self.list(world, lambda shop: shop.pets.list(references=references)) == []
        assert [name for request in world.requests for name in request.url.params.get_list("reference")] == references
        assert all(len(request.url.raw_path) < 8192 for request in world.requests)
        assert len(world.requests) < 10

    def test_invalid_filters_of_pets_are_rejected_before_anything_is_sent(self) -> None:
        cases: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"references": "stock-17"}, TypeError, "`references` must be a list"),
            ({"references": ["a", None]}, TypeError, r"`references\[1\]` must be a string"),
            ({"references": [7]}, TypeError, r"`references\[0\]` must be a string, not a value of type int"),
            ({"references": [[]]}, TypeError, r"`references\[0\]` must be a string"),
            ({"references": 7}, TypeError, ""),
            ({"references": ["a"], "cursor": "A"}, ValueError, "cannot be set with `references`"),
            ({"references": ["a"], "limit": 5}, ValueError, "cannot be set with `references`"),
            ({"category_id": "3"}, TypeError, "`category_id` must be an integer, not a value of type str"),
            ({"category_id": 3.0}, TypeError, "`category_id` must be an integer"),
            ({"category_id": True}, TypeError, "`category_id` must be an integer"),
            ({"reference": "stock-17"}, TypeError, "no argument `reference`"),
        ]
        for filters, kind, message in cases:
            world = World()
            with unittest.TestCase().assertRaisesRegex(kind, message):
                self.call(world, functools.partial(self.list_pets, **filters))
            assert world.requests == []

    def test_orders_are_placed_and_ended(self) -> None:
        world = World(httpx.ReadTimeout(""), httpx.Response(201, json=ORDER))
        order = self.call(world, lambda shop: shop.orders.place(pet_id=1))
        assert (order.id, order.status, order.created_at.isoformat()) == (5, "placed", "2026-11-15T09:30:00+00:00")
        endings: list[tuple[str, Callable[[Any], Any]]] = [
            ("POST /v1/store/orders/5/complete", lambda shop: shop.orders.complete(5)),
            ("POST /v1/store/orders/5/cancel", lambda shop: shop.orders.cancel(5)),
            ("GET /v1/store/orders/5", lambda shop: shop.orders.get(5)),
        ]
        for line, call in endings:
            world = World(httpx.Response(504, html=HTML), httpx.Response(200, json=ORDER))
            assert self.call(world, call).id == 5
            assert {f"{request.method} {request.url.path}" for request in world.requests} == {line}

    def test_an_order_has_a_reference_and_expires(self) -> None:
        held = {**ORDER, "expiresAt": "2026-11-15T09:45:00.000Z", "reference": "basket 7"}
        world = World(httpx.Response(201, json=held))
        order = self.call(world, lambda shop: shop.orders.place(pet_id=1, reference="basket 7", hold_seconds=900))
        assert json.loads(world.requests[0].content) == {"petId": 1, "reference": "basket 7", "holdSeconds": 900}
        assert order.expires_at is not None
        assert (order.reference, order.expires_at.isoformat()) == ("basket 7", "2026-11-15T09:45:00+00:00")
        world = World(httpx.Response(200, json=[held]))
        assert len(self.list(world, lambda shop: shop.orders.list(reference="basket 7"))) == 1
        assert world.requests[0].url.params["reference"] == "basket 7"

    def test_an_order_can_be_changed_unless_another_client_was_faster(self) -> None:
        own = {"payment": "pi_7"}
        world = World(
            httpx.Response(200, json=ORDER, headers={"ETag": '"1"'}),
            httpx.Response(504, html=HTML),
            httpx.Response(200, json={**ORDER, "reference": "basket 7", "metadata": own}, headers={"ETag": '"2"'}),
        )
        order = self.call(world, lambda shop: shop.orders.get(5))
        assert (order.etag, order.metadata) == ('"1"', {})
        changes = {"hold_seconds": 600, "reference": "basket 7", "metadata": own}
        changed = self.call(world, lambda shop: shop.orders.update(5, **changes, if_match=order.etag))
        assert (changed.etag, changed.reference, changed.metadata) == ('"2"', "basket 7", own)
        assert changed in {changed}
        for request in world.requests[1:]:
            assert (request.method, request.url.path) == ("PATCH", "/v1/store/orders/5")
            assert (request.headers["If-Match"], "Idempotency-Key" in request.headers) == ('"1"', True)
            body = {"holdSeconds": 600, "reference": "basket 7", "metadata": own}
            assert json.loads(request.content) == body
        late = World(httpx.ReadTimeout(""), error(412, "precondition_failed"))
        failure = self.fails(late, lambda shop: shop.orders.update(5, hold_seconds=1, if_match=order.etag))
        assert isinstance(failure, sdk.PreconditionFailedError)
        assert failure.outcome_unknown

    def test_an_update_of_an_order_without_a_version_is_deliberate(self) -> None:
        world = World(httpx.Response(200, json=ORDER))
        self.call(world, lambda shop: shop.orders.update(5, hold_seconds=600))
        assert "If-Match" not in world.requests[0].headers
        placed = self.call(World(httpx.Response(201, json=ORDER)), lambda shop: shop.orders.place(pet_id=1))
        [listed] = self.list(World(httpx.Response(200, json=[ORDER])), lambda shop: shop.orders.list())
        for order in (placed, listed):
            update = functools.partial(self.update_order, if_match=order.etag)
            with unittest.TestCase().assertRaisesRegex(ValueError, "orders.get"):
                self.call(World(), update)

    @staticmethod
    def update_order(shop: Any, **arguments: Any) -> Any:
        return shop.orders.update(5, hold_seconds=600, **arguments)

    def pages(self) -> World:
        def page(number: int, link: str | None) -> httpx.Response:
            headers = {} if link is None else {"Link": f'<{link}>; rel="next"'}
            return httpx.Response(200, json=[{**REX, "id": 2 * number}, {**REX, "id": 2 * number + 1}], headers=headers)

        return World(
            page(0, "/v1/pets?limit=2&cursor=A"),
            httpx.Response(502, html=HTML),
            page(1, "https://elsewhere.example/v1/pets?cursor=B"),
            page(2, None),
        )

    def test_a_list_has_all_pages_and_retries_each(self) -> None:
        world = self.pages()
        pets = self.list(world, lambda shop: shop.pets.list(status="available", limit=2))
        assert [pet.id for pet in pets] == [0, 1, 2, 3, 4, 5]
        # The key is not sent to the host of a link.
        assert {request.url.host for request in world.requests} == {"shop.example"}
        cursors = [request.url.params.get("cursor") for request in world.requests]
        assert cursors == [None, "A", "A", "B"]
        assert {request.url.params["status"] for request in world.requests} == {"available"}

    def test_a_list_ends_with_the_page_that_has_no_link_however_short_the_others(self) -> None:
        pages = [
            httpx.Response(200, json=pets, headers={"Link": f'</v1/pets?cursor={cursor}>; rel="next"'})
            for pets, cursor in [([], "A"), ([REX], "B"), ([], "C")]
        ]
        world = World(*pages, httpx.Response(200, json=[{**REX, "id": 2}]))
        assert [pet.id for pet in self.list(world, lambda shop: shop.pets.list())] == [1, 2]

    def test_a_list_can_be_read_by_pages_and_continued_from_a_cursor(self) -> None:
        world = self.pages()
        pages = self.list(world, lambda shop: shop.pets.list(limit=2).pages())
        assert [page.cursor for page in pages] == ["A", "B", None]
        assert [pet.id for pet in pages[1].items] == [2, 3]
        world = World(httpx.Response(200, json=[ORDER]))
        orders = self.list(world, lambda shop: shop.orders.list(pet_id=1, cursor="C"))
        assert [order.id for order in orders] == [5]
        assert str(world.requests[0].url) == "http://shop.example/v1/store/orders?petId=1&limit=100&cursor=C"

    def test_a_list_of_events_ends_with_an_empty_page(self) -> None:
        world = World(events("A", "E1", "E2"), httpx.Response(502, html=HTML), events("B", "E3"), events("B"))
        found = self.list(world, lambda shop: shop.events.list(after="E0", limit=2))
        assert [event.id for event in found] == ["E1", "E2", "E3"]
        assert found[0] == sdk.Event("E1", "pet.created", 1, found[0].at)
        targets = [str(request.url).replace("http://shop.example/v1/events", "") for request in world.requests]
        assert targets == ["?after=E0&limit=2", "?after=A&limit=2", "?after=A&limit=2", "?after=B&limit=2"]
        world = World(events("A", "E1"), events("B"))
        pages = self.list(world, lambda shop: shop.events.list().pages())
        assert [([event.id for event in page.items], page.cursor) for page in pages] == [(["E1"], "A"), ([], "B")]
        assert str(world.requests[0].url) == "http://shop.example/v1/events?limit=100"

    def test_a_list_of_events_that_waits_has_the_time_for_it(self) -> None:
        world = World(events("A", "E1"), events("A"), seconds=20)
        assert len(self.list(world, lambda shop: shop.events.list(wait_seconds=20), max_time_seconds=15)) == 1
        assert [request.url.params["wait"] for request in world.requests] == ["20", "20"]
        assert world.timeouts == [30, 30]
        failing = World(*[httpx.ReadTimeout("") for _ in range(9)], seconds=100)
        with unittest.TestCase().assertRaises(sdk.APIConnectionError):
            self.list(failing, lambda shop: shop.events.list(wait_seconds=20), max_time_seconds=15)
        assert failing.now == 1035

    def test_the_position_is_the_end_of_the_feed(self) -> None:
        world = World(httpx.ReadTimeout(""), events("A"))
        assert self.call(world, lambda shop: shop.events.position()) == "A"
        assert str(world.requests[1].url) == "http://shop.example/v1/events?after=now&limit=1"

    def test_a_page_of_events_without_a_position_is_an_error(self) -> None:
        headers = [{}, {"Link": '</v1/events?limit=1>; rel="next"'}, {"Link": '</v1/events?after=A>; rel="help"'}]
        for header in headers:
            world = World(httpx.Response(200, json=[EVENT], headers=header))
            with unittest.TestCase().assertRaises(sdk.PetstoreError) as raised:
                self.list(world, lambda shop: shop.events.follow(), count=1)
            assert raised.exception.code == "unexpected_response"

    def test_a_follower_waits_for_events_and_never_ends(self) -> None:
        world = World(events("A", "E1"), events("B"), events("C"), events("D", "E2", "E3"), seconds=25)
        found = self.list(world, lambda shop: shop.events.follow(after="E0"), count=3)
        assert [event.id for event in found] == ["E1", "E2", "E3"]
        assert [request.url.params["after"] for request in world.requests] == ["E0", "A", "B", "C"]
        assert {request.url.params["wait"] for request in world.requests} == {"25"}
        assert {request.url.host for request in world.requests} == {"shop.example"}
        assert set(world.timeouts) == {35.0}

    def test_a_list_of_some_types_goes_on_after_an_empty_page_that_leads_further(self) -> None:
        world = World(events("A"), events("B", "E1"), events("B"))
        found = self.list(world, lambda shop: shop.events.list(types=["order.placed", "pet.sold"], limit=1))
        assert [event.id for event in found] == ["E1"]
        asked = [(request.url.params.get("after"), request.url.params.get_list("type")) for request in world.requests]
        assert asked == [(after, ["order.placed", "pet.sold"]) for after in (None, "A", "B")]
        with unittest.TestCase().assertRaises(TypeError):
            self.list(World(), lambda shop: shop.events.follow(types="order.placed"))

    def test_now_becomes_a_position_before_the_first_wait(self) -> None:
        # If the response to a request that waits is lost, its retry must not start later.
        for call in (
            lambda shop: shop.events.follow(after="now"),
            lambda shop: shop.events.list(after="now", wait_seconds=25),
        ):
            world = World(events("A"), httpx.ReadTimeout(""), events("B", "E1"))
            assert [event.id for event in self.list(world, call, count=1)] == ["E1"]
            asked = [(request.url.params["after"], request.url.params.get("wait")) for request in world.requests]
            assert asked == [("now", None), ("A", "25"), ("A", "25")]
        world = World(events("A"))
        assert self.list(world, lambda shop: shop.events.list(after="now")) == []

    def test_a_follower_outlives_an_outage(self) -> None:
        outage: list[Answer] = [
            *(httpx.ConnectError("refused") for _ in range(1500)),
            error(503, "unavailable"),
            error(429, "rate_limited", **{"Retry-After": "200"}),
            error(429, "rate_limited", **{"Retry-After": "100000"}),
            error(503, "unavailable", **{"Retry-After": "inf"}),
            httpx.ReadTimeout(""),
            httpx.Response(502, html=HTML),
        ]
        world = World(events("A", "E1"), *outage, events("B", "E2"))
        found = self.list(world, lambda shop: shop.events.follow(), count=2, max_time_seconds=1)
        assert [event.id for event in found] == ["E1", "E2"]
        assert world.pauses[:3] + world.pauses[1499:] == [0.1, 0.2, 0.4, 10, 10, 200, 300, 300, 10, 10]
        assert {request.url.params["after"] for request in world.requests[1:]} == {"A"}

    def test_a_follower_raises_other_errors_at_once(self) -> None:
        for answer, kind in [
            (error(401, "invalid_api_key"), sdk.AuthenticationError),
            (error(403, "insufficient_scope"), sdk.PermissionDeniedError),
            (error(410, "cursor_expired"), sdk.CursorExpiredError),
            (error(500, "internal_error"), sdk.InternalServerError),
        ]:
            world = World(answer)
            with unittest.TestCase().assertRaises(kind) as raised:
                self.list(world, lambda shop: shop.events.follow(), count=1)
            assert type(raised.exception) is kind
            assert world.pauses == []
        world = World(error(503, "unavailable"))
        with unittest.TestCase().assertRaises(sdk.ServiceUnavailableError):
            self.list(world, lambda shop: shop.events.follow(), count=1, max_time_seconds=0)

    def test_a_client_with_other_options_keeps_the_rest(self) -> None:
        def create(shop: Any) -> Any:
            other = shop.with_options(
                api_key="psk_other",
                base_url="http://other.example",
                timeout_seconds=2,
                max_time_seconds=None,
                headers={"traceparent": "00-1"},
                on_attempt=attempts.append,
            )
            return other.pets.create(name="Rex", category_id=3)

        attempts: list[sdk.Attempt] = []
        world = World(httpx.ConnectError("refused"), created())
        self.call(world, create, headers={"X-Shop": "7"})
        assert [str(request.url) for request in world.requests] == ["http://other.example/v1/pets"] * 2
        assert [request.headers["Authorization"] for request in world.requests] == ["Bearer psk_other"] * 2
        assert [request.headers["X-Shop"] for request in world.requests] == ["7", "7"]
        assert [request.headers["traceparent"] for request in world.requests] == ["00-1", "00-1"]
        assert world.timeouts == [2, 2]
        assert len(attempts) == 2

    def test_every_call_accepts_its_own_times(self) -> None:
        times = {"timeout_seconds": 1, "max_time_seconds": 2}
        calls: list[Callable[[Any], Any]] = [
            lambda shop: shop.pets.get(1, **times),
            lambda shop: shop.pets.create(name="Rex", category_id=3, **times),
            lambda shop: shop.orders.complete(5, **times),
            lambda shop: shop.events.position(**times),
            lambda shop: shop.request("GET", "/v1/pets", **times),
        ]
        for call in calls:
            world = World(*[httpx.ReadTimeout("") for _ in range(9)], seconds=1)
            assert self.fails(world, call).code == "no_response"
            assert (world.now, len(world.requests)) == (1002, 2)
        world = World(*[httpx.ReadTimeout("") for _ in range(9)], seconds=1)
        with unittest.TestCase().assertRaises(sdk.APIConnectionError):
            self.list(world, lambda shop: shop.pets.list(**times))
        assert world.now == 1002
        with unittest.TestCase().assertRaises(ValueError):
            self.call(World(), lambda shop: shop.pets.get(1, timeout_seconds=0))

    def test_headers_of_the_client_and_of_a_call_are_sent_with_every_attempt(self) -> None:
        own = {"Traceparent": "00-1", "x-shop": "8"}
        calls: list[tuple[Callable[..., Any], Callable[[Any], Any]]] = [
            (self.call, lambda shop: shop.pets.update(1, name="Rex", headers=own)),
            (self.list, lambda shop: shop.orders.list(headers=own)),
            (self.list, lambda shop: shop.events.follow(headers=own)),
        ]
        for make, call in calls:
            world = World(httpx.ConnectError("refused"), error(400, "invalid_field"))
            with unittest.TestCase().assertRaises(sdk.BadRequestError):
                make(world, call, headers={"X-Shop": "7", "tracestate": "a=1, b=2"})
            names = ["traceparent", "tracestate", "x-shop", "authorization"]
            sent = [[request.headers[name] for name in names] for request in world.requests]
            assert sent == [["00-1", "a=1, b=2", "8", f"Bearer {KEY}"]] * 2

    def test_headers_that_the_sdk_needs_for_itself_are_rejected_before_anything_is_sent(self) -> None:
        reserved = ["Authorization", "idempotency-key", "Content-Type", "content-length", "Transfer-Encoding", "Host"]
        wrong: list[Any] = [
            *({name: "secret"} for name in reserved),
            {"Bad Name": "secret"},
            {"X-Bad": "secret\r\nInjected: 1"},
            {"X-Bad": " secret"},
            {"X-Bad": "sécret"},
            {"X-Bad": ""},
            {"X-Bad": None},
            [("X-Good", "secret")],
        ]
        calls: list[Callable[[Any, Any], Any]] = [
            lambda shop, headers: shop.pets.get(1, headers=headers),
            lambda shop, headers: shop.with_options(headers=headers),
        ]
        for headers, call in itertools.product(wrong, calls):
            world = World()
            with unittest.TestCase().assertRaises((ValueError, TypeError)) as raised:
                self.call(world, functools.partial(call, headers=headers))
            assert "secret" not in str(raised.exception)
            assert world.requests == []
            with unittest.TestCase().assertRaises((ValueError, TypeError)):
                self.call(World(), self.create, headers=headers)
        expected = "^`headers` must not contain `Authorization`: set `api_key`.$"
        with unittest.TestCase().assertRaisesRegex(ValueError, expected):
            self.call(World(), lambda shop: shop.pets.get(1, headers={"Authorization": "Bearer x"}))

    def test_with_response_returns_the_status_headers_and_request_id_of_a_success(self) -> None:
        attempts: list[sdk.Attempt] = []
        answer = httpx.Response(201, json=REX, headers={"X-Request-Id": "abc", "RateLimit": '"key";r=1;t=2'})
        world = World(httpx.ConnectError("refused"), answer)
        pet, response = self.call(
            world, lambda shop: shop.with_response(lambda shop: self.create(shop)), on_attempt=attempts.append
        )
        assert (pet.name, response.status, response.request_id) == ("Rex", 201, "abc")
        assert response.headers["ratelimit"] == '"key";r=1;t=2'
        assert [attempt.request_id for attempt in attempts] == [None, "abc"]
        failure = self.fails(World(error(409, "pet_not_available")), lambda shop: shop.with_response(self.create))
        assert failure.request_id == "abc"
        with unittest.TestCase().assertRaises(ValueError):
            self.call(World(), lambda shop: shop.with_response(lambda shop: shop.pets.get_many([])))

    def test_request_calls_any_path_with_the_same_authentication_retries_and_errors(self) -> None:
        query = {"status": "sold", "id": [1, 2], "limit": 5, "deep": True, "none": None}
        world = World(httpx.ReadTimeout(""), httpx.Response(200, json=[REX]))
        read = self.call(world, lambda shop: shop.request("GET", "/v1/pets", query=query, headers={"X-Shop": "7"}))
        assert read == [REX]
        target = "http://shop.example/v1/pets?status=sold&id=1&id=2&limit=5&deep=true"
        assert [str(request.url) for request in world.requests] == [target] * 2
        assert [request.headers["X-Shop"] for request in world.requests] == ["7", "7"]
        assert [request.headers["Authorization"] for request in world.requests] == [f"Bearer {KEY}"] * 2
        world = World(httpx.Response(502, html=HTML), httpx.Response(201, json={"id": 3}))
        assert self.call(world, lambda shop: shop.request("POST", "/v1/vets", body={"name": "Ada"})) == {"id": 3}
        assert [request.content for request in world.requests] == [b'{"name": "Ada"}'] * 2
        assert len({request.headers["Idempotency-Key"] for request in world.requests}) == 1
        missing = self.fails(World(error(404, "vet_not_found")), lambda shop: shop.request("GET", "/v1/vets/7"))
        assert type(missing) is sdk.NotFoundError
        world = World(httpx.Response(204))
        assert self.call(world, lambda shop: shop.request("DELETE", "/v1/vets/7", idempotency_key="mine")) is None
        assert world.requests[0].headers["Idempotency-Key"] == "mine"
        portal = self.fails(World(httpx.Response(200, html=HTML)), lambda shop: shop.request("GET", "/v1/vets"))
        assert portal.code == "unexpected_response"
        lost = World(httpx.ReadTimeout(""))
        assert self.fails(lost, lambda shop: shop.request("DELETE", "/v1/vets/7", max_time_seconds=0)).outcome_unknown

    def test_request_rejects_a_wrong_method_path_or_option_before_anything_is_sent(self) -> None:
        paths: list[Any] = ["", "v1/pets", "/pets", "/v1", "http://other.example/v1/pets", "/v1/pets?limit=1", None]
        calls: list[Callable[[Any], Any]] = [
            *(functools.partial(lambda shop, path: shop.request("GET", path), path=path) for path in paths),
            lambda shop: shop.request("get", "/v1/pets"),
            lambda shop: shop.request("GET", "/v1/pets", body={}),
        ]
        for call in calls:
            world = World()
            with unittest.TestCase().assertRaises(ValueError):
                self.call(world, call)
            assert world.requests == []
        with unittest.TestCase().assertRaises(TypeError):
            self.call(World(), lambda shop: shop.request("GET", "/v1/pets", params={}))

    def test_a_call_of_a_closed_client_is_an_error(self) -> None:
        def get_after_close(shop: Any) -> Any:
            closing = shop.close()

            async def get() -> Any:
                await closing
                return await shop.pets.get(1)

            return get() if inspect.isawaitable(closing) else shop.pets.get(1)

        world = World()
        failure = self.fails(world, get_after_close)
        assert (type(failure), failure.code, str(failure)) == (
            sdk.ClientClosedError,
            "client_closed",
            "The client is closed. (client_closed)",
        )
        assert world.requests == []
        copy = pickle.loads(pickle.dumps(failure))
        assert (type(copy), vars(copy)) == (type(failure), vars(failure))

    def test_every_attempt_is_reported(self) -> None:
        attempts: list[sdk.Attempt] = []
        world = World(httpx.ReadTimeout("slow"), error(503, "unavailable"), created(), seconds=2)
        self.call(world, self.create, on_attempt=attempts.append)
        seen = [
            (attempt.number, attempt.status, attempt.duration_seconds, attempt.retry_in_seconds) for attempt in attempts
        ]
        assert seen == [(1, None, 2, 0.1), (2, 503, 2, 0.2), (3, 201, 2, None)]
        assert [attempt.error and attempt.error.code for attempt in attempts] == ["no_response", "unavailable", None]
        assert attempts[2].headers["ETag"] == '"1"'

    def test_the_key_is_in_no_log_and_no_text(self) -> None:
        log = io.StringIO()
        handler = logging.StreamHandler(log)
        logging.root.addHandler(handler)
        level = logging.root.level
        logging.root.setLevel(logging.DEBUG)
        texts: list[str] = []

        def create(shop: Any) -> Any:
            texts.extend([repr(shop), repr(vars(shop))])
            return self.create(shop)

        try:
            world = World(httpx.ConnectError("refused"), error(401, "invalid_api_key"))
            failure = self.fails(world, create, on_attempt=lambda attempt: texts.append(repr(attempt)))
        finally:
            logging.root.removeHandler(handler)
            logging.root.setLevel(level)
        assert "POST /pets: attempt 1 got no response after 0.000 s, retrying in 0.100 s" in log.getvalue()
        for text in [log.getvalue(), str(failure), repr(failure), *texts]:
            assert KEY not in text, text

    def test_a_deprecation_is_logged(self) -> None:
        headers = {"Deprecation": "@1794700800", "Sunset": "Thu, 05 Dec 2030 00:00:00 GMT"}
        with unittest.TestCase().assertLogs("petstore_client", "WARNING") as logs:
            self.call(World(httpx.Response(200, json=ORDER, headers=headers)), lambda shop: shop.orders.get(5))
        expected = "GET /store/orders/5 is deprecated and will be removed on Thu, 05 Dec 2030 00:00:00 GMT"
        assert [record.getMessage() for record in logs.records] == [expected]


class PetstoreTest(Calls, unittest.TestCase):
    def shop(self, world: World, **options: Any) -> sdk.Petstore:
        http = httpx.Client(transport=httpx.MockTransport(world.handle))
        return sdk.Petstore(**{**world.options(), "http_client": http, "sleep": world.sleep, **options})

    def call(self, world: World, call: Callable[[Any], Any], **options: Any) -> Any:
        with self.shop(world, **options) as shop:
            return call(shop)

    def list(self, world: World, call: Callable[[Any], Any], count: int | None = None, **options: Any) -> Any:
        return self.call(world, lambda shop: [*itertools.islice(call(shop), count)], **options)

    def test_a_follower_can_be_resumed_after_a_failure(self) -> None:
        world = World(events("A", "E1"), error(500, "internal_error"), events("B", "E2"))
        found = self.shop(world).events.follow()
        assert next(found).id == "E1"
        with self.assertRaises(sdk.InternalServerError):
            next(found)
        assert next(found).id == "E2"
        assert [request.url.params.get("after") for request in world.requests] == [None, "A", "A"]

    def test_a_list_can_be_resumed_after_a_failure(self) -> None:
        world = self.pages()
        pets = self.shop(world, max_time_seconds=0).pets.list(limit=2)
        assert [next(pets).id, next(pets).id] == [0, 1]
        with self.assertRaises(sdk.ServiceUnavailableError):
            next(pets)
        assert [pet.id for pet in pets] == [2, 3, 4, 5]
        assert list(pets) == []

    def test_a_list_of_references_can_be_resumed_after_a_failure(self) -> None:
        pages = [httpx.Response(200, json=[{**REX, "id": id}]) for id in (1, 1, 2)]
        world = World(pages[0], error(500, "internal_error"), *pages[1:])
        pets = self.shop(world).pets.list(references=[f"stock-{number}" for number in range(101)])
        with self.assertRaises(sdk.InternalServerError):
            next(pets)
        assert [pet.id for pet in pets] == [1, 2]
        assert list(pets) == []

    def test_closing_the_client_in_another_thread_ends_a_follower(self) -> None:
        start = time.monotonic()
        with silent_server() as (address, asked):
            for derived in (False, True):
                shop = sdk.Petstore(api_key=KEY, base_url=address)
                follower = shop.with_options(timeout_seconds=60) if derived else shop
                closer = threading.Thread(target=lambda shop=shop: (asked.acquire(), shop.close()))
                closer.start()
                with self.assertRaises(sdk.ClientClosedError) as raised:
                    next(follower.events.follow(after="E0"))
                closer.join()
                assert (raised.exception.code, raised.exception.outcome_unknown) == ("client_closed", False)
        assert time.monotonic() - start < 20  # an attempt may take 35 s

    def test_closing_the_client_in_another_thread_ends_the_pause_of_a_follower(self) -> None:
        shops: list[sdk.Petstore] = []

        def close(attempt: sdk.Attempt) -> None:
            threading.Timer(0.05, shops[0].close).start()

        world = World(error(503, "unavailable", **{"Retry-After": "300"}))
        options = {"sleep": None, "clock": time.monotonic, "on_attempt": close}
        shops.append(self.shop(world, **options))
        start = time.monotonic()
        with self.assertRaises(sdk.ClientClosedError):
            next(shops[0].events.follow())
        assert time.monotonic() - start < 20

    def test_a_follower_in_a_thread_sees_the_context_of_its_caller(self) -> None:
        trace = contextvars.ContextVar("trace", default="none")
        seen: list[str] = []

        def handle(request: httpx.Request) -> httpx.Response:
            seen.append(trace.get())
            return events("A", "E1")

        trace.set("mine")
        http = httpx.Client(transport=httpx.MockTransport(handle))
        next(self.shop(World(), http_client=http).events.follow())
        assert seen == ["mine"]

    def test_options_can_be_changed_for_some_calls(self) -> None:
        world = World(error(503, "unavailable"), error(503, "unavailable"), created())
        shop = self.shop(world)
        with self.assertRaises(sdk.ServiceUnavailableError):
            shop.with_options(timeout_seconds=1, max_time_seconds=0).pets.get(1)
        shop.with_options(timeout_seconds=2).pets.create(name="Rex", category_id=3)
        assert world.timeouts == [1, 2, 2]
        with self.assertRaises(ValueError):
            shop.with_options(timeout_seconds=0)
        with self.assertRaises(ValueError):
            shop.with_options(max_time_seconds=-1)


class AsyncPetstoreTest(Calls, unittest.TestCase):
    def shop(self, world: World, **options: Any) -> sdk.AsyncPetstore:
        http = httpx.AsyncClient(transport=httpx.MockTransport(world.handle))
        return sdk.AsyncPetstore(**{**world.options(), "http_client": http, "sleep": world.sleep_async, **options})

    def call(self, world: World, call: Callable[[Any], Any], **options: Any) -> Any:
        async def run() -> Any:
            async with self.shop(world, **options) as shop:
                return await call(shop)

        return asyncio.run(run())

    def list(self, world: World, call: Callable[[Any], Any], count: int | None = None, **options: Any) -> Any:
        async def run() -> Any:
            found: list[Any] = []
            async with self.shop(world, **options) as shop:
                async for item in call(shop):
                    found.append(item)
                    if len(found) == count:
                        break
            return found

        return asyncio.run(run())

    def test_closing_the_client_in_another_task_ends_a_follower(self) -> None:
        async def run(address: str, asked: threading.Semaphore) -> None:
            for derived in (False, True):
                shop = sdk.AsyncPetstore(api_key=KEY, base_url=address)
                follower = shop.with_options(timeout_seconds=60) if derived else shop
                waiting = asyncio.ensure_future(follower.events.follow(after="E0").__anext__())
                await asyncio.get_running_loop().run_in_executor(None, asked.acquire)
                await shop.close()
                with self.assertRaises(sdk.ClientClosedError) as raised:
                    await waiting
                assert (raised.exception.code, raised.exception.outcome_unknown) == ("client_closed", False)

        start = time.monotonic()
        with silent_server() as (address, asked):
            asyncio.run(run(address, asked))
        assert time.monotonic() - start < 20  # an attempt may take 35 s

    def test_closing_the_client_in_another_task_ends_the_pause_of_a_follower(self) -> None:
        async def run() -> None:
            paused = asyncio.Event()
            world = World(error(503, "unavailable", **{"Retry-After": "300"}))
            options = {"sleep": asyncio.sleep, "clock": time.monotonic, "on_attempt": lambda attempt: paused.set()}
            shop = self.shop(world, **options)
            waiting = asyncio.ensure_future(shop.events.follow().__anext__())
            await paused.wait()
            await asyncio.sleep(0)
            await shop.close()
            with self.assertRaises(sdk.ClientClosedError):
                await waiting

        asyncio.run(run())

    def test_cancelling_the_task_stops_a_follower_which_can_be_resumed(self) -> None:
        async def handle(request: httpx.Request) -> httpx.Response:
            targets.append(request.url.params.get("after"))
            if len(targets) == 2:
                await asyncio.sleep(60)
            return events("A", "E1") if len(targets) == 1 else events("B", "E2")

        async def run() -> None:
            http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
            async with self.shop(World(), http_client=http) as shop:
                found = shop.events.follow()
                assert (await found.__anext__()).id == "E1"
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(found.__anext__(), 0.05)
                assert (await found.__anext__()).id == "E2"

        targets: list[str | None] = []
        asyncio.run(run())
        assert targets == [None, "A", "A"]

    def test_a_list_can_be_resumed_after_a_failure(self) -> None:
        async def run() -> None:
            pets = self.shop(self.pages(), max_time_seconds=0).pets.list(limit=2)
            assert [(await pets.__anext__()).id, (await pets.__anext__()).id] == [0, 1]
            with self.assertRaises(sdk.ServiceUnavailableError):
                await pets.__anext__()
            assert [pet.id async for pet in pets] == [2, 3, 4, 5]

        asyncio.run(run())


class SettingsTest(unittest.TestCase):
    def test_settings_come_from_the_environment(self) -> None:
        for url in ["http://shop.example", "http://shop.example/", "http://shop.example/v1", "http://shop.example/v1/"]:
            with mock.patch.dict(os.environ, PETSTORE_KEY=KEY + "\n", PETSTORE_URL=url):
                for kind in (sdk.Petstore, sdk.AsyncPetstore):
                    assert repr(kind()) == f"<{kind.__name__} URL('http://shop.example/v1')>"

    def test_bad_settings_are_rejected_without_showing_the_key(self) -> None:
        for key, url in [
            ("", "http://shop.example"),
            (KEY, ""),
            (KEY, "shop.example"),
            (KEY, "ftp://shop.example"),
            (KEY, "http://user:password@shop.example"),
            (KEY, "http://shop.example:port"),
            (KEY + "\n" + KEY, "http://shop.example"),
            (KEY + "é", "http://shop.example"),
        ]:
            with mock.patch.dict(os.environ, clear=True), self.assertRaises(ValueError) as raised:
                sdk.Petstore(api_key=key, base_url=url)
            assert KEY not in str(raised.exception)
            assert "password" not in str(raised.exception)

    def test_invalid_times_are_rejected(self) -> None:
        nan = float("nan")
        for name, value in [
            ("timeout_seconds", 0.0),
            ("timeout_seconds", -1.0),
            ("timeout_seconds", nan),
            ("max_time_seconds", -1.0),
            ("max_time_seconds", nan),
        ]:
            for kind in (sdk.Petstore, sdk.AsyncPetstore):
                options: dict[str, Any] = {"api_key": KEY, "base_url": "http://shop.example", name: value}
                with self.assertRaises(ValueError) as raised:
                    kind(**options)
                assert name in str(raised.exception)

    def test_every_time_has_its_unit_in_its_name(self) -> None:
        times = {
            name
            for kind in (sdk.Petstore, sdk.AsyncPetstore, sdk.Attempt, sdk.PetstoreError)
            for name, parameter in inspect.signature(kind).parameters.items()
            if parameter.annotation in ("float", "float | None")
        }
        assert times == {
            "timeout_seconds",
            "max_time_seconds",
            "retry_after_seconds",
            "retry_in_seconds",
            "duration_seconds",
        }
        for events in (sdk.Events, sdk.AsyncEvents):
            assert "wait_seconds" in inspect.signature(events.list).parameters

    def test_methods_accept_every_field_of_the_document(self) -> None:
        others = {"self", "pet_id", "order_id", "idempotency_key", "if_match", "options"}
        methods: list[tuple[type[Any], Callable[..., Any]]] = [
            (NewPet, sdk.Pets.create),
            (NewPet, sdk.AsyncPets.create),
            (PetPatch, sdk.Pets.update),
            (PetPatch, sdk.AsyncPets.update),
            (NewOrder, sdk.Orders.place),
            (NewOrder, sdk.AsyncOrders.place),
            (OrderPatch, sdk.Orders.update),
            (OrderPatch, sdk.AsyncOrders.update),
        ]
        for model, method in methods:
            accepted = set(inspect.signature(method).parameters) - others
            assert accepted == {field.name for field in dataclasses.fields(model)} - others

    def test_every_write_accepts_a_key_by_name_only(self) -> None:
        for kind in (sdk.Pets, sdk.Orders, sdk.AsyncPets, sdk.AsyncOrders):
            for name, method in vars(kind).items():
                if not name.startswith("_") and name not in ("get", "get_many", "list"):
                    parameter = inspect.signature(method).parameters["idempotency_key"]
                    assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None), name

    def test_both_clients_have_the_same_methods(self) -> None:
        for sync, asynchronous in [
            (sdk.Petstore, sdk.AsyncPetstore),
            (sdk.Pets, sdk.AsyncPets),
            (sdk.Orders, sdk.AsyncOrders),
            (sdk.Events, sdk.AsyncEvents),
        ]:
            for name, method in vars(sync).items():
                if not name.startswith("_") and inspect.isfunction(method):
                    signatures = [inspect.signature(method), inspect.signature(getattr(asynchronous, name))]
                    same, other = (
                        [(one.name, one.kind, one.default) for one in signature.parameters.values()]
                        for signature in signatures
                    )
                    assert same == other, name


def types_of_changes(shop: sdk.Petstore, pet: sdk.Pet) -> None:
    """Is not run, but checked by mypy, which fails unless exactly the marked lines are errors."""
    price: str = pet.metadata["price"]
    own: dict[str, str] = {"price": price}
    shop.pets.create(name="Rex", category_id=3, metadata=own)
    shop.pets.update(1, reference=sdk.REMOVE, metadata=own)
    shop.orders.update(5, reference="basket 7", metadata={"price": sdk.REMOVE, "photo": "rex.jpg"})
    shop.orders.update(5, hold_seconds=600, metadata=sdk.REMOVE)
    shop.pets.update(1, name=sdk.REMOVE)  # type: ignore[arg-type]
    shop.pets.update(1, metadata={"price": None})  # type: ignore[dict-item]
    shop.pets.create(name="Rex", category_id=3, metadata={"price": sdk.REMOVE})  # type: ignore[dict-item]
    shop.orders.place(pet_id=1, metadata={"price": 129})  # type: ignore[dict-item]
    pet.metadata["price"] = "99.00"  # type: ignore[index]


if __name__ == "__main__":
    unittest.main()

"""Tests what every argument and option of every method does with None and with empty values: never another request.

The arguments come from the signatures, so a new one is tested, too. It has to be rejected, or to be in a table here.

python -m unittest discover clients/python/tests
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import unittest
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import httpx

import petstore_client as sdk

KEY, URL = "psk_secret", "http://shop.example"
PET = {"id": 1, "name": "Rex", "categoryId": 3}
TIME = "2026-11-15T09:30:00.000Z"
ORDER = {"id": 1, "petId": 1, "status": "placed", "createdAt": TIME, "updatedAt": TIME}
EMPTY: list[Any] = [None, "", [], {}]

# The arguments that a call cannot do without.
REQUIRED: dict[str, dict[str, Any]] = {
    "pets.create": {"name": "Rex", "category_id": 3},
    "pets.get": {"pet_id": 1},
    "pets.get_many": {"pet_ids": [1]},
    "pets.update": {"pet_id": 1},
    "pets.delete": {"pet_id": 1},
    "pets.list": {},
    "orders.place": {"pet_id": 1},
    "orders.get": {"order_id": 1},
    "orders.update": {"order_id": 1},
    "orders.complete": {"order_id": 1},
    "orders.cancel": {"order_id": 1},
    "orders.list": {},
    "events.position": {},
    "events.list": {},
    "events.follow": {},
    "request": {"method": "POST", "path": "/v1/vets"},
    "with_options": {},
    "Petstore": {},
}

# These become members of the body, which the service checks.
BODY: dict[str, dict[str, str]] = {
    "pets.create": {"name": "name", "category_id": "categoryId", "status": "status", "reference": "reference"},
    "pets.update": {"name": "name", "category_id": "categoryId", "status": "status", "reference": "reference"},
    "orders.place": {"reference": "reference", "hold_seconds": "holdSeconds"},
    "orders.update": {"reference": "reference", "hold_seconds": "holdSeconds"},
}

# What is documented to have no effect: it is the same as leaving the argument out.
NO_EFFECT: list[tuple[str, Any]] = [("headers", {}), ("query", {})]

# A list of nothing.
EMPTY_RESULTS = [("pets.get_many", "pet_ids"), ("pets.list", "references")]


class Argument(NamedTuple):
    call: str
    name: str
    may_be_none: bool


def arguments(of: type[Any]) -> Iterator[Argument]:
    """Yields the arguments and options of every method of the client, and of the class itself."""
    shop = of(api_key=KEY, base_url=URL)
    calls: dict[str, Callable[..., Any]] = {
        f"{resource}.{name}": getattr(getattr(shop, resource), name)
        for resource in ("pets", "orders", "events")
        for name in dir(getattr(shop, resource))
        if not name.startswith("_")
    }
    others = {name for name in dir(shop) if not name.startswith("_")} - {"pets", "orders", "events"}
    assert others == {"close", "request", "with_options", "with_response"}
    calls |= {"request": shop.request, "with_options": shop.with_options, "Petstore": of}
    assert calls.keys() == REQUIRED.keys()
    for call, function in calls.items():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                options = sdk.ClientOptions if call == "with_options" else sdk.CallOptions
                yield from (Argument(call, name, True) for name in options.__annotations__)
            else:
                yield Argument(call, parameter.name, parameter.default is None)


class ArgumentsTest(unittest.TestCase):
    def setUp(self) -> None:
        environment = mock.patch.dict(os.environ, PETSTORE_KEY=KEY, PETSTORE_URL=URL)
        environment.start()
        self.addCleanup(environment.stop)
        self.requests: list[httpx.Request] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if path.startswith("/v1/events"):
            link = {"Link": '</v1/events?after=A>; rel="next"'}
            event = {"id": "E1", "type": "pet.created", "petId": 1, "at": TIME}
            return httpx.Response(200, json=[event] if "wait" in request.url.params else [], headers=link)
        if request.method == "DELETE":
            return httpx.Response(204)
        one = PET if "pets" in path else ORDER
        is_list = request.method == "GET" and path in ("/v1/pets", "/v1/store/orders")
        return httpx.Response(200, json=[one] if is_list else one)

    def perform(self, of: type[Any], call: str, **values: Any) -> tuple[Any, list[Any]]:
        """Makes a call with the required arguments and these. Returns its result, and what was sent."""
        self.requests.clear()
        arguments = {**REQUIRED[call], **values}
        transport = httpx.MockTransport(self.handle)
        http = httpx.Client(transport=transport) if of is sdk.Petstore else httpx.AsyncClient(transport=transport)

        def make() -> Any:
            if call == "Petstore":
                return of(**{"http_client": http, **arguments}).pets.get(1)
            shop = of(http_client=http)
            if call == "with_options":
                return shop.with_options(**arguments).pets.get(1)
            method = (
                getattr(shop, call)
                if "." not in call
                else getattr(getattr(shop, call.split(".")[0]), call.split(".")[1])
            )
            return method(**arguments)

        async def run() -> Any:
            made = make()
            if hasattr(made, "__anext__"):
                return [item async for item in first_of(made)]
            return await made

        async def first_of(items: Any) -> Any:
            async for item in items:
                yield item
                break

        if of is sdk.AsyncPetstore:
            result = asyncio.run(run())
        else:
            result = make()
            if hasattr(result, "__next__"):
                result = [item for item, _ in zip(result, range(1))]
        sent = [
            (request.method, str(request.url), request.content, request.headers.get("If-Match"))
            for request in self.requests
        ]
        return result, sent

    def test_no_empty_value_of_an_argument_becomes_another_request(self) -> None:
        for of in (sdk.Petstore, sdk.AsyncPetstore):
            for argument in arguments(of):
                for value in EMPTY:
                    with self.subTest(client=of.__name__, call=argument.call, argument=argument.name, value=value):
                        self.check(of, argument, value)

    def check(self, of: type[Any], argument: Argument, value: Any) -> None:
        call, name, may_be_none = argument
        given = {name: value}
        if name == "http_client" and value is None:
            return  # it would use the network
        if (value is None and may_be_none and name != "if_match") or (name, value) in NO_EFFECT:
            assert self.perform(of, call, **given)[1] == self.perform(of, call)[1]
        elif name in BODY.get(call, {}):
            body = json.loads(self.perform(of, call, **given)[1][0][2])
            assert body.get(BODY[call][name]) == value
        elif name == "metadata" and value == {}:
            expected: dict[str, str] | None = {} if call.endswith("update") else None
            assert json.loads(self.perform(of, call, **given)[1][0][2]).get("metadata") == expected
        elif (call, name) == ("request", "body"):
            assert json.loads(self.perform(of, call, **given)[1][0][2]) == value
        elif (call, name) in EMPTY_RESULTS and value == []:
            assert self.perform(of, call, **given) == ([], [])
        else:
            with self.assertRaises((TypeError, ValueError)) as raised:
                self.perform(of, call, **given)
            assert f"`{name}" in str(raised.exception), raised.exception
            assert self.requests == []

    def test_an_empty_item_of_a_list_is_rejected(self) -> None:
        wrong: list[Any] = [[1, None], [1, []], [1, {}], [], {}, set(), b""]
        cases: list[tuple[str, dict[str, Any]]] = [
            *(("pets.get_many", {"pet_ids": [1, value]}) for value in EMPTY),
            *(("pets.list", {"references": ["a", value]}) for value in EMPTY),
            *(("events.list", {"types": ["pet.created", value]}) for value in EMPTY),
            *(("events.follow", {"types": ["pet.created", value]}) for value in EMPTY),
            *(("request", {"query": {"id": value}}) for value in wrong),
        ]
        for of in (sdk.Petstore, sdk.AsyncPetstore):
            for call, values in cases:
                with self.subTest(call=call, **values):
                    with self.assertRaises((TypeError, ValueError)) as raised:
                        self.perform(of, call, **values)
                    assert f"`{next(iter(values))}[" in str(raised.exception), raised.exception
                    assert self.requests == []

    def test_a_value_that_fits_into_no_url_is_rejected(self) -> None:
        for call, values in [
            ("orders.list", {"reference": "a" * 70_000}),
            ("orders.list", {"reference": "\ud800"}),
            ("request", {"path": "/v1/" + "a" * 70_000}),
            ("request", {"path": "/v1/\x00"}),
        ]:
            for of in (sdk.Petstore, sdk.AsyncPetstore):
                with self.subTest(call=call), self.assertRaises(ValueError):
                    self.perform(of, call, **values)
                assert self.requests == []


if __name__ == "__main__":
    unittest.main()

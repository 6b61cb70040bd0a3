#!/usr/bin/env python3
"""Calls the service with the Python SDK, for run.py, which describes what a driver does.

tests/clients/driver.py Petstore|AsyncPetstore [follow]
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from petstore_client import AsyncItems, AsyncPetstore, Items, Petstore, PetstoreError

CLIENTS: dict[str, Any] = {"Petstore": Petstore, "AsyncPetstore": AsyncPetstore}


async def drive(client: str, run: dict[str, Any]) -> dict[str, Any]:
    shop = CLIENTS[client](base_url=run["url"], timeout_seconds=run["timeout"], max_time_seconds=run["max_time"])
    failures: list[str] = []

    async def attempt(step: str, call: Callable[[], Any]) -> Any:
        """Returns the result of a call of either client, or None if it fails."""
        try:
            result = call()
            if isinstance(result, Items):
                return list(result)
            if isinstance(result, AsyncItems):
                return [item async for item in result]
            return await result if inspect.isawaitable(result) else result
        except PetstoreError as error:
            unknown = ", outcome unknown" if error.outcome_unknown else ""
            failures.append(f"{step}: {type(error).__name__} {error.code}{unknown}")

    names = [f"{run['name']} {number}" for number in range(3)]
    new = [
        lambda name=name: shop.pets.create(name=name, category_id=1, status="available", reference=name)
        for name in names
    ]
    pets = [pet for call in new if (pet := await attempt("create", call)) is not None]
    order = None
    if pets:
        await attempt("update", lambda: shop.pets.update(pets[0].id, category_id=2, if_match=pets[0].etag))
        order = await attempt("place", lambda: shop.orders.place(pet_id=pets[-1].id))
    if order is not None:
        order = await attempt("complete", lambda: shop.orders.complete(order.id))
    listed = await attempt("list", lambda: shop.pets.list(limit=50)) or []
    return {
        "created": [pet.id for pet in pets],
        "order": order and {"id": order.id, "status": order.status},
        "listed": [pet.id for pet in listed],
        "failures": failures,
    }


async def take_position(shop: Any) -> str:
    position = shop.events.position()
    return await position if inspect.isawaitable(position) else position


async def follow(shop: Any, after: str, count: int) -> list[list[Any]]:
    events = shop.events.follow(after=after)
    seen: list[list[Any]] = []
    while len(seen) < count:
        event = next(events) if isinstance(events, Items) else await events.__anext__()
        seen.append([event.type_, event.pet_id])
    return seen


async def main(client: str, follows: bool) -> None:
    async def do_all(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
        if client == "Petstore":
            calls = [asyncio.to_thread(asyncio.run, call) for call in calls]
        return await asyncio.gather(*calls)

    runs = json.load(sys.stdin)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(runs)))
    if follows:
        shops = [CLIENTS[client](base_url=run["url"], timeout_seconds=run["timeout"], max_time_seconds=run["max_time"]) for run in runs]
        positions = await do_all([take_position(shop) for shop in shops])
        print("ready", flush=True)
        followers = zip(shops, positions, runs)
        results = await do_all([follow(shop, after, run["count"]) for shop, after, run in followers])
    else:
        results = await do_all([drive(client, run) for run in runs])
    print(json.dumps(results))


asyncio.run(main(sys.argv[1], sys.argv[2:] == ["follow"]))

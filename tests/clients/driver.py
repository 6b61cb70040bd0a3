#!/usr/bin/env python3
"""Calls the service with the Python SDK, for run.py, which describes what a driver does.

tests/clients/driver.py Petstore|AsyncPetstore
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from petstore_client import AsyncItems, AsyncPetstore, Items, Petstore, PetstoreError

CLIENTS: dict[str, Any] = {"Petstore": Petstore, "AsyncPetstore": AsyncPetstore}


async def drive(client: str, run: dict[str, Any]) -> dict[str, Any]:
    shop = CLIENTS[client](base_url=run["url"], timeout=run["timeout"], max_time=run["max_time"])
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
    new = [lambda name=name: shop.pets.create(name=name, category_id=1, status="available") for name in names]
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


async def main(client: str) -> None:
    runs = json.load(sys.stdin)
    if client == "Petstore":
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(runs)))
        results = await asyncio.gather(*(asyncio.to_thread(asyncio.run, drive(client, run)) for run in runs))
    else:
        results = await asyncio.gather(*(drive(client, run) for run in runs))
    print(json.dumps(results))


asyncio.run(main(sys.argv[1]))

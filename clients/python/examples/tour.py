"""What a client does with the service, from the first call to a refused one.

Reads PETSTORE_URL and PETSTORE_KEY, and fails if an answer is not as documented.
"""

import asyncio
import os
import uuid

import httpx

from petstore_client import (
    AuthenticatedClient,
    Error,
    NewPet,
    Pet,
    PetstoreError,
    all_pets,
    async_all_pets,
    create_pet,
)

BASE_URL = os.environ["PETSTORE_URL"] + "/v1"
client = AuthenticatedClient(base_url=BASE_URL, token=os.environ["PETSTORE_KEY"])


def add_once() -> None:
    """Adds an animal once, although its request is sent twice."""
    key = str(uuid.uuid4())
    new = NewPet(name="Rex", category_id=3, status="sold")
    first = create_pet.sync_detailed(client=client, body=new, idempotency_key=key)
    again = create_pet.sync_detailed(client=client, body=new, idempotency_key=key)
    assert isinstance(first.parsed, Pet), first
    assert isinstance(again.parsed, Pet), again
    assert first.parsed.id == again.parsed.id
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    print(f"added {first.parsed.name}, once")


def walk_all_pages() -> None:
    """Walks over all pages, with and without asyncio, counting the requests that it takes."""
    for name in ["Ada", "Bo", "Cy", "Di"]:
        create_pet.sync(client=client, body=NewPet(name=name, category_id=3, status="sold"))
    requests: list[httpx.Request] = []
    client.get_httpx_client().event_hooks = {"request": [requests.append]}
    names = [pet.name for pet in all_pets(client, status="sold", limit=2)]
    assert names == ["Rex", "Ada", "Bo", "Cy", "Di"], names
    assert len(requests) == 3, requests
    print(f"walked over {len(names)} animals on {len(requests)} pages")

    async def collect() -> list[str]:
        return [pet.name async for pet in async_all_pets(client, status="sold", limit=2)]

    assert asyncio.run(collect()) == names


def read_errors() -> None:
    """Errors are values, and a walk raises them."""
    refused = create_pet.sync(client=client, body=NewPet(name=" ", category_id=3))
    assert isinstance(refused, Error), refused
    assert (refused.code, refused.status) == ("invalid_field", 400)
    print(f"refused: {refused.message}")
    try:
        next(all_pets(client, limit=0))
    except PetstoreError as error:
        assert error.code == "invalid_parameter"
        assert error.request_id is not None
    else:
        raise AssertionError("a page cannot be empty by request")


def keep_the_key() -> None:
    """The key goes nowhere else: a link to another origin is not followed."""
    answer = httpx.Response(200, json=[], headers={"Link": '<http://elsewhere.example/>; rel="next"'})
    elsewhere = AuthenticatedClient(
        base_url=BASE_URL,
        token="psk_secret",
        httpx_args={"transport": httpx.MockTransport(lambda _: answer)},
    )
    try:
        next(all_pets(elsewhere))
    except ValueError as error:
        assert "elsewhere.example" in str(error)
    else:
        raise AssertionError("the link was followed")


add_once()
walk_all_pages()
read_errors()
keep_the_key()

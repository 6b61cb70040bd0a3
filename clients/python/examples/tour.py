"""A tour of the SDK, from the first request to a rejected one.

Reads PETSTORE_URL and PETSTORE_KEY. Fails if a response is not as documented.
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
    """Adds a pet once, although the request is sent twice."""
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


def list_all_pages() -> None:
    """Iterates over all pages, with and without asyncio, and counts the requests."""
    for name in ["Ada", "Bo", "Cy", "Di"]:
        create_pet.sync(client=client, body=NewPet(name=name, category_id=3, status="sold"))
    requests: list[httpx.Request] = []
    client.get_httpx_client().event_hooks = {"request": [requests.append]}
    names = [pet.name for pet in all_pets(client, status="sold", limit=2)]
    assert names == ["Rex", "Ada", "Bo", "Cy", "Di"], names
    assert len(requests) == 3, requests
    print(f"listed {len(names)} pets on {len(requests)} pages")

    async def collect() -> list[str]:
        return [pet.name async for pet in async_all_pets(client, status="sold", limit=2)]

    assert asyncio.run(collect()) == names


def read_errors() -> None:
    """Operations return errors as values; iterators raise them."""
    rejected = create_pet.sync(client=client, body=NewPet(name=" ", category_id=3))
    assert isinstance(rejected, Error), rejected
    assert (rejected.code, rejected.status) == ("invalid_field", 400)
    print(f"rejected: {rejected.message}")
    try:
        next(all_pets(client, limit=0))
    except PetstoreError as error:
        assert error.code == "invalid_parameter"
        assert error.request_id is not None
    else:
        raise AssertionError("a page size of 0 was accepted")


def keep_the_key() -> None:
    """A link to another origin is not followed, so the key is not sent there."""
    response = httpx.Response(200, json=[], headers={"Link": '<http://elsewhere.example/>; rel="next"'})
    elsewhere = AuthenticatedClient(
        base_url=BASE_URL,
        token="psk_secret",
        httpx_args={"transport": httpx.MockTransport(lambda _: response)},
    )
    try:
        next(all_pets(elsewhere))
    except ValueError as error:
        assert "elsewhere.example" in str(error)
    else:
        raise AssertionError("the link was followed")


add_once()

list_all_pages()
read_errors()
keep_the_key()

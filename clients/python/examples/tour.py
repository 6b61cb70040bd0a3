"""A tour of the SDK, from the first request to a rejected one.

Reads PETSTORE_URL and PETSTORE_KEY. Fails if a response is not as documented.
"""

import asyncio

from petstore_client import (
    REMOVE,
    AsyncPetstore,
    Attempt,
    BadRequestError,
    ConflictError,
    NotFoundError,
    Pet,
    Petstore,
    PreconditionFailedError,
)

attempts: list[Attempt] = []
shop = Petstore(on_attempt=attempts.append)


def add_once() -> Pet:
    """Adds a pet once, although the call is made twice: your own key makes that safe even after a crash."""
    first = shop.pets.create(name="Rex", category_id=3, status="available", idempotency_key="first-pet")
    again = shop.pets.create(name="Rex", category_id=3, status="available", idempotency_key="first-pet")
    assert first == again
    assert [attempt.headers.get("Idempotent-Replayed") for attempt in attempts] == [None, "true"]
    print(f"added {first.name}, once")
    return first


def read(rex: Pet) -> None:
    """Reads one pet, some pets and all pets."""
    pets = [rex, *(shop.pets.create(name=name, category_id=3, status="available") for name in ["Ada", "Bo"])]
    missing = pets[-1].id + 1
    assert shop.pets.get(rex.id) == rex
    assert shop.pets.get_many([pets[2].id, missing, rex.id]) == [pets[2], rex]
    try:
        shop.pets.get(missing)
    except NotFoundError as error:
        assert error.code == "pet_not_found"
    else:
        raise AssertionError("a missing pet was found")
    attempts.clear()
    assert [pet for pet in shop.pets.list(status="available", limit=1) if pet in pets] == pets
    assert len(attempts) >= len(pets)
    assert next(shop.pets.list(sort="-id")) == pets[-1]
    print("listed all pets, one per page")


def find(rex: Pet) -> None:
    """Finds pets by your own number for them, and by category."""
    shop.pets.update(rex.id, reference="chip-276-001")
    [found] = shop.pets.list(references=["chip-276-001", "chip-276-002"])
    assert (found.id, found.reference) == (rex.id, "chip-276-001")
    try:
        shop.pets.create(name="Rex", category_id=3, reference="chip-276-001")
    except ConflictError as error:
        assert (error.code, error.field) == ("reference_taken", "reference")
    else:
        raise AssertionError("two pets have the same reference")
    assert found in shop.pets.list(status="available", category_id=3)
    assert found not in shop.pets.list(category_id=-3)
    print(f"found {found.name} by reference and category")


def describe(rex: Pet) -> Pet:
    """Stores with a pet what a buyer wants to see. Changes one value, and removes another."""
    photo = "https://shop.example/rex.jpg"
    described = shop.pets.update(rex.id, metadata={"price": "129.00", "photo": photo, "note": "likes cats"})
    assert described.metadata == {"price": "129.00", "photo": photo, "note": "likes cats"}
    reduced = shop.pets.update(rex.id, metadata={"price": "99.00", "note": REMOVE}, if_match=described.etag)
    assert reduced.metadata == {"price": "99.00", "photo": photo}
    print(f"{reduced.name} costs {reduced.metadata['price']}")
    return reduced


def sell(rex: Pet) -> None:
    """Sells a pet, and does not sell it twice."""
    cancelled = shop.orders.cancel(shop.orders.place(pet_id=rex.id).id)
    order = shop.orders.place(pet_id=rex.id, reference="basket 7", metadata={"price": rex.metadata["price"]})
    order = shop.orders.update(order.id, reference=REMOVE, metadata={"payment": "card"})
    assert (order.reference, order.metadata) == (None, {"price": "99.00", "payment": "card"})
    try:
        shop.orders.place(pet_id=rex.id)
    except ConflictError as error:
        assert error.code == "pet_not_available"
    else:
        raise AssertionError("a pet was ordered twice")
    for _ in range(2):
        assert shop.orders.complete(order.id).status == "completed"
    statuses = [(one.id, one.status) for one in shop.orders.list(pet_id=rex.id)]
    assert statuses == [(cancelled.id, "cancelled"), (order.id, "completed")]
    assert shop.pets.get(rex.id).status == "sold"
    print(f"sold {rex.name}")


def change(rex: Pet) -> None:
    """Changes a pet only if no other client has changed it."""
    current = shop.pets.get(rex.id)
    changed = shop.pets.update(rex.id, name="Max", if_match=current.etag)
    assert (changed.name, changed.category_id) == ("Max", 3)
    try:
        shop.pets.update(rex.id, name="Tom", if_match=current.etag)
    except PreconditionFailedError as error:
        assert not error.outcome_unknown
        print("changed, once")
    else:
        raise AssertionError("a change was overwritten")


def delete(rex: Pet) -> None:
    """Deletes a pet that was added by mistake. A pet that is or was in an order stays."""
    mistake = shop.pets.create(name="Rex", category_id=3)
    shop.pets.delete(mistake.id)
    assert shop.pets.get_many([mistake.id]) == []
    try:
        shop.pets.delete(rex.id)
    except ConflictError as error:
        assert error.code == "pet_has_order"
        print("deleted a mistake")
    else:
        raise AssertionError("a sold pet was deleted")


def fail() -> None:
    """Every failure is an exception."""
    try:
        shop.pets.create(name=" ", category_id=3)
    except BadRequestError as error:
        assert (error.code, error.status) == ("invalid_field", 400)
        assert error.request_id is not None
        print(f"rejected: {error.message}")
    else:
        raise AssertionError("a blank name was accepted")


async def at_the_same_time() -> None:
    """Adds several pets at the same time."""
    async with AsyncPetstore() as shop:
        calls = [shop.pets.create(name=f"Kitten {number}", category_id=4) for number in range(10)]
        kittens = await asyncio.gather(*calls)
        assert len([pet async for pet in shop.pets.list(limit=50) if pet in kittens]) == 10
        print(f"added {len(kittens)} kittens at the same time")


rex = add_once()
read(rex)
find(rex)
sell(describe(rex))
change(rex)
delete(rex)
fail()
asyncio.run(at_the_same_time())

"""A first program: takes a delivery of pets, sells one of them, and renames the other.

Reads PETSTORE_URL and PETSTORE_KEY. `petstore demo` starts a service and prints both.
"""

from petstore_client import ConflictError, Petstore, PetstoreError

shop = Petstore()
try:
    # Your own idempotency keys make it safe to run the program again after a crash: the pets are added once.
    rex, ada = (
        shop.pets.create(name=name, category_id=3, status="available", idempotency_key=f"monday-{name}")
        for name in ["Rex", "Ada"]
    )
    try:
        order = shop.orders.place(pet_id=rex.id)
        print(shop.orders.complete(order.id).status)
    except ConflictError:
        print("another buyer was faster")

    # The name changes only if no one has changed the pet since it was read.
    current = shop.pets.get(ada.id)
    print(shop.pets.update(ada.id, name="Ada Lovelace", if_match=current.etag).name)

    available = sum(1 for _ in shop.pets.list(status="available"))
    print(f"{available} available")
except PetstoreError as error:
    raise SystemExit(str(error)) from error

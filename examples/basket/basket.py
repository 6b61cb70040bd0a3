"""Reserves several pets for one buyer: all of them, or none.

    basket.py BASKET PET_ID …      for example: basket.py basket-7 17 18

BASKET is your own number, which becomes the `reference` of all orders. Use a new one for each attempt of a buyer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from petstore_client import ConflictError, Order, Petstore


def reserve(shop: Petstore, basket: str, pet_ids: Iterable[int], hold_seconds: int = 600) -> list[Order]:
    """Returns one order per pet, or nothing. If it raises, call it again with the same arguments."""
    wanted = sorted(set(pet_ids))  # in this order, so that of two buyers who want the same pets, one gets them all
    for pet_id in wanted:
        try:
            shop.orders.place(
                pet_id=pet_id, reference=basket, hold_seconds=hold_seconds, idempotency_key=f"{basket}-{pet_id}"
            )
        except ConflictError as error:
            if error.code != "pet_not_available":
                raise
            break
    orders = [order for order in shop.orders.list(reference=basket) if order.status in ("placed", "completed")]
    if [order.pet_id for order in orders] == wanted:
        return orders
    for order in orders:
        with suppress(ConflictError):  # it has expired
            shop.orders.cancel(order.id)
    return []


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    orders = reserve(Petstore(), sys.argv[1], map(int, sys.argv[2:]))
    for order in orders:
        print(f"pet {order.pet_id} is reserved until {order.expires_at:%H:%M:%S} UTC")
    if not orders:
        sys.exit("not all of these pets are available")

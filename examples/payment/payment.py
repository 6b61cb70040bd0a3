"""Sells a pet for money. Whatever fails, the buyer pays once and gets the pet, or does not pay.

    payment.py NUMBER PET_ID PRICE CARD [CODE]      for example: payment.py order-1 17 129.00 visa

NUMBER is your own order number: use a new one for each attempt of a buyer. Store it before you call `sell`, and call
`sell` again with the same arguments until it has returned a result.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bank import Bank
from petstore_client import ConflictError, Petstore


def sell(
    shop: Petstore,
    bank: Bank,
    number: str,
    pet_id: int,
    price: str,
    card: str,
    code: str | None = None,
    hold_seconds: int = 600,
) -> str:
    """Returns what to tell the buyer. If it raises, nothing has been decided: call it again with the same arguments."""
    order = next(shop.orders.list(reference=number), None)  # an earlier run has placed it
    if order is None:
        try:
            order = shop.orders.place(
                pet_id=pet_id,
                reference=number,
                hold_seconds=hold_seconds,
                metadata={"price": price},
                idempotency_key=f"place-{number}",
            )
        except ConflictError as error:
            if error.code != "pet_not_available":
                raise
            return "another buyer was faster"
    if order.status == "placed":
        # A timeout leaves the outcome unknown. Do not cancel the order then, because the money may be set aside.
        answer = bank.authorise(number, order.metadata["price"], card, code)
        try:
            if answer == "code needed":
                if "code" not in order.metadata:  # only once, so that nobody holds a pet for ever
                    shop.orders.update(order.id, hold_seconds=hold_seconds, metadata={"code": "needed"})
                return "enter the code from your bank"
            if answer == "refused":
                shop.orders.update(order.id, metadata={"card": "refused"})  # so that a later run knows why
                order = shop.orders.cancel(order.id)
            else:
                order = shop.orders.complete(order.id)
        except ConflictError:  # the order has expired, or another run has ended it
            order = shop.orders.get(order.id)
    if order.status == "completed":
        bank.capture(number)
        return "sold"
    bank.void(number)
    return "the card was refused" if "card" in order.metadata else f"the order is {order.status}"


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    number, pet_id, price, card, *code = sys.argv[1:]
    print(sell(Petstore(), Bank(Path("bank.json")), number, int(pet_id), price, card, code[0] if code else None))

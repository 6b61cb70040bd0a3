"""Sells a pet: reserve it, authorise the payment, complete the order, capture the payment.

The shop stores nothing itself. The service knows the orders, with the price in their metadata, and the bank knows the
payments. Both know the order number, which is also the idempotency key. So `finish_all` can continue after a crash at
any point. It is called when the shop starts, and then every two seconds, also while a request does the same work.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fake_bank import Bank
from petstore_client import ConflictError, Order, Petstore

ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
NUMBER = re.compile(r"[2-9A-Z]{4}(-[2-9A-Z]{4}){3}")


def new_number() -> str:
    """Returns an order number that cannot be guessed, because whoever knows the number can see the order."""
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(4)) for _ in range(4))


@contextmanager
def errors_logged() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        logging.warning("cannot finish orders now: %r", error)


class Checkout:
    def __init__(self, store: Petstore, bank: Bank, hold_seconds: int) -> None:
        self.store, self.bank, self.hold_seconds = store, bank, hold_seconds

    def find(self, number: str) -> Order | None:
        """Returns the order with this number. There is only one, because the number is also the idempotency key.

        Orders of other programs have other references, and are none of our business.
        """
        return next(self.store.orders.list(reference=number), None) if NUMBER.fullmatch(number) else None

    def reserve(self, number: str, pet_id: int, metadata: dict[str, str]) -> Order:
        """Places the order, or finds it if the buyer has clicked twice."""
        return self.find(number) or self.store.orders.place(
            pet_id=pet_id, reference=number, hold_seconds=self.hold_seconds, metadata=metadata, idempotency_key=number
        )

    def pay(self, order: Order, number: str, card: str, code: str | None) -> None:
        """Asks the bank for the money, and completes the order if the bank agrees.

        If the bank does not answer, this raises a `TimeoutError`. The order must not be cancelled then, because the
        money may be set aside. `finish_all` finds out.
        """
        if order.status == "placed":
            price = order.metadata["price"]
            # The form for the code has no card: the bank knows it from the first call.
            answer = self.bank.confirm(number, code) if code else self.bank.authorise(number, price, card)
            if answer == "code needed" and "code" not in order.metadata:
                # More time for the buyer, but only once. Otherwise, a buyer could keep the pet for ever.
                asked = {"code": "needed"}
                with suppress(ConflictError):  # the order has just expired
                    self.store.orders.update(order.id, hold_seconds=self.hold_seconds, metadata=asked)
        self.finish(number)

    def cancel(self, order: Order, number: str) -> None:
        with suppress(ConflictError):  # the order has ended in another way
            self.store.orders.cancel(order.id)
        self.finish(number)

    def finish(self, number: str) -> None:
        """Makes the order and the payment agree: sold and paid, or neither."""
        order, payment = self.find(number), self.bank.state(number)
        if order is None:
            return
        try:
            if order.status == "placed" and payment == "authorised":
                order = self.store.orders.complete(order.id)
            elif order.status == "placed" and payment == "refused":
                self.store.orders.update(order.id, metadata={"card": "refused"})  # so that the page can say why
                order = self.store.orders.cancel(order.id)
        except ConflictError:  # it has expired, or another request has ended it
            order = self.store.orders.get(order.id)
        if order.status == "completed":
            self.bank.capture(number)
        elif order.status != "placed":
            self.bank.void(number)

    def finish_all(self) -> None:
        """Finishes what an earlier run of the shop has left behind. An order that fails does not stop the others."""
        for number in self.bank.authorised():
            with errors_logged():
                self.finish(number)
        for order in self.store.orders.list(status="placed"):
            if order.metadata.get("payment") == "till":  # the cashier has the money
                with errors_logged():
                    self.store.orders.complete(order.id)

    def finish_for_ever(self) -> None:
        while True:
            with errors_logged():  # this thread must not end
                self.finish_all()
            time.sleep(2)

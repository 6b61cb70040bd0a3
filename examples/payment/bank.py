"""A toy bank that stands for your payment provider. It keeps its payments in a file.

As with the test cards of a real provider, the card decides what happens:

    visa      is accepted
    stolen    is refused
    careful   needs the code 1234, which the bank has sent to the buyer
    slow      is accepted, but the first response is lost: the shop sees a timeout

`authorise` sets the money aside, `capture` transfers it, and `void` releases it. `number` identifies the payment, as an
idempotency key does, so every call can be repeated.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Literal

Answer = Literal["authorised", "refused", "code needed"]


class Bank:
    def __init__(self, file: Path) -> None:
        self.file, self.lock = file, threading.Lock()

    def payments(self) -> dict[str, str]:
        """Returns the price and the state of each payment."""
        payments: dict[str, str] = json.loads(self.file.read_text()) if self.file.exists() else {}
        return payments

    def authorise(self, number: str, price: str, card: str, code: str | None = None) -> Answer:
        with self.lock:
            before = self.payments().get(number)
            if before in (f"{price} authorised", f"{price} captured"):
                return "authorised"
            if before == "void" or card == "stolen":
                return "refused"
            if card == "careful" and code != "1234":
                return "code needed"
            self.store(number, f"{price} authorised")
        if card == "slow":
            raise TimeoutError("the bank has not answered")
        return "authorised"

    def capture(self, number: str) -> None:
        with self.lock:
            price, state = self.payments()[number].split()
            if state == "authorised":
                self.store(number, f"{price} captured")

    def void(self, number: str) -> None:
        """Releases the money. From now on, `authorise` refuses this number, even in a request that was sent before."""
        with self.lock:
            assert "captured" not in self.payments().get(number, ""), "too late: the buyer has paid"
            self.store(number, "void")

    def store(self, number: str, state: str) -> None:
        self.file.write_text(json.dumps({**self.payments(), number: state}, indent=2))

"""A fake bank that stands for your payment provider. Its database is its own: the shop never reads it.

As with the test cards of a real provider, the card decides what happens:

    4242 4242 4242 4242   is accepted
    4000 0000 0000 0002   is refused
    4000 0027 6000 3184   needs the code 1234, which the bank has sent to the buyer
    4000 0000 0000 0077   is accepted, but the response is lost: the shop sees a timeout

`authorise` sets the money aside, `capture` transfers it, and `void` releases it. `number` identifies the payment, as an
idempotency key does: every call can be repeated, and only one payment can have this number.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

ACCEPTED, REFUSED, CODE, TIMEOUT = "4242424242424242", "4000000000000002", "4000002760003184", "4000000000000077"


class Bank:
    def __init__(self, file: Path | str) -> None:
        self.file = file
        self._run("CREATE TABLE IF NOT EXISTS payments (number TEXT PRIMARY KEY, price TEXT, state TEXT)")

    def authorise(self, number: str, price: str, card: str) -> str:
        """Returns the state of the payment: `authorised`, `refused` or `code needed`."""
        first = {ACCEPTED: "authorised", CODE: "code needed", TIMEOUT: "authorised"}.get(card, "refused")
        self._run("INSERT OR IGNORE INTO payments VALUES (?, ?, ?)", number, price, first)
        if card == TIMEOUT:
            raise TimeoutError("the bank has not answered")
        return self.state(number) or first

    def confirm(self, number: str, code: str) -> str:
        """Takes the code that the buyer has entered, and returns the state of the payment."""
        if code == "1234":
            self._run("UPDATE payments SET state = 'authorised' WHERE number = ? AND state = 'code needed'", number)
        return self.state(number) or "refused"

    def capture(self, number: str) -> None:
        self._run("UPDATE payments SET state = 'captured' WHERE number = ? AND state = 'authorised'", number)

    def void(self, number: str) -> None:
        """Releases the money. From now on, this number is refused, even in a request that was sent before."""
        self._run("INSERT OR IGNORE INTO payments VALUES (?, '0.00', 'void')", number)
        self._run("UPDATE payments SET state = 'void' WHERE number = ? AND state <> 'captured'", number)

    def state(self, number: str) -> str | None:
        """Returns the state of the payment, or None if the bank has not heard of it."""
        rows = self._run("SELECT state FROM payments WHERE number = ?", number)
        return rows[0][0] if rows else None

    def authorised(self) -> list[str]:
        """Returns the numbers of the payments that are neither captured nor void. Every provider has such a list."""
        return [number for number, _, state in self.payments() if state == "authorised"]

    def payments(self) -> list[tuple[str, ...]]:
        """Returns the number, the price and the state of each payment."""
        return self._run("SELECT number, price, state FROM payments")

    def _run(self, statement: str, *parameters: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(self.file, timeout=10)) as database, database:
            return database.execute(statement, parameters).fetchall()

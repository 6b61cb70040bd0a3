"""Sends an email for each pet that is sold, whatever crashes.

    mailer.py ADDRESS      stores its state in mailer.sqlite, and sends with the command `sendmail`

The first run starts with the sales that follow. Each later run continues where the one before has ended. Run only one
mailer: a second one exits, because it would send everything again.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from email.message import EmailMessage

from petstore_client import CursorExpiredError, Petstore

SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;  -- a second mailer gets an error
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS position (after TEXT NOT NULL);        -- all events up to here have been handled
CREATE TABLE IF NOT EXISTS done (order_id INTEGER PRIMARY KEY);   -- the orders that need no email any more
COMMIT;
"""


def send(address: str, name: str, order_id: int) -> None:
    message = EmailMessage()
    message["To"], message["Subject"] = address, f"{name} is sold"
    message["Message-ID"] = f"<order-{order_id}@shop.example>"  # if it is sent twice, it has the same id
    subprocess.run(["sendmail", "-t"], input=bytes(message), check=True)


class Mailer:
    def __init__(self, shop: Petstore, file: str, address: str) -> None:
        self.shop, self.address = shop, address
        self.database = sqlite3.connect(file, timeout=1)
        self.database.executescript(SCHEMA)

    def run(self) -> None:
        if not self.position():
            start = self.shop.events.position()
            earlier = [(order.id,) for order in self.shop.orders.list(status="completed")]
            with self.database:  # a transaction
                self.database.executemany("INSERT INTO done VALUES (?)", earlier)
                self.database.execute("INSERT INTO position VALUES (?)", (start,))
        print("waiting for sales", flush=True)
        while True:
            try:
                self.follow()
            except CursorExpiredError:  # the events after the position are no longer stored
                self.catch_up()

    def follow(self) -> None:
        events = self.shop.events.follow(after=self.position(), types=["order.completed"])
        for page in events.pages():
            for event in page.items:
                if event.order_id:
                    self.mail(event.order_id, event.pet_id)
            self.store(page.cursor)  # also of an empty page, so that the position does not expire

    def mail(self, order_id: int, pet_id: int) -> None:
        if self.database.execute("SELECT 1 FROM done WHERE order_id = ?", (order_id,)).fetchone():
            return
        send(self.address, self.shop.pets.get(pet_id).name, order_id)
        with self.database:
            self.database.execute("INSERT INTO done VALUES (?)", (order_id,))

    def catch_up(self) -> None:
        position = self.shop.events.position()  # before the orders are read, so that none is missed
        for order in self.shop.orders.list(status="completed"):
            self.mail(order.id, order.pet_id)
        self.store(position)

    def position(self) -> str | None:
        row = self.database.execute("SELECT after FROM position").fetchone()
        return row[0] if row else None

    def store(self, position: str | None) -> None:
        with self.database:
            self.database.execute("UPDATE position SET after = ?", (position,))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Mailer(Petstore(), "mailer.sqlite", sys.argv[1]).run()

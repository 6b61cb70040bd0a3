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

from petstore_client import CursorExpiredError, Order, Petstore

SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;  -- a second mailer gets an error
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS position (after TEXT NOT NULL);  -- all events up to here have been handled
-- The orders that were completed when the first run began, and those that have had their email.
CREATE TABLE IF NOT EXISTS earlier (order_id INTEGER, created_at TEXT, PRIMARY KEY (order_id, created_at));
CREATE TABLE IF NOT EXISTS mailed (order_id INTEGER, created_at TEXT, PRIMARY KEY (order_id, created_at));
COMMIT;
"""


def key(order: Order) -> tuple[int, str]:
    """Identifies an order. After a restore of the service, another order can have the id of a lost one."""
    return order.id, order.created_at.strftime("%Y%m%d%H%M%S%f")


def send(address: str, name: str, order: Order) -> None:
    message = EmailMessage()
    message["To"], message["Subject"] = address, f"{name} is sold"
    order_id, created_at = key(order)
    message["Message-ID"] = f"<order-{order_id}-{created_at}@shop.example>"  # if it is sent twice, it has the same id
    subprocess.run(["sendmail", "-t"], input=bytes(message), check=True)


class Mailer:
    def __init__(self, shop: Petstore, file: str, address: str) -> None:
        self.shop, self.address = shop, address
        self.database = sqlite3.connect(file, timeout=1)
        self.database.executescript(SCHEMA)

    def run(self) -> None:
        if not self.position():
            start = self.shop.events.position()  # before the orders are read, so that the feed has all later sales
            earlier = [key(order) for order in self.shop.orders.list(status="completed")]
            with self.database:  # a transaction
                self.database.executemany("INSERT INTO earlier VALUES (?, ?)", earlier)
                self.database.execute("INSERT INTO position VALUES (?)", (start,))
        print("waiting for sales", flush=True)
        while True:
            try:
                self.follow()
            except CursorExpiredError:  # the position is too old, or the service was restored from a backup
                self.catch_up()

    def follow(self) -> None:
        events = self.shop.events.follow(after=self.position(), types=["order.completed"])
        for page in events.pages():
            for event in page.items:
                if event.order_id:
                    self.mail(self.shop.orders.get(event.order_id))
            self.store(page.cursor)  # also of an empty page, so that the position does not expire

    def mail(self, order: Order) -> None:
        if order.status != "completed" or self.is_in("mailed", order):  # not completed: the service was restored
            return
        send(self.address, self.shop.pets.get(order.pet_id).name, order)
        with self.database:
            self.database.execute("INSERT INTO mailed VALUES (?, ?)", key(order))

    def catch_up(self) -> None:
        position = self.shop.events.position()  # before the orders are read, so that none is missed
        for order in self.shop.orders.list(status="completed"):
            if not self.is_in("earlier", order):
                self.mail(order)
        self.store(position)

    def is_in(self, table: str, order: Order) -> bool:
        found = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE order_id = ? AND created_at = ?)"
        return bool(self.database.execute(found, key(order)).fetchone()[0])

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

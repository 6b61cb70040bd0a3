"""One email per sale, although the mailer is killed before, while and after it sends one, and its position expires.

Nor is a sale missed during the first run, or after the database of the service was restored.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from unittest.mock import patch

import httpx
from mailer import Mailer
from petstore_client import ClientClosedError, Petstore

shop = Petstore()
EXPIRED_POSITION = "AgAAAAcAAAAAAAAC0wAAAAAAAAAqAAAAAAAAAAc"

# Stands for the mail server. It kills the mailer before or after it accepts an email, if there is a file that says so.
SENDMAIL = """#!/bin/sh
cd "$(dirname "$0")"
if [ -e kill-before ]; then rm kill-before; kill -9 $PPID; exit; fi
cat >>emails
if [ -e kill-after ]; then rm kill-after; kill -9 $PPID; fi
"""


class Office:
    """A folder for the mailer, and pets with their own suffix, because others sell pets at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.suffix = folder, uuid.uuid4().hex
        (folder / "sendmail").write_text(SENDMAIL)
        (folder / "sendmail").chmod(0o755)

    def sell(self, *names: str) -> None:
        for name in names:
            pet = shop.pets.create(name=f"{name}-{self.suffix}", category_id=3, status="available")
            shop.orders.complete(shop.orders.place(pet_id=pet.id).id)

    def emails(self) -> list[tuple[str, str]]:
        """Returns the name of the pet and the id of each email about our pets."""
        file = self.folder / "emails"
        text = file.read_text() if file.exists() else ""
        return re.findall(rf"Subject: (\w+)-{self.suffix} is sold\nMessage-ID: (\S+)", text)

    @contextmanager
    def mailer(self) -> Iterator[subprocess.Popen[str]]:
        """Runs the mailer, and kills it at the end."""
        command = [sys.executable, str(Path(__file__).with_name("mailer.py")), "staff@shop.example"]
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        run = subprocess.Popen(command, cwd=self.folder, env=environment, text=True, stdout=PIPE, stderr=PIPE)
        with run as process:
            try:
                assert process.stdout
                process.stdout.readline()  # it waits for sales, or has failed
                yield process
            finally:
                process.kill()

    @contextmanager
    def mailer_with(self, http: httpx.Client) -> Iterator[None]:
        """Runs the mailer in a thread, with this HTTP client."""

        def run() -> None:
            mailer = Mailer(shop, str(self.folder / "mailer.sqlite"), "staff@shop.example")
            with closing(mailer.database), suppress(ClientClosedError):
                mailer.run()

        path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        with patch.dict(os.environ, path), Petstore(http_client=http) as shop:
            thread = threading.Thread(target=run)
            thread.start()
            yield
            shop.close()
            thread.join()

    def mail_until(self, name: str) -> None:
        """Runs the mailer until it has sent an email about this pet."""
        with self.mailer():
            self.wait_for(name)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while name not in [pet for pet, _ in self.emails()]:
            assert time.monotonic() < deadline, f"no email about {name}"
            time.sleep(0.02)

    def expire_position(self) -> None:
        database = sqlite3.connect(self.folder / "mailer.sqlite")
        with database:
            database.execute("UPDATE position SET after = ?", (EXPIRED_POSITION,))
        database.close()


def test_each_sale_has_one_email_although_the_mailer_is_killed(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.sell("Old")
    with office.mailer():  # the first run: it sends no email about earlier sales
        pass
    office.sell("Ada", "Bo")
    office.mail_until("Bo")
    for crash, name in [("kill-before", "Cy"), ("kill-after", "Dot")]:
        (office.folder / crash).touch()
        office.sell(name)
        with office.mailer() as process:
            assert process.wait(60) == -9
    office.sell("Eve")
    office.mail_until("Eve")
    emails = office.emails()
    assert sorted(name for name, _ in set(emails)) == ["Ada", "Bo", "Cy", "Dot", "Eve"]
    assert len(emails) - len(set(emails)) <= 2  # a kill after an email sends it again, with the same id


def test_no_sale_is_left_out_and_none_repeated_after_the_position_has_expired(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.sell("Old")
    with office.mailer():
        pass
    office.sell("Ada", "Bo", "Cy", "Dot")
    office.mail_until("Dot")
    office.expire_position()
    office.sell("Eve")
    office.mail_until("Eve")
    office.sell("Fay")
    office.mail_until("Fay")
    emails = office.emails()
    assert sorted(name for name, _ in set(emails)) == ["Ada", "Bo", "Cy", "Dot", "Eve", "Fay"]
    assert len(emails) - len(set(emails)) <= 2  # `mail_until` kills the mailer


def test_a_sale_during_the_first_run_has_an_email(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.sell("Old")
    names = ["Ada"]

    def sell(request: httpx.Request) -> None:
        if request.url.path.endswith("/orders") and names:
            office.sell(names.pop())  # just before the first run reads the orders

    with office.mailer_with(httpx.Client(event_hooks={"request": [sell]})):
        office.wait_for("Ada")
        office.sell("Bo")
        office.wait_for("Bo")
    assert {name for name, _ in office.emails()} == {"Ada", "Bo"}  # and not Old


class OtherTime(httpx.HTTPTransport):
    """Changes when orders were placed. To the mailer, they are other orders with the same ids."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        content = re.sub(rb'"createdAt":"\d{4}', b'"createdAt":"2020', response.read())
        response.headers.pop("Content-Length", None)
        return httpx.Response(response.status_code, headers=response.headers, content=content)


def test_an_order_that_has_the_id_of_a_lost_one_has_its_own_email(tmp_path: Path) -> None:
    office = Office(tmp_path)
    with office.mailer():
        pass
    office.sell("Ada")
    with office.mailer_with(httpx.Client(transport=OtherTime())):
        office.wait_for("Ada")
    office.expire_position()  # as after a restore
    office.sell("Bo")
    office.mail_until("Bo")
    ids = {identity for name, identity in office.emails() if name == "Ada"}
    assert len(ids) == 2, ids


def test_a_second_mailer_is_refused(tmp_path: Path) -> None:
    office = Office(tmp_path)
    with office.mailer(), office.mailer() as second:
        assert second.wait(60) == 1
        assert second.stderr and "database is locked" in second.stderr.read()

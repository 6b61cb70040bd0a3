"""Every answer of the bank, and a crash after every step: the buyer pays once and gets the pet, or does not pay."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
from bank import Answer, Bank
from payment import sell
from petstore_client import Attempt, Order, Petstore

shop = Petstore()


def add_pet() -> int:
    return shop.pets.create(name="Rex", category_id=3, status="available").id


def new_number() -> str:
    return f"order-{uuid.uuid4()}"


def order_of(number: str) -> Order:
    [order] = shop.orders.list(reference=number)  # fails if there are two
    return order


def test_the_buyer_pays_and_a_second_buyer_is_too_late(tmp_path: Path) -> None:
    bank, rex, first, second = Bank(tmp_path / "bank.json"), add_pet(), new_number(), new_number()
    assert sell(shop, bank, first, rex, "129.00", "visa") == "sold"
    assert sell(shop, bank, second, rex, "129.00", "visa") == "another buyer was faster"
    assert bank.payments() == {first: "129.00 captured"}
    assert shop.pets.get(rex).status == "sold"


def test_a_refused_card_makes_the_pet_available_again(tmp_path: Path) -> None:
    bank, rex, number = Bank(tmp_path / "bank.json"), add_pet(), new_number()
    assert sell(shop, bank, number, rex, "129.00", "stolen") == "the card was refused"
    assert shop.pets.get(rex).status == "available"
    assert sell(shop, bank, number, rex, "129.00", "stolen") == "the card was refused"  # the page was reloaded
    assert sell(shop, bank, new_number(), rex, "129.00", "visa") == "sold"


def test_a_buyer_who_needs_a_code_gets_more_time_once(tmp_path: Path) -> None:
    bank, rex, number = Bank(tmp_path / "bank.json"), add_pet(), new_number()
    first = shop.orders.place(pet_id=rex, reference=number, hold_seconds=60, metadata={"price": "129.00"})
    assert sell(shop, bank, number, rex, "129.00", "careful") == "enter the code from your bank"
    extended = order_of(number)
    assert first.expires_at and extended.expires_at
    assert (extended.expires_at - first.expires_at).total_seconds() > 500
    assert sell(shop, bank, number, rex, "129.00", "careful", "9999") == "enter the code from your bank"
    assert order_of(number).expires_at == extended.expires_at
    assert sell(shop, bank, number, rex, "129.00", "careful", "1234") == "sold"
    assert bank.payments() == {number: "129.00 captured"}


def test_after_a_timeout_of_the_bank_the_next_run_charges_once(tmp_path: Path) -> None:
    bank, rex, number = Bank(tmp_path / "bank.json"), add_pet(), new_number()
    try:
        sell(shop, bank, number, rex, "129.00", "slow")
    except TimeoutError:
        assert (order_of(number).status, bank.payments()) == ("placed", {number: "129.00 authorised"})
    else:
        raise AssertionError("the bank has answered")
    assert sell(shop, bank, number, rex, "129.00", "slow") == "sold"
    assert bank.payments() == {number: "129.00 captured"}


def test_a_buyer_who_clicks_twice_pays_once(tmp_path: Path) -> None:
    bank, rex, number = Bank(tmp_path / "bank.json"), add_pet(), new_number()
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: sell(shop, bank, number, rex, "129.00", "visa"), range(4)))
    assert results == ["sold"] * 4
    assert order_of(number).status == "completed"
    assert bank.payments() == {number: "129.00 captured"}


class LateBank(Bank):
    """Answers when the order has expired."""

    def authorise(self, number: str, price: str, card: str, code: str | None = None) -> Answer:
        answer = super().authorise(number, price, card, code)
        while order_of(number).status == "placed":
            time.sleep(0.1)
        return answer


def test_the_money_is_released_if_the_order_expires_before_the_bank_answers(tmp_path: Path) -> None:
    bank, rex, number = LateBank(tmp_path / "bank.json"), add_pet(), new_number()
    assert sell(shop, bank, number, rex, "129.00", "visa", hold_seconds=1) == "the order is expired"
    assert bank.payments() == {number: "void"}
    assert shop.pets.get(rex).status == "available"


class Crash(BaseException):
    pass


class Crasher:
    """Ends a run after a number of steps. A step is a response of the service, or a change at the bank."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def step(self, _: Attempt | None = None) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Crash


class CrashingBank(Bank):
    def __init__(self, file: Path, crasher: Crasher) -> None:
        super().__init__(file)
        self.crasher = crasher

    def store(self, number: str, state: str) -> None:
        super().store(number, state)
        self.crasher.step()


def crash_and_repeat(folder: Path, card: str, steps: int) -> None:
    """Runs `sell` until it crashes after so many steps, then again. There must be one order and at most one charge."""
    file, rex, number, crasher = folder / f"{card}-{steps}.json", add_pet(), new_number(), Crasher(steps)
    with suppress(Crash):
        sell(Petstore(on_attempt=crasher.step), CrashingBank(file, crasher), number, rex, "129.00", card)
    bank = Bank(file)
    result = sell(shop, bank, number, rex, "129.00", card)
    outcome = (result, order_of(number).status, shop.pets.get(rex).status, bank.payments()[number])
    assert outcome in [
        ("sold", "completed", "sold", "129.00 captured"),
        ("the card was refused", "cancelled", "available", "void"),
    ], f"after {steps} steps"


def test_a_crash_after_any_step_is_repaired_by_the_next_run(tmp_path: Path) -> None:
    runs = [(card, steps) for card in ["visa", "stolen"] for steps in range(1, 12)]
    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(lambda run: crash_and_repeat(tmp_path, *run), runs))


def test_a_run_on_the_next_day_continues_with_the_same_order(tmp_path: Path) -> None:
    bank, rex, number = Bank(tmp_path / "bank.json"), add_pet(), new_number()
    order = shop.orders.place(pet_id=rex, reference=number, metadata={"price": "129.00"})
    bank.authorise(number, "129.00", "visa")
    shop.orders.complete(order.id)  # then the first run has crashed

    def forget(request: httpx.Request) -> None:
        if "Idempotency-Key" in request.headers:  # the service stores it for 24 hours
            request.headers["Idempotency-Key"] += "-forgotten"

    tomorrow = Petstore(http_client=httpx.Client(event_hooks={"request": [forget]}))
    assert sell(tomorrow, bank, number, rex, "129.00", "visa") == "sold"
    assert bank.payments() == {number: "129.00 captured"}


def test_the_program_sells_a_pet(tmp_path: Path) -> None:
    program = Path(__file__).with_name("payment.py")
    command = [sys.executable, str(program), new_number(), str(add_pet()), "129.00"]
    for more, printed in [(["careful"], "enter the code from your bank"), (["careful", "1234"], "sold")]:
        run = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert run.stdout == printed + "\n"

"""The pages of the shop, and a crash after every step of a sale.

In the end, the buyer has paid once and has the pet, or has not paid.
"""

from __future__ import annotations

import atexit
import functools
import html
import os
import re
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import httpx
from checkout import Checkout, new_number
from fake_bank import ACCEPTED, CODE, REFUSED, TIMEOUT, Bank
from fill import main as fill
from flask.testing import FlaskClient
from petstore_client import Attempt, Mirror, Order, Petstore
from shop import create_app
from werkzeug.test import TestResponse

os.environ["SHOP_PASSWORD"] = "correct"
store = Petstore()


@functools.cache
def mirror() -> Mirror:
    """Returns one mirror for all tests. It sees what other tests do in the demo, as in a real shop."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    mirror = Mirror(Petstore(), Path(folder.name, "pets.sqlite"))
    atexit.register(mirror.close)
    return mirror


def open_shop(folder: Path, hold_seconds: int = 600, store: Petstore = store) -> tuple[FlaskClient, Checkout]:
    checkout = Checkout(store, Bank(folder / "bank.sqlite"), hold_seconds)
    return create_app(store, mirror(), checkout).test_client(), checkout


def add_pet(**metadata: str) -> tuple[int, str]:
    """Adds a pet whose name nobody else has, waits until the shop shows it, and returns its id and its name."""
    name = f"Rex {uuid.uuid4().hex}"
    metadata = {"price": "129.00", **metadata}
    pet = store.pets.create(name=name, category_id=3, status="available", metadata=metadata)
    mirror().wait_until_current(timeout_seconds=60)
    return pet.id, name


def text_of(response: TestResponse) -> str:
    return html.unescape(response.text)


def names_on(response: TestResponse) -> list[str]:
    return re.findall(r"<h2><a [^>]*>(.*?)</a>", response.text)


def fields(response: TestResponse) -> dict[str, str]:
    """Returns the hidden fields of the page."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', response.text)
    return {name: html.unescape(value) for name, value in found}


def reserve(client: FlaskClient, pet_id: int) -> str:
    """Clicks on the button of the pet's page, and returns the number of the order."""
    response = client.post(f"/pets/{pet_id}/order", data=fields(client.get(f"/pets/{pet_id}")))
    assert response.status_code == 303, response.text
    return response.location.removeprefix("/orders/")


def pay(client: FlaskClient, number: str, **form: str) -> str:
    """Pays, and returns the page that the buyer sees then."""
    return text_of(client.post(f"/orders/{number}/pay", data=form, follow_redirects=True))


def order_of(number: str) -> Order:
    [order] = store.orders.list(reference=number)  # fails if there are two
    return order


def test_the_home_page_sorts_and_searches(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    tag = uuid.uuid4().hex
    for price in ["20.00", "100.00", "3.00"]:
        store.pets.create(name=f"{price} {tag}", category_id=3, status="available", metadata={"price": price})
    store.pets.create(name=f"free {tag}", category_id=3, status="available")  # has no price, so it is not for sale
    store.pets.create(name=f"sold {tag}", category_id=3, status="sold", metadata={"price": "1.00"})
    mirror().wait_until_current(timeout_seconds=60)

    def prices(query: str) -> list[str]:
        return [name.split()[0] for name in names_on(client.get(f"/?q={tag.upper()}&{query}"))]

    assert prices("") == ["3.00", "100.00", "20.00"]
    assert prices("sort=cheapest") == ["3.00", "20.00", "100.00"]
    assert prices("sort=dearest&category=3") == ["100.00", "20.00", "3.00"]
    assert prices("category=1") == []
    assert prices("sort=nonsense&category=nonsense&page=-1") == ["3.00", "100.00", "20.00"]
    assert prices("page=2") == []
    assert names_on(client.get("/?q=%25%25%25")) == []  # not a pattern


def test_more_pets_than_a_page_shows(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    fill()
    fill()  # adds nothing
    add_pet()  # the 13th
    assert names_on(client.get("/?q=Marmalade&category=2")) == ["Marmalade"]
    assert "Next" in client.get("/").text and len(names_on(client.get("/"))) == 12
    assert "Previous" in client.get("/?page=2").text


def test_what_others_write_into_metadata_cannot_harm_a_buyer(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    attack = "<script>alert(1)</script>"
    for photo in ["javascript:alert(1)", "http://192.168.0.1/", '/static/photos/a.svg" onload="x', "//evil.example/x"]:
        pet_id, name = add_pet(photo=photo, about=attack, born=attack)
        for page in [client.get(f"/pets/{pet_id}"), client.get(f"/?q={name}")]:
            assert 'src="/static/photos/none.svg"' in page.text
            assert photo not in page.text and attack not in page.text
    for price in ["12345678.00", "1.2.00", ".50", "1.0", "-1.00", "\u0661.00"]:
        pet_id, name = add_pet(price=price)
        assert names_on(client.get(f"/?q={name}")) == [] and "Ask us" in client.get(f"/pets/{pet_id}").text
    pet_id, name = add_pet(photo="https://shop.example/rex.jpg", price="1e9.00")
    page = client.get(f"/pets/{pet_id}")
    assert names_on(client.get(f"/?q={name}")) == []
    assert 'src="https://shop.example/rex.jpg"' in page.text
    assert "Ask us" in page.text and "/order" not in page.text
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]


def test_a_form_on_another_site_changes_nothing(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    pet_id, _ = add_pet()
    form = fields(client.get(f"/pets/{pet_id}"))
    for headers in [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]:
        assert client.post(f"/pets/{pet_id}/order", data=form, headers=headers).status_code == 403
    assert store.pets.get(pet_id).status == "available"
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.post(f"/pets/{pet_id}/order", data=form, headers=own).status_code == 303


def test_one_buyer_gets_the_pet_and_the_other_reads_a_kind_sentence(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path)
    pet_id, name = add_pet()
    forms = [fields(client.get(f"/pets/{pet_id}")) for _ in range(2)]

    def click(form: dict[str, str]) -> tuple[int, str]:
        response = open_shop(tmp_path)[0].post(f"/pets/{pet_id}/order", data=form)
        return response.status_code, text_of(response)

    with ThreadPoolExecutor(4) as threads:
        answers = sorted(threads.map(click, forms * 2))  # and each of them clicks twice
    assert [status for status, _ in answers] == [303, 303, 409, 409]
    assert f"Somebody was a moment faster, and {name} is reserved." in answers[-1][1]
    assert client.get(f"/pets/{pet_id}/order").location == f"/pets/{pet_id}"  # Enter in the address bar
    [order] = store.orders.list(pet_id=pet_id)
    assert f"{name} is yours!" in pay(client, order.reference or "", card=ACCEPTED)
    assert store.pets.get(pet_id).status == "sold"
    assert checkout.bank.payments() == [(order.reference, "129.00", "captured")]
    assert f"{name} is yours!" in pay(client, order.reference or "", card=ACCEPTED)  # the buyer has gone back
    assert len(checkout.bank.payments()) == 1
    late = client.post(f"/pets/{pet_id}/order", data={**forms[0], "number": new_number()})
    assert late.status_code == 409 and "has found a home" in late.text and "will be here again" not in late.text


def test_a_buyer_never_pays_another_price_than_the_page_has_shown(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    pet_id, _ = add_pet()
    form = fields(client.get(f"/pets/{pet_id}"))
    store.pets.update(pet_id, metadata={"price": "149.00"})
    response = client.post(f"/pets/{pet_id}/order", data=form)
    assert response.status_code == 409 and "has just changed" in response.text and "€149.00" in response.text
    assert client.post(f"/pets/{pet_id}/order", data={**form, "price": "0.01"}).status_code == 409
    assert store.pets.get(pet_id).status == "available"
    assert client.post(f"/pets/{pet_id}/order", data=fields(response)).status_code == 303


def test_a_buyer_finds_the_open_order_again(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    pets = [add_pet()[0] for _ in range(2)]
    numbers = [reserve(client, pet_id) for pet_id in pets]
    mirror().wait_until_current(timeout_seconds=60)
    for pet_id, number in zip(pets, numbers):
        assert f'class="button" href="/orders/{number}"' in client.get(f"/pets/{pet_id}").text
    assert f'class="top-link" href="/orders/{numbers[-1]}"' in client.get("/").text
    client.delete_cookie("session")  # another buyer
    assert "/orders/" not in client.get(f"/pets/{pets[0]}").text


def test_after_a_refused_card_the_buyer_can_try_again(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path)
    pet_id, name = add_pet()
    number = reserve(client, pet_id)
    assert "Your bank has refused the card" in pay(client, number, card=REFUSED)
    assert store.pets.get(pet_id).status == "available"
    assert "Your bank has refused the card" in pay(client, number, card=ACCEPTED)  # too late for this number
    again = fields(client.get(f"/orders/{number}"))
    assert again["number"] != number
    client.post(f"/pets/{pet_id}/order", data=again)
    assert f"{name} is yours!" in pay(client, again["number"], card=ACCEPTED)
    states = {number: state for number, _, state in checkout.bank.payments()}
    assert states == {number: "void", again["number"]: "captured"}


def test_a_buyer_who_needs_a_code_gets_more_time_once(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path, hold_seconds=30)
    pet_id, name = add_pet()
    number = reserve(client, pet_id)
    first = order_of(number).expires_at
    time.sleep(1.5)
    assert "Code from your bank" in pay(client, number, card=CODE)
    extended = order_of(number).expires_at
    assert order_of(number).metadata["code"] == "needed"
    assert first and extended and (extended - first).total_seconds() >= 1
    time.sleep(1.5)
    assert "does not know this code" in pay(client, number, code="9999")
    assert order_of(number).expires_at == extended
    assert f"{name} is yours!" in pay(client, number, code="1234")
    assert checkout.bank.payments() == [(number, "129.00", "captured")]


def test_a_bank_that_does_not_answer_is_asked_later(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path)
    pet_id, name = add_pet()
    number = reserve(client, pet_id)
    assert "Your bank has not answered yet" in pay(client, number, card=TIMEOUT)
    assert order_of(number).status == "placed"
    checkout.finish_all()
    assert f"{name} is yours!" in text_of(client.get(f"/orders/{number}"))
    assert checkout.bank.payments() == [(number, "129.00", "captured")]


def test_a_buyer_can_cancel(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path)
    pet_id, _ = add_pet()
    number = reserve(client, pet_id)
    assert "The order is cancelled" in client.post(f"/orders/{number}/cancel", follow_redirects=True).text
    assert store.pets.get(pet_id).status == "available"
    assert "The order is cancelled" in pay(client, number, card=ACCEPTED)  # in another window
    assert checkout.bank.payments() == [(number, "0.00", "void")]


def test_the_money_is_released_if_the_order_expires_first(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path, hold_seconds=1)
    pet_id, _ = add_pet()
    number = reserve(client, pet_id)
    checkout.bank.authorise(number, "129.00", ACCEPTED)  # and then the shop was down for too long
    while order_of(number).status == "placed":
        time.sleep(0.2)
    checkout.finish_all()
    assert checkout.bank.payments() == [(number, "129.00", "void")]
    page = text_of(client.get(f"/orders/{number}"))
    assert "The time is over" in page and "try again" in page and "/order" in page


def test_an_order_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    client, checkout = open_shop(tmp_path)
    number = reserve(client, add_pet()[0])
    for each in [new_number(), number]:
        checkout.bank.authorise(each, "129.00", ACCEPTED)
    with patch.object(checkout, "find", side_effect=[ValueError("the first fails"), order_of(number)]):
        checkout.finish_all()
    assert checkout.bank.state(number) == "captured"


def test_only_orders_of_the_shop_can_be_seen(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    pet_id, _ = add_pet()
    basket = f"basket-{uuid.uuid4()}"
    store.orders.place(pet_id=pet_id, reference=basket)
    for number in [basket, new_number(), "x"]:
        for response in [client.get(f"/orders/{number}"), client.post(f"/orders/{number}/cancel")]:
            assert response.status_code == 404 and "This is not here" in response.text
    assert client.get("/pets/999999999").status_code == 404
    log_in(client)
    for path in [f"/pets/{2**63}", f"/pets/{2**63}/order", f"/staff/pets/{2**63}", f"/staff/pets/{2**63}/delete"]:
        response = client.post(path) if path.endswith(("order", "delete")) else client.get(path)
        assert response.status_code == 404 and "This is not here" in response.text
    assert client.get(f"/pets/{2**63 - 1}").status_code == client.get(f"/staff/pets/{2**63 - 1}").status_code == 404
    assert client.post(f"/pets/{pet_id}/order", data={"number": basket, "price": "129.00"}).status_code == 400
    assert client.post("/pets/999999999/order", data={"number": new_number(), "price": "1.00"}).status_code == 404


def test_during_an_outage_buyers_look_around_and_try_again_later(tmp_path: Path) -> None:
    pet_id, name = add_pet()
    nobody = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(503)))
    down, _ = open_shop(tmp_path, store=Petstore(http_client=nobody, max_time_seconds=0))
    assert names_on(down.get(f"/?q={name}")) == [name]
    form = fields(down.get(f"/pets/{pet_id}"))
    response = down.post(f"/pets/{pet_id}/order", data=form)
    assert response.status_code == 503 and "Please try again in a moment" in response.text
    assert fields(response) == form and "€129.00" in response.text  # the same number, so that it becomes the same order
    response = down.get(f"/orders/{form['number']}")
    assert response.status_code == 503 and f"Your order {form['number']} is safe" in response.text
    client, _ = open_shop(tmp_path)
    assert client.post(f"/pets/{pet_id}/order", data=form).status_code == 303


def test_a_wrong_key_is_not_shown_as_an_outage(tmp_path: Path) -> None:
    refusing = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(403)))
    client, _ = open_shop(tmp_path, store=Petstore(http_client=refusing))
    response = client.get(f"/orders/{new_number()}")
    assert response.status_code == 500 and "not answering" not in response.text


def log_in(client: FlaskClient) -> FlaskClient:
    client.post("/staff/login", data={"name": "Kim", "password": "correct"})
    return client


def test_the_staff_pages_need_the_password(tmp_path: Path) -> None:
    client, _ = open_shop(tmp_path)
    pet_id, _ = add_pet()
    for path in ["/staff/", "/staff/pets/new", f"/staff/pets/{pet_id}"]:
        assert client.get(path).location == "/staff/login"
    for path in ["new", f"{pet_id}", f"{pet_id}/sell", f"{pet_id}/delete"]:
        assert client.post(f"/staff/pets/{path}").location == "/staff/login"
    assert client.post("/staff/login", data={"name": "Kim", "password": "wrong"}).status_code == 403
    assert client.get("/staff/").location == "/staff/login"
    assert log_in(client).get("/staff/").status_code == 200
    client.post("/staff/logout")
    assert client.get("/staff/").location == "/staff/login"


def test_staff_add_and_change_a_pet(tmp_path: Path) -> None:
    client = log_in(open_shop(tmp_path)[0])
    name = f"Ada {uuid.uuid4().hex}"
    form = {
        **fields(client.get("/staff/pets/new")),
        "name": name,
        "category": "2",
        "about": "Purrs.\r\nA lot.",
    }
    for price, photo in [("12", ""), ("12.00", "javascript:alert(1)")]:
        response = client.post("/staff/pets/new", data={**form, "price": price, "photo": photo})
        assert response.status_code == 400 and name in response.text and "must" in response.text
    form |= {"price": "12.00", "photo": "/static/photos/cat-grey.svg"}
    location = client.post("/staff/pets/new", data=form).location
    assert client.post("/staff/pets/new", data=form).location == location  # a second click
    pet_id = int(location.rpartition("/")[2])
    assert store.pets.get(pet_id).metadata == {
        "price": "12.00",
        "photo": "/static/photos/cat-grey.svg",
        "about": "Purrs.\nA lot.",
    }

    mine, theirs = fields(client.get(location)), fields(client.get(location))
    assert "Saved" in client.post(location, data={**form, **mine, "price": "15.00"}, follow_redirects=True).text
    refused = client.post(location, data={**form, **theirs, "price": "9.00"}, follow_redirects=True).text
    assert "Not saved: a colleague" in refused and "15.00" in refused
    removed = {**form, **fields(client.get(location)), "price": "12.00", "photo": "", "about": ""}
    assert "Saved" in client.post(location, data=removed, follow_redirects=True).text
    assert store.pets.get(pet_id).metadata == {"price": "12.00"}
    mirror().wait_until_current(timeout_seconds=60)
    assert name in client.get(f"/staff/?q={pet_id}").text and name in client.get(f"/staff/?q={name[-8:]}").text


def test_staff_sell_at_the_till_and_delete_a_mistake(tmp_path: Path) -> None:
    client = log_in(open_shop(tmp_path)[0])
    pet_id, _ = add_pet()
    form = fields(client.get(f"/staff/pets/{pet_id}"))
    for _ in range(2):  # a second click
        sold = client.post(f"/staff/pets/{pet_id}/sell", data=form, follow_redirects=True).text
        assert "Sold for €129.00" in sold
    [order] = store.orders.list(pet_id=pet_id)
    assert (order.status, order.metadata) == ("completed", {"price": "129.00", "payment": "till", "cashier": "Kim"})
    again = client.post(f"/staff/pets/{pet_id}/sell", data={**form, "number": new_number()}, follow_redirects=True)
    assert "Not sold" in again.text
    form = fields(client.get(f"/staff/pets/{pet_id}"))
    assert "Not deleted" in client.post(f"/staff/pets/{pet_id}/delete", data=form, follow_redirects=True).text

    mistake, _ = add_pet()
    form = fields(client.get(f"/staff/pets/{mistake}"))
    store.pets.update(mistake, name="Changed")
    stale = client.post(f"/staff/pets/{mistake}/delete", data=form, follow_redirects=True)
    assert "Not deleted: a colleague" in stale.text
    form = fields(stale)
    for _ in range(2):
        assert "Deleted" in client.post(f"/staff/pets/{mistake}/delete", data=form, follow_redirects=True).text
    assert client.get(f"/staff/pets/{mistake}").status_code == 404


def test_a_sale_at_the_till_is_finished_after_a_crash(tmp_path: Path) -> None:
    _, checkout = open_shop(tmp_path)
    pet_id, _ = add_pet()
    checkout.reserve(new_number(), pet_id, {"price": "129.00", "payment": "till"})
    checkout.finish_all()
    assert store.pets.get(pet_id).status == "sold"


class Crash(BaseException):
    pass


class Crasher:
    """Ends a sale after a number of steps. A step is a response of the service, or a change at the bank."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def step(self, _: Attempt | None = None) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Crash


class CrashingBank(Bank):
    crasher: Crasher | None = None

    def _run(self, statement: str, *parameters: str) -> list[tuple[str, ...]]:
        rows = super()._run(statement, *parameters)
        if self.crasher and not statement.startswith("SELECT"):
            self.crasher.step()
        return rows


def crash_and_finish(folder: Path, card: str, steps: int) -> None:
    """Sells a pet until the shop crashes after so many steps. After its restart, it must finish what was paid."""
    bank, crasher, number = CrashingBank(folder / f"{card}-{steps}.sqlite"), Crasher(steps), new_number()
    pet_id = store.pets.create(name="Rex", category_id=3, status="available", metadata={"price": "129.00"}).id
    bank.crasher = crasher
    crashing = Checkout(Petstore(on_attempt=crasher.step), bank, 600)
    with suppress(Crash):
        crashing.pay(crashing.reserve(number, pet_id, {"price": "129.00"}), number, card, None)
    restarted = Checkout(store, Bank(bank.file), 600)
    paid = restarted.bank.state(number) in ("authorised", "captured")
    restarted.finish_all()
    if paid:
        assert (order_of(number).status, restarted.bank.state(number)) == ("completed", "captured"), f"{steps} steps"
    # The buyer looks at the page again, and continues.
    order = restarted.reserve(number, pet_id, {"price": "129.00"})
    restarted.pay(order, number, card, None)
    expected = {
        ACCEPTED: ("completed", "sold", [(number, "129.00", "captured")]),
        REFUSED: ("cancelled", "available", [(number, "129.00", "void")]),
    }
    outcome = (order_of(number).status, store.pets.get(pet_id).status, restarted.bank.payments())
    assert outcome == expected[card], f"{steps} steps"


def test_a_crash_after_any_step_is_repaired(tmp_path: Path) -> None:
    runs = [(card, steps) for card in [ACCEPTED, REFUSED] for steps in range(1, 13)]
    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(lambda run: crash_and_finish(tmp_path, *run), runs))

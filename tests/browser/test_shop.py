"""Tests of examples/shop in Chromium: buyers, crashes of the shop and of its service, and accessibility.

Each worker has a shop and a service of its own, which tests kill. The database is that of the other tests.
"""
import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
from conftest import KEY, SERVICE
from test_pages import AXE, DESKTOP, PHONE

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "target/tools/shop/bin/python"
PETSTORE = os.environ.get("SERVED_PROGRAM", ROOT / "target/debug/petstore")
# The bank has set the money aside, and the shop is killed before it completes the order.
KILLED_AFTER_PAYMENT = """
import os, signal, fake_bank
authorise = fake_bank.Bank.authorise
def authorise_and_die(*arguments):
    authorise(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
fake_bank.Bank.authorise = authorise_and_die
import shop
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def eventually(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def request(method, path, body=None):
    """Sends a request to the service that no test kills."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(SERVICE + path, data, headers, method=method)) as response:
        return json.load(response)


class Shop:
    def __init__(self, files):
        self.files = files
        self.port, self.service_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start_service()
        self.start()

    def start_service(self):
        self.service = subprocess.Popen(
            [PETSTORE, "serve", "--listen", f"127.0.0.1:{self.service_port}", "--admin-listen", "127.0.0.1:0"],
            stderr=(self.files / "service.log").open("a"),
        )
        eventually(lambda: answers(f"http://127.0.0.1:{self.service_port}/docs"))

    def start(self, before="import shop"):
        environment = {
            "PYTHONPATH": f"{ROOT / 'clients/python'}:{ROOT / 'examples/shop'}",
            "PETSTORE_URL": f"http://127.0.0.1:{self.service_port}",
            "PETSTORE_KEY": KEY,
            "SHOP_FILES": str(self.files),
            "SHOP_PASSWORD": "correct",
        }
        self.program = subprocess.Popen(
            [PYTHON, "-B", "-c", f"{before}\nshop.main({self.port})"],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=(self.files / "shop.log").open("a"),
        )
        eventually(lambda: answers(self.url))

    def restart(self, **options):
        kill(self.program)
        self.start(**options)

    def add_pet(self, name=None, price="129.00", photo="/static/photos/dog-brown.svg"):
        name = name or f"Rex {uuid.uuid4().hex[:12]}"
        metadata = {"price": price, "photo": photo}
        request("POST", "/v1/pets", {"name": name, "categoryId": 1, "status": "available", "metadata": metadata})
        eventually(lambda: f">{name}</a>" in read(f"{self.url}/?q={name.replace(' ', '+')}"))
        return name

    def payments(self):
        """Returns the state of each payment, by the number of its order."""
        with contextlib.closing(sqlite3.connect(self.files / "bank.sqlite")) as bank:
            return dict(bank.execute("SELECT number, state FROM payments"))


def read(url):
    with urllib.request.urlopen(url) as response:
        return response.read().decode()


def answers(url):
    try:
        return bool(read(url))
    except OSError:
        return False


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    for process in (shop.program, shop.service):
        kill(process)


@pytest.fixture
def buyer(browser, shop):
    """Returns a function that opens a window of a new buyer. Fails if a page logs an error or calls another host."""
    contexts, errors = [], []

    def open_window(**options):
        context = browser.new_context(**({"viewport": DESKTOP, "base_url": shop.url} | options))
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        # Chromium logs each response with 4xx or 5xx, and each lost one. Which of them are right is up to the test.
        page.on(
            "console",
            lambda message: None if "Failed to load resource" in message.text else errors.append(message.text),
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(shop.url) else errors.append(request.url))
        return page

    yield open_window
    for context in contexts:
        context.close()
    assert errors == []


def open_pet(page, name):
    page.goto(f"/?q={name}")
    page.get_by_role("link", name=name).click()
    page.get_by_role("heading", name=name).wait_for()


def reserve(page, name):
    open_pet(page, name)
    page.get_by_role("button", name="Reserve").click()
    page.get_by_role("heading", name=f"{name} is reserved for you").wait_for()
    return page.url.rpartition("/")[2]


def pay(page, card="works"):
    page.get_by_label(card, exact=True).check()
    page.get_by_role("button", name="Pay").click()


def heading(page, text):
    page.get_by_role("heading", name=text).wait_for()


def test_two_buyers_want_the_same_pet(shop, buyer):
    name = shop.add_pet()
    pages = [buyer(), buyer()]
    for page in pages:
        open_pet(page, name)
    for page in pages:  # at the same moment: neither waits for its answer
        page.evaluate("setTimeout(() => document.querySelector('form[method=post]').requestSubmit())")
    for page in pages:
        page.locator("h1, [role=alert]").filter(has_text="reserved").wait_for()
    [winner] = [page for page in pages if "/orders/" in page.url]
    [loser] = [page for page in pages if page is not winner]
    assert f"Somebody was a moment faster, and {name} is reserved." in loser.get_by_role("alert").inner_text()
    pay(winner)
    heading(winner, f"{name} is yours!")


def test_a_shop_that_is_killed_after_the_payment_finishes_the_order(shop, buyer):
    name, page = shop.add_pet(), buyer()
    number = reserve(page, name)
    shop.restart(before=KILLED_AFTER_PAYMENT)
    with contextlib.suppress(Exception):  # there is no response
        pay(page)
    shop.program.wait(timeout=10)
    assert shop.payments()[number] == "authorised"
    assert [order["status"] for order in request("GET", f"/v1/store/orders?reference={number}")] == ["placed"]
    shop.start()
    eventually(lambda: shop.payments()[number] == "captured")  # nobody has looked at the order
    page.goto(f"/orders/{number}")
    heading(page, f"{name} is yours!")
    assert [order["status"] for order in request("GET", f"/v1/store/orders?reference={number}")] == ["completed"]


def test_a_bank_that_asks_for_a_code_extends_the_hold(shop, buyer):
    name, page = shop.add_pet(), buyer()
    number = reserve(page, name)
    [first] = request("GET", f"/v1/store/orders?reference={number}")
    time.sleep(1)
    pay(page, "needs a code from the bank")
    page.get_by_text("You have got more time").wait_for()
    [extended] = request("GET", f"/v1/store/orders?reference={number}")
    assert extended["expiresAt"] > first["expiresAt"]
    shown = page.get_by_role("timer").inner_text()
    page.wait_for_function("shown => document.querySelector('[role=timer]').textContent < shown", arg=shown)
    page.get_by_label("Code from your bank").fill("9999")
    page.get_by_role("button", name="Pay").click()
    page.get_by_text("does not know this code").wait_for()
    page.get_by_label("Code from your bank").fill("1234")
    page.keyboard.press("Enter")
    heading(page, f"{name} is yours!")
    assert shop.payments()[number] == "captured"


def test_a_bank_that_refuses_and_one_that_does_not_answer(shop, buyer):
    name, page = shop.add_pet(), buyer()
    number = reserve(page, name)
    pay(page, "is refused")
    heading(page, "Your bank has refused the card")
    page.get_by_role("button", name="Reserve").click()
    heading(page, f"{name} is reserved for you")
    again = page.url.rpartition("/")[2]
    pay(page, "works, but the bank does not answer in time")
    heading(page, "One moment")
    heading(page, f"{name} is yours!")  # the page looks again by itself
    assert (shop.payments()[number], shop.payments()[again]) == ("void", "captured")


def test_the_service_is_killed_while_somebody_browses(shop, buyer):
    name, page = shop.add_pet(), buyer()
    open_pet(page, name)
    kill(shop.service)
    page.get_by_role("button", name="Reserve").click()
    heading(page, "Please try again in a moment")
    browsing = buyer()
    browsing.goto("/")
    browsing.get_by_text("Our stock system is not answering").wait_for()
    open_pet(browsing, name)
    browsing.get_by_role("link", name="Dogs").click()
    heading(browsing, "Dogs")
    shop.start_service()
    page.get_by_role("button", name="Try again").click()
    heading(page, f"{name} is reserved for you")
    page.goto("/")
    eventually(lambda: "not answering" not in read(shop.url))


def test_a_pet_is_bought_with_the_keyboard_alone(shop, buyer):
    name, page = shop.add_pet(), buyer()

    def tab_to(text):
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).innerText")
            if text in (focused or ""):
                visible = "getComputedStyle(document.activeElement.closest('.card') ?? document.activeElement)"
                assert page.evaluate(f"{visible}.outlineStyle") != "none", text
                return
        raise AssertionError(f"the Tab key does not lead to {text}")

    page.goto("/")
    tab_to("Skip to the content")
    page.keyboard.press("Enter")
    tab_to(name)
    page.keyboard.press("Enter")
    heading(page, name)
    tab_to("Reserve")
    page.keyboard.press("Enter")
    heading(page, f"{name} is reserved for you")
    tab_to("works")
    page.keyboard.press("ArrowDown")
    tab_to("Pay")
    page.keyboard.press("Enter")
    page.get_by_text("You have got more time").wait_for()
    tab_to("Code")
    page.keyboard.type("1234")
    page.keyboard.press("Enter")
    heading(page, f"{name} is yours!")


def test_a_pet_is_bought_without_javascript(shop, buyer):
    name, page = shop.add_pet(), buyer(java_script_enabled=False, viewport=PHONE)
    reserve(page, name)
    open_pet(page, name)
    page.get_by_role("link", name=f"Your order of {name}").click()
    assert "min" in page.get_by_role("timer").inner_text()
    pay(page, "works, but the bank does not answer in time")
    heading(page, "One moment")
    page.get_by_role("link", name="Look again").click()
    eventually(lambda: page.reload() and page.get_by_role("heading", name="yours").count())


# No colour depends on the width, so two of the four combinations are enough.
@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["light", "dark"])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(shop, buyer, scheme, viewport):
    taken, refused = shop.add_pet(name=f"Ada {'verylongname' * 8} {uuid.uuid4().hex[:8]}"), shop.add_pet()
    page, other = buyer(color_scheme=scheme, viewport=viewport), buyer()
    axe = AXE.read_text()

    def check(where):
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        assert len(found["passes"]) > 10
        assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found["violations"]] == [], where
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], where
        footer, brand = (page.locator(element).bounding_box() for element in ["footer p", ".brand"])
        assert footer["x"] == brand["x"] and footer["y"] + footer["height"] >= viewport["height"] - 1, where

    for path in ["/", "/?q=nobody&category=2", "/?sort=dearest&page=2", "/pets/999999999", "/staff/login"]:
        page.goto(path)
        check(path)
    open_pet(page, taken)
    check("pet")
    reserve(other, taken)
    page.get_by_role("button", name="Reserve").click()
    page.get_by_role("alert").wait_for()
    check("taken")
    open_pet(page, taken)
    check("reserved")
    reserve(page, refused)
    check("order")
    pay(page, "is refused")
    heading(page, "Your bank has refused the card")
    check("refused")
    page.get_by_role("button", name="Reserve").click()
    pay(page, "needs a code from the bank")
    page.get_by_label("Code from your bank").wait_for()
    check("code")
    page.get_by_label("Code from your bank").fill("1234")
    page.get_by_role("button", name="Pay").click()
    heading(page, f"{refused} is yours!")
    check("sold")
    page.goto("/staff/login")
    page.get_by_label("Your name").fill("Kim")
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    check("wrong password")
    page.get_by_label("Password").fill("correct")
    page.keyboard.press("Enter")
    heading(page, "Hello, Kim")
    check("staff")
    page.get_by_role("link", name="Add a pet").click()
    page.get_by_label("Name", exact=True).fill("Mistake")
    page.get_by_label("Price").fill("10.00")
    check("add")
    page.get_by_role("button", name="Add").click()
    page.get_by_text("Mistake is in the shop.").wait_for()
    check("edit")
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("Deleted.").wait_for()


def test_staff_sell_at_the_till(shop, buyer):
    name, page = shop.add_pet(), buyer(viewport=PHONE)
    page.goto("/staff/")
    page.get_by_label("Your name").fill("Kim")
    page.get_by_label("Password").fill("correct")
    page.keyboard.press("Enter")
    page.get_by_role("searchbox", name="Name, reference or id").fill(name)
    page.keyboard.press("Enter")
    page.get_by_role("cell").get_by_role("link", name=name).click()
    page.get_by_role("button", name="Sell at the till for €129.00").click()
    page.get_by_text("Sold for €129.00.").wait_for()
    page.get_by_text("Status: sold").wait_for()

"""Tests of the articles below /docs, of the navigation that all pages share, and of their accessibility."""
from pathlib import Path

import pytest
from conftest import KEY, SERVICE
from test_docs import OVERFLOWING, SCHEMES

ARTICLES = ["sdks", "guide", "orders", "events", "retries", "errors", "interface", "keys"]
AXE = Path(__file__).resolve().parents[2] / "target/tools/axe/node_modules/axe-core/axe.min.js"
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


def open_article(visitor, path):
    visitor.page.goto(SERVICE + path)
    visitor.page.locator(".article h1").wait_for()
    return visitor.page


def visible_links(page):
    return [link.inner_text().replace("\n", " ") for link in page.locator(".navigation a").all() if link.is_visible()]


def violations(page):
    """Returns what axe finds, if it is serious or critical: the rule, and the elements."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert len(found["violations"]) + len(found["passes"]) > 10
    return [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_serious(visit, scheme, viewport):
    visitor = visit(color_scheme=scheme, viewport=viewport)
    page = visitor.open()
    assert violations(page) == []
    visitor.type_key()
    for name in ("createPet", "getPet"):
        visitor.expand(name)
    visitor.execute(visitor.expand("listPets"))
    visitor.expand("listOrders", "store")
    for collapsed in page.locator(".collapsed-response button").all()[:2]:
        collapsed.click()
    assert violations(page) == []
    for name in ARTICLES:
        open_article(visitor, f"/docs/{name}")
        if viewport == PHONE:
            page.get_by_role("button", name="Menu").click()
        assert violations(page) == [], name


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_an_article_does_not_scroll_sideways(visit, width):
    visitor = visit(viewport={"width": width, "height": 740})
    for name in ARTICLES:
        page = open_article(visitor, f"/docs/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
        # A table may be wider than the page: it scrolls by itself. Spaces at the end of a line of code are not visible.
        assert page.evaluate(OVERFLOWING.replace("'select, svg'", "'select, svg, .table, pre'")) == [], name


def test_a_wide_table_scrolls_on_a_phone(visit):
    page = open_article(visit(viewport=PHONE), "/docs/errors")
    table = page.locator(".table").first
    wide, narrow = table.evaluate("table => [table.scrollWidth, table.clientWidth]")
    assert wide > narrow
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.table').scrollLeft > 0")


def test_a_heading_in_the_url_is_scrolled_to(visit):
    page = open_article(visit(), "/docs/guide#orders")
    page.wait_for_function("() => Math.abs(document.querySelector('#orders').getBoundingClientRect().top) < 200")


def test_the_navigation_leads_to_pages_headings_and_operations(visit):
    visitor = visit()
    page = open_article(visitor, "/docs/orders")
    assert page.locator(".navigation [aria-current=page]").inner_text() == "Orders"
    assert "State transitions" in visible_links(page) and "Managing keys" not in visible_links(page)
    page.get_by_role("navigation").get_by_role("link", name="State transitions").click()
    assert page.url == f"{SERVICE}/docs/orders#state-transitions"
    page.get_by_role("navigation").get_by_role("link", name="Errors", exact=True).click()
    page.get_by_role("heading", name="Errors", level=1).wait_for()
    page.get_by_role("navigation").get_by_role("link", name="Place an order").click()
    page.locator("#operations-store-placeOrder .opblock-body").wait_for()
    # Within the page, too.
    page.get_by_role("navigation").get_by_role("link", name="Add an animal").click()
    page.locator("#operations-animals-createPet .opblock-body").wait_for()


def test_a_slash_in_a_field_is_only_a_slash(visit):
    visitor = visit()
    page = visitor.open()
    field = page.get_by_label("Your API key")
    field.focus()
    page.keyboard.press("/")
    assert field.input_value() == "/"


def test_the_navigation_folds_on_a_phone(visit):
    visitor = visit(viewport=PHONE)
    page = open_article(visitor, "/docs/guide")
    menu = page.get_by_role("button", name="Menu")
    assert (visible_links(page), menu.get_attribute("aria-expanded")) == ([], "false")
    menu.click()
    assert menu.get_attribute("aria-expanded") == "true"
    page.get_by_role("navigation").get_by_role("link", name="Pagination").click()
    assert visible_links(page) == []
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.className") == "search"


def test_the_articles_can_be_read_without_javascript(visit):
    page = open_article(visit(java_script_enabled=False, viewport=PHONE), "/docs/guide")
    assert "Pagination" in visible_links(page)
    assert page.locator("pre:visible").count() > 20


def test_bounds_are_visible(visit):
    visitor = visit()
    page = visitor.open()
    listing = visitor.expand("listPets")
    for name, text in [("limit", "1 to 100, default 20"), ("id", "1 to 100 items, each at least 1")]:
        assert text in listing.locator(f"[data-param-name={name}]").inner_text(), name
    key = visitor.expand("createPet").locator("[data-param-name=Idempotency-Key]")
    assert "1 to 255 characters" in key.inner_text()
    schemas = page.locator(".models").inner_text()
    for text in ("[1, 255] characters", "[400, 599]", "[1, 9007199254740991]"):
        assert text in schemas


def test_an_operation_that_cannot_be_tried_says_why(visit):
    visitor = visit()
    visitor.open()
    operation = visitor.expand("listOrders", "store")
    assert "the OpenAPI document disables that (x-hideTryItPanel)" in operation.inner_text()
    assert operation.get_by_role("button", name="Execute").count() == 0
    assert "x-hideTryItPanel" not in visitor.expand("getOrder", "store").inner_text()


def test_response_headers_are_shown_as_received(visit):
    visitor = visit()
    page = visitor.open()
    visitor.type_key()
    created = visitor.context.request.post(
        f"{SERVICE}/v1/pets", data={"name": "Rex", "categoryId": 3}, headers={"Authorization": f"Bearer {KEY}"}
    )
    operation = visitor.expand("getPet")
    operation.locator("[data-param-name=petId] input").fill(str(created.json()["id"]))
    with page.expect_response("**/v1/pets/*") as received:
        visitor.execute(operation)
    shown = operation.locator(".headerline").all_inner_texts()
    sent = received.value.headers
    assert ", " in sent["sunset"] and {"link", "etag", "deprecation", "x-request-id"} <= set(sent)
    for name in ("sunset", "link", "etag", "deprecation", "x-request-id", "vary"):
        # Browsers join headers of the same name.
        assert f"{name}: {sent[name]}".replace("\n", ", ") in [line.strip() for line in shown]

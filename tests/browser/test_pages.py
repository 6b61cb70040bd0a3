"""Tests of the articles below /docs, of the navigation that all pages share, and of their accessibility."""
import base64
from pathlib import Path

import pytest
from conftest import KEY, SERVICE
from test_docs import OVERFLOWING, SCHEMES

ARTICLES = ["quickstart", "orders", "events", "sandbox", "errors", "conventions", "keys"]
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
        # A table or a picture may be wider than the page: it scrolls by itself. Spaces at the end of a line of code are not visible.
        assert page.evaluate(OVERFLOWING.replace("'select, svg'", "'select, svg, .table, .picture, pre'")) == [], name


def test_a_wide_table_scrolls_on_a_phone(visit):
    page = open_article(visit(viewport=PHONE), "/docs/errors")
    table = page.locator(".table").first
    wide, narrow = table.evaluate("table => [table.scrollWidth, table.clientWidth]")
    assert wide > narrow
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.table').scrollLeft > 0")


def test_a_heading_in_the_url_is_scrolled_to(visit):
    page = open_article(visit(), "/docs/quickstart#sell-the-pet")
    page.wait_for_function("() => Math.abs(document.querySelector('#sell-the-pet').getBoundingClientRect().top) < 200")


def test_the_navigation_leads_to_pages_headings_and_operations(visit):
    visitor = visit()
    page = open_article(visitor, "/docs/orders")
    assert page.locator(".navigation [aria-current=page]").inner_text() == "Orders"
    assert "State transitions" in visible_links(page) and "Managing keys" not in visible_links(page)
    page.get_by_role("navigation").get_by_role("link", name="State transitions").click()
    assert page.url == f"{SERVICE}/docs/orders#state-transitions"
    page.get_by_role("navigation").get_by_role("link", name="Errors and retries", exact=True).click()
    page.get_by_role("heading", name="Errors and retries", level=1).wait_for()
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
    page = open_article(visitor, "/docs/quickstart")
    menu = page.get_by_role("button", name="Menu")
    assert (visible_links(page), menu.get_attribute("aria-expanded")) == ([], "false")
    menu.click()
    assert menu.get_attribute("aria-expanded") == "true"
    page.get_by_role("navigation").get_by_role("link", name="Find pets").click()
    assert visible_links(page) == []
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.className") == "search"


def test_the_articles_can_be_read_without_javascript(visit):
    page = open_article(visit(java_script_enabled=False, viewport=PHONE), "/docs/quickstart")
    assert "Find pets" in visible_links(page)
    assert page.locator("pre:visible").count() > 20


def test_bounds_are_visible(visit):
    visitor = visit()
    visitor.open()
    listing = visitor.expand("listPets")
    for name, text in [("limit", "1 to 100, default 20"), ("id", "1 to 100 items, each at least 1")]:
        assert text in listing.locator(f"[data-param-name={name}]").inner_text(), name
    key = visitor.expand("createPet").locator("[data-param-name=Idempotency-Key]")
    assert "1 to 255 characters" in key.inner_text()


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


# The colours, as [red, green, blue], of points in a screenshot.
PIXELS = """async ([png, points]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return points.map(([x, y]) => [...context.getImageData(x * (image.width - 1), y * (image.height - 1), 1, 1).data.slice(0, 3)]);
}"""


def pixels(page, locator, *points):
    """Returns the colours of an element at points, each coordinate between 0 and 1."""
    return page.evaluate(PIXELS, [base64.b64encode(locator.screenshot()).decode(), points])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_state_diagram_follows_the_colour_scheme(visit, scheme):
    page = open_article(visit(color_scheme=scheme), "/docs/orders")
    [background] = pixels(page, page.get_by_role("img", name="states"), (0.5, 0.01))
    assert min(background) > 230 if scheme == "light" else max(background) < 60


def test_the_state_diagram_is_large_enough_to_read_on_a_phone(visit):
    page = open_article(visit(viewport=PHONE), "/docs/orders")
    picture = page.get_by_role("img", name="states")
    # Its text has 14 of 780 units.
    assert picture.evaluate("image => image.clientWidth * 14 / 780") >= 11
    page.locator(".picture").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.picture').scrollLeft > 0")


def test_the_state_diagram_shows_the_expiry_of_orders(visit):
    visitor = visit()
    open_article(visitor, "/docs/orders")
    diagram = visitor.context.request.get(f"{SERVICE}/docs/img/states.svg").text()
    for label in ("placed", "completed", "cancelled", "expired", "cancelOrder, expiry"):
        assert f">{label}</text>" in diagram


def test_a_wide_table_has_a_shadow_where_it_continues_on_a_phone(visit):
    page = open_article(visit(viewport=PHONE), "/docs/errors")
    table = page.locator(".table", has_text="rate_limited")
    left, right = (0.003, 0.004), (0.997, 0.004)
    start = pixels(page, table, left, right)
    assert sum(start[1]) < sum(start[0]) - 20
    table.evaluate("table => { table.scrollLeft = table.scrollWidth; }")
    end = pixels(page, table, left, right)
    assert sum(end[0]) < sum(end[1]) - 20
    # The columns are wide enough to read.
    assert table.locator("td:nth-child(3)").first.evaluate("cell => cell.clientWidth") >= 180

"""Tests of the side navigation: it leads to a place on the page, and shows where the reader is."""
import pytest
from test_pages import PHONE, open_article

# The distance from the top of the window to an element, as soon as it is in the upper third and no longer moves.
AT_TOP = """id => {
  const { top } = document.getElementById(id).getBoundingClientRect();
  const still = window.lastTop === top;
  window.lastTop = top;
  return still && top >= 0 && top < innerHeight / 3;
}"""


def wait_until_at_top(page, element_id):
    page.wait_for_function(AT_TOP, arg=element_id, polling=100)


def link(page, name):
    return page.get_by_role("navigation").get_by_role("link", name=name)


def wait_until_current(page, name):
    """Waits until the navigation marks only this link, and its page."""
    link(page, name).and_(page.locator("[aria-current=location]")).wait_for()
    assert page.locator(".navigation [aria-current=location]").count() == 1
    assert page.locator(".navigation [aria-current=page]").count() == 1


def test_a_link_of_the_navigation_scrolls_to_its_operation(visit):
    visitor = visit()
    page = visitor.open()
    # The last one, and then one above it.
    for name, element_id in [
        ("Complete an order", "operations-store-completeOrder"),
        ("Add an animal", "operations-animals-createPet"),
        ("Follow the changes", "operations-events-listEvents"),
    ]:
        link(page, name).click()
        page.locator(f"#{element_id} .opblock-body").wait_for()
        wait_until_at_top(page, element_id)
        wait_until_current(page, name)


def test_a_link_scrolls_again_to_an_operation_that_is_open(visit):
    visitor = visit()
    page = visitor.open()
    link(page, "Complete an order").click()
    wait_until_at_top(page, "operations-store-completeOrder")
    page.mouse.move(700, 400)
    page.mouse.wheel(0, -3000)
    page.wait_for_function("() => scrollY < 100")
    link(page, "Complete an order").click()
    wait_until_at_top(page, "operations-store-completeOrder")


def test_a_changed_fragment_and_the_back_button_scroll_to_the_operation(visit):
    visitor = visit()
    page = visitor.open()
    page.evaluate("location.hash = '#/store/getOrder'")
    wait_until_at_top(page, "operations-store-getOrder")
    link(page, "Add an animal").click()
    wait_until_at_top(page, "operations-animals-createPet")
    page.go_back()
    assert page.url.endswith("#/store/getOrder")
    wait_until_at_top(page, "operations-store-getOrder")
    wait_until_current(page, "Get an order")
    page.go_back()
    assert "#" not in page.url
    page.wait_for_function("() => scrollY === 0")
    page.go_forward()
    wait_until_at_top(page, "operations-store-getOrder")
    page.go_forward()
    wait_until_at_top(page, "operations-animals-createPet")


def test_opening_an_operation_changes_the_url_and_the_navigation(visit):
    visitor = visit()
    page = visitor.open()
    visitor.expand("getPet")
    assert page.url.endswith("/docs#/animals/getPet")
    wait_until_current(page, "Get an animal")
    # A reader who reloads the page or shares its URL gets there.
    page.reload()
    page.locator("#operations-animals-getPet .opblock-body").wait_for()
    wait_until_at_top(page, "operations-animals-getPet")


def test_the_navigation_follows_a_reader_who_scrolls(visit):
    page = open_article(visit(), "/docs/quickstart")
    page.locator("#find-pets").evaluate("heading => heading.scrollIntoView()")
    wait_until_current(page, "Find pets")
    page.locator("#delete-a-test-pet").evaluate("heading => heading.scrollIntoView()")
    wait_until_current(page, "Delete a test pet")
    # Its own scroll position follows, too.
    assert link(page, "Delete a test pet").evaluate("""link => {
      const { top, bottom } = link.getBoundingClientRect();
      return top >= 0 && bottom <= innerHeight;
    }""")


def test_the_navigation_marks_deprecated_operations(visit):
    page = visit().open()
    assert page.locator(".navigation li:has(.badge-deprecated)").all_inner_texts() == ["GET Get an animal deprecated"]


def test_the_navigation_groups_the_articles(visit):
    page = visit().open()
    groups = page.locator(".navigation > p[id]").all_inner_texts()
    assert groups == ["Getting started", "Topics", "Reference", "For operators", "How it works", "Animals", "Store", "Events"]
    for group, links in [
        ("Getting started", ["Quickstart"]),
        ("Topics", ["Orders", "Events", "Sandbox"]),
        ("For operators", ["API keys, rate limits and overload"]),
    ]:
        listed = page.get_by_role("navigation").get_by_role("list", name=group)
        found = [found for found in listed.locator("> li > a").all_inner_texts()]
        assert found == links, group
    assert page.locator(".navigation [aria-current=page]").inner_text() == "API reference"


@pytest.mark.parametrize("path", ["/docs", "/docs/orders"])
def test_a_link_scrolls_on_a_phone(visit, path):
    visitor = visit(viewport=PHONE)
    page = visitor.open() if path == "/docs" else open_article(visitor, path)
    page.get_by_role("button", name="Menu").click()
    name, element_id = ("Get an order", "operations-store-getOrder") if path == "/docs" else ("Order expiry", "order-expiry")
    link(page, name).click()
    wait_until_at_top(page, element_id)

"""Tests of the search: what it finds, in which order, and with the keyboard alone."""
import pytest
from conftest import SERVICE
from playwright.sync_api import expect
from test_pages import DESKTOP, PHONE, open_article, violations


def search(page, text):
    """Searches with the keyboard, and returns the results as soon as there are any."""
    page.keyboard.press("/")
    page.keyboard.type(text)
    expect(page.locator(".search-status")).to_contain_text("result")
    return page.locator(".results a")


# What a reader types, and a place that must be among the results, with the text that the result shows.
WORDS = [
    ("holdSeconds", "/docs#/store/placeOrder", "How many seconds"),
    ("429", "/docs/errors#rate_limited", "rate_limited"),
    ("429", "/docs/conventions#rate-limits", "429"),
    ("410", "/docs#/events/listEvents", "cursor_expired"),
    ("410", "/docs#/animals/getPet", "operation_removed"),
    ("etag", "/docs/conventions#conditional-updates", "ETag"),
    ("etag", "/docs#/animals/updatePet", "ETag"),
    ("invalid_field", "/docs/errors#invalid_field", "invalid_field"),
    ("invalid_field", "/docs#/animals/createPet", "invalid_field"),
    ("timeout", "/docs/errors#request_timeout", "request_timeout"),
    ("cursor", "/docs#/animals/listPets", "cursor"),
    ("cursor", "/docs/conventions#pagination", "cursor"),
    ("categoryId", "/docs#/animals/createPet", "categoryId"),
    ("expiresAt", "/docs/orders#order-expiry", "expiresAt"),
    ("If-None-Match", "/docs#/store/getOrder", "If-None-Match"),
    ("orders:write", "/docs/conventions#api-keys", "orders:write"),
    ("psk_", "/docs/conventions#api-keys", "psk_"),
    ("lost-answer", "/docs/sandbox#make-a-request-fail", "lost-answer"),
    ("$.*+?(", None, None),
]


@pytest.mark.parametrize("word, place, text", WORDS, ids=[f"{word} {place}" for word, place, _ in WORDS])
def test_the_search_finds_text_codes_fields_and_parameters(visit, word, place, text):
    results = search(visit().open(), word)
    found = {result.evaluate("link => link.href"): result.inner_text() for result in results.all()}
    if place is None:
        assert found == {}
    else:
        assert SERVICE + place in found
        assert text.lower() in found[SERVICE + place].lower()


def test_the_best_result_is_the_first(visit):
    page = visit().open()
    expected = [
        ("get order", "/docs#/store/getOrder"),
        ("placeorder", "/docs#/store/placeOrder"),
        ("/cancel", "/docs#/store/cancelOrder"),
        ("holdseconds", "/docs#/store/placeOrder"),
        ("conditional", "/docs/conventions#conditional-updates"),
        ("rate limits", "/docs/conventions#rate-limits"),
        ("429", "/docs/errors#retryable-responses"),
        ("invalid_field", "/docs/errors#invalid_field"),
        ("install", "/docs/quickstart#install-an-sdk"),
    ]
    search(page, "x")
    for text, place in expected:
        page.locator(".search").fill(text)
        assert page.locator(".results a").first.evaluate("link => link.href") == SERVICE + place, text


def test_a_result_shows_the_words_in_their_context(visit):
    result = search(visit().open(), "HOLDseconds").first
    assert result.locator(".result-title").inner_text().lower() == "post place an order"
    assert result.locator("mark").all_inner_texts() == ["holdSeconds"]
    assert result.locator(".result-text").inner_text().startswith("holdSeconds: How many seconds the order reserves the pet")


def test_the_search_works_with_the_keyboard(visit):
    visitor = visit()
    page = visitor.open()
    # Enter follows the first result, even if the index is not loaded yet.
    page.keyboard.press("/")
    page.keyboard.type("get order")
    page.keyboard.press("Enter")
    page.locator("#operations-store-getOrder .opblock-body").wait_for()
    assert page.locator(".results a").count() == 0
    results = search(page, "precondition_failed")
    assert results.count() > 1
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(results.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".search")).to_be_focused()
    page.keyboard.press("ArrowDown")
    place = results.first.evaluate("link => link.href")
    page.keyboard.press("Enter")
    page.wait_for_url(place)
    search(page, "nothing has these words")
    assert page.locator(".search-status").inner_text() == "No results"
    page.keyboard.press("Escape")
    assert page.locator(".search").input_value() == ""
    assert page.locator(".navigation > ul > li > a:visible").count() > 15


def test_the_search_tells_how_many_results_are_not_shown(visit):
    page = visit().open()
    assert search(page, "the").count() == 20
    assert page.locator(".search-status").inner_text().endswith(" results; the first 20 are shown")


def test_the_search_works_on_an_article(visit):
    visitor = visit()
    page = open_article(visitor, "/docs/keys")
    search(page, "holdSeconds").first.click()
    page.locator("#operations-store-placeOrder .opblock-body").wait_for()


def test_the_index_is_loaded_once_and_only_for_a_search(visit):
    visitor = visit()
    page = open_article(visitor, "/docs/keys")
    loaded = lambda: [request.url for request in visitor.requests if request.url.endswith(".json")]
    assert loaded() == []
    search(page, "cursor")
    page.locator(".search").fill("etag")
    assert page.locator(".results a").count() > 0
    assert sorted(loaded()) == [f"{SERVICE}/docs/search.json", f"{SERVICE}/openapi.json"]


def test_the_search_says_that_its_index_could_not_be_loaded_and_tries_again(visit):
    visitor = visit()
    page = open_article(visitor, "/docs/keys")
    page.route("**/search.json", lambda route: route.fulfill(status=503, body="{}"), times=1)
    page.keyboard.press("/")
    page.keyboard.type("c")
    expect(page.locator(".search-status")).to_contain_text("could not be loaded")
    page.keyboard.type("ursor")
    expect(page.locator(".search-status")).to_contain_text("results")
    assert ["status of 503" in error for error in visitor.errors] == [True]
    visitor.errors.clear()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_results_are_accessible(visit, scheme, viewport):
    page = visit(color_scheme=scheme, viewport=viewport).open()
    assert search(page, "cursor").count() > 5
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]

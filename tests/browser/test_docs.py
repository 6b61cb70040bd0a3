"""Tests of the page at /docs in a browser."""
import json

import pytest
from conftest import KEY, SERVICE

SCHEMES = ["light", "dark"]


def add_fictions(document):
    """Adds operations with every marker that the page supports, independently of the real operations."""
    listing = document["paths"]["/pets"]["get"]
    fiction = {name: listing[name] for name in ("responses", "parameters", "security")}
    body = document["paths"]["/pets"]["post"]["requestBody"]["content"]["application/json"]
    long_name = "application/vnd.a-media-type-with-a-long-name+json"
    document["tags"].append({"name": "fictions", "description": "Only in this test."})
    document["paths"]["/fictions"] = {
        "get": fiction | {
            "operationId": "readFictions", "tags": ["fictions"], "summary": "Read",
            "x-stability": "experimental", "x-hideTryItPanel": True,
        },
        "patch": fiction | {
            "operationId": "changeFictions", "tags": ["fictions"], "summary": "Change", "x-stability": "beta",
            "requestBody": {"content": {"application/json": body, long_name: body}}, "x-hideTryItPanel": False,
        },
        "put": fiction | {
            "operationId": "oldFictions", "tags": ["fictions"], "summary": "Old",
            "deprecated": True, "x-deprecated-sunset": "2031-02-03",
        },
    }


def expand_everything(visitor):
    """Opens the page and expands as much of it as possible."""
    visitor.change_document(add_fictions)
    page = visitor.open()
    visitor.type_key()
    for name in ("createPet", "listPets"):
        visitor.execute(visitor.expand(name))
    for tag, name in (("animals", "getPet"), ("fictions", "readFictions"), ("fictions", "changeFictions")):
        visitor.expand(name, tag)
    for collapsed in page.locator(".collapsed-response button").all()[:6]:
        collapsed.click()
    page.locator("#operations-animals-listPets").get_by_role("button", name="Add integer item").click()
    page.get_by_role("button", name="Schemas").click()
    closed = page.locator(".models").get_by_role("button", name="Expand all")
    closed.first.wait_for()
    while closed.count() > 0:
        closed.first.click()
    return page


def test_the_first_request_takes_four_actions(visit):
    visitor = visit()
    visitor.open()                                                                   # 1
    visitor.page.get_by_label("Your API key").fill(KEY)                              # 2
    operation = visitor.operation("listPets")
    operation.locator(".opblock-summary-control").click()                            # 3
    status, body = visitor.execute(operation)                                        # 4
    assert status == "200"
    assert isinstance(json.loads(body), list)


def test_a_pet_that_is_added_is_shown_and_listed(visit):
    visitor = visit()
    visitor.open()
    visitor.type_key()
    adding = visitor.expand("createPet")
    adding.locator("textarea").fill('{"name": "Minka", "categoryId": 9007199254740993}')
    status, body = visitor.execute(adding)
    assert status == "201"
    pet = json.loads(body)
    # Larger than JavaScript's exact integers, and shown unchanged.
    assert pet == {"id": pet["id"], "name": "Minka", "categoryId": 9007199254740993}
    assert body.splitlines()[0::4] == ["{", "}"]
    listing = visitor.expand("listPets")
    listing.get_by_role("button", name="Add integer item").click()
    listing.locator(".json-schema-form-item input").fill(str(pet["id"]))
    status, body = visitor.execute(listing)
    assert (status, [found["name"] for found in json.loads(body)]) == ("200", ["Minka"])
    url = listing.locator(".request-url pre").inner_text()
    assert url == f"{SERVICE}/v1/pets?limit=20&id={pet['id']}&sort=id"


def test_a_request_with_an_unknown_key_shows_the_error(visit):
    visitor = visit()
    visitor.open()
    visitor.page.get_by_label("Your API key").fill("psk_unknown")
    status, body = visitor.execute(visitor.expand("listPets"))
    assert (status, json.loads(body)["code"]) == ("401", "invalid_api_key")
    # Chromium logs the failed request; nothing else may be logged.
    assert len(visitor.errors) == 1 and "status of 401" in visitor.errors.pop()


def test_the_key_is_neither_stored_nor_shown(visit):
    visitor = visit()
    page = visitor.open()
    visitor.type_key()
    operation = visitor.expand("listPets")
    assert visitor.execute(operation)[0] == "200"
    assert operation.locator(".curl").inner_text().count('-H "Authorization: Bearer $PETSTORE_KEY"') == 1
    assert KEY not in page.url + page.inner_text("body")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    sent = [request for request in visitor.requests if "authorization" in request.headers]
    assert [request.url for request in sent] == [f"{SERVICE}/v1/pets?limit=20&sort=id"]
    page.reload()
    assert page.get_by_label("Your API key").input_value() == ""


def test_examples_of_optional_parameters_are_shown_but_not_sent(visit):
    visitor = visit()
    visitor.open()
    cursor = visitor.expand("listPets").locator("[data-param-name=cursor]")
    assert "Example: AQAAAAAAAAAU" in cursor.inner_text()
    assert cursor.locator("input").input_value() == ""
    key = visitor.expand("createPet").locator("[data-param-name=Idempotency-Key]")
    assert key.locator("input").input_value() == ""


def test_an_operation_that_hides_its_try_it_panel_has_none(visit):
    visitor = visit()
    visitor.change_document(add_fictions)
    visitor.open()
    hidden = visitor.expand("readFictions", "fictions")
    assert hidden.locator(".parameter__name").count() > 0
    assert hidden.get_by_role("button", name="Execute").count() == 0
    assert [field for field in hidden.locator("input, select, textarea").all() if field.is_visible()] == []
    for name in ("changeFictions", "oldFictions"):
        assert visitor.expand(name, "fictions").get_by_role("button", name="Execute").is_visible()


def test_badges_show_stability_and_removal(visit):
    visitor = visit()
    visitor.change_document(add_fictions)
    visitor.open()
    for tag, name, badges in [
        ("animals", "listPets", []),
        ("animals", "createPet", []),
        ("animals", "getPet", ["deprecated", "removal 2030-12-05"]),
        ("fictions", "readFictions", ["experimental"]),
        ("fictions", "changeFictions", ["beta"]),
        ("fictions", "oldFictions", ["deprecated", "removal 2031-02-03"]),
    ]:
        found = visitor.operation(name, tag).locator(".badge")
        assert found.all_inner_texts() == badges, name
        assert all(badge.is_visible() for badge in found.all())


def test_an_operation_can_be_linked_to(visit):
    visitor = visit()
    page = visitor.open("/docs#/animals/getPet")
    linked = visitor.operation("getPet").get_by_role("button", name="Execute")
    linked.wait_for()
    page.wait_for_function("document.querySelector('#operations-animals-getPet').getBoundingClientRect().top < 300")
    assert page.get_by_role("button", name="Execute").count() == 1
    # Also from within the page, or with the Back button.
    page.evaluate("location.hash = '#/animals/createPet'")
    visitor.operation("createPet").get_by_role("button", name="Execute").wait_for()


def test_the_deprecation_link_of_get_pet_opens_its_operation(visit):
    visitor = visit()
    page = visitor.open()
    response = visitor.context.request.get(f"{SERVICE}/v1/pets/1", headers={"Authorization": f"Bearer {KEY}"})
    links = [header["value"] for header in response.headers_array if header["name"].lower() == "link"]
    target = next(link for link in links if 'rel="deprecation"' in link).split(">")[0].lstrip("<")
    page.goto("about:blank")
    visitor.requests.clear()
    visitor.open(target)
    visitor.operation("getPet").locator(".opblock-body").wait_for()


def test_the_first_request_has_the_url_of_this_service(visit):
    page = visit().open()
    assert page.locator(".first-request pre:visible").inner_text() == (
        f"curl '{SERVICE}/v1/pets?status=available' \\\n  -H \"Authorization: Bearer $PETSTORE_KEY\""
    )


def test_light_and_dark_schemes_differ(visit):
    backgrounds = []
    for scheme in SCHEMES:
        page = visit(color_scheme=scheme).open()
        backgrounds.append(
            page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        )
    assert min(backgrounds[0]) > 230 and max(backgrounds[1]) < 40


# The number of visible text nodes, and those whose contrast, as WCAG 2 defines it, is below 4.5.
LOW_CONTRAST = """() => {
  const channels = colour => colour.match(/[0-9.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = channels(colour).map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let checked = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    checked += 1;
    const [light, dark] = [getComputedStyle(element).color, background(element)].map(luminance).sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) low.push([contrast.toFixed(2), element.className, walker.currentNode.data]);
  }
  return [checked, low];
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_text_has_enough_contrast(visit, scheme):
    checked, low = expand_everything(visit(color_scheme=scheme)).evaluate(LOW_CONTRAST)
    assert low == []
    assert checked > 300


# Elements that overflow their container or the window.
OVERFLOWING = """() => [...document.querySelectorAll('body *')]
  .filter(element => element.checkVisibility() && !element.closest('select, svg'))
  .filter(element => element.getBoundingClientRect().right
    > Math.min(innerWidth, element.closest('.opblock, .models, .card, body').getBoundingClientRect().right) + 0.5)
  .map(element => `${element.tagName} ${element.className}`)"""


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_overflows_and_the_page_does_not_scroll_sideways(visit, width):
    page = expand_everything(visit(viewport={"width": width, "height": 740}))
    assert page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]") == [width, width]
    assert page.evaluate(OVERFLOWING) == []


def test_a_document_that_cannot_be_loaded_shows_an_error(visit):
    visitor = visit()
    visitor.page.route("**/openapi.json", lambda route: route.fulfill(status=503, body="{}"))
    visitor.page.goto(SERVICE + "/docs")
    visitor.page.get_by_text("The OpenAPI document could not be loaded.").wait_for()
    assert any("status of 503" in error for error in visitor.errors)
    visitor.errors.clear()

"""The page at /docs, as an engineer with a key and a browser uses it."""
import json

import pytest
from conftest import KEY, SERVICE

SCHEMES = ["light", "dark"]


def add_fictions(document):
    """Adds operations with every marker that the page knows, whatever the real ones have at the moment."""
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


def everything_open(visitor):
    """A page with as much on it as there can be."""
    visitor.change_document(add_fictions)
    page = visitor.open()
    visitor.type_key()
    for name in ("createPet", "listPets"):
        visitor.execute(visitor.unfold(name))
    for tag, name in (("animals", "getPet"), ("fictions", "readFictions"), ("fictions", "changeFictions")):
        visitor.unfold(name, tag)
    for folded in page.locator(".folded button").all()[:6]:
        folded.click()
    page.locator("#operations-animals-getPet").get_by_role("tab", name="Schema").first.click()
    page.locator("#operations-animals-listPets").get_by_role("button", name="Add integer item").click()
    for button in page.locator(".models").get_by_role("button", name="Expand all").all():
        if button.is_visible():
            button.click()
    return page


def test_the_first_call_takes_four_actions(visit):
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
    adding = visitor.unfold("createPet")
    adding.locator("textarea").fill('{"name": "Minka", "categoryId": 9007199254740993}')
    status, body = visitor.execute(adding)
    assert status == "201"
    pet = json.loads(body)
    # Larger than JavaScript's numbers, and shown as it came.
    assert pet == {"id": pet["id"], "name": "Minka", "categoryId": 9007199254740993}
    assert body.splitlines()[0::4] == ["{", "}"]
    listing = visitor.unfold("listPets")
    listing.get_by_role("button", name="Add integer item").click()
    listing.locator(".json-schema-form-item input").fill(str(pet["id"]))
    status, body = visitor.execute(listing)
    assert (status, [found["name"] for found in json.loads(body)]) == ("200", ["Minka"])
    asked = listing.locator(".request-url pre").inner_text()
    assert asked == f"{SERVICE}/v1/pets?limit=20&id={pet['id']}"


def test_without_a_key_the_answer_says_what_to_do(visit):
    visitor = visit()
    visitor.open()
    status, body = visitor.execute(visitor.unfold("listPets"))
    assert (status, json.loads(body)["code"]) == ("401", "missing_api_key")
    # Chromium itself says so in the console; nobody else may say anything.
    assert len(visitor.complaints) == 1 and "status of 401" in visitor.complaints.pop()


def test_the_key_stays_in_memory_and_out_of_sight(visit):
    visitor = visit()
    page = visitor.open()
    visitor.type_key()
    operation = visitor.unfold("listPets")
    assert visitor.execute(operation)[0] == "200"
    assert operation.locator(".curl").inner_text().count('-H "Authorization: Bearer $KEY"') == 1
    assert KEY not in page.url + page.inner_text("body")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    sent = [request for request in visitor.requests if "authorization" in request.headers]
    assert [request.url for request in sent] == [f"{SERVICE}/v1/pets?limit=20"]
    page.reload()
    assert page.get_by_label("Your API key").input_value() == ""


def test_examples_of_optional_parameters_are_shown_and_not_sent(visit):
    visitor = visit()
    visitor.open()
    cursor = visitor.unfold("listPets").locator("[data-param-name=cursor]")
    assert "Example: AQAAAAAAAAAU" in cursor.inner_text()
    assert cursor.locator("input").input_value() == ""
    key = visitor.unfold("createPet").locator("[data-param-name=Idempotency-Key]")
    assert key.locator("input").input_value() == ""


def test_an_operation_that_hides_its_try_it_panel_has_none(visit):
    visitor = visit()
    visitor.change_document(add_fictions)
    visitor.open()
    hidden = visitor.unfold("readFictions", "fictions")
    assert hidden.locator(".parameter__name").count() > 0
    assert hidden.get_by_role("button", name="Execute").count() == 0
    assert [field for field in hidden.locator("input, select, textarea").all() if field.is_visible()] == []
    for name in ("changeFictions", "oldFictions"):
        assert visitor.unfold(name, "fictions").get_by_role("button", name="Execute").is_visible()


def test_badges_tell_stability_and_removal(visit):
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
    # And from within the page, or by the way back.
    page.evaluate("location.hash = '#/animals/createPet'")
    visitor.operation("createPet").get_by_role("button", name="Execute").wait_for()


def test_what_get_pet_says_about_its_deprecation_leads_to_it(visit):
    visitor = visit()
    page = visitor.open()
    answer = visitor.context.request.get(f"{SERVICE}/v1/pets/1", headers={"Authorization": f"Bearer {KEY}"})
    links = [header["value"] for header in answer.headers_array if header["name"].lower() == "link"]
    target = next(link for link in links if 'rel="deprecation"' in link).split(">")[0].lstrip("<")
    page.goto("about:blank")
    visitor.requests.clear()
    visitor.open(target)
    visitor.operation("getPet").locator(".opblock-body").wait_for()


def test_the_first_call_names_this_service(visit):
    page = visit().open()
    assert page.locator(".first-call").inner_text() == (
        f'curl -H "Authorization: Bearer $KEY" \\\n  {SERVICE}/v1/pets'
    )


def test_light_and_dark_are_different(visit):
    backgrounds = []
    for scheme in SCHEMES:
        page = visit(color_scheme=scheme).open()
        backgrounds.append(
            page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        )
    assert min(backgrounds[0]) > 230 and max(backgrounds[1]) < 40


# The contrast of every piece of text that can be seen, as WCAG 2 defines it, if it is less than 4.5.
FAINT = """() => {
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
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    looked += 1;
    const [light, dark] = [getComputedStyle(element).color, background(element)].map(luminance).sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) faint.push([contrast.toFixed(2), element.className, walker.currentNode.data]);
  }
  return [looked, faint];
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_text_can_be_read(visit, scheme):
    looked, faint = everything_open(visit(color_scheme=scheme)).evaluate(FAINT)
    assert faint == []
    assert looked > 300


# What reaches out of the box that it is in, or out of the window.
CUT_OFF = """() => [...document.querySelectorAll('body *')]
  .filter(element => element.checkVisibility() && !element.closest('select, svg'))
  .filter(element => element.getBoundingClientRect().right
    > Math.min(innerWidth, element.closest('.opblock, .models, .card, body').getBoundingClientRect().right) + 0.5)
  .map(element => `${element.tagName} ${element.className}`)"""


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_cut_off_and_nobody_scrolls_sideways(visit, width):
    page = everything_open(visit(viewport={"width": width, "height": 740}))
    assert page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]") == [width, width]
    assert page.evaluate(CUT_OFF) == []


def test_a_document_that_cannot_be_loaded_is_told(visit):
    visitor = visit()
    visitor.page.route("**/openapi.json", lambda route: route.fulfill(status=503, body="{}"))
    visitor.page.goto(SERVICE + "/docs")
    visitor.page.get_by_text("The interface document could not be loaded.").wait_for()
    assert any("status of 503" in complaint for complaint in visitor.complaints)
    visitor.complaints.clear()

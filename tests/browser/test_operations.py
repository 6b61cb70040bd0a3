"""Tests of what an operation on /docs shows, and of what Execute sends."""
import re
from pathlib import Path

import pytest
from conftest import KEY, SERVICE
from playwright.sync_api import expect


def document(visitor):
    return visitor.context.request.get(f"{SERVICE}/openapi.json").json()


@pytest.mark.parametrize("name, tag, schema", [
    ("createPet", "animals", "NewPet"), ("updatePet", "animals", "PetPatch"),
    ("placeOrder", "store", "NewOrder"), ("updateOrder", "store", "OrderPatch"),
])
def test_all_fields_of_a_request_body_are_visible(visit, name, tag, schema):
    visitor = visit()
    visitor.open()
    operation = visitor.expand(name, tag)
    fields = operation.locator(".opblock-section-request-body .fields")
    described = document(visitor)["components"]["schemas"][schema]
    assert fields.locator(".field-name").all_inner_texts() == list(described["properties"])
    required = fields.locator("li").filter(has_text=re.compile("required")).locator(".field-name")
    assert required.all_inner_texts() == described.get("required", [])
    assert fields.is_visible()
    for field in described["properties"].values():
        [description] = [one["description"] for one in [field, *field.get("oneOf", [])] if "description" in one]
        assert description.replace("`", "") in fields.inner_text()


def test_a_field_that_can_be_removed_can_be_null(visit):
    visitor = visit()
    visitor.open()
    for name, tag, removable in [("createPet", "animals", ""), ("updatePet", "animals", " or null"), ("updateOrder", "store", " or null")]:
        fields = visitor.expand(name, tag).locator(".opblock-section-request-body .fields li")
        types = {field.locator(".field-name").inner_text(): field.locator(".field-type").inner_text() for field in fields.all()}
        assert (types["reference"], types["metadata"]) == (f"string{removable}", f"object{removable}")


def test_all_fields_of_a_response_are_visible_with_their_bounds(visit):
    visitor = visit()
    visitor.open()
    for name, tag, schema in [("getOrder", "store", "Order"), ("listPets", "animals", "Pet"), ("listEvents", "events", "Event")]:
        fields = visitor.expand(name, tag).locator(".response[data-code='200'] .fields")
        assert fields.locator(".field-name").all_inner_texts() == list(
            document(visitor)["components"]["schemas"][schema]["properties"]
        )
    order = visitor.operation("getOrder", "store").locator(".response[data-code='200'] .fields").inner_text()
    for text in ("1 to 9007199254740991", "1 to 255 characters", "One of placed, completed, cancelled, expired."):
        assert text in order


def test_a_sample_names_the_fields_that_it_leaves_out(visit):
    visitor = visit()
    visitor.open()
    operation = visitor.expand("placeOrder", "store")
    for language, names in [
        ("curl", "reference, holdSeconds, metadata"),
        ("Python", "reference, hold_seconds, metadata"),
        ("TypeScript", "reference, holdSeconds, metadata"),
    ]:
        operation.get_by_role("tab", name=language, exact=True).click()
        assert f"Optional fields: {names}\n" in operation.locator(".samples [role=tabpanel]:visible pre").inner_text()


def test_no_regular_expression_is_shown(visit):
    visitor = visit()
    page = visitor.open()
    for name, tag in [("createPet", "animals"), ("placeOrder", "store"), ("listPets", "animals")]:
        visitor.expand(name, tag)
    page.get_by_role("button", name="Schemas").click()
    closed = page.locator(".models").get_by_role("button", name="Expand all")
    closed.first.wait_for()
    while closed.count() > 0:
        closed.first.click()
    page.locator(".models").get_by_text("holdSeconds").first.wait_for()
    shown = page.locator("#page").inner_text()
    assert "matches ^" not in shown and "\\u0000" not in shown and "^[" not in shown


def test_the_schemas_are_collapsed_until_they_are_opened(visit):
    page = visit().open()
    heading = page.get_by_role("button", name="Schemas")
    assert heading.get_attribute("aria-expanded") == "false"
    assert page.locator(".models .json-schema-2020-12:visible").count() == 0
    heading.click()
    page.locator(".models").get_by_text("NewPet").wait_for()


def test_execute_without_a_key_asks_for_it_and_sends_nothing(visit):
    visitor = visit()
    page = visitor.open()
    operation = visitor.expand("listPets")
    operation.get_by_role("button", name="Execute").click()
    warning = operation.get_by_role("alert")
    expect(warning).to_contain_text("Nothing was sent: enter your API key first.")
    warning.get_by_role("button", name="Enter your API key").click()
    expect(page.get_by_label("Your API key")).to_be_focused()
    expect(page.get_by_label("Your API key")).to_be_in_viewport()
    assert [request.url for request in visitor.requests if "/v1/" in request.url] == []
    page.keyboard.type(KEY)
    expect(warning).to_have_count(0)
    assert visitor.execute(operation)[0] == "200"


def test_execute_sends_a_new_idempotency_key_with_every_post(visit):
    visitor = visit()
    page = visitor.open()
    visitor.type_key()
    operation = visitor.expand("createPet")
    sent = []
    page.on("request", lambda request: sent.append(request.headers.get("idempotency-key")) if request.method == "POST" else None)
    for _ in range(2):
        with page.expect_response("**/v1/pets"):
            visitor.execute(operation)
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in sent) and len(set(sent)) == 2
    # The command shows it, and one that the reader enters is not replaced.
    operation.locator(".curl").get_by_text(f"Idempotency-Key: {sent[1]}").wait_for()
    operation.locator("[data-param-name=Idempotency-Key] input").fill("basket-1")
    with page.expect_response("**/v1/pets"):
        visitor.execute(operation)
    assert sent[2] == "basket-1"
    listing = visitor.expand("listPets")
    with page.expect_request("**/v1/pets?*") as request:
        visitor.execute(listing)
    assert "idempotency-key" not in request.value.headers


def test_the_versions_of_the_api_and_of_the_service_are_shown(visit):
    visitor = visit()
    page = visitor.open()
    cargo = (Path(__file__).parents[2] / "Cargo.toml").read_text()
    service = re.search('^version = "(.*)"', cargo, re.MULTILINE)[1]
    api = document(visitor)["info"]["version"]
    assert page.locator(".introduction .version").inner_text() == f"API version {api}, served by petstore {service}"


def test_installing_an_sdk_is_one_click_away(visit):
    visitor = visit()
    page = visitor.open()
    page.locator(".first-request").get_by_role("link", name="Install an SDK").click()
    page.get_by_role("heading", name="Install an SDK", level=2).wait_for()
    assert page.url.endswith("/docs/quickstart#install-an-sdk")
    shown = page.locator(".article").text_content()  # of all languages
    assert "from petstore_client import" in shown and "import { Petstore }" in shown
    assert re.search(r"pip install \S+/petstore_client-", shown) and re.search(r"npm install \S+/petstore-client-", shown)


def test_an_operation_that_cannot_be_executed_says_so_in_plain_words(visit):
    visitor = visit()
    visitor.open()
    operation = visitor.expand("listOrders", "store")
    shown = operation.inner_text()
    assert "You cannot execute this operation on this page: the API's specification switches that off for it." in shown
    assert "Run the sample instead." in shown and "x-hideTryItPanel" not in shown
    assert operation.get_by_role("button", name="Execute").count() == 0
    assert "cannot execute" not in visitor.expand("getOrder", "store").inner_text()

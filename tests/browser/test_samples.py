"""Runs the samples that the page at /docs shows, in each language, as a reader would.

Needs target/clients (scripts/clients build), and a service whose orders expire (PETSTORE_ORDER_HOLD).
"""
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import KEY, SERVICE

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "target/clients"
TOOLS = ROOT / "target/tools/clients"
NAMES = {"curl": "curl", "python": "Python", "typescript": "TypeScript"}

# In place of the examples in the document: ids to replace by those of pets and orders that exist.
PET, ORDERED_PET, ORDER = 900_000_001, 900_000_002, 900_000_003

# Each operation, in an order that works, with what its sample prints.
OPERATIONS = {
    "createPet": r"Rex",
    "listPets": r"Rex",
    "getPet": r"Rex",
    "updatePet": r"sold",
    "deletePet": r"^$",
    "placeOrder": r"placed",
    "listOrders": r"placed",
    "getOrder": r"placed",
    "updateOrder": r"placed",
    "completeOrder": r"completed",
    "cancelOrder": r"cancelled",
    "listEvents": r"pet\.created",
}


def set_ids(document):
    """Sets the examples of ids, wherever the document describes them."""

    def walk(node):
        if isinstance(node, dict):
            if node.get("in") == "path":
                node["example"] = PET if node["name"] == "petId" else ORDER
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(document)
    document["components"]["schemas"]["NewOrder"]["example"]["petId"] = ORDERED_PET


def samples(page, language):
    """Returns the sample of each operation, as shown."""
    found = {}
    for operation in page.locator(".opblock").all():
        name = operation.get_attribute("id").split("-")[-1]
        operation.locator(".opblock-summary-control").click()
        operation.get_by_role("tab", name=NAMES[language], exact=True).click()
        panel = operation.locator(".samples [role=tabpanel]:visible")
        found[name] = panel.locator("pre").inner_text()
        operation.locator(".opblock-summary-control").click()
    return found


def call(context, method, path, **body):
    response = context.request.fetch(
        f"{SERVICE}/v1{path}", method=method, data=body or None, headers={"Authorization": f"Bearer {KEY}"}
    )
    assert response.ok, response.text()
    return response.json()["id"]


def run_curl(folder, scripts):
    for name, text in scripts.items():
        yield name, ["sh", "-c", text.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)]


def run_python(folder, scripts):
    """Also checks the types, as strictly as those of the SDK."""
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text + "\n")
    mypy = [TOOLS / "python/bin/mypy", "--no-error-summary", "--cache-dir", ROOT / "target/mypy", *folder.glob("*.py")]
    subprocess.run(mypy, cwd=ROOT / "clients/python", check=True)
    for name in scripts:
        yield name, [TOOLS / "python/bin/python", folder / f"{name}.py"]


def run_typescript(folder, scripts):
    """Compiles the samples with the settings of the SDK's own examples, against the installed package."""
    project = json.loads((PROJECT / "tsconfig.json").read_text())
    options = project["compilerOptions"] | {"rootDir": ".", "outDir": "out"}
    project = {"extends": str(ROOT / "clients/typescript/tsconfig.json"), "compilerOptions": options, "include": ["*.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(project))
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").symlink_to(PROJECT / "node_modules")
    for name, text in scripts.items():
        (folder / f"{name}.ts").write_text(text + "\n")
    subprocess.run([TOOLS / "typescript/node_modules/.bin/tsc", "--project", folder], check=True)
    for name in scripts:
        yield name, ["node", folder / f"out/{name}.js"]


@pytest.mark.parametrize("language, commands", [
    ("curl", run_curl), ("python", run_python), ("typescript", run_typescript),
])
def test_every_sample_runs(visit, tmp_path, language, commands):
    visitor = visit()
    visitor.change_document(set_ids)
    shown = samples(visitor.open(), language)
    assert sorted(shown) == sorted(OPERATIONS)
    pet, ordered_pet, *others = (
        call(visitor.context, "POST", "/pets", name="Rex", categoryId=3, status="available") for _ in range(6)
    )
    orders = [call(visitor.context, "POST", "/store/orders", petId=other) for other in others]
    order_of = dict(zip(["getOrder", "updateOrder", "completeOrder", "cancelOrder"], orders, strict=True))
    scripts = {}
    for name in OPERATIONS:
        assert KEY not in shown[name] and "PETSTORE_KEY" in shown[name]
        ids = {PET: pet, ORDERED_PET: ordered_pet, ORDER: order_of.get(name)}
        scripts[name] = re.sub(r"\b90000000\d\b", lambda found: str(ids[int(found[0])]), shown[name])
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "python")}
    del environment["PETSTORE_URL"]  # the sample has the address
    for name, command in commands(tmp_path, scripts):
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, f"{name}\n{scripts[name]}\n{ended.stdout}{ended.stderr}"
        assert re.search(OPERATIONS[name], ended.stdout), f"{name}\n{scripts[name]}\n{ended.stdout}"


def test_the_language_is_chosen_once_for_all_pages_and_remembered(visit):
    visitor = visit()
    page = visitor.open()
    operation = visitor.expand("createPet")
    first = page.locator(".first-request").get_by_role("tab", name="curl")
    assert first.get_attribute("aria-selected") == "true"
    first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "Python"
    assert operation.locator(".samples [aria-selected=true]").inner_text() == "Python"
    assert "shop.pets.create(" in operation.locator(".samples [role=tabpanel]:visible").inner_text()
    for key, name in [
        ("End", "TypeScript"), ("ArrowRight", "curl"), ("ArrowLeft", "TypeScript"), ("Home", "curl"), ("End", "TypeScript"),
    ]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent") == name
    page.goto(SERVICE + "/docs/quickstart")
    tabs = page.locator("[role=tablist]")
    tabs.first.wait_for()
    assert set(tabs.locator("[aria-selected=true]").all_inner_texts()) == {"TypeScript"}
    assert tabs.count() >= 5
    shown = page.locator("[role=tabpanel]:visible")
    assert shown.count() == tabs.count() and "new Petstore()" in shown.first.inner_text()
    assert page.evaluate("JSON.stringify(localStorage)") == '{"petstore.language":"typescript"}'


def test_a_sample_has_the_url_of_the_chosen_server(visit):
    visitor = visit()
    visitor.change_document(lambda document: document["servers"].append({"url": f"{SERVICE}/staging/v1"}))
    page = visitor.open()
    sample = visitor.expand("createPet").locator(".samples pre:visible")
    assert f"'{SERVICE}/v1/pets'" in sample.inner_text()
    page.get_by_role("combobox", name="Server").select_option(f"{SERVICE}/staging/v1")
    sample.get_by_text(f"'{SERVICE}/staging/v1/pets'").wait_for()

"""Fixtures of the browser tests: a real Chromium, and pages that may not log errors or call other hosts.

`scripts/serve-for` starts the service and names it in PETSTORE_URL and PETSTORE_KEY.
"""
import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

SERVICE = os.environ["PETSTORE_URL"]
KEY = os.environ["PETSTORE_KEY"]


def chromium():
    """Returns the path of the system's Chromium, so that none is downloaded."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def launch(playwright):
    # Chromium's sandbox does not work as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=chromium(), args=arguments)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Visitor:
    """A browser page that records its requests, errors and warnings."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.errors = []
        self.requests = []
        self.context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " event => console.error('blocked by policy:', event.violatedDirective, event.blockedURI))"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def open(self, path="/docs"):
        self.page.goto(SERVICE + path)
        self.page.locator(".opblock").first.wait_for()
        return self.page

    def type_key(self):
        self.page.get_by_label("Your API key").fill(KEY)

    def change_document(self, change):
        """Applies `change` to the OpenAPI document before the page gets it."""

        def fulfill(route):
            response = route.fetch()
            document = response.json()
            change(document)
            route.fulfill(response=response, json=document)

        self.page.route("**/openapi.json", fulfill)

    def operation(self, name, tag="animals"):
        return self.page.locator(f"#operations-{tag}-{name}")

    def expand(self, name, tag="animals"):
        operation = self.operation(name, tag)
        operation.locator(".opblock-summary-control").click()
        operation.locator(".responses-wrapper").wait_for()
        return operation

    def execute(self, operation):
        """Presses Execute and returns the status and the body that the page shows."""
        operation.get_by_role("button", name="Execute").click()
        response = operation.locator(".live-responses-table .response")
        response.wait_for()
        status = response.locator(".response-col_status").inner_text()
        return status.split()[0], response.locator(".highlight-code pre").inner_text()

    def close(self):
        """Closes the page. Fails if it called another host, sent the key in a URL or logged an error."""
        self.context.close()
        external = [request.url for request in self.requests if not request.url.startswith((SERVICE + "/", "data:"))]
        assert external == []
        assert [request.url for request in self.requests if KEY in request.url] == []
        assert self.errors == []


@pytest.fixture
def visit(browser):
    """Returns a function that opens a page; checks and closes all of them at the end of the test."""
    visitors = []

    def open_visitor(**options):
        visitors.append(Visitor(browser, **options))
        return visitors[-1]

    yield open_visitor
    for visitor in visitors:
        visitor.close()

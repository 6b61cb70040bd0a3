"""What the browser tests stand on: a real Chromium, and a page that may not complain or call anybody else.

`scripts/serve-for` starts the service and names it in PETSTORE_URL and PETSTORE_KEY.
"""
import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

SERVICE = os.environ["PETSTORE_URL"]
KEY = os.environ["PETSTORE_KEY"]


def chromium():
    """The system's own, so that none is downloaded."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def launch(playwright):
    # Chromium refuses to be root in its sandbox.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=chromium(), args=arguments)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Visitor:
    """A page, and whatever went wrong on it."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.complaints = []
        self.requests = []
        self.context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " event => console.error('refused by policy:', event.violatedDirective, event.blockedURI))"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))

    def _hear(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path="/docs"):
        self.page.goto(SERVICE + path)
        self.page.locator(".opblock").first.wait_for()
        return self.page

    def type_key(self):
        self.page.get_by_label("Your API key").fill(KEY)

    def change_document(self, change):
        """Lets the page see another document than the one that is served."""

        def answer(route):
            response = route.fetch()
            document = response.json()
            change(document)
            route.fulfill(response=response, json=document)

        self.page.route("**/openapi.json", answer)

    def operation(self, name, tag="animals"):
        return self.page.locator(f"#operations-{tag}-{name}")

    def unfold(self, name, tag="animals"):
        operation = self.operation(name, tag)
        operation.locator(".opblock-summary-control").click()
        operation.locator(".responses-wrapper").wait_for()
        return operation

    def execute(self, operation):
        """Presses Execute and returns the status and the body that are shown."""
        operation.get_by_role("button", name="Execute").click()
        answer = operation.locator(".live-responses-table .response")
        answer.wait_for()
        status = answer.locator(".response-col_status").inner_text()
        return status.split()[0], answer.locator(".highlight-code pre").inner_text()

    def leave(self):
        self.context.close()
        outside = [request.url for request in self.requests if not request.url.startswith((SERVICE + "/", "data:"))]
        assert outside == []
        assert [request.url for request in self.requests if KEY in request.url] == []
        assert self.complaints == []


@pytest.fixture
def visit(browser):
    """Makes visitors, and looks at the end at what each has to complain about."""
    visitors = []

    def begin(**options):
        visitors.append(Visitor(browser, **options))
        return visitors[-1]

    yield begin
    for visitor in visitors:
        visitor.leave()

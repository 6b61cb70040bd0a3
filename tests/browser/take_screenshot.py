"""Takes the screenshot of /docs for the README: take_screenshot.py FILE"""
import os
import sys

from conftest import SERVICE, launch
from playwright.sync_api import sync_playwright

[target] = sys.argv[1:]
with sync_playwright() as playwright:
    browser = launch(playwright)
    page = browser.new_page(viewport={"width": 1280, "height": 880}, color_scheme="light")
    page.goto(SERVICE + "/docs")
    page.locator(".opblock").first.wait_for()
    page.screenshot(path=target)
    browser.close()
size = os.path.getsize(target)
assert size < 200_000, f"the screenshot has {size} bytes, more than 200,000"

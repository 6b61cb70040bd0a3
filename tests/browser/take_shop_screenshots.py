"""Takes the screenshots of the shop for the README, light and dark: take_shop_screenshots.py DIRECTORY"""
import os
import sys
from pathlib import Path

from conftest import launch
from playwright.sync_api import sync_playwright

[directory] = sys.argv[1:]
with sync_playwright() as playwright:
    browser = launch(playwright)
    for scheme, name in [("light", "shop.png"), ("dark", "shop-dark.png")]:
        page = browser.new_page(viewport={"width": 1280, "height": 840}, color_scheme=scheme)
        page.goto(os.environ["SHOP_URL"])
        assert page.locator(".card").count() == 12
        page.screenshot(path=Path(directory, name))
        size = Path(directory, name).stat().st_size
        assert size < 200_000, f"{name} has {size} bytes, more than 200,000"
    browser.close()

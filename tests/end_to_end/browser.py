"""A real browser without a window, for tests of the page: Debian's Chromium, or the one that Playwright has installed,
driven by Playwright. Neither belongs to what `scripts/test` installs."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

#: Of the packages chromium and chromium-headless-shell of Debian, and as others name it.
NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
#: ms that a browser may take for what a test waits for: the machine may be busy.
DEADLINE_MS = 60_000


def missing() -> str:
    """What is not installed of what a browser needs; "" if all is there."""
    needed = {"playwright": "playwright", "axe_playwright_python": "axe-playwright-python"}
    packages = [package for module, package in needed.items() if find_spec(module) is None]
    if not any(map(shutil.which, NAMES)):
        packages.append("chromium")
    return ", ".join(packages)


@contextmanager
def browser() -> Iterator[Any]:
    """A browser, which ends with the block."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)))
    # Chromium's sandbox refuses root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments, timeout=DEADLINE_MS)
        try:
            yield started
        finally:
            started.close()


class Tab:
    """A tab of the browser on the page of a server; `said` has what its console got: errors, warnings, failed
    requests."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.context.set_default_timeout(DEADLINE_MS)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, place: str = "") -> "Tab":
        """Show a view by what follows the page's address, and wait for its heading."""
        self.page.goto(f"http://{self.url}/{place}")
        self.page.locator("main h1").wait_for()
        return self

    def open_model(self, name: str) -> "Tab":
        """Show a model's view, and wait for its form."""
        self.open(f"#/models/{name}")
        self.page.locator("#try").wait_for()
        return self

    def ask(self) -> str:
        """Send the form; the text of the answer."""
        self.page.locator("#try button[type=submit]").click()
        self.page.locator("#try button[type=submit]:not([disabled])").wait_for()
        self.page.locator("#answer > *").first.wait_for()
        return str(self.page.locator("#answer").inner_text())

    def close(self) -> None:
        """Close it, with all that it has kept."""
        self.context.close()

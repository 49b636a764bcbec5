"""A headless Chromium for the tests of the page, driven by Playwright.

Every page that is opened is observed: an error on its console, an exception, a dialog, a violation
of its Content Security Policy or a request to another host fails the test that opened it. A module
of tests that imports this one is skipped where Playwright or Chromium is missing.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

try:
    from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
except ImportError:
    pytest.skip("not installed: playwright", allow_module_level=True)

__all__ = ["VIEWS", "Page", "Visits", "expect", "launched"]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
VIEWS: Final = ("now", "topics", "clients", "tables", "violations", "messages")
# Without graphics hardware, and without what a browser does besides showing a page.
_ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")

if CHROMIUM is None:
    pytest.skip("not installed: chromium", allow_module_level=True)


class Visits:
    """Opens pages, and collects what goes wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.url = ""
        self.problems: list[str] = []
        # Parts of console errors that a test expects.
        self.expected: tuple[str, ...] = ()
        self._contexts: list[BrowserContext] = []

    def __call__(self, route: str = "#/now", **options: Any) -> Page:
        """Open a page, and wait until it is live or asks to log in."""
        page = self.context(**options).new_page()
        page.goto(self.url + route)
        page.wait_for_selector("body[data-live=live], form.login")
        return page

    def context(
        self,
        *,
        scheme: Any = "light",
        width: int = 1280,
        height: int = 800,
        motion: Any = "reduce",
        scale: float = 1,
    ) -> BrowserContext:
        """A browser profile of its own, whose pages are observed."""
        context = self.browser.new_context(
            color_scheme=scheme,
            viewport={"width": width, "height": height},
            reduced_motion=motion,
            device_scale_factor=scale,
            accept_downloads=True,
        )
        context.set_default_timeout(15_000)
        context.on("page", self._observe)
        self._contexts.append(context)
        return context

    def _observe(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("request", lambda request: self._check_host(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(part in text for part in self.expected):
            self.problems.append(f"console: {text}")

    def _check_host(self, url: str) -> None:
        if not url.startswith((self.url, self.url.replace("http", "ws", 1), "data:", "blob:")):
            self.problems.append(f"request to {url}")

    def close(self) -> None:
        """Close all pages; fail if one had a problem."""
        for context in self._contexts:
            context.close()
        problems, self.problems, self.expected = self.problems, [], ()
        self._contexts.clear()
        assert not problems, problems


@contextmanager
def launched() -> Iterator[Visits]:
    """A running browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        yield Visits(browser)
        browser.close()

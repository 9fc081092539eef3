"""A real browser for the tests of pages: Debian's chromium, one for each process of the tests, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--no-sandbox",  # where tests run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

WIDEN = "document.querySelectorAll('td').forEach(cell => cell.append('W'.repeat(200)))"
"""Makes every table wider than any screen: a page that still does not scroll sideways holds each in a frame."""


def needed() -> str:
    """The path of chromium. Without it a test is skipped; where CI is set it fails."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None and os.environ.get("CI"):
        pytest.fail("there is no chromium: make browser installs it")
    if found is None:
        pytest.skip("there is no chromium: make browser installs it, as root")
    if not os.environ.get("CI"):
        pytest.importorskip("playwright")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which is removed with it."""
    path = needed()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=path, args=list(FLAGS), headless=True)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def opened(
    browser: Browser, file: Path, *, fragment: str = "", scheme: str = "light", width: int = 1280, blocked: int = 0
) -> Iterator[Page]:
    """A page from its file, offline. Whatever it says on the console, asks of a network or throws is a failure.

    Args:
        blocked: how many pieces of the file the content policy has to refuse at least, on the console alone.
    """
    from playwright.sync_api import ViewportSize

    said: list[str] = []
    size = ViewportSize(width=width, height=900)
    context = browser.new_context(offline=True, viewport=size, color_scheme="dark" if scheme == "dark" else "light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: said.extend([] if request.is_navigation_request() else [request.url]))
    try:
        page.goto(file.as_uri() + fragment)
        yield page
        refused = [text for text in said if "Content Security Policy" in text]
        assert len(refused) >= blocked
        assert blocked or said == []
    finally:
        context.close()

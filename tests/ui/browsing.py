"""A real browser for the pages: Debian's chromium, driven by Playwright. Without chromium the tests are skipped."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Dialog, Page, async_playwright, expect

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS: Final = 120_000.0
"""For pages and for expectations: on a busy machine a page took longer than the 30 s of the browser's default."""

expect.set_options(timeout=PATIENCE_MS)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")


class Visit:
    """A page with its problems: errors, blocked scripts and styles, unexpected dialogs."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", self._answer)

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.trouble.append(text)

    async def _answer(self, dialog: Dialog) -> None:
        self.trouble.append(dialog.message)  # the pages ask in dialogs of their own
        await dialog.dismiss()

    async def agree(self) -> None:
        """Press the button of the open dialog that does what it asks."""
        await self.page.locator("dialog[open] [value=yes]").click()

    async def overflow(self) -> int:
        return int(await self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


async def visit(browser: Browser, url: str, **options: Any) -> Visit:
    page = await browser.new_page(**options)
    page.set_default_timeout(PATIENCE_MS)
    visit = Visit(page)
    await page.goto(url)
    return visit

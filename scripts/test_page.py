"""The proxy's page in a real browser: asked, watched, attacked, used by keyboard, and photographed.

Run by scripts/test_page.sh, which starts the stack. Playwright drives the Chromium of the system.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route, expect, sync_playwright

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
ATTACK = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
FOLLOWED_MS = 20_000
LINES_MS = 30_000  # until the lines of the figures are worth a look


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--url", required=True, help="the proxy's address")
    parser.add_argument("--admin-key", required=True)
    parser.add_argument("--browser", required=True, help="path of Chromium's program")
    parser.add_argument("--images", type=Path, required=True, help="folder for the screenshots")
    args = parser.parse_args()
    args.images.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=args.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            Checks(browser, args.url, args.admin_key, args.images).run()
        finally:
            browser.close()
    print("the page works")
    return 0


class Checks:
    """One after the other; an assertion that fails ends them."""

    def __init__(self, browser: Any, url: str, admin_key: str, images: Path) -> None:
        self._browser, self._url, self._key, self._images = browser, url, admin_key, images
        self._complaints: list[str] = []

    def run(self) -> None:
        for check in (self.cache_hits, self.late, self.keys, self.attack, self.keyboard, self.docs):
            check()
            assert self._complaints == [], "the browser complains"
            print(f"ok: {check.__name__.replace('_', ' ')}", flush=True)
        for scheme in ("light", "dark"):
            self.photograph(scheme)
        self.phone()

    def page(self, size: dict[str, int] | None = None, scheme: str = "light") -> Page:
        """A new browser profile's page; any complaint of it fails the check."""
        context = self._browser.new_context(viewport=size or DESKTOP, color_scheme=scheme)
        page: Page = context.new_page()
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("console", self._noted)
        return page

    def _noted(self, said: Any) -> None:
        if said.type == "error":
            self._complain(said.text)

    def _foreign(self, request: Any) -> None:
        if not request.url.startswith(self._url):
            self._complain(f"it asks for {request.url}")

    def _complain(self, what: str) -> None:
        if "status of 401" not in what:  # what a wrong key is answered with
            self._complaints.append(what)

    def ask(self, page: Page, question: str, example: int) -> str:
        page.click(f"#examples button:nth-child({example})")
        page.fill("#question", question)
        page.click("#send")
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false", timeout=FOLLOWED_MS)
        expect(page.locator("#summary")).not_to_be_empty(timeout=FOLLOWED_MS)
        return str(page.inner_text("#answer"))

    def cache_hits(self) -> None:
        page = self.page()
        page.goto(self._url)
        assert "star" in self.ask(page, "What is in this image?", 2)
        for stage in ("encode", "prefill", "decode"):
            expect(page.locator(f".lane.{stage} .bar").first).to_be_visible()
        expect(page.locator(".first")).to_be_attached()
        self.ask(page, "What color is the background?", 2)
        self.ask(page, "What color is the background?", 2)
        expect(page.locator("#summary .hits")).to_contain_text("came from the cache")
        expect(page.locator("#prompt .picture.cached").first).to_be_visible()
        page.context.close()

    def late(self) -> None:
        """A look at the stages that is not answered in time is followed by others."""
        page = self.page()
        looks: list[Route] = []

        def held(route: Route) -> None:
            looks.append(route)
            if len(looks) > 1:
                route.continue_()

        page.route(re.compile(r"/page/stages\?"), held)  # a script has the same name
        page.goto(self._url)
        self.ask(page, "What is in this image?", 2)
        assert len(looks) > 1
        page.context.close()

    def keys(self) -> None:
        page = self.page()
        page.goto(self._url)
        expect(page.locator(".worker").first).to_be_visible()
        expect(page.locator("#recent")).to_be_hidden()
        page.fill("#admin", "not the key")
        page.click("#door button")
        expect(page.locator("#door-problem")).to_contain_text("not the admin key")
        page.fill("#admin", self._key)
        page.click("#door button")
        expect(page.locator("#requests > li").first).to_be_visible()
        self.ask(page, "How many circles are in the image?", 3)
        page.wait_for_timeout(4000)  # the first of the list came while this page was open
        page.locator("#requests > li > button").first.click()
        expect(page.locator(".detail caption").first).to_contain_text("the master chose")
        expect(page.locator(".figure").first).to_be_visible()
        page.click("#leave")
        expect(page.locator("#recent")).to_be_hidden()
        page.goto(f"{self._url}/#admin-key={self._key}")
        page.reload()
        expect(page.locator("#requests > li").first).to_be_visible()
        page.wait_for_function("location.hash === ''")
        page.context.close()

    def attack(self) -> None:
        """An answer, an id and a model's name stay text."""
        body = {"model": ATTACK, "messages": [{"role": "user", "content": "x"}]}
        headers = {"content-type": "application/json", "x-request-id": ATTACK}
        asked = urllib.request.Request(
            f"{self._url}/v1/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            urllib.request.urlopen(asked, timeout=20).read()
        except urllib.error.HTTPError as error:
            error.read()
        page = self.page()
        page.route("**/v1/chat/completions", _hostile)
        page.goto(f"{self._url}/#admin-key={self._key}")
        page.click("#send")
        expect(page.locator("#answer")).to_contain_text(ATTACK)
        page.wait_for_timeout(3000)
        assert page.title() == "Triptych"
        assert page.locator("#answer *, #requests img, #requests script").count() == 0
        page.context.close()

    def keyboard(self) -> None:
        page = self.page()
        page.goto(f"{self._url}/#admin-key={self._key}")
        expect(page.locator("#requests > li").first).to_be_visible()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.focus("#examples button:nth-child(2)")
        page.keyboard.press("Space")
        expect(page.locator("#preview")).to_be_visible()
        page.focus("#question")
        page.keyboard.press("Enter")
        expect(page.locator("#summary")).not_to_be_empty(timeout=FOLLOWED_MS)
        page.wait_for_timeout(2000)
        page.locator("#requests > li > button").first.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".detail")).to_be_visible()
        page.wait_for_timeout(3500)  # the list is drawn anew meanwhile
        focused = "document.activeElement.getAttribute('aria-expanded')"
        assert page.evaluate(focused) == "true"
        nameless = page.evaluate(
            "[...document.querySelectorAll('button,input,select,textarea')].filter(e =>"
            " !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"
        )
        assert nameless == []
        page.context.close()

    def docs(self) -> None:
        page = self.page()
        page.on("request", self._foreign)
        page.goto(f"{self._url}/docs")
        expect(page.locator(".opblock").first).to_be_visible(timeout=FOLLOWED_MS)
        page.context.close()

    def photograph(self, scheme: str) -> None:
        page = self.page(DESKTOP, scheme)
        page.goto(f"{self._url}/#admin-key={self._key}")
        self.ask(page, "What color is the star?", 4)
        page.wait_for_timeout(LINES_MS)
        self.ask(page, "How many crosses are in the image?", 3)
        # The first screenshot shows a picture that no request has brought before.
        self.ask(page, "What is in this image?", 1)
        page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(2000)
        assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
        page.screenshot(path=self._images / f"page-{scheme}.png")
        page.context.close()

    def phone(self) -> None:
        page = self.page(PHONE)
        page.goto(f"{self._url}/#admin-key={self._key}")
        self.ask(page, "What is in this image?", 1)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.wait_for_timeout(2000)
        page.screenshot(path=self._images / "page-phone.png", full_page=True)
        page.context.close()


def _hostile(route: Route) -> None:
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": ATTACK}}]})
    body = f"data: {event}\n\ndata: [DONE]\n\n"
    route.fulfill(status=200, content_type="text/event-stream", body=body)


if __name__ == "__main__":
    sys.exit(main())

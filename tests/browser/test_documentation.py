"""The site of the documentation in a real browser: on a phone and on a desk, light and dark."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import a_page
from tests.browser.pictures import decoded
from tests.environment import SOON

ROOT = Path(__file__).parents[2]
PAGES = ("", "comparison/", "guide/", "how-to/events/", "reference/settings/", "troubleshooting/")
"""The landing page, the widest table, a diagram in the text, and long tables."""

MENU = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
ALL_PAGES = [
    re.sub(r"(README|index)?\.md$", lambda found: "" if found[1] else "/", page)
    for page in re.findall(r"(\S+\.md)$", MENU, re.MULTILINE)
]
"""Every page of the menu, as the site addresses it."""


WITHOUT_SCRIPTS = """
document.querySelector(".md-header").remove();
for (const table of document.querySelectorAll("table"))
    table.style.cssText = "display: block; overflow-x: auto";
"""


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site, built and served."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SOON, check=False
    )
    assert built.returncode == 0, built.stderr
    handler = functools.partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_their_screen_and_load_nothing_from_elsewhere(
    browser: Browser, address: str, width: int, scheme: str
) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with a_page(browser, **options) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for path in PAGES:
            page.goto(address + path)
            assert _overhang(page) <= 0, path
            assert page.evaluate("document.body.dataset.mdColorScheme") == (
                "slate" if scheme == "dark" else "default"
            )
        assert [url for url in asked if not url.startswith((address, "data:"))] == []
        page.goto(address)
        shown = page.locator(".shot:visible").first
        expect(shown).to_have_attribute("src", f"images/dashboard-overview{_kind(scheme)}")


def _kind(scheme: str) -> str:
    return "-dark.png#only-dark" if scheme == "dark" else ".png#only-light"


def _overhang(page: Page) -> float:
    """How many pixels of a page are beyond the right edge of the screen."""
    found: float = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return found


def test_every_page_fits_a_phone(browser: Browser, address: str) -> None:
    """The theme's script lets tables scroll and cuts the title in the header off.

    Here a style does the one, and the header is left out, in a tenth of the time.
    """
    size = {"width": 390, "height": 800}
    with a_page(browser, viewport=size, java_script_enabled=False) as page:
        wide = []
        for path in ALL_PAGES:
            page.goto(address + path)
            page.evaluate(WITHOUT_SCRIPTS)
            if _overhang(page) > 0:
                wide.append(path)
    assert len(ALL_PAGES) > 60
    assert wide == []


def test_diagram_has_the_colours_that_the_reader_chose(browser: Browser, address: str) -> None:
    """The theme's switch counts, not the system's setting."""
    with a_page(browser, color_scheme="light") as page:
        page.goto(f"{address}how-to/events/")
        diagram = page.locator("img[src*='diagrams/events']")
        light = _corner(diagram.screenshot())
        page.get_by_title("Dark", exact=True).click()
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
        dark = _corner(diagram.screenshot())
    assert min(light) > 200
    assert max(dark) < 80


def _corner(picture: bytes) -> tuple[int, ...]:
    """The colour of a diagram's card, where nothing is drawn on it."""
    return tuple(int(part) for part in decoded(picture)[12, 12])


def test_menu_begins_with_what_a_reader_needs_first(page: Page, address: str) -> None:
    page.goto(address)
    tabs = [text.strip() for text in page.locator(".md-tabs__link").all_inner_texts()]
    assert tabs == [
        "Start",
        "Guides",
        "Applications",
        "Operations",
        "Reference",
        "Internals",
        "Decisions",
    ]


def test_search_finds_a_page(page: Page, address: str) -> None:
    page.goto(address)
    page.locator(".md-search__input").fill("kill -9 celery")
    expect(page.locator(".md-search-result__link").first).to_be_visible()

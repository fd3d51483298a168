"""A real Chromium, and a server of the test's own, in a thread with a loop of its own.

One browser serves all tests of a module. It is gone before others run: while it is there, the
thread of the tests counts as one that runs an event loop.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

from penstock import Penstock
from penstock.apps import events, indexing
from penstock.server.app import Service
from penstock.stores import open_store
from penstock.stores.observed import Timing, observe
from tests.environment import SOON
from tests.missing import stop
from tests.server.support import Listener

T = TypeVar("T")

VARIABLE = "PENSTOCK_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "the browser tests need Chromium: apt-get install chromium, or name one that is there:"
    f" {VARIABLE}=/path/to/chromium; --ignore=tests/browser leaves these tests out"
)
expect.set_options(timeout=30_000)


def chromium() -> str | None:
    """The path of Chromium, if there is one."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without Chromium, say so once and at the beginning, if a test needs it."""
    if chromium() is None and any(
        Path(__file__).parent in item.path.parents for item in session.items
    ):
        stop(session, MISSING)


class Site:
    """A server and its store."""

    def __init__(self, listener: Listener, app: Penstock, loop: asyncio.AbstractEventLoop) -> None:
        self.url = listener.url
        self.app = app
        self._loop = loop

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        """Do something with the app, in the loop of the server."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(SOON)


@contextmanager
def a_site(folder: Path) -> Iterator[Site]:
    made: Future[Site] = Future()
    stopping = threading.Event()

    async def run() -> None:
        timings: dict[str, Timing] = {}
        app = Penstock(
            f"sqlite:///{folder}/jobs.db",
            secret_fields=["password"],
            opener=lambda *args, **options: observe(open_store(*args, **options), timings),
        )
        settings = indexing.Settings(project_root=str(folder))
        data = folder / "data"
        data.mkdir()
        installed = [
            events.install(app, events.Settings(), data),
            indexing.install(app, settings, data),
        ]
        service = Service(app, installed, timings=timings)
        listener = Listener(service)
        listening = asyncio.create_task(listener.listen())
        while not listener.started:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)
        made.set_result(Site(listener, app, asyncio.get_running_loop()))
        await asyncio.to_thread(stopping.wait)
        listener.should_exit = True
        await listening
        listener.socket.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield made.result(SOON)
    finally:
        stopping.set()
        thread.join(SOON)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_site(tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.fail(MISSING, pytrace=False)
    with sync_playwright() as playwright:
        # As root, in a container, there is nothing to make a sandbox with.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        try:
            browser = playwright.chromium.launch(executable_path=path, args=options)
        except Error as error:
            pytest.fail(f"{path} does not start: {error}; {MISSING}")
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in which nothing goes wrong unnoticed."""
    with a_page(browser) as page:
        yield page


@contextmanager
def a_page(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    page.on("console", heard)
    yield page
    context.close()
    assert wrong == []


def ready(page: Page, address: str) -> None:
    """Go there, and wait until the screen is whole."""
    page.goto(address)
    page.wait_for_selector("main[aria-busy=false]", timeout=30_000)

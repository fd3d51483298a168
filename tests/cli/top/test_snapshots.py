"""Pictures of every page, compared with those that people have looked at.

The clock stands still, the jobs are the same everywhere. PENSTOCK_SNAPSHOTS=write draws them anew.
"""

import difflib
import os
import re
import time
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.top.theme import DARK, LIGHT
from penstock.testing import Clock
from tests.cli.support import NOON, Screen, now_of, sample, viewing
from tests.environment import SOON

HERE = Path(__file__).parent / "snapshots"
DOCS = Path(__file__).parents[3] / "docs" / "images"
WRITES = os.environ.get("PENSTOCK_SNAPSHOTS") == "write"


@pytest.fixture
async def store() -> AsyncIterator[tuple[Penstock, Clock]]:
    app, clock = await sample()
    yield app, clock
    await app.close()


def picture(screen: Screen) -> str:
    """What is on the screen, without what differs from run to run, and loading nothing."""
    drawn = screen.top.export_screenshot(title="penstock top", simplify=True)
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"terminal-\d+", "terminal", drawn)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def words(drawn: str) -> list[str]:
    """The texts of a picture, a line each."""
    return [unescape(one) for one in re.findall(r"<text[^>]*>([^<]*)</text>", drawn)]


async def compare(screen: Screen, name: str, folder: Path = HERE) -> None:
    """Wait until the screen is as in the picture; what is drawn in several steps needs a moment."""
    path = folder / f"{name}.svg"
    if WRITES:
        for _ in range(5):
            await screen.settle()
        path.write_text(picture(screen), "utf-8")
        return
    wanted, deadline = path.read_text("utf-8"), time.monotonic() + SOON
    while (drawn := picture(screen)) != wanted:
        if time.monotonic() > deadline:
            changes = difflib.unified_diff(words(wanted), words(drawn), "picture", "now", n=0)
            pytest.fail("\n".join([f"{path.name} differs", *changes]))
        await screen.settle()


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
async def test_queues(store: tuple[Penstock, Clock], theme: str) -> None:
    async with viewing(store[0], now=now_of(store[1]), theme=theme) as screen:
        await screen.until("mail", "paused", "full")
        folder = DOCS if theme == DARK.name else HERE
        await compare(screen, "top-queues" if folder is DOCS else "queues-light", folder)


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
async def test_jobs(store: tuple[Penstock, Clock], theme: str) -> None:
    async with viewing(store[0], now=now_of(store[1]), theme=theme, size=(110, 20)) as screen:
        await screen.press("2")
        await screen.until("resize", "mailbox")
        folder = DOCS if theme == DARK.name else HERE
        await compare(screen, "top-jobs" if folder is DOCS else "jobs-light", folder)


async def test_a_job_that_failed(store: tuple[Penstock, Clock]) -> None:
    async with viewing(store[0], now=now_of(store[1]), size=(100, 50)) as screen:
        await screen.press("slash")
        await screen.type("state:failed")
        await screen.until("mailbox", absent="resize")
        await screen.press("enter")
        await screen.until("Attempts", "Traceback", "Log")
        await compare(screen, "top-job", DOCS)


async def test_a_job_that_runs_in_light(store: tuple[Penstock, Clock]) -> None:
    async with viewing(store[0], now=now_of(store[1]), theme=LIGHT.name) as screen:
        await screen.press("slash")
        await screen.type("state:running")
        await screen.until("resize", absent="export")
        await screen.press("enter")
        await screen.until("75%", "img-30.png")
        await compare(screen, "job-running-light")


async def test_workers(store: tuple[Penstock, Clock]) -> None:
    async with viewing(store[0], now=now_of(store[1])) as screen:
        await screen.press("3")
        await screen.until("web1:4711", "last seen")
        await compare(screen, "workers")


async def test_schedules(store: tuple[Penstock, Clock]) -> None:
    async with viewing(store[0], now=now_of(store[1]), size=(110, 12)) as screen:
        await screen.press("4")
        await screen.until("nightly", "sweep", "paused", "next run")
        await compare(screen, "top-schedules", DOCS)


@pytest.mark.parametrize("page", ["queues", "jobs"])
async def test_narrow_terminal(store: tuple[Penstock, Clock], page: str) -> None:
    async with viewing(store[0], now=now_of(store[1]), size=(50, 18)) as screen:
        await screen.press("1" if page == "queues" else "2")
        await screen.until("mail" if page == "queues" else "resize")
        await compare(screen, f"{page}-narrow")


async def test_a_question_has_the_count(store: tuple[Penstock, Clock]) -> None:
    async with viewing(store[0], now=now_of(store[1])) as screen:
        await screen.press("slash")
        await screen.type("queue:reports")
        # The filter itself says "report": wait for a row, or C would be typed into it.
        await screen.until("cancelled", absent="resize")
        await screen.once(lambda _: screen.focus == "job-list")
        await screen.press("C")
        await screen.until("Cancel 3 jobs?")
        await compare(screen, "confirm")


async def test_help(store: tuple[Penstock, Clock]) -> None:
    async with viewing(store[0], now=now_of(store[1]), size=(100, 50)) as screen:
        await screen.until("mail")
        await screen.press("question_mark")
        await screen.until("Everywhere", "Filters")
        await compare(screen, "help")


async def test_empty_store() -> None:
    app = Penstock("memory://")
    async with viewing(app, now=lambda: NOON, size=(80, 12)) as screen:
        await screen.until("There are no queues yet.")
        await compare(screen, "empty")
    await app.close()

"""A view that a test drives, on a store whose clock stands still."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from textual.pilot import Pilot

from penstock.cli.store import App
from penstock.cli.top.app import Top
from penstock.cli.top.desk import Now, system_now
from penstock.cli.top.feed import Feed
from penstock.cli.top.looks import DARK
from penstock.testing import Clock

SOON = 30
"""Seconds after which a test gives up; nothing comes near unless it is broken."""

SECOND = timedelta(seconds=1)


class Screen:
    """A view on a terminal of its own, and what can be read there."""

    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top = top
        self._pilot = pilot

    def text(self) -> str:
        """What stands on the screen."""
        width, height = self.top.size
        lines = self.top.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in lines[:height] if width)

    @property
    def focus(self) -> str | None:
        """What the keys go to."""
        return None if self.top.focused is None else self.top.focused.id

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        names = {":": "colon", " ": "space", "'": "apostrophe"}
        await self._pilot.press(*(names.get(c, c) for c in text), "enter")

    async def until(self, *texts: str, absent: str | None = None) -> str:
        """The screen, once all these stand on it; each press is followed by looks of its own."""
        return await self.once(
            lambda seen: all(text in seen for text in texts) and (absent or "\0") not in seen, texts
        )

    async def once(self, right: Callable[[str], bool], wanted: object = "") -> str:
        deadline = time.monotonic() + SOON
        while not right(self.text()):
            assert time.monotonic() < deadline, f"{wanted!r} is not in\n{self.text()}"
            await self._pilot.pause(0.02)
        return self.text()

    async def settle(self) -> None:
        """Let it draw what it has to draw."""
        await self._pilot.pause(0.05)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)

    def said(self) -> list[str]:
        """What was told in passing, the newest last."""
        return [note.message for note in self.top._notifications]

    async def until_said(self, text: str) -> str:
        deadline = time.monotonic() + SOON
        while not any(text in one for one in self.said()):
            assert time.monotonic() < deadline, f"{text!r} was not said: {self.said()}"
            await self._pilot.pause(0.02)
        return next(one for one in self.said() if text in one)


@asynccontextmanager
async def viewing(
    app: App,
    *,
    now: Now = system_now,
    theme: str = DARK.name,
    size: tuple[int, int] = (120, 30),
) -> AsyncIterator[Screen]:
    """A view that runs inside the block."""
    top = Top(Feed(app), now=now, theme=theme)
    async with top.run_test(size=size, notifications=True) as pilot:
        yield Screen(top, pilot)


def now_of(clock: Clock) -> Now:
    return lambda: clock.now

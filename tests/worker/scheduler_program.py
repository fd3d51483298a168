"""A program with periodic tasks, whose clock is a file that a test sets: `URL CLOCK`."""

import asyncio
import mmap
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from penstock import Penstock, Retention, Worker
from penstock.core.times import from_micros, to_micros

TIMES: dict[str, tuple[str, str]] = {
    "nightly": ("30 2 * * *", "Europe/Berlin"),
    "around": ("*/20 * * * *", "Europe/Berlin"),
    "office": ("15,45 8-17 * * 1-5", "America/New_York"),
    "odd": ("*/45 1-3 * * *", "Australia/Lord_Howe"),
    "monthly": ("0 0 1,15 * *", "America/New_York"),
}
"""Tasks by name, each with its cron expression and time zone."""


class SharedClock:
    """A clock that several processes read and a test sets."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def __call__(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    @property
    def now(self) -> datetime:
        return from_micros(self())

    def set(self, instant: datetime) -> None:
        self._memory[:8] = to_micros(instant).to_bytes(8, "little")


async def handler() -> None:
    """Do nothing: what matters is that it was enqueued."""


def program(url: str, clock: Any, missed: Any = "all") -> Penstock:
    """Return the same app in every process."""
    app = Penstock(url, clock=clock)
    for name, (cron, timezone) in TIMES.items():
        app.task(name, handler, cron=cron, timezone=timezone, missed=missed)
    return app


async def main(url: str, clock: str) -> None:
    keep = timedelta(days=3650)
    app = program(url, SharedClock(Path(clock)))
    worker = Worker(
        app, sweep=timedelta(milliseconds=20), retention=Retention(finished=keep, failed=keep)
    )
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

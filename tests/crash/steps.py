"""A job of many steps, each of which leaves a trace and then a checkpoint."""

import asyncio
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.core.progress import Line
from penstock.worker.context import context
from penstock.worker.worker import Worker
from tests.crash.client import Client
from tests.crash.recording import recorded_run

STEPS = 20
WAITS_AT = 5


class Walk:
    """The handlers `walk` and `walk_plainly`, which die at `at step N` and `at saved N`."""

    def __init__(self, app: Client, pause: float = 0) -> None:
        self._app = app
        self._pause = pause
        app.task("walk", self.walk)
        app.task("walk_plainly", self.walk_plainly)

    async def walk(self, mark: str, does: list[str]) -> str:
        run = context()
        with recorded_run(run.job, self._app.recorder, self._app.fence):
            for step in range(run.state or 0, STEPS):
                self._step(step)
                await asyncio.sleep(self._pause)
                await run.checkpoint(step + 1)
                self._app.point.step("saved")
        return mark

    def walk_plainly(self, mark: str, does: list[str]) -> str:
        run = context()
        with recorded_run(run.job, self._app.recorder, self._app.fence):
            for step in range(run.state or 0, STEPS):
                self._step(step)
                time.sleep(self._pause)
                if does == ["wait"] and run.attempt == 1 and step == WAITS_AT:
                    while not (self._app.folder / "go").exists():
                        time.sleep(0.005)
                run.checkpoint(step + 1)
                self._app.point.step("saved")
        return mark

    def _step(self, step: int) -> None:
        context().progress(step, STEPS)
        trace(self._app.folder, step)
        self._app.point.step("step")


def walker(app: Client, options: dict[str, Any]) -> None:
    """Works on jobs of many steps until it is asked to stop."""
    Walk(app, options.get("pause", 0))
    asyncio.run(_work(app))


async def _work(app: Client) -> None:
    working = Worker(app, name=app.connection.actor, concurrency=2, sweep=timedelta(seconds=0.1))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
    await working.run()
    await app.close()


def trace(folder: Path, step: int) -> None:
    """One line in one call: it is there or not, whenever its process dies."""
    file = os.open(folder / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, f"{step}\n".encode())
    os.close(file)


def some_line() -> Line:
    return Line(0, datetime.now(UTC), "INFO", "hello", 1)


def traces(folder: Path) -> list[int]:
    """The steps that were done, in their order."""
    path = folder / "steps"
    return [int(line) for line in path.read_text().split()] if path.exists() else []

"""Clients that move a queue to another store, and one that works on where it went."""

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from penstock.core.store import Store
from penstock.engine import migration
from penstock.engine.penstock import Penstock, run_sync
from penstock.runtime import system_clock
from penstock.stores import open_store
from penstock.testing.stores import Proxy
from penstock.worker.context import context
from penstock.worker.worker import Worker
from tests.crash.client import Client
from tests.crash.points import Point

AHEAD = timedelta(hours=6)
"""How far the worker's clock is ahead: all that is scheduled is due."""


class Watched(Proxy):
    """A store whose process may die before or behind each verb: `at before target.restore 3`."""

    def __init__(self, store: Store, name: str, point: Point) -> None:
        super().__init__(store)
        self._name = name
        self._point = point

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._store, verb)
        if verb == "clock":
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._point.step(f"before {self._name}.{verb}")
            answer = await real(*args, **kwargs)
            self._point.step(f"after {self._name}.{verb}")
            return answer

        return call


def mover(app: Client, options: dict[str, Any]) -> None:
    """Moves a queue in small portions."""
    migration.PORTION = 5  # type: ignore[attr-defined] # small portions, so that there are many
    source, target = (
        Penstock(options[name], opener=_opener(name, app.point)) for name in ("source", "target")
    )
    run_sync(migration.migrate(source, target))


def _opener(name: str, point: Point) -> Callable[..., Store]:
    def opened(url: str, **how: Any) -> Store:
        return cast("Store", Watched(open_store(url, **how), name, point))

    return opened


def finisher(app: Client, options: dict[str, Any]) -> None:
    """Runs all that is in a store, and writes down what ran."""
    ahead = AHEAD // timedelta(microseconds=1)
    working = Penstock(options["target"], clock=lambda: system_clock() + ahead)
    ran = os.open(app.folder / "ran.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def note(n: int = 0, text: str = "") -> None:
        os.write(ran, f"{context().job.id} {n} {text}\n".encode())

    for name in ("t", "cron"):
        working.task(name, note)
    asyncio.run(Worker(working, concurrency=3).run(until_empty=True))


def ran_in(folder: Path) -> list[tuple[int, int]]:
    """The jobs that the finisher has run, in that order: the id, and the number it was given."""
    lines = (folder / "ran.txt").read_text("utf-8").splitlines()
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


ROLES = (mover, finisher)

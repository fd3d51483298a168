"""penstock with its defaults: every commit on disk, audit log on, workers on uvloop."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

from benchmarks.contenders import Contender, Handle, Payload
from penstock import Penstock, Worker, run_sync
from penstock.cli.event_loop import run

LOOK_SECONDS = 0.01


def open_ours(contender: Contender, folder: Path, name: str = "jobs") -> "PenstockQueue":
    """Open a contender that is one of ours."""
    return cast("PenstockQueue", contender.open(folder, name))


class PenstockQueue:
    """The synchronous edge for the scenarios shared with peers; `app` and `task` for our own."""

    slots = 100

    def __init__(self, folder: Path, name: str = "jobs") -> None:
        self.folder = folder
        self.app = Penstock(self.url(name))
        self.ran = 0
        self._handle: Handle | None = None
        self._enough = asyncio.Event()

        @self.app.task()
        async def noop(data: Payload) -> None:
            self.ran += 1
            if self._handle is not None and not self._handle(data):
                self._enough.set()

        self.task = noop

    def url(self, name: str) -> str:
        """The store of that name in the folder."""
        return f"sqlite:///{self.folder.resolve() / name}.db"

    def rest(self) -> None:
        """Let the store be as one that has worked for a while; never timed."""

    def size(self) -> float:
        """The bytes that the stores of the folder take on disk."""
        return float(sum(one.stat().st_size for one in self.folder.glob("*.db*")))

    def held_open(self) -> AbstractContextManager[None]:
        """Another program keeps a transaction open, inside the block."""
        return _held_open(self.folder / "jobs.db")

    def enqueue(self, payload: Payload) -> None:
        run_sync(self.task.enqueue(payload))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        run_sync(self.app.enqueue_many([self.task.new(payload) for payload in payloads]))

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """All of them in one call."""
        self.enqueue_many(payloads)

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)
        self.rest()

    def drain(self, handle: Handle) -> None:
        self._handle = handle
        run(self.work_until_empty())

    async def work_until_empty(self) -> None:
        """Work off what is ready."""
        await Worker(self.app, concurrency=self.slots).run(until_empty=True)

    def serve(self, handle: Handle) -> None:
        self._handle = handle
        run(self.work_until_enough())

    async def work_until_enough(self) -> None:
        """Work until the handler has seen enough, then stop without waiting for empty."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(Worker(self.app, concurrency=self.slots).run())
            await self._enough.wait()
            working.cancel()

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        self._handle = handle
        run(self._work_until(is_over))

    async def _work_until(self, is_over: Callable[[], bool]) -> None:
        worker = Worker(self.app, concurrency=self.slots)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            while not is_over():  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(LOOK_SECONDS)
            worker.stop()

    def close(self) -> None:
        run_sync(self.app.close())


@contextmanager
def _held_open(path: Path) -> Iterator[None]:
    """Somebody else's transaction, with a snapshot, as long as the block."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM sqlite_master").fetchone()
    yield
    other.close()


class PenstockJournal(PenstockQueue):
    """The same on a journal."""

    def url(self, name: str) -> str:
        return f"journal:///{self.folder.resolve() / name}"


class UnsyncedJournal(PenstockQueue):
    """Commits without waiting for the disk: a crash of the machine loses acknowledged jobs."""

    def url(self, name: str) -> str:
        return f"journal:///{self.folder.resolve() / name}?durability=process"

"""penstock with its defaults: `synchronous=FULL`, audit log on."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contenders import Handle, Payload
from penstock import Penstock, Worker, run_sync

SLOTS = 100


class PenstockQueue:
    """The synchronous edge for the scenarios shared with peers; `app` and `task` for our own."""

    def __init__(self, folder: Path, name: str = "jobs.db") -> None:
        self.app = Penstock(f"sqlite:///{folder.resolve() / name}")
        self.ran = 0
        self._handle: Handle | None = None
        self._enough = asyncio.Event()

        @self.app.task()
        async def noop(data: Payload) -> None:
            self.ran += 1
            if self._handle is not None and not self._handle(data):
                self._enough.set()

        self.task = noop

    def enqueue(self, payload: Payload) -> None:
        run_sync(self.task.enqueue(payload))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        run_sync(self.app.enqueue_many([self.task.new(payload) for payload in payloads]))

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)

    def drain(self, jobs: int) -> None:
        asyncio.run(Worker(self.app, concurrency=SLOTS).run(until_empty=True))
        if self.ran != jobs:
            raise RuntimeError(f"{self.ran} of {jobs} jobs ran")

    def serve(self, handle: Handle) -> None:
        self._handle = handle
        asyncio.run(self.work_until_enough())

    async def work_until_enough(self) -> None:
        """Work until the handler has seen enough, then stop without waiting for empty."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(Worker(self.app, concurrency=SLOTS).run())
            await self._enough.wait()
            working.cancel()

    def close(self) -> None:
        run_sync(self.app.close())

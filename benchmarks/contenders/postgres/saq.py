"""SAQ with its PostgreSQL queue; it claims for all idle slots at once and finishes job by job."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from saq import Worker
from saq.queue.postgres import PostgresQueue

from benchmarks.contenders import Payload
from benchmarks.contenders.postgres import AsyncQueue, Work

CONCURRENCY = 20
CONNECTIONS = 20
AT_ONCE = 1_000


class SaqQueue(AsyncQueue):
    """No bulk call, only many calls at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        logging.getLogger("saq").setLevel(logging.ERROR)  # it warns of idle slots when it stops
        self._queue = PostgresQueue.from_url(self.url, max_size=CONNECTIONS)
        self.run(self._queue.connect())

    def enqueue(self, payload: Payload) -> None:
        self.run(self._queue.enqueue("noop", data=payload))

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """A thousand calls at once, on all connections of the pool."""
        for start in range(0, len(payloads), AT_ONCE):
            self.run(self._enqueue_at_once(payloads[start : start + AT_ONCE]))

    async def _enqueue_at_once(self, payloads: Sequence[Payload]) -> None:
        await asyncio.gather(*(self._queue.enqueue("noop", data=one) for one in payloads))

    async def work(self, handle: Work, stop: Awaitable[object]) -> None:
        running = 0
        idle = asyncio.Event()

        async def noop(_: dict[str, Any], *, data: Payload) -> None:
            handle(data)

        async def begin(_: dict[str, Any]) -> None:
            nonlocal running
            running += 1
            idle.clear()

        async def end(_: dict[str, Any]) -> None:
            nonlocal running
            running -= 1
            if not running:
                idle.set()

        worker = Worker(
            self._queue,
            [("noop", noop)],
            concurrency=CONCURRENCY,
            before_process=begin,
            after_process=end,
        )
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(worker.start())
            await stop
            with contextlib.suppress(TimeoutError):
                # Its stop cuts off what has not ended; while there are more jobs, some never has.
                await asyncio.wait_for(idle.wait(), 1)
            await worker.stop()
            await working

    def close(self) -> None:
        self.run(self._queue.disconnect())
        super().close()

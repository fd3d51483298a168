"""Chancy with its asyncio executor; it looks for more as soon as a job ends (`eager_polling`)."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import logging
from collections.abc import Awaitable, Sequence
from pathlib import Path

from chancy import Chancy, Job, Queue, Worker, job

from benchmarks.contenders import Payload
from benchmarks.contenders.postgres import AsyncQueue, Work

CONCURRENCY = 100
"""Its executor's default."""

_log = logging.getLogger("chancy")
_handle: list[Work] = []


@job(queue="default")
async def noop(*, data: Payload) -> None:
    """Handle a job: found by its module and name."""
    _handle[0](data)


class ChancyQueue(AsyncQueue):
    """What a job came to is written once a second, in batches, as by default."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _log.setLevel(logging.WARNING)
        self._app = Chancy(self.url, log=_log)
        self._app.sync_pool.open()
        self.run(self._install())

    async def _install(self) -> None:
        async with Chancy(self.url, log=_log) as app:
            if not await app.is_up_to_date():
                await app.migrate()
                await app.declare(
                    Queue(
                        "default",
                        concurrency=CONCURRENCY,
                        executor=Chancy.Executor.Async,
                        eager_polling=True,
                    )
                )

    def enqueue(self, payload: Payload) -> None:
        self._app.sync_push(self._new(payload))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        for _ in self._app.sync_push_many(
            [self._new(payload) for payload in payloads], batch_size=len(payloads)
        ):
            pass

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """All of them in one call, which makes batches of a thousand."""
        for _ in self._app.sync_push_many([self._new(payload) for payload in payloads]):
            pass

    def _new(self, payload: Payload) -> Job:
        return noop.job.with_kwargs(data=payload)

    async def work(self, handle: Work, stop: Awaitable[object]) -> None:
        _handle[:] = [handle]
        async with (
            Chancy(self.url, log=_log) as app,
            Worker(app, register_signal_handlers=False),
        ):
            await stop

    def close(self) -> None:
        self._app.sync_pool.close()
        super().close()

"""Procrastinate on psycopg; it fetches and finishes job by job."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from pathlib import Path

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.contenders import Payload
from benchmarks.contenders.postgres import AsyncQueue, Work

CONCURRENCY = 20
CONNECTIONS = 20


class ProcrastinateQueue(AsyncQueue):
    """Finished jobs stay, as by default."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._app = App(connector=SyncPsycopgConnector(conninfo=self.url))
        self._app.open()
        self._task = self._app.configure_task("noop", allow_unknown=True)
        if not self._app.check_connection():
            self._app.schema_manager.apply_schema()

    def enqueue(self, payload: Payload) -> None:
        self._task.defer(data=payload)

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        self._task.batch_defer(*({"data": payload} for payload in payloads))

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """All of them in one call."""
        self.enqueue_many(payloads)

    async def work(self, handle: Work, stop: Awaitable[object]) -> None:
        app = App(connector=PsycopgConnector(conninfo=self.url, max_size=CONNECTIONS))

        @app.task(name="noop")
        async def noop(data: Payload) -> None:
            handle(data)

        async with app.open_async():
            working = asyncio.create_task(
                app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
            )
            await stop
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    def close(self) -> None:
        self._app.close()
        super().close()

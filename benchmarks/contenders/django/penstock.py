"""penstock as the backend, with its defaults."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import asyncio
import signal

from benchmarks.contenders.django import DjangoQueue
from penstock import Worker, run_sync
from penstock.cli.event_loop import run


class PenstockQueue(DjangoQueue):
    """Twenty threads, as by default."""

    backend = "penstock.django.backend.PenstockBackend"
    apps = ("penstock.django",)

    def work(self, *, until_empty: bool) -> None:
        run(self._work(until_empty=until_empty))

    async def _work(self, *, until_empty: bool) -> None:
        async with self.tasks.noop.get_backend().worker_app() as app:
            worker = Worker(app)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
            await worker.run(until_empty=until_empty)

    def close(self) -> None:
        run_sync(self.tasks.noop.get_backend().penstock.close())
        super().close()


class PostgresPenstockQueue(PenstockQueue):
    """The same on PostgreSQL."""

    on_postgres = True

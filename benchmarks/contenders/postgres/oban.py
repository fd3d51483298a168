"""Oban for Python; it fetches in batches and acknowledges job by job. Needs Python 3.12."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

from collections.abc import Awaitable, Sequence
from pathlib import Path

import psycopg
from oban import Job, Oban, worker
from oban.schema import install_sql

from benchmarks.contenders import Payload
from benchmarks.contenders.postgres import AsyncQueue, Work

LIMIT = 500
CONNECTIONS = 10
"""Its default."""

_handle: list[Work] = []


@worker(queue="default")
class Noop:
    """Handles a job: found by its module and name."""

    async def process(self, job: Job) -> None:
        """Handle it."""
        _handle[0](job.args)


class ObanQueue(AsyncQueue):
    """Finished jobs stay for a day, as by default."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with psycopg.connect(self.url) as connection:
            found = connection.execute("SELECT to_regclass('oban_jobs')").fetchone()
            if found == (None,):
                connection.execute(install_sql().encode())
        self._pool = self.run(Oban.create_pool(self.url, max_size=CONNECTIONS))
        self._client = Oban(pool=self._pool, name="client")

    def enqueue(self, payload: Payload) -> None:
        self.run(self._client.enqueue(self._new(payload)))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        self.run(self._client.enqueue_many([self._new(payload) for payload in payloads]))

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """All of them in one call."""
        self.enqueue_many(payloads)

    def _new(self, payload: Payload) -> Job:
        return Noop.new(payload)  # type: ignore[attr-defined] # from its decorator

    async def work(self, handle: Work, stop: Awaitable[object]) -> None:
        _handle[:] = [handle]
        async with Oban(pool=self._pool, queues={"default": LIMIT}):
            await stop

    def close(self) -> None:
        self.run(self._pool.close())
        super().close()

"""PgQueuer on asyncpg, in batches of 250."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path

import asyncpg
import msgspec
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.contenders import Payload
from benchmarks.contenders.postgres import AsyncQueue, Work

BATCH = 250


class PgQueuerQueue(AsyncQueue):
    """Payloads are bytes, so it gets a fast JSON codec. Finished jobs move to its log table."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Payload).decode
        self._connection = self.run(asyncpg.connect(self.url))
        self._queries = Queries.from_asyncpg_connection(self._connection)
        self.run(self._install())

    async def _install(self) -> None:
        if not await self._queries.schema_is_installed():
            await self._queries.install()

    def enqueue(self, payload: Payload) -> None:
        self.run(self._queries.enqueue("noop", self._encode(payload)))

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        bodies = [self._encode(payload) for payload in payloads]
        entrypoints, priorities = ["noop"] * len(bodies), [0] * len(bodies)
        self.run(self._queries.enqueue(entrypoints, bodies, priorities))

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        """All of them in one call."""
        self.enqueue_many(payloads)

    async def work(self, handle: Work, stop: Awaitable[object]) -> None:
        queue = PgQueuer.from_asyncpg_connection(self._connection)

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            handle(self._decode(job.payload))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.run(batch_size=BATCH))
            await stop
            queue.shutdown.set()

    def close(self) -> None:
        self.run(self._connection.close())
        super().close()

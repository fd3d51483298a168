"""What the view shows, from a store or from a server, and when it is worth another look."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec

from penstock.cli.store import App
from penstock.cli.top.figures import Figures, begin, figures
from penstock.client.remote import RemotePenstock
from penstock.core.errors import PenstockError, ServerUnreachable
from penstock.core.job import Job, JobQuery, LogEntry, Overall, QueueQuery
from penstock.core.note import LINES_KEPT, Line, Progress
from penstock.core.redaction import redacted
from penstock.core.token import Access
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock
from penstock.explaining import Explanation

LOG_SHOWN = 1_000
QUEUES_SHOWN = 200
"""Queues of a page."""
_LINES_SHOWN = 100
# A store rings for what became ready or ended, not for what was claimed; a server tells all.
_STORE_PATIENCE, _SERVER_PATIENCE = 2.0, 10.0

Wait = Callable[[], Awaitable[None]]
"""Returns when something may have changed, and now and then all the same."""


class Overview(msgspec.Struct, frozen=True):
    """A page of queues, what all queues have together, and all workers, at one moment."""

    figures: list[Figures]
    workers: list[WorkerInfo]
    overall: Overall


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one job."""

    job: Job
    explanation: Explanation
    progress: Progress | None
    checkpoint: Any
    lines: Sequence[Line]
    log: Sequence[LogEntry]


class Feed:
    """Looks at a store, or at the queue behind a server."""

    def __init__(self, app: App, queues: QueueQuery | None = None) -> None:
        self.app = app
        self.queues = queues or QueueQuery(limit=QUEUES_SHOWN)

    async def overview(self, now: datetime) -> Overview:
        """The queues of a page with their figures, and who works."""
        app = self.app
        if isinstance(app, Penstock):  # a server counts by itself
            await app.digest()
        workers = await app.workers()
        found = figures(
            await app.queue_statuses(self.queues),
            workers,
            await app.history(begin(now), now, self.queues),
            now,
        )
        return Overview(found, workers, await app.overall())

    async def find(self, query: JobQuery) -> list[Job]:
        """A page of jobs."""
        found = await self.app.find(query)
        return [job for job in found if self.app.secrets.lets_find(job, query)]

    async def whole(self, job_id: int) -> Whole:
        """One job in full."""
        app = self.app
        job = await app.get(job_id)
        lines = await app.lines(job_id, limit=LINES_KEPT)
        return Whole(
            job=job,
            explanation=await app.explain(job_id),
            progress=await app.progress(job_id),
            checkpoint=await app.checkpoint(job_id) if isinstance(app, Penstock) else None,
            lines=lines[-_LINES_SHOWN:],
            log=await app.log(job_id, limit=LOG_SHOWN),
        )

    async def may_steer(self) -> bool:
        """Whether more than looking is allowed, by the scopes of the token of a server."""
        app = self.app
        return not isinstance(app, RemotePenstock) or Access.ADMIN in await app.scopes()

    async def close(self) -> None:
        """Let go of the connections to a server; who opened a store closes it."""
        if isinstance(self.app, RemotePenstock):
            await self.app.close()

    def changes(self) -> AbstractAsyncContextManager[Wait]:
        """Inside the block, no change is missed between a look and the next wait."""
        return _of_server(self.app) if isinstance(self.app, RemotePenstock) else _of_store(self.app)


@asynccontextmanager
async def _of_store(app: Penstock) -> AsyncIterator[Wait]:
    seen = 0

    async def wait() -> None:
        nonlocal seen
        seen = await app.wait(seen, _STORE_PATIENCE)

    yield wait


@asynccontextmanager
async def _of_server(app: RemotePenstock) -> AsyncIterator[Wait]:
    """Its stream is read on and on, and not understood: that it speaks is enough."""
    news = asyncio.Event()
    async with app.changes() as pieces:
        reading = asyncio.create_task(_listen(pieces, news))

        async def wait() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SERVER_PATIENCE):
                    await news.wait()
            news.clear()
            if reading.done():
                raise reading.exception() or ServerUnreachable(
                    f"{redacted(app.url)} has ended the stream"
                )

        try:
            yield wait
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading


async def _listen(pieces: AsyncIterator[bytes], news: asyncio.Event) -> None:
    try:
        async for _ in pieces:
            news.set()
    except PenstockError:
        raise
    except Exception as error:  # what the line breaks with, which only the line itself can name
        raise ServerUnreachable(f"the stream of changes broke: {error!r}") from error
    finally:
        news.set()

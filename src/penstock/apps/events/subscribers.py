"""Subscribers that wait for events, with one watch on the store for all of them.

When the store notifies, one query returns the tags that have ready events. Only subscribers of
these tags claim, the longest waiting first and not all at once: one event wakes one of a thousand
subscribers of its tag.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock import Job, Penstock, PenstockError
from penstock.leases import Snoozed

_log = logging.getLogger(__name__)

_POLL = 30.0
# Usually there are fewer ready tags than this.
_TAGS = 1_000
_RETRY_PAUSE = 0.5


class _Waiter:
    __slots__ = ("answer", "limit", "tags", "worker")

    def __init__(self, tags: frozenset[str], worker: str, limit: int) -> None:
        self.tags = tags
        self.worker = worker
        self.limit = limit
        self.answer: asyncio.Future[list[Job]] = asyncio.get_running_loop().create_future()


class Subscribers:
    """The subscribers that wait for events of one queue."""

    def __init__(self, penstock: Penstock, queue: str) -> None:
        self._penstock = penstock
        self._queue = queue
        self._waiters: dict[_Waiter, None] = {}
        self._claims: set[asyncio.Task[bool]] = set()
        self._arrived = asyncio.Event()
        self._closing = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the waiting subscribers inside the block; answer the rest at its end."""
        serving = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            self.answer_all()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            # Otherwise jobs that are being claimed would be lost until their leases expire.
            await asyncio.gather(*self._claims, return_exceptions=True)

    def answer_all(self) -> None:
        """Answer all subscribers without events, now and from now on."""
        self._closing = True
        for waiter in list(self._waiters):
            _answer(waiter, [])

    async def wait(
        self,
        tags: Sequence[str],
        worker: str,
        limit: int,
        timeout: float,
        gone: Callable[[], Coroutine[Any, Any, object]],
        *,
        check: Callable[[], object] = lambda: None,
    ) -> list[Job]:
        """Return events with any of these tags as soon as there are some; none after the timeout.

        Events for a subscriber that is gone or no longer passes the check are released.
        """
        waiter = _Waiter(frozenset(tags), worker, limit)
        self._waiters[waiter] = None
        self._arrived.set()
        if self._closing:
            _answer(waiter, [])
        leaving = asyncio.create_task(gone())
        try:
            await asyncio.wait(
                (waiter.answer, leaving), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            # Nothing is claimed for it from here on; what was claimed has arrived.
            jobs = waiter.answer.result() if waiter.answer.done() else []
            if jobs and leaving.done():
                await self.release(jobs)
                return []
            try:
                check()
            except Exception:
                await self.release(jobs)
                raise
            return jobs
        finally:
            self._waiters.pop(waiter, None)
            waiter.answer.cancel()
            leaving.cancel()

    async def _serve(self) -> None:
        seen = 0
        while True:
            try:
                await self._arrived.wait()
                self._arrived.clear()
                await self._offer()
                while self._waiters:
                    seen = await self._penstock.wait(seen, _POLL)
                    await self._offer()
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
                self._arrived.set()
                await asyncio.sleep(_RETRY_PAUSE)

    async def _offer(self) -> None:
        """Give ready events to the subscribers that wait for them."""
        wave = 1
        while self._waiters:
            ready = await self._ready()
            if not ready:
                return
            chosen = self._choose(ready, wave)
            claims = [asyncio.create_task(self._claim_for(waiter)) for waiter in chosen]
            self._claims.update(claims)
            for claim in claims:
                claim.add_done_callback(self._claims.discard)
            served = await asyncio.shield(asyncio.gather(*claims))
            if not any(served):
                return
            wave *= 2

    async def _ready(self) -> frozenset[str]:
        """Return the tags of ready events, at least those that subscribers wait for."""
        ready = await self._penstock.queues.ready_tags(self._queue, _TAGS)
        if len(ready) == _TAGS:  # there are more: query those that matter
            wanted = list({tag for waiter in self._waiters for tag in waiter.tags})
            ready = await self._penstock.queues.ready_tags(
                self._queue, len(wanted) or 1, among=wanted
            )
        return frozenset(ready)

    def _choose(self, ready: frozenset[str], wave: int) -> list[_Waiter]:
        """Choose up to `wave` subscribers of the same tags, the longest waiting first."""
        chosen: dict[frozenset[str], list[_Waiter]] = {}
        for waiter in self._waiters:
            group = waiter.tags & ready
            if group and len(alike := chosen.setdefault(group, [])) < wave:
                alike.append(waiter)
        return [waiter for alike in chosen.values() for waiter in alike]

    async def _claim_for(self, waiter: _Waiter) -> bool:
        jobs = await self._penstock.leases.claim(
            worker=waiter.worker,
            limit=waiter.limit,
            queues=[self._queue],
            tags=sorted(waiter.tags),
        )
        if jobs and not _answer(waiter, jobs):  # it disconnected meanwhile
            await self.release(jobs)
        if jobs:
            self._waiters.pop(waiter, None)
        return bool(jobs)

    async def release(self, jobs: Sequence[Job]) -> None:
        """Release events that did not reach their subscriber."""
        back = Snoozed(reason="the subscriber went away")
        await self._penstock.leases.settle_held([(job, back) for job in jobs])


def _answer(waiter: _Waiter, jobs: list[Job]) -> bool:
    if waiter.answer.done():
        return False
    waiter.answer.set_result(jobs)
    return True

"""Workers that wait for events: one watch on the store, however many wait.

When the store rings, one query tells which tags have ready events. Only those who wait for one
of them claim, the longest waiting first, and not all at once: of a thousand who wait for the
same tag, one event wakes one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock import Job, Penstock, PenstockError, Snoozed

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 30.0
# Mostly there are fewer ready tags than this, or than tags that are waited for.
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
    """Who waits for events of one queue."""

    def __init__(self, penstock: Penstock, queue: str) -> None:
        self._penstock = penstock
        self._queue = queue
        self._waiters: dict[_Waiter, None] = {}
        self._claims: set[asyncio.Task[bool]] = set()
        self._came = asyncio.Event()
        self._closing = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve who waits, inside the block; at its end, nobody waits any more."""
        serving = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            self.let_go()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            # What is being claimed would stay with nobody until its lease ends.
            await asyncio.gather(*self._claims, return_exceptions=True)

    def let_go(self) -> None:
        """Answer those who wait with nothing, and those who come from now on."""
        self._closing = True
        for waiter in list(self._waiters):
            _tell(waiter, [])

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
        """Events with any of these tags, as soon as there are some; none after the time.

        What has come for who is gone, or does not pass the check any more, is given back.
        """
        waiter = _Waiter(frozenset(tags), worker, limit)
        self._waiters[waiter] = None
        self._came.set()
        if self._closing:
            _tell(waiter, [])
        leaving = asyncio.create_task(gone())
        try:
            await asyncio.wait(
                (waiter.answer, leaving), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            # From here on nothing is claimed for it; what was claimed has arrived.
            jobs = waiter.answer.result() if waiter.answer.done() else []
            if jobs and leaving.done():
                await self.give_back(jobs)
                return []
            try:
                check()
            except Exception:
                await self.give_back(jobs)
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
                await self._came.wait()
                self._came.clear()
                await self._offer()
                while self._waiters:
                    seen = await self._penstock.wait(seen, _LOOK_AGAIN)
                    await self._offer()
            except PenstockError as error:
                _log.warning("the store did not answer those who wait: %s", error)
                self._came.set()
                await asyncio.sleep(_RETRY_PAUSE)

    async def _offer(self) -> None:
        """Give what is ready to who waits for it."""
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
        """The tags of ready events, all that anybody waits for."""
        ready = await self._penstock.ready_tags(self._queue, _TAGS)
        if len(ready) == _TAGS:  # there are more: ask for those that matter
            wanted = list({tag for waiter in self._waiters for tag in waiter.tags})
            ready = await self._penstock.ready_tags(self._queue, len(wanted) or 1, among=wanted)
        return frozenset(ready)

    def _choose(self, ready: frozenset[str], wave: int) -> list[_Waiter]:
        """Of those who wait for the same tags, so many at once; the longest waiting first."""
        chosen: dict[frozenset[str], list[_Waiter]] = {}
        for waiter in self._waiters:
            group = waiter.tags & ready
            if group and len(alike := chosen.setdefault(group, [])) < wave:
                alike.append(waiter)
        return [waiter for alike in chosen.values() for waiter in alike]

    async def _claim_for(self, waiter: _Waiter) -> bool:
        jobs = await self._penstock.claim(
            worker=waiter.worker,
            limit=waiter.limit,
            queues=[self._queue],
            tags=sorted(waiter.tags),
        )
        if jobs and not _tell(waiter, jobs):  # it went away meanwhile
            await self.give_back(jobs)
        if jobs:
            self._waiters.pop(waiter, None)
        return bool(jobs)

    async def give_back(self, jobs: Sequence[Job]) -> None:
        """Make events pending again that did not reach who asked for them."""
        back = Snoozed(reason="the subscriber went away")
        await self._penstock.settle_held([(job, back) for job in jobs])


def _tell(waiter: _Waiter, jobs: list[Job]) -> bool:
    if waiter.answer.done():
        return False
    waiter.answer.set_result(jobs)
    return True

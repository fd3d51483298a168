"""Finds a page of jobs within bounds: of time, where no index leads to them, and of memory."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from penstock.core.job import Job, JobId, JobQuery
from penstock.core.lifecycle import UNFINISHED, State
from penstock.engine import Penstock

SEARCHED = 100_000
"""At most so many jobs are looked at for one page where any of them might fit."""

# A page ends early rather than be larger: arguments may have a megabyte each.
_PAGE_BYTES = 4_000_000
_AT_ONCE = 50
# In between, others have their turn. The first is short: mostly, it has enough that fits.
_STRETCHES = (1_000, 9_000, *[10_000] * 9)
# Jobs of these states are found by their states; of the others there may be any number.
_FEW = frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.SUPERSEDED})


class Search:
    """Looks for the jobs of one page; `fits` decides about what the store has found."""

    def __init__(
        self, penstock: Penstock, query: JobQuery, limit: int, fits: Callable[[Job], bool]
    ) -> None:
        self._penstock = penstock
        self._query = query
        self._limit = limit
        self._fits = fits
        self._place = query.after
        self._size = 0
        self.found: list[Job] = []

    async def run(self) -> JobId | None:
        """Gather what fits in `found`; the answer is behind which job to go on, None at the end."""
        if await self._is_narrow():
            return self._place if await self._look(None) else None
        for length in _STRETCHES:
            ids = await self._next_ids(length)
            if ids and await self._look(ids[-1]):
                return self._place
            if len(ids) < length:
                return None
            self._place = ids[-1]
            await asyncio.sleep(0)
        return self._place

    async def _next_ids(self, length: int) -> list[JobId]:
        """The jobs that come next, whether they fit or not."""
        order = self._query.newest_first
        return await self._penstock.find_ids(
            JobQuery(after=self._place, newest_first=order, limit=length)
        )

    async def _look(self, last: JobId | None) -> bool:
        """Take what fits, up to a job; whether the page is full and there is more."""
        while True:
            portion = min(_AT_ONCE, self._limit - len(self.found))
            # One more tells whether there is another page.
            query = replace(self._query, after=self._place, until=last, limit=portion + 1)
            jobs = await self._penstock.find(query)
            for job in jobs[:portion]:
                self._place = job.id
                self._size += _size(job)
                if self._fits(job):
                    self.found.append(job)
            if len(jobs) <= portion:
                return False
            if len(self.found) >= self._limit or self._size >= _PAGE_BYTES:
                return True

    async def _is_narrow(self) -> bool:
        """Whether an index leads to few enough jobs, or the first that come fit anyway."""
        query = self._query
        if query.text is None and (
            query.correlation is not None
            or query.parent is not None
            or query.tags
            or query.cancel_requested
            or (query.key is not None and query.states is not None and query.states <= UNFINISHED)
        ):
            return True
        if query == JobQuery(after=query.after, newest_first=query.newest_first):
            return True
        return query.states is not None and query.states <= _FEW and await self._are_few()

    async def _are_few(self) -> bool:
        states = self._query.states or frozenset()
        counts = await self._penstock.count()
        return sum(n for (_, state, _), n in counts.items() if state in states) <= SEARCHED


def _size(job: Job) -> int:
    return len(job.payload) + len(job.result_json or "") + len(job.error or "")

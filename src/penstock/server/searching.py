"""Finds a page of jobs within bounds: of time, where no index leads to them, and of memory."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic

from msgspec.structs import replace

from penstock.core.job import Job, JobId, JobQuery
from penstock.core.lifecycle import UNFINISHED, State
from penstock.server.aside import aside
from penstock.server.survey import Survey

SEARCHED = 100_000
"""So many jobs are looked at for one page where any of them might fit, and few do."""
PATIENCE = 30.0
"""Seconds after which a search that has found nothing ends in any case."""

# A page ends early rather than be larger: arguments may have a megabyte each.
_PAGE_BYTES = 4_000_000
_AT_ONCE = 50
# Bytes of arguments that take about as long as a row of other things.
_A_ROW = 1_000
# In between, others have their turn. The first is short: mostly, it has enough that fits. The last
# comes again and again while nothing is found.
_STRETCHES = (1_000, 9_000, *[10_000] * 9)
# Jobs of these states are found by their states; of the others there may be any number.
_FEW = frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.SUPERSEDED})


class Search:
    """Looks for the jobs of one page; `fits` decides about what the store has found."""

    def __init__(
        self,
        survey: Survey,
        query: JobQuery,
        limit: int,
        fits: Callable[[Job], bool],
        timeout: float,
    ) -> None:
        self._survey = survey
        self._penstock = survey.penstock
        self._deadline = monotonic() + min(timeout, PATIENCE)
        self._query = query
        self._limit = limit
        self._fits = fits
        self._place = query.after
        self._size = 0
        self.found: list[Job] = []

    async def run(self) -> JobId | None:
        """Gather what fits in `found`; the answer is behind which job to go on, None at the end.

        Until something is found, it goes on for as long as the caller waits.
        """
        if await self._is_narrow():
            return self._place if await self._look(None) else None
        for n in count():
            length = _STRETCHES[min(n, len(_STRETCHES) - 1)]
            ids = await self._next_ids(length)
            if ids and await self._look(ids[-1]):
                return self._place
            if len(ids) < length:
                return None
            self._place = ids[-1]
            if n + 1 >= len(_STRETCHES) and (self.found or monotonic() >= self._deadline):
                return self._place
            await asyncio.sleep(0)
        raise AssertionError  # the stretches never end

    async def _next_ids(self, length: int) -> list[JobId]:
        """The jobs that come next, whether they fit or not."""
        order = self._query.newest_first
        return await self._penstock.find_ids(
            JobQuery(after=self._place, newest_first=order, limit=length)
        )

    async def _look(self, last: JobId | None) -> bool:
        """Take what fits, up to a job; whether the page is full and another one fits.

        What does not fit leaves no trace: neither in the page, nor in where it ends, nor in
        whether there is more. Else a guess at a hidden value could be told from a wrong one.
        """
        place = self._place
        while True:
            left = self._limit - len(self.found)
            # Of what a text is found in, much may be hidden: then one by one would take long.
            portion = _AT_ONCE if self._query.text is not None else min(_AT_ONCE, left)
            # One more tells whether there is another page.
            query = replace(self._query, after=place, until=last, limit=portion + 1)
            jobs = await self._penstock.find(query)
            for job, fits in zip(jobs, await self._fitting(jobs), strict=True):
                place = job.id
                if fits and not self._take(job):
                    return True
            if len(jobs) <= portion:
                return False

    def _take(self, job: Job) -> bool:
        """Put a job on the page unless that is full; whether it was put there."""
        if len(self.found) >= self._limit or self._size >= _PAGE_BYTES:
            return False
        self._place = job.id
        self._size += _size(job)
        self.found.append(job)
        return True

    async def _fitting(self, jobs: Sequence[Job]) -> list[bool]:
        """Which of these fit by what is shown of them; arguments may be large, and are decoded."""
        if self._query.text is None:
            return [True] * len(jobs)
        size = sum(map(_size, jobs)) // _A_ROW
        return await aside(size, lambda: [self._fits(job) for job in jobs])

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
        counts = (await self._survey.of_all()).counts
        return sum(n for (state, _), n in counts.items() if state in states) <= SEARCHED


def _size(job: Job) -> int:
    return len(job.payload) + len(job.result_json or "") + len(job.error or "")

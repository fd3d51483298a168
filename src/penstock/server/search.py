"""The search for a page of jobs, limited in time where no index helps, and in memory."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from msgspec.structs import replace

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import UNFINISHED, State
from penstock.core.query import JobQuery
from penstock.server.offload import offload
from penstock.server.queues import CachedSummary

SEARCHED = 100_000
"""How many jobs are examined for one page where any of them might match, and few do."""
TIMEOUT = 30.0
"""Seconds after which a search that has found nothing ends, whatever the caller requested."""

# A page ends early rather than exceed this: the arguments of one job may have a megabyte.
_PAGE_BYTES = 4_000_000
_PORTION = 50
# Bytes of arguments that take about as long as one row.
_BYTES_PER_ROW = 1_000
# The event loop runs between two stretches. The first is short: mostly it has enough matches. The
# last is repeated while nothing is found.
_STRETCHES = (1_000, 9_000, *[10_000] * 9)
# An index finds jobs by these states; of the other states there may be any number.
_FEW = frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.SUPERSEDED})


class Search:
    """Finds the jobs of one page; `matches` has the last word on what the store has found."""

    def __init__(
        self,
        summary: CachedSummary,
        query: JobQuery,
        limit: int,
        matches: Callable[[Job], bool],
        timeout: float,
    ) -> None:
        self._summary = summary
        self._penstock = summary.penstock
        self._monotonic = summary.penstock.runtime.monotonic
        self._deadline = self._monotonic() + min(timeout, TIMEOUT)
        self._query = query
        self._limit = limit
        self._matches = matches
        self._place = query.after
        self._size = 0
        self.found: list[Job] = []

    async def run(self) -> JobId | None:
        """Collect matches in `found`; return after which job to continue, None at the end.

        Until something is found, the search continues for as long as the caller waits.
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
            if n + 1 >= len(_STRETCHES) and (self.found or self._monotonic() >= self._deadline):
                return self._place
            await asyncio.sleep(0)
        raise AssertionError  # unreachable: the loop is endless

    async def _next_ids(self, length: int) -> list[JobId]:
        """Return the next jobs, whether they match or not."""
        order = self._query.newest_first
        return await self._penstock.find_ids(
            JobQuery(after=self._place, newest_first=order, limit=length)
        )

    async def _look(self, last: JobId | None) -> bool:
        """Collect matches up to a job; return whether the page is full and another one matches.

        A job that does not match leaves no trace: neither in the page, nor in where it ends, nor
        in whether there is more. Otherwise a right guess at a hidden value would show.
        """
        place = self._place
        while True:
            left = self._limit - len(self.found)
            # Many texts may match in hidden values only: one by one would take too long.
            portion = _PORTION if self._query.text is not None else min(_PORTION, left)
            # One more shows whether there is another page.
            query = replace(self._query, after=place, until=last, limit=portion + 1)
            jobs = await self._penstock.find(query)
            for job, matches in zip(jobs, await self._matching(jobs), strict=True):
                place = job.id
                if matches and not self._take(job):
                    return True
            if len(jobs) <= portion:
                return False

    def _take(self, job: Job) -> bool:
        """Add a job to the page unless that is full; return whether it was added."""
        if len(self.found) >= self._limit or self._size >= _PAGE_BYTES:
            return False
        self._place = job.id
        self._size += _size(job)
        self.found.append(job)
        return True

    async def _matching(self, jobs: Sequence[Job]) -> list[bool]:
        """Return which jobs match by what is shown of them; this decodes their arguments."""
        if self._query.text is None:
            return [True] * len(jobs)
        size = sum(map(_size, jobs)) // _BYTES_PER_ROW
        return await offload(
            self._penstock.runtime, size, lambda: [self._matches(job) for job in jobs]
        )

    async def _is_narrow(self) -> bool:
        """Return whether an index leads to few jobs, or any job matches."""
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
        counts = (await self._summary.get()).counts
        return sum(n for (state, _), n in counts.items() if state in states) <= SEARCHED


def _size(job: Job) -> int:
    return len(job.payload) + len(job.result_json or "") + len(job.error or "")

"""A page of a list that keeps growing: it follows the newest, or stays as it is read."""

from datetime import datetime

from msgspec.structs import replace

from penstock.cli.top.feed import Feed
from penstock.cli.top.filters import Filter
from penstock.core.errors import JobNotFound
from penstock.core.job import Job, JobId, JobQuery

SIZE = 50
"""Jobs of a page."""

# Of a worker's jobs, so many are looked through: stores have no order by worker.
_LOOKED_THROUGH = 1_000
# Jobs that do not fit any more are looked up one by one, so many with each look.
_LOOKED_UP = 20


class Page:
    """One page. While it follows, it shows what is newest; else its rows stay, and only change.

    `left` are the ids of jobs that are not known to be there any more, `news` how many came that
    would stand above. Reading a page takes the same time, however many jobs there are.
    """

    def __init__(
        self, *, newest_first: bool = True, before: "Page | None" = None, after: JobId | None = None
    ) -> None:
        self.newest_first = newest_first
        self.jobs: list[Job] = []
        self.left: set[JobId] = set()
        self.news = ""
        self.looked = False
        self._before = before
        self._after = after
        self._more = False
        self.number: int = 1 if before is None else before.number + 1

    @property
    def first(self) -> bool:
        """Whether none comes before it."""
        return self._before is None

    def next(self) -> "Page | None":
        """The one behind; None if there is none."""
        if not self._more or not self.jobs:
            return None
        return Page(newest_first=self.newest_first, before=self, after=self.jobs[-1].id)

    def previous(self) -> "Page | None":
        """The one before; None if there is none."""
        return self._before

    def described(self) -> str:
        """Where it stands."""
        order = "newest first" if self.newest_first else "oldest first"
        more = ", n: next page" if self._more else ""
        before = ", b: page before" if self._before is not None else ""
        return f"page {self.number}, {order}{more}{before}"

    async def look(self, feed: Feed, chosen: Filter, now: datetime, *, following: bool) -> None:
        """Read it anew; unless it is followed, the rows that are shown stay."""
        query = replace(chosen.query(now), newest_first=self.newest_first, limit=SIZE + 1)
        if following or not self.looked or chosen.worker is not None:
            await self._begin(feed, chosen, query)
        elif self.jobs:
            await self._keep(feed, query)

    async def _begin(self, feed: Feed, chosen: Filter, query: JobQuery) -> None:
        limit = SIZE + 1 if chosen.worker is None else _LOOKED_THROUGH
        found = chosen.chosen(await feed.find(replace(query, after=self._after, limit=limit)))
        self.jobs, self._more = found[:SIZE], len(found) > SIZE and chosen.worker is None
        self.left, self.news, self.looked = set(), "", True

    async def _keep(self, feed: Feed, query: JobQuery) -> None:
        top = self.jobs[0].id
        beside = top + 1 if self.newest_first else top - 1
        found = await feed.find(replace(query, after=JobId(beside) if beside else None))
        known = {job.id: job for job in found}
        missing = [job for job in self.jobs if job.id not in known]
        for job in [one for one in missing if one.id not in self.left][:_LOOKED_UP]:
            try:
                known[job.id] = await feed.app.get(job.id)
            except JobNotFound:
                self.left.add(job.id)
        self.jobs = [known.get(job.id, job) for job in self.jobs]
        if self.first and self.newest_first:
            above = [job for job in await feed.find(query) if job.id > top]
            self.news = f"{SIZE}+" if len(above) > SIZE else str(len(above) or "")

"""Routes for what jobs have to do with each other: who waits for whom, and for which key."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.job import Job, JobId, JobQuery
from penstock.core.lifecycle import State
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.routes import route
from penstock.server.shapes import Id, Key

_MOST = 40
"""How many jobs a graph has at most: more cannot be looked at."""


class GraphJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a graph."""

    id: int
    task: str
    queue: str
    state: State


class EdgeShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job that needs another; `resolved` once that one has ended."""

    job: int
    needs: int
    resolved: bool


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A job with those that it waits for and those that wait for it.

    `more` tells that there are others, which were left out.
    """

    jobs: list[GraphJob]
    edges: list[EdgeShape]
    more: bool


class LineQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the line of a key to show."""

    after: Annotated[Id, Meta(description="The last id of the page before.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class KeyJob(GraphJob, frozen=True, kw_only=True):
    """A job in the line of a key."""

    attempt: int
    worker: str | None


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a key and who waits behind, in their order; `after` asks for the next page."""

    key: str
    holder: KeyJob | None
    waiting: list[KeyJob]
    after: int | None


class KeyListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which keys to list."""

    after: Annotated[Key, Meta(description="The last key of the page before.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class KeySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a key, running or next, and how many wait behind; these are counted up to 999."""

    key: str
    holder: KeyJob
    waiting: int


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys, by name. `after` asks for the next one; it is null on the last."""

    keys: list[KeySummary]
    after: str | None


class RelationRoutes:
    """What the server serves of jobs that have to do with each other."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    @route(
        "GET",
        "/api/v1/jobs/{job_id}/graph",
        Access.READ,
        "See what a job waits for",
        answers={200: Graph},
    )
    async def graph(self, job_id: Id) -> Graph:
        """A job with those that it waits for and those that wait for it, 40 jobs at most."""
        itself = await self._penstock.get(job_id)
        edges = await self._penstock.edges([job_id])
        others = list(dict.fromkeys(n for edge in edges for n in (edge.needed, edge.job_id)))
        wanted = [one for one in others if one != job_id][: _MOST - 1]
        jobs = [itself, *await self._penstock.store.get(wanted)]
        known = {job.id for job in jobs}
        return Graph(
            jobs=[_node(job) for job in jobs],
            edges=[
                EdgeShape(job=edge.job_id, needs=edge.needed, resolved=edge.resolved)
                for edge in edges
                if {edge.job_id, edge.needed} <= known
            ],
            more=len(others) > _MOST,
        )

    @route(
        "GET",
        "/api/v1/keys",
        Access.READ,
        "List keys",
        answers={200: KeyPage},
    )
    async def keys(self, query: KeyListing) -> KeyPage:
        """The keys that unfinished jobs have, by name, whether one of them runs or not."""
        found = await self._penstock.keys(query.after, query.limit + 1)
        page, more = found[: query.limit], len(found) > query.limit
        jobs = await self._penstock.store.get([line.first for line in page])
        by_id = {job.id: job for job in jobs}
        return KeyPage(
            keys=[
                KeySummary(key=line.key, holder=_waiter(by_id[line.first]), waiting=line.length - 1)
                for line in page
                if line.first in by_id  # else it has ended since
            ],
            after=page[-1].key if more else None,
        )

    @route(
        "GET",
        "/api/v1/keys/{key}",
        Access.READ,
        "See the line of a key",
        answers={200: KeyLine},
    )
    async def line(self, key: Key, query: LineQuery) -> KeyLine:
        """Who holds a key and who waits behind, in the order in which they will run."""
        first = query.after is None
        running = JobQuery(key=key, states=frozenset({State.RUNNING}), limit=1)
        held = await self._penstock.find(running) if first else []
        pending = JobQuery(
            key=key,
            states=frozenset({State.PENDING}),
            newest_first=False,
            after=None if query.after is None else JobId(query.after),
            limit=query.limit + 1,
        )
        found = await self._penstock.find(pending)
        page, more = found[: query.limit], len(found) > query.limit
        line = [*held, *page]
        holder = line[0] if line and first else None
        return KeyLine(
            key=key,
            holder=None if holder is None else _waiter(holder),
            waiting=[_waiter(job) for job in line if job is not holder],
            after=page[-1].id if more else None,
        )


def _node(job: Job) -> GraphJob:
    return GraphJob(id=job.id, task=job.task, queue=job.queue, state=job.state)


def _waiter(job: Job) -> KeyJob:
    return KeyJob(
        id=job.id,
        task=job.task,
        queue=job.queue,
        state=job.state,
        attempt=job.attempt,
        worker=job.worker,
    )

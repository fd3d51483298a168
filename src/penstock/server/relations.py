"""Routes for relations between jobs: dependencies and keys."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.tokens import Access
from penstock.engine.penstock import Penstock
from penstock.server.requests import Id, Key
from penstock.web.routes import route

_MOST = 40
"""How many jobs a graph shows: more cannot be read."""


class GraphJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a graph."""

    id: int
    task: str
    queue: str
    state: State


class EdgeShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits for another; `resolved` once that one has finished."""

    job: int
    needs: int
    resolved: bool


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A job with the jobs that it waits for and those that wait for it.

    `more` means that further jobs were left out.
    """

    jobs: list[GraphJob]
    edges: list[EdgeShape]
    more: bool


class LineQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of the jobs that wait for a key."""

    after: Annotated[Id, Meta(description="The last id of the previous page.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class KeyJob(GraphJob, frozen=True, kw_only=True):
    """A job that holds a key or waits for it."""

    attempt: int
    worker: str | None


class KeyLine(msgspec.Struct, frozen=True, kw_only=True):
    """The job that holds a key and those that wait for it, in order; `after` requests more."""

    key: str
    holder: KeyJob | None
    waiting: list[KeyJob]
    after: int | None


class KeyListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of the list of keys."""

    after: Annotated[Key, Meta(description="The last key of the previous page.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class KeySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The job that holds a key or is next, and how many others wait, counted up to 999."""

    key: str
    holder: KeyJob
    waiting: int


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys, sorted by name. `after` requests the next page; null on the last."""

    keys: list[KeySummary]
    after: str | None


class RelationRoutes:
    """Dependencies and keys of jobs."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    @route("GET", "/api/v1/jobs/{job_id}/graph", Access.READ)
    async def graph(self, job_id: Id) -> Graph:
        """Get the dependencies of a job.

        Answers with the jobs that it waits for and those that wait for it, at most 40.
        """
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

    @route("GET", "/api/v1/keys", Access.READ)
    async def keys(self, query: KeyListing) -> KeyPage:
        """List keys.

        Lists the keys of unfinished jobs by name, whether or not one of the jobs is running.
        """
        found = await self._penstock.queues.keys(query.after, query.limit + 1)
        page, more = found[: query.limit], len(found) > query.limit
        jobs = await self._penstock.store.get([line.first for line in page])
        by_id = {job.id: job for job in jobs}
        return KeyPage(
            keys=[
                KeySummary(
                    key=line.key, holder=_key_job(by_id[line.first]), waiting=line.length - 1
                )
                for line in page
                if line.first in by_id  # otherwise it has finished meanwhile
            ],
            after=page[-1].key if more else None,
        )

    @route("GET", "/api/v1/keys/{key}", Access.READ)
    async def line(self, key: Key, query: LineQuery) -> KeyLine:
        """List the jobs of a key.

        Answers with the job that holds the key and those that wait for it, in the order in which
        they will run.
        """
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
            holder=None if holder is None else _key_job(holder),
            waiting=[_key_job(job) for job in line if job is not holder],
            after=page[-1].id if more else None,
        )


def _node(job: Job) -> GraphJob:
    return msgspec.convert(job, GraphJob, from_attributes=True)


def _key_job(job: Job) -> KeyJob:
    return msgspec.convert(job, KeyJob, from_attributes=True)

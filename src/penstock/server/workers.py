"""The route for workers: who works on the store, and what each holds."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from penstock.core.job import Job, JobQuery
from penstock.core.lifecycle import State
from penstock.core.times import from_micros
from penstock.core.token import Access
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock
from penstock.http.problems import Problem
from penstock.http.routes import route
from penstock.server.aside import aside
from penstock.server.shapes import Name, NamePage

_LEASES = 1_000


class LeaseShape(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's hold on a job."""

    job_id: int
    token: int
    queue: str
    task: str
    key: str | None
    attempt: int
    started_at: datetime | None
    expires_at: datetime | None
    cancel_requested: bool


class WorkerShape(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, busy or idle. `heartbeat_age` is for how many seconds it was not heard of.

    `queues` are all where it is null; of a worker that never greeted, only its leases are known.
    """

    name: str
    host: str | None
    pid: int | None
    queues: tuple[str, ...] | None
    tags: tuple[str, ...]
    concurrency: int | None
    started_at: datetime | None
    seen_at: datetime
    heartbeat_age: float
    silent: bool
    running: int
    oldest_start: datetime | None
    expires_at: datetime | None
    draining: bool
    leases: list[LeaseShape]


class DrainAnswer(msgspec.Struct, frozen=True):
    """The worker was asked; it hears of it within ten seconds."""

    name: str
    draining: bool = True


class WorkerList(msgspec.Struct, frozen=True):
    """A page of workers, by name; the leases of all workers are the first 1,000 at most.

    `after` asks for the next page; it is null on the last.
    """

    workers: list[WorkerShape]
    after: str | None = None


_EXAMPLE = {
    "name": "host:42",
    "host": "host",
    "pid": 42,
    "queues": ["mail"],
    "tags": [],
    "concurrency": 10,
    "started_at": "2030-01-01T12:00:00Z",
    "seen_at": "2030-01-01T12:30:00Z",
    "heartbeat_age": 2.5,
    "silent": False,
    "running": 1,
    "oldest_start": "2030-01-01T12:29:59Z",
    "expires_at": "2030-01-01T12:30:29Z",
    "draining": False,
    "leases": [
        {
            "job_id": 1,
            "token": 2,
            "queue": "mail",
            "task": "mail.send",
            "key": None,
            "attempt": 1,
            "started_at": "2030-01-01T12:29:59Z",
            "expires_at": "2030-01-01T12:30:29Z",
            "cancel_requested": False,
        }
    ],
}


class WorkerRoutes:
    """What the server serves of workers."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    @route(
        "GET",
        "/api/v1/workers",
        Access.READ,
        "List workers",
        answers={200: WorkerList},
        examples={"200": {"workers": [_EXAMPLE], "after": None}},
    )
    async def page(self, query: NamePage) -> WorkerList:
        """The workers on the store, when each was last heard of, and the leases that it holds."""
        workers, after = query.of(await self._penstock.workers())
        running = JobQuery(states=frozenset({State.RUNNING}), newest_first=False, limit=_LEASES)
        held: dict[str | None, list[Job]] = {}
        for job in await self._penstock.find(running):
            held.setdefault(job.worker, []).append(job)
        now = from_micros(self._penstock.clock())
        shapes = await aside(
            len(workers), lambda: [_shape(one, held.get(one.name, ()), now) for one in workers]
        )
        return WorkerList(shapes, after)

    @route(
        "POST",
        "/api/v1/workers/{name}/drain",
        Access.ADMIN,
        "Drain a worker",
        answers={200: DrainAnswer},
    )
    async def drain(self, name: Name) -> DrainAnswer:
        """Ask a worker to take no more jobs, finish those that it has, and end."""
        if not await self._penstock.drain_worker(name):
            raise Problem(404, f"no worker {name!r:.200} has said that it is there")
        return DrainAnswer(name)


def _shape(worker: WorkerInfo, held: Sequence[Job], now: datetime) -> WorkerShape:
    fields = {name: getattr(worker, name) for name in worker.__struct_fields__}
    return WorkerShape(
        **fields,
        heartbeat_age=max(0.0, (now - worker.seen_at).total_seconds()),
        silent=worker.is_silent(now),
        leases=[_lease(job) for job in held],
    )


def _lease(job: Job) -> LeaseShape:
    return LeaseShape(
        job_id=job.id,
        token=job.token,
        queue=job.queue,
        task=job.task,
        key=job.key,
        attempt=job.attempt,
        started_at=job.started_at,
        expires_at=job.expires_at,
        cancel_requested=job.cancel_requested,
    )

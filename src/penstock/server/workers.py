"""Routes for workers: list them with their leases, and drain one."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from penstock.core.job import Job
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.tasks import AnnouncedTask
from penstock.core.times import from_micros
from penstock.core.tokens import Access
from penstock.core.workers import WaitingTask, WorkerInfo
from penstock.engine.penstock import Penstock
from penstock.server.offload import offload
from penstock.server.requests import Name, NamePage
from penstock.web.problems import Problem
from penstock.web.routes import route

_LEASES = 1_000
_WAITING_TASKS = 100


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
    """A worker, busy or idle. `heartbeat_age` is the number of seconds since its last heartbeat.

    `queues` is null if it works on all, and `tasks` if it does not say which it runs. Of
    a worker without heartbeats only the leases are known.
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
    tasks: tuple[AnnouncedTask, ...] | None
    leases: list[LeaseShape]


class DrainAnswer(msgspec.Struct, frozen=True):
    """The worker was asked to drain; it notices within ten seconds."""

    name: str
    draining: bool = True


class WorkerList(msgspec.Struct, frozen=True):
    """A page of workers, sorted by name, with at most 1,000 leases of all workers.

    `after` requests the next page; it is null on the last. `waiting_tasks` are tasks whose ready
    jobs wait because no live worker knows them, at most 100.
    """

    workers: list[WorkerShape]
    after: str | None = None
    waiting_tasks: list[WaitingTask] = []


_EXAMPLE = {
    "name": "web1:42",
    "host": "web1",
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
    "tasks": [{"name": "mail.send"}],
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
    """Workers: list and drain."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    @route(
        "GET",
        "/api/v1/workers",
        Access.READ,
        examples={"200": {"workers": [_EXAMPLE], "after": None, "waiting_tasks": []}},
    )
    async def page(self, query: NamePage) -> WorkerList:
        """List workers.

        Lists the workers of the store, with the last heartbeat and the leases of each.
        """
        workers, after = query.of(await self._penstock.workers.list())
        running = JobQuery(states=frozenset({State.RUNNING}), newest_first=False, limit=_LEASES)
        held: dict[str | None, list[Job]] = {}
        for job in await self._penstock.find(running):
            held.setdefault(job.worker, []).append(job)
        now = from_micros(self._penstock.clock())
        shapes = await offload(
            self._penstock.runtime,
            len(workers),
            lambda: [_shape(one, held.get(one.name, ()), now) for one in workers],
        )
        waiting = await self._penstock.workers.waiting_tasks()
        return WorkerList(shapes, after, waiting[:_WAITING_TASKS])

    @route("POST", "/api/v1/workers/{name}/drain", Access.ADMIN)
    async def drain(self, name: Name) -> DrainAnswer:
        """Drain a worker.

        Asks a worker to claim no more jobs, finish those that it has, and exit.
        """
        if not await self._penstock.workers.drain(name):
            raise Problem(404, f"there is no worker {name!r:.200} that sends heartbeats")
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

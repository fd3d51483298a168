"""Routes for schedules: list, run now, pause and resume."""

from datetime import datetime

import msgspec

from penstock.core.schedule import Schedule
from penstock.core.secrets import Secrets
from penstock.core.tokens import Access
from penstock.engine.penstock import Penstock
from penstock.server.offload import offload
from penstock.server.requests import Name, NamePage
from penstock.web.jobs import JobShape, enqueued_shape, seconds
from penstock.web.routes import Answer, route


class ScheduleShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is enqueued repeatedly; `spec` says when, in words.

    `next` is the planned time of the next run, `last` that of the latest run, whose job is
    `last_job`.
    """

    name: str
    task: str
    queue: str
    spec: str
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    overlap: bool
    declared: bool
    paused: bool
    next: datetime | None
    last: datetime | None
    last_job: int | None


class ScheduleList(msgspec.Struct, frozen=True):
    """A page of schedules, sorted by name. `after` requests the next page; null on the last."""

    schedules: list[ScheduleShape]
    after: str | None = None


_EXAMPLE = {
    "name": "nightly",
    "task": "report",
    "queue": "default",
    "spec": "At 02:00 every day",
    "cron": "0 2 * * *",
    "every": None,
    "timezone": "Europe/Berlin",
    "missed": "once",
    "overlap": False,
    "declared": True,
    "paused": False,
    "next": "2030-01-02T01:00:00Z",
    "last": None,
    "last_job": None,
}


class ScheduleRoutes:
    """Schedules: list, run now, pause and resume."""

    def __init__(self, penstock: Penstock, secrets: Secrets) -> None:
        self._penstock = penstock
        self._secrets = secrets

    @route(
        "GET",
        "/api/v1/schedules",
        Access.READ,
        examples={"200": {"schedules": [_EXAMPLE], "after": None}},
    )
    async def page(self, query: NamePage) -> ScheduleList:
        """List schedules.

        Lists them by name, in pages, with the times of the latest and the next run.
        """
        schedules, after = query.of(await self._penstock.schedules.list())
        shapes = await offload(
            self._penstock.runtime, len(schedules), lambda: [_shape(one) for one in schedules]
        )
        return ScheduleList(shapes, after)

    @route("POST", "/api/v1/schedules/{name}/run", Access.ADMIN, status=201, also={200: JobShape})
    async def run(self, name: Name) -> Answer[JobShape]:
        """Run a schedule now.

        Enqueues the job of the schedule at once; its planned runs stay as they are.

        If runs may not overlap and one is unfinished, the answer is that job, with status 200.
        """
        job = await self._penstock.schedules.run_now(name)
        return Answer(200 if job.duplicate else 201, enqueued_shape(job, self._secrets))

    @route("POST", "/api/v1/schedules/{name}/pause", Access.ADMIN)
    async def pause(self, name: Name) -> ScheduleShape:
        """Pause a schedule.

        No process enqueues its job until it is resumed.
        """
        return _shape(await self._penstock.schedules.pause(name))

    @route("POST", "/api/v1/schedules/{name}/resume", Access.ADMIN)
    async def resume(self, name: Name) -> ScheduleShape:
        """Resume a schedule.

        Continues with its next run; runs that fell into the pause are skipped.
        """
        return _shape(await self._penstock.schedules.resume(name))


def _shape(schedule: Schedule) -> ScheduleShape:
    return ScheduleShape(
        name=schedule.name,
        task=schedule.task,
        queue=schedule.job.queue,
        spec=schedule.spec,
        cron=schedule.rhythm.cron,
        every=seconds(schedule.rhythm.every),
        timezone=schedule.timezone,
        missed=schedule.missed,
        overlap=schedule.overlap,
        declared=schedule.declared,
        paused=schedule.paused,
        next=schedule.next,
        last=schedule.last,
        last_job=schedule.last_job,
    )

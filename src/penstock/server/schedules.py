"""Routes for schedules: list them, run one now, pause and resume."""

from datetime import datetime

import msgspec

from penstock.core.schedule import Schedule
from penstock.core.secrets import Secrets
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.routes import Answer, route
from penstock.server.aside import aside
from penstock.server.shapes import JobShape, Name, NamePage, enqueued, seconds


class ScheduleShape(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is enqueued again and again; `spec` says when, in words.

    `next` is the planned time of the run to come, `last` that of the newest one, whose job is
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
    """A page of schedules, by name. `after` asks for the next one; it is null on the last."""

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
    """What the server serves of schedules."""

    def __init__(self, penstock: Penstock, secrets: Secrets) -> None:
        self._penstock = penstock
        self._secrets = secrets

    @route(
        "GET",
        "/api/v1/schedules",
        Access.READ,
        "List schedules",
        answers={200: ScheduleList},
        examples={"200": {"schedules": [_EXAMPLE], "after": None}},
    )
    async def page(self, query: NamePage) -> ScheduleList:
        """The schedules, by name, in pages."""
        schedules, after = query.of(await self._penstock.schedules())
        shapes = await aside(len(schedules), lambda: [_shape(one) for one in schedules])
        return ScheduleList(shapes, after)

    @route(
        "POST",
        "/api/v1/schedules/{name}/run",
        Access.ADMIN,
        "Run a schedule now",
        answers={201: JobShape, 200: JobShape},
    )
    async def run(self, name: Name) -> Answer:
        """Enqueue the job of a schedule at once; its rhythm goes on as before.

        Where runs may not overlap and one is unfinished, that one is answered, with 200.
        """
        job = await self._penstock.run_now(name)
        return Answer(200 if job.duplicate else 201, enqueued(job, self._secrets))

    @route(
        "POST",
        "/api/v1/schedules/{name}/pause",
        Access.ADMIN,
        "Pause a schedule",
        answers={200: ScheduleShape},
    )
    async def pause(self, name: Name) -> ScheduleShape:
        """Fire it no more, in any process, until it is resumed."""
        return _shape(await self._penstock.pause_schedule(name))

    @route(
        "POST",
        "/api/v1/schedules/{name}/resume",
        Access.ADMIN,
        "Resume a schedule",
        answers={200: ScheduleShape},
    )
    async def resume(self, name: Name) -> ScheduleShape:
        """Fire it again from its next run on; runs that fell into the pause do not happen."""
        return _shape(await self._penstock.resume_schedule(name))


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

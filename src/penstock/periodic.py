"""Periodic tasks: the part of `Penstock` that keeps schedules and fires what is due."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from msgspec.structs import replace

from penstock.checks import check_name
from penstock.core.errors import (
    ConfigurationError,
    InvalidJob,
    PenstockError,
    QueueFull,
    ScheduleNotFound,
    TooManyQueues,
)
from penstock.core.job import Job, NewJob, bind
from penstock.core.schedule import (
    Firing,
    Missed,
    Schedule,
    check_rhythm,
    plan,
    redefined,
    resumed,
)
from penstock.looking import Looking
from penstock.opening import admit
from penstock.task import HandlerOptions, Task

_log = logging.getLogger(__name__)

FIRED_AT_ONCE = 100
# A write is decided anew this often when others keep changing the schedule, before giving up.
_DECISIONS = 100


class Recurrence(TypedDict, total=False):
    """How a task or a job recurs."""

    cron: str
    every: timedelta
    timezone: str
    missed: Literal["once", "all", "skip"]
    overlap: bool


class TaskOptions(HandlerOptions, Recurrence, total=False):
    """What a task can be registered with."""


def recurrence_of(options: TaskOptions) -> tuple[HandlerOptions, Recurrence]:
    """The options of a task, and how it recurs; the latter is empty unless it does."""
    names = Recurrence.__annotations__.keys()
    task: HandlerOptions = {k: v for k, v in options.items() if k not in names}  # type: ignore[assignment] # the rest of them
    recurrence: Recurrence = {k: v for k, v in options.items() if k in names}  # type: ignore[assignment] # those
    return task, recurrence


class Periodic(Looking):
    """Schedules of a Penstock."""

    tasks: dict[str, Task[Any, Any]]
    check: Callable[[NewJob], None]
    _declared: dict[str, Schedule]
    _complaints: dict[str, int]

    # Schedules

    async def schedule(
        self, name: str, job: Task[..., Any] | NewJob, **recurrence: Unpack[Recurrence]
    ) -> Schedule:
        """Enqueue a job again and again: `await app.schedule("eu", report.new("eu"), cron=…)`.

        Durable on return. Under a name that exists, it takes the other's place: a changed rhythm
        begins now, an unchanged one keeps its next run. So it can be called at every start.
        """
        wanted = self._checked(name, job, recurrence)
        admit([wanted.job])
        return await self._put(wanted)

    async def unschedule(self, name: str) -> None:
        """Remove a schedule; jobs that it has enqueued stay.

        One that stands in the code of a task comes back with the next worker that starts.
        """
        if not await self.store.drop_schedule(name):
            raise _not_found(name)

    async def schedules(self) -> list[Schedule]:
        """Every schedule, by name.

        One that is not `known` belongs to a task that this program does not have, or that is not
        periodic here any more: workers of this program leave it alone.
        """
        return [
            replace(schedule, known=self._knows(schedule))
            for schedule in await self.store.schedules()
        ]

    async def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule at once; its rhythm goes on as before.

        Also while it is paused. Where runs may not overlap and one is unfinished, that one is
        returned, with `duplicate` set. The log says who asked for it.
        """
        schedule = await self._stored(name)
        # Nobody is asked whether the job may be stored: it is in the store already, and only its
        # schedule is named from outside.
        reason = f"schedule {name}, run now by {self.actor}"
        new = schedule.alone(schedule.job)
        added = await self.store.add([new], actor=self.actor, reason=reason)
        return bind(added, self)[0]

    async def pause_schedule(self, name: str) -> Schedule:
        """Fire it no more, in any process, until it is resumed."""
        return await self._change(name, lambda stored, _: replace(stored, paused=True))

    async def resume_schedule(self, name: str) -> Schedule:
        """Fire it again from its next run on; runs that fell into the pause do not happen."""
        return await self._change(name, resumed)

    # What workers do

    async def register_schedules(self) -> list[Schedule]:
        """Store the schedules that stand in the code of tasks. Workers do this when they start.

        Returns those that the store knows from code which is not there any more.
        """
        for wanted in self._declared.values():
            await self._put(wanted)
        return [s for s in await self.schedules() if s.declared and not s.known]

    async def fire_due(self) -> timedelta | None:
        """Enqueue every run that is due. Workers do this by themselves.

        Returns how long it is until the next one is; None when there is none. However many
        processes do this, each run is enqueued once.
        """
        stuck: set[str] = set()
        while True:
            limit = FIRED_AT_ONCE + len(stuck)
            due = await self.store.due(self.tasks.keys(), self._declared.keys(), limit)
            left = [schedule for schedule in due.schedules if schedule.name not in stuck]
            # All at once, so that they share a transaction.
            fired = await _gather([self._fire(schedule, due.now) for schedule in left])
            stuck.update(s.name for s, gone_on in zip(left, fired, strict=True) if not gone_on)
            if len(due.schedules) < limit:
                return None if due.next is None else due.next - due.now

    async def _fire(self, schedule: Schedule, now: datetime) -> bool:
        """Whether the schedule has gone on, by this call or another."""
        try:
            firing = plan(schedule, now)
        except Exception as error:  # noqa: BLE001 - such as a time zone that is unknown here
            self._complain(schedule, f"it cannot be fired here: {error!r}")
            return False
        try:
            jobs = await self.store.fire(firing, actor=self.actor)
        except (QueueFull, TooManyQueues) as error:
            self._complain(schedule, str(error))
            return False
        if jobs is not None:
            _report(firing, jobs)
        return True

    def _complain(self, schedule: Schedule, text: str) -> None:
        """Once for each run, not with every sweep."""
        if self._complaints.get(schedule.name) != schedule.version:
            self._complaints[schedule.name] = schedule.version
            _log.warning("schedule %s: %s; its run stays due", schedule.name, text)

    # How they are written

    def _declare(self, task: Task[..., Any], recurrence: Recurrence) -> None:
        schedule = self._checked(task.name, task, recurrence)
        self._declared[task.name] = replace(schedule, declared=True)

    def _checked(self, name: str, job: Task[..., Any] | NewJob, recurrence: Recurrence) -> Schedule:
        """The schedule that is asked for; raises `ConfigurationError` or `InvalidJob`."""
        if unknown := recurrence.keys() - Recurrence.__annotations__.keys():
            raise ConfigurationError(f"schedules have no option {', '.join(sorted(unknown))}")
        check_name("name of a schedule", name)
        rhythm = check_rhythm(
            recurrence.get("cron"), recurrence.get("every"), recurrence.get("timezone"), name=name
        )
        missed = recurrence.get("missed", Missed.ONCE)
        if missed not in list(Missed):
            raise ConfigurationError(
                f"schedule {name!r}: missed is one of {', '.join(Missed)}, not {missed!r:.80}"
            )
        overlap = recurrence.get("overlap", True)
        if not isinstance(overlap, bool):
            raise ConfigurationError(f"schedule {name!r}: overlap is True or False")
        return Schedule(
            name=name,
            job=self._checked_job(name, job),
            rhythm=rhythm,
            missed=Missed(missed),
            overlap=overlap,
        )

    def _checked_job(self, name: str, job: Task[..., Any] | NewJob) -> NewJob:
        if isinstance(job, Task):
            task = job
            try:
                job = task.new()
            except InvalidJob as error:
                raise ConfigurationError(
                    f"schedule {name!r}: {error}; a periodic task is called without arguments: "
                    f"give them defaults, or call schedule({name!r}, {task.name}.new(…), …)"
                ) from error
        if not isinstance(job, NewJob):
            raise ConfigurationError(
                f"schedule {name!r}: give a task or what its new(…) returns, not {job!r:.80}"
            )
        if job.delay is not None or job.run_at is not None:
            raise ConfigurationError(f"schedule {name!r}: its job can have no delay and no run_at")
        self.check(job)
        return job

    def _knows(self, schedule: Schedule) -> bool:
        return schedule.task in self.tasks and (
            not schedule.declared or schedule.name in self._declared
        )

    async def _stored(self, name: str) -> Schedule:
        found = await self.store.schedules([name])
        if not found:
            raise _not_found(name)
        return found[0]

    async def _now(self) -> datetime:
        """The time by the store's clock."""
        return (await self.store.due((), (), 1)).now

    async def _put(self, wanted: Schedule) -> Schedule:
        for _ in range(_DECISIONS):
            stored = next(iter(await self.store.schedules([wanted.name])), None)
            following = redefined(stored, wanted, await self._now())
            if stored is not None and following == stored:
                return stored
            if (written := await self.store.put_schedule(following)) is not None:
                return written
        raise PenstockError(f"schedule {wanted.name!r} keeps changing; try again")

    async def _change(
        self, name: str, decide: Callable[[Schedule, datetime], Schedule]
    ) -> Schedule:
        for _ in range(_DECISIONS):
            stored = await self._stored(name)
            changed = decide(stored, await self._now())
            if changed == stored:
                return replace(stored, known=self._knows(stored))
            if (written := await self.store.put_schedule(changed)) is not None:
                return replace(written, known=self._knows(written))
        raise PenstockError(f"schedule {name!r} keeps changing; try again")


async def _gather(calls: list[Any]) -> list[bool]:
    """Do these calls at once; one after the other where no event loop runs."""
    if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises
        return [await call for call in calls]
    return list(await asyncio.gather(*calls))


def _report(firing: Firing, jobs: list[Job]) -> None:
    name = firing.schedule.name
    for job in jobs:
        if job.duplicate:
            _log.info("schedule %s: left out a run, because job %d is %s", name, job.id, job.state)
    if firing.left_out:
        _log.warning(
            "schedule %s: runs since %s were missed, %d of them made up for",
            name,
            firing.schedule.next,
            len(jobs),
        )


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}")

"""Schedules: `Penstock.schedules`, which keeps periodic jobs and fires those that are due."""

import builtins
import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from msgspec.structs import replace

from penstock.core.errors import (
    ConfigurationError,
    InvalidJob,
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
from penstock.engine.connection import Connection, admit
from penstock.engine.decision import decide
from penstock.engine.sync_calls import SyncSchedules
from penstock.engine.task import HandlerOptions, Task
from penstock.engine.validation import check_name
from penstock.runtime import running_loop

_log = logging.getLogger(__name__)

FIRED_AT_ONCE = 100


class Recurrence(TypedDict, total=False):
    """How a task or a job recurs."""

    cron: str
    every: timedelta
    timezone: str
    missed: Literal["once", "all", "skip"]
    overlap: bool


class TaskOptions(HandlerOptions, Recurrence, total=False):
    """The options that a task can be registered with."""


def recurrence_of(options: TaskOptions) -> tuple[HandlerOptions, Recurrence]:
    """Split the options of a task from how it recurs, which is empty if it does not."""
    names = Recurrence.__annotations__.keys()
    task: HandlerOptions = {k: v for k, v in options.items() if k not in names}  # type: ignore[assignment] # the rest of them
    recurrence: Recurrence = {k: v for k, v in options.items() if k in names}  # type: ignore[assignment] # those
    return task, recurrence


class Schedules:
    """The schedules of a store, and those that the tasks of this program declare."""

    def __init__(self, connection: Connection, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._connection = connection
        self._tasks = tasks
        self.declared: dict[str, Schedule] = {}
        """The schedules that tasks were registered with."""
        self._warned: dict[str, int] = {}

    @property
    def sync(self) -> SyncSchedules:
        """The same calls from synchronous code, without `await`."""
        return SyncSchedules(self)

    async def put(
        self, name: str, job: Task[..., Any] | NewJob, **recurrence: Unpack[Recurrence]
    ) -> Schedule:
        """Enqueue a job periodically: `await app.schedules.put("eu", report.new("eu"), cron=…)`.

        Durable on return. Replaces a schedule of the same name: a changed rhythm begins now, an
        unchanged one keeps its next run, so a program may call this whenever it starts.
        """
        wanted = self._checked(name, job, recurrence)
        admit([wanted.job])
        return await self._put(wanted)

    async def remove(self, name: str) -> None:
        """Remove a schedule; jobs that it has enqueued stay. Raises `ScheduleNotFound`.

        One that a task declares returns with the next worker that starts.
        """
        if not await self._connection.store.drop_schedule(name):
            raise _not_found(name)

    async def list(self) -> builtins.list[Schedule]:
        """Return every schedule, by name.

        One that is not `known` belongs to a task that this program does not have, or no longer
        declares as periodic: workers of this program do not fire it.
        """
        return [
            replace(schedule, known=self._knows(schedule))
            for schedule in await self._connection.store.schedules()
        ]

    async def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule now, even if it is paused; its rhythm does not change.

        If runs must not overlap and one is unfinished, returns that one, with `duplicate` set. The
        log records who requested the run.
        """
        own = self._connection
        schedule = await self._stored(name)
        # `admit` is not called: the job is stored already, and the caller only names its schedule.
        reason = f"schedule {name}, run now by {own.actor}"
        added = await own.store.add([schedule.alone(schedule.job)], actor=own.actor, reason=reason)
        return bind(added, own.results)[0]

    async def pause(self, name: str) -> Schedule:
        """Stop firing a schedule, in all processes, until it is resumed."""
        return await self._change(name, lambda stored, _: replace(stored, paused=True))

    async def resume(self, name: str) -> Schedule:
        """Fire a schedule again from its next run on; runs during the pause are skipped."""
        return await self._change(name, resumed)

    # For workers

    def declare(self, task: Task[..., Any], recurrence: Recurrence) -> None:
        """Remember that a task is periodic, for `register`."""
        schedule = self._checked(task.name, task, recurrence)
        self.declared[task.name] = replace(schedule, declared=True)

    async def register(self) -> builtins.list[Schedule]:
        """Store the schedules that tasks declare. Workers do this when they start.

        Returns those that are stored as declared, but that this program no longer declares.
        """
        for wanted in self.declared.values():
            await self._put(wanted)
        return [s for s in await self.list() if s.declared and not s.known]

    async def fire_due(self) -> timedelta | None:
        """Enqueue every run that is due, and return the time until the next. Workers do this.

        Returns None if there is no next run. However many processes do this, each run is enqueued
        once.
        """
        stuck: set[str] = set()
        while True:
            limit = FIRED_AT_ONCE + len(stuck)
            due = await self._connection.store.due(self._tasks.keys(), self.declared.keys(), limit)
            left = [schedule for schedule in due.schedules if schedule.name not in stuck]
            # All at once, so that they share a transaction.
            fired = await _gather([self._fire(schedule, due.now) for schedule in left])
            stuck.update(s.name for s, moved in zip(left, fired, strict=True) if not moved)
            if len(due.schedules) < limit:
                return None if due.next is None else due.next - due.now

    async def _fire(self, schedule: Schedule, now: datetime) -> bool:
        """Fire a schedule, and return whether it has moved on, by this call or another."""
        try:
            firing = plan(schedule, now)
        except Exception as error:  # noqa: BLE001 - such as a time zone that is unknown here
            self._warn(schedule, f"it cannot be fired here: {error!r}")
            return False
        try:
            jobs = await self._connection.store.fire(firing, actor=self._connection.actor)
        except (QueueFull, TooManyQueues) as error:
            self._warn(schedule, str(error))
            return False
        if jobs is not None:
            _log_firing(firing, jobs)
        return True

    def _warn(self, schedule: Schedule, text: str) -> None:
        """Log a warning once for each run, not with every sweep."""
        if self._warned.get(schedule.name) != schedule.version:
            self._warned[schedule.name] = schedule.version
            _log.warning("schedule %s: %s; its run stays due", schedule.name, text)

    def _checked(self, name: str, job: Task[..., Any] | NewJob, recurrence: Recurrence) -> Schedule:
        """Return the requested schedule; raises `ConfigurationError` or `InvalidJob`."""
        if unknown := recurrence.keys() - Recurrence.__annotations__.keys():
            raise ConfigurationError(f"schedules have no option {', '.join(sorted(unknown))}")
        check_name("name of a schedule", name)
        rhythm = check_rhythm(
            recurrence.get("cron"), recurrence.get("every"), recurrence.get("timezone"), name=name
        )
        missed = recurrence.get("missed", Missed.ONCE)
        if missed not in builtins.list(Missed):
            raise ConfigurationError(
                f"schedule {name!r}: missed must be one of {', '.join(Missed)}, not {missed!r:.80}"
            )
        overlap = recurrence.get("overlap", True)
        if not isinstance(overlap, bool):
            raise ConfigurationError(f"schedule {name!r}: overlap must be True or False")
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
                    f"give them defaults, or call schedules.put({name!r}, {task.name}.new(…), …)"
                ) from error
        if not isinstance(job, NewJob):
            raise ConfigurationError(
                f"schedule {name!r}: give a task or what its new(…) returns, not {job!r:.80}"
            )
        if job.delay is not None or job.run_at is not None:
            raise ConfigurationError(
                f"schedule {name!r}: its job must have neither delay nor run_at"
            )
        self._connection.check(job)
        return job

    def _knows(self, schedule: Schedule) -> bool:
        return schedule.task in self._tasks and (
            not schedule.declared or schedule.name in self.declared
        )

    async def _stored(self, name: str) -> Schedule:
        found = await self._connection.store.schedules([name])
        if not found:
            raise _not_found(name)
        return found[0]

    async def _now(self) -> datetime:
        """Return the time by the store's clock."""
        return (await self._connection.store.due((), (), 1)).now

    async def _put(self, wanted: Schedule) -> Schedule:
        async def attempt() -> Schedule | None:
            stored = next(iter(await self._connection.store.schedules([wanted.name])), None)
            following = redefined(stored, wanted, await self._now())
            if stored is not None and following == stored:
                return stored
            return await self._connection.store.put_schedule(following)

        return await decide(attempt, f"schedule {wanted.name!r}")

    async def _change(self, name: str, rule: Callable[[Schedule, datetime], Schedule]) -> Schedule:
        async def attempt() -> Schedule | None:
            stored = await self._stored(name)
            changed = rule(stored, await self._now())
            if changed == stored:
                return stored
            return await self._connection.store.put_schedule(changed)

        written = await decide(attempt, f"schedule {name!r}")
        return replace(written, known=self._knows(written))


async def _gather(calls: list[Coroutine[Any, Any, bool]]) -> list[bool]:
    """Make these calls at the same time, or one after the other without an event loop."""
    if running_loop() is None:
        return [await call for call in calls]
    import asyncio

    return list(await asyncio.gather(*calls))


def _log_firing(firing: Firing, jobs: list[Job]) -> None:
    name = firing.schedule.name
    for job in jobs:
        if job.duplicate:
            _log.info("schedule %s: skipped a run, because job %d is %s", name, job.id, job.state)
    if firing.left_out:
        _log.warning(
            "schedule %s: runs since %s were missed, %d of them made up for",
            name,
            firing.schedule.next,
            len(jobs),
        )


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}")

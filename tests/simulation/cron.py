"""The schedules of a simulated world, one for each rule about missed runs, and their judgement."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from penstock.core.job import Job
from penstock.core.retry import RetryPolicy
from penstock.core.schedule import Missed
from tests.crash.history import CRON, Stored, Violation
from tests.simulation.application import LEASE, PAUSE, Program

EVERY = {Missed.ALL: timedelta(seconds=5), Missed.ONCE: timedelta(seconds=7)}
EVERY[Missed.SKIP] = timedelta(seconds=4)


class Schedules:
    """What was planned: from which run on, and up to which."""

    def __init__(self) -> None:
        self._first: dict[Missed, datetime] = {}
        self._end: dict[Missed, datetime] = {}

    async def put(self, app: Program) -> None:
        """Store the schedules; those that are stored stay as they are."""
        retry = RetryPolicy(attempts=5, delay=PAUSE, factor=1)
        task = app.tasks["work"].using(lease=LEASE, retry=retry, queue="cron")
        for missed, every in EVERY.items():
            job = task.new(mark=f"{CRON}{missed}", does=["done"])
            put = await app.schedules.put(missed, job, every=every, missed=missed.value)
            assert put.next is not None
            self._first.setdefault(missed, put.next)

    async def pause(self, app: Program) -> None:
        """Let nothing further be planned."""
        for schedule in await app.schedules.list():
            assert schedule.next is not None
            await app.schedules.pause(schedule.name)
        for schedule in await app.schedules.list():
            assert schedule.next is not None
            self._end[Missed(schedule.name)] = schedule.next

    def judge(self, stored: Stored) -> Iterator[Violation]:
        """Every planned run is enqueued once; those that a rule leaves out, not at all."""
        for missed, end in self._end.items():
            planned = list(_runs(self._first[missed], end, EVERY[missed]))
            found = Counter(_planned_for(job) for job in _jobs(stored, missed))
            for at, times in found.items():
                if times > 1 or at not in planned:
                    yield Violation(5, f"the run of schedule {missed} at {at} came {times} times")
            # Of runs that were missed together, the newest is made up for.
            due = planned if missed is Missed.ALL else planned[-1:]
            if missed is not Missed.SKIP:
                for at in due:
                    if at not in found:
                        yield Violation(5, f"schedule {missed} left out its run at {at}")


def _jobs(stored: Stored, missed: Missed) -> Iterator[Job]:
    for job in stored.jobs.values():
        if job.correlation is not None and job.correlation.startswith(f"{missed}@"):
            yield job


def _planned_for(job: Job) -> datetime:
    """When a run was planned; later moves of the job do not change that."""
    return datetime.fromisoformat((job.correlation or "").partition("@")[2])


def _runs(first: datetime, end: datetime, every: timedelta) -> Iterator[datetime]:
    while first < end:
        yield first.replace(microsecond=0)
        first += every

"""A client of the crash tests: what it enqueues, what its handlers do, and where it can die."""

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from penstock.core.errors import Cancel, QueueFull, Snooze
from penstock.core.job import Job, Lease, NewJob, Scope
from penstock.core.lifecycle import Outcome
from penstock.core.retry import RetryPolicy
from penstock.engine.penstock import run_sync
from penstock.runtime import system_clock
from penstock.stores.postgres.connection import address
from penstock.worker.context import context
from tests.crash.points import Point, die
from tests.crash.recording import (
    Fence,
    Recorded,
    RecordedLeases,
    Recorder,
    is_postgres,
    mark_of,
    recorded_run,
    store_url,
)

LEASE = timedelta(seconds=0.3)
LONG_LEASE = timedelta(minutes=5)
"""One that no worker loses by being slow; it is over for clients whose `offset` is LATER."""
LATER = 600
FIRM_LEASE = timedelta(seconds=3)
"""One that no worker loses easily; a job that has lost it twice rests about as long."""
MOMENT = timedelta(seconds=0.01)
RETRY = RetryPolicy(attempts=4, delay=MOMENT, factor=1)
KEYS = [None, None, None, "k1", "k2", "k3", "k4"]

# What a handler does at its first attempt, its second, and so on; the last holds for the rest.
DEEDS = [
    ["done"],
    ["done"],
    ["slow"],
    ["fail", "done"],
    ["fail", "slow", "fail", "done"],
    ["snooze"],
    ["fail"],
    ["permanent"],
    ["cancel"],
]


def orders(folder: Path) -> str:
    """The table of an application in the database of the store."""
    url = store_url(folder)
    return f"{address(url).schema}.orders" if is_postgres(folder) else "orders"


class Hopeless(Exception):
    """An error that no further attempt can mend."""


class ClientLeases(RecordedLeases):
    """The leases of a `Client`, which can die between two steps."""

    def __init__(self, app: Recorded, recorder: Recorder, point: Point) -> None:
        super().__init__(app, recorder)
        self.point = point

    async def claim(self, **wanted: Any) -> list[Job]:
        jobs = await super().claim(**wanted)
        if jobs:
            self.point.step("claimed")
        return jobs

    async def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        self.point.step("handled")
        answers = await super().settle_held(results, refuse=refuse)
        self.point.step("settled")
        return answers


class Client(Recorded):
    """A recorded Penstock with the tasks of these tests, that can die between two steps."""

    def __init__(self, role: str, folder: Path, options: dict[str, Any]) -> None:
        self.offset = options.get("offset", 0)
        self.stands_at: int | None = None
        clock = system_clock if options.get("clock") == "server" else self._shifted_clock
        super().__init__(folder, Recorder(folder, role), clock)
        self.folder = folder
        self.fence = Fence(folder)
        self.rng = random.Random(options.get("seed", 0))
        self.point = Point(options.get("point", "at never 1"), self.url)
        self.leases = ClientLeases(self, self.recorder, self.point)
        self._marks = 0
        self.task("work", self.work, permanent=(Hopeless,))
        self.task("plain", self.plain, permanent=(Hopeless,))
        if options.get("novel"):  # a task of a newer version of the program
            self.task(
                "novel",
                self.work,
                permanent=(Hopeless,),
                version=2,
                accepts=range(1, 3),
                aliases=["fresh"],
            )

    def _shifted_clock(self) -> int:
        return (self.stands_at or system_clock()) + int(self.offset * 1e6)

    def mark(self) -> str:
        self._marks += 1
        return f"{self.connection.actor}/{self._marks}"

    async def work(self, mark: str, does: list[str]) -> str:
        job = context().job
        with recorded_run(job, self.recorder, self.fence):
            self.point.step("handling")
            deed = does[min(job.attempt, len(does)) - 1]
            if deed == "slow":
                await asyncio.sleep(0.015)
            act(deed, job)
        return mark

    def plain(self, mark: str, does: list[str]) -> str:
        job = context().job
        with recorded_run(job, self.recorder, self.fence):
            self.point.step("handling")
            deed = does[min(job.attempt, len(does)) - 1]
            if deed == "slow":
                time.sleep(0.015)
            if deed == "wait":
                while not (self.folder / "go").exists():
                    time.sleep(0.005)
            act(deed, job)
        return self.connection.actor

    def handle(self, job: Job) -> Job:
        """Do a job by hand, without a worker."""
        with recorded_run(job, self.recorder, self.fence):
            self.point.step("handling")
        return job

    def new(self, **options: Any) -> NewJob:
        does = options.pop("does", ["done"])
        task = self.tasks[options.pop("task", "work")]
        return task.using(**{"lease": LEASE, "retry": RETRY, **options}).new(
            mark=self.mark(), does=does
        )

    def any_job(self) -> NewJob:
        """A job of any kind."""
        rng = self.rng
        options: dict[str, Any] = {
            "task": rng.choice(["work", "work", "plain"]),
            "does": rng.choice(DEEDS),
            "queue": rng.choice(["default", "default", "limited", "valve"]),
            "priority": rng.randrange(11),
            "retry": RetryPolicy(attempts=rng.randint(1, 6), delay=MOMENT, factor=1, jitter=1),
        }
        if (key := rng.choice(KEYS)) is not None:
            options["key"] = key
        if rng.random() < 0.2:
            options["delay"] = rng.uniform(0, 0.1) * timedelta(seconds=1)
        if rng.random() < 0.2:
            options |= {"dedupe": f"d{rng.randrange(5)}", "scope": rng.choice(list(Scope))}
        if rng.random() < 0.2:
            options["tags"] = tuple(rng.sample(["red", "green", "blue"], rng.randint(1, 3)))
        return self.new(**options)

    def some_jobs(self) -> list[NewJob]:
        return [self.any_job() for _ in range(self.rng.randint(2, 8))]

    def enqueue_within(self, connection: Any, job: NewJob) -> None:
        """Enqueue together with a row of one's own, in one's own transaction."""
        postgres = isinstance(connection, psycopg.Connection)
        connection.execute("BEGIN" if postgres else "BEGIN IMMEDIATE")
        call = self.note_asked([job])
        try:
            stored = run_sync(
                self.connection.tables.add_within(
                    [job], actor=self.connection.actor, connection=connection
                )
            )
            if not stored[0].duplicate:
                insert = f"INSERT INTO {orders(self.folder)} VALUES ({'%s' if postgres else '?'})"  # noqa: S608 - names of our own
                connection.execute(insert, (mark_of(job.payload),))
            connection.execute("COMMIT")
        except QueueFull:
            connection.execute("ROLLBACK")
            raise
        self.note_told(call, stored)


def act(deed: str, job: Job) -> None:
    match deed:
        case "fail":
            raise RuntimeError("as it was told")
        case "permanent":
            raise Hopeless
        case "cancel":
            raise Cancel
        # By chance, but the same for all. Not by a remainder: tokens may come at a steady pace, so
        # that a job would be put off for ever.
        case "snooze" if random.Random(job.token).random() < 0.7:
            raise Snooze(MOMENT)
        case "die":
            die()

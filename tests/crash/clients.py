"""The clients of the crash tests: each function of `ROLES` is the life of one process."""

import asyncio
import logging
import random
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import Cancel, LeaseLost, PenstockError, QueueFull, Snooze, StoreUnavailable
from penstock.core.job import Job, JobQuery, Lease, NewJob, Retention, Scope
from penstock.core.lifecycle import Done, Failed, Outcome, Snoozed
from penstock.core.retry import RetryPolicy
from penstock.engine import run_sync
from penstock.stores import system_clock
from penstock.stores.sqlite import checkpoint
from penstock.worker.context import context
from penstock.worker.worker import Worker
from tests.crash import variants
from tests.crash.points import Point, arm, die
from tests.crash.recording import Fence, Recorded, Recorder, Trouble, recorded_run

LEASE = timedelta(seconds=0.3)
MOMENT = timedelta(seconds=0.01)
RETRY = RetryPolicy(attempts=4, delay=MOMENT, factor=1)
KEYS = [None, None, None, "k1", "k2", "k3", "k4"]
ORDERS = "CREATE TABLE IF NOT EXISTS orders (mark TEXT PRIMARY KEY)"

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


class Hopeless(Exception):  # noqa: N818 - what the handler says
    """An error that no further attempt can mend."""


class Client(Recorded):
    """A recorded Penstock with the tasks of these tests, that can die between two steps."""

    def __init__(self, role: str, folder: Path, options: dict[str, Any]) -> None:
        self.offset = options.get("offset", 0)
        super().__init__(folder, Recorder(folder, role), self._shifted_clock)
        self.folder = folder
        self.fence = Fence(folder)
        self.rng = random.Random(options.get("seed", 0))
        self.point = Point(options.get("point", "at never 1"))
        self._marks = 0
        self.task("work", self.work, permanent=(Hopeless,))
        self.task("plain", self.plain, permanent=(Hopeless,))

    def _shifted_clock(self) -> int:
        return system_clock() + int(self.offset * 1e6)

    def mark(self) -> str:
        self._marks += 1
        return f"{self.actor}/{self._marks}"

    async def claim(self, **wanted: Any) -> list[Job]:
        jobs = await super().claim(**wanted)
        if jobs:
            self.point.step("claimed")
        return jobs

    async def settle_held(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job | None]:
        self.point.step("handled")
        answers = await super().settle_held(results)
        self.point.step("settled")
        return answers

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
        return self.actor

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

    def enqueue_within(self, connection: sqlite3.Connection, job: NewJob) -> None:
        """Enqueue together with a row of one's own, in one's own transaction."""
        connection.execute("BEGIN IMMEDIATE")
        call = self.note_asked([job])
        try:
            stored = run_sync(self.store.add([job], actor=self.actor, connection=connection))
            if not stored[0].duplicate:
                mark = msgspec.json.decode(job.payload)["mark"]
                connection.execute("INSERT INTO orders VALUES (?)", (mark,))
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
        case "snooze" if job.token % 3:
            raise Snooze(MOMENT)
        case "die":
            die()


# The roles


def producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues in every way there is, in an event loop."""
    asyncio.run(_produce(app, options.get("rounds", 1_000_000)))


async def _produce(app: Client, rounds: int) -> None:
    connection = own_connection(app.folder)
    for _ in range(rounds):
        way = app.rng.randrange(4)
        try:
            if way == 0:
                await app.enqueue_many(app.some_jobs())
            elif way == 1:
                singles = [app.enqueue_many([job]) for job in app.some_jobs()]
                for answer in await asyncio.gather(*singles, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        raise answer
            elif way == 2:
                await asyncio.to_thread(lambda: run_sync(app.enqueue_many([app.any_job()])))
            else:
                await asyncio.to_thread(app.enqueue_within, connection, app.any_job())
        except QueueFull:
            await asyncio.sleep(0.005)
        await asyncio.sleep(app.rng.uniform(0, 0.004))


def plain_producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues from synchronous code."""
    for _ in range(options.get("rounds", 1_000_000)):
        jobs = app.some_jobs() if app.rng.random() < 0.3 else [app.any_job()]
        try:
            run_sync(app.enqueue_many(jobs))
        except QueueFull:
            time.sleep(0.005)
        time.sleep(app.rng.uniform(0, 0.004))


def own_connection(folder: Path) -> sqlite3.Connection:
    """An application's own connection to the file of the store."""
    connection = sqlite3.connect(
        folder / "jobs.db", timeout=60, isolation_level=None, check_same_thread=False
    )
    connection.execute(ORDERS)
    return connection


def worker(app: Client, options: dict[str, Any]) -> None:
    """Works until it is asked to stop."""
    logging.getLogger("penstock").addHandler(_Troubles(app.recorder))
    asyncio.run(_work(app, options))


async def _work(app: Client, options: dict[str, Any]) -> None:
    working = Worker(
        app,
        name=app.actor,
        concurrency=options.get("concurrency", 6),
        sweep=timedelta(seconds=options.get("sweep", 0.1)),
        retention=Retention(),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
    await working.run()
    await app.close()


class _Troubles(logging.Handler):
    """A worker goes on whatever the store says; here it is noted all the same."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "leases ran out" not in text and "was lost before it ended" not in text:
            self._recorder.note(Trouble, error=text)


def reader(app: Client, options: dict[str, Any]) -> None:
    """Comes, reads all there is, some of it slowly, and goes again, until it is asked to stop."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.is_set():
        run_sync(app.count())
        for job in run_sync(app.find(JobQuery(limit=100))):
            run_sync(app.log(job.id))
        connection = own_connection(app.folder)
        connection.execute("BEGIN")
        deadline = time.monotonic() + app.rng.uniform(0, 0.5)
        for _ in connection.execute("SELECT * FROM penstock_job"):
            if stopped.wait(0.0005) or time.monotonic() > deadline:
                break
        connection.execute("COMMIT")
        connection.close()
        run_sync(app.close())


def script(app: Client, options: dict[str, Any]) -> None:
    """Every verb of the store in a fixed order, so that each statement can be died at."""
    run_sync(app.limit("limited", 2))
    connection = own_connection(app.folder)
    run_sync(app.enqueue_many([app.new(key="k", priority=n) for n in (3, 9)]))
    run_sync(app.enqueue_many([app.new(tags=("red",), dedupe="d")]))
    later = app.new(queue="limited", delay=LEASE)
    _, waiting = run_sync(app.enqueue_many([app.new(dedupe="d"), later]))
    app.enqueue_within(connection, app.new(key="k"))
    run_sync(app.pause("default"))
    run_sync(app.claim(worker=app.actor, limit=5))
    run_sync(app.resume("default"))
    one, other = run_sync(app.claim(worker=app.actor, limit=2))
    run_sync(app.renew([one.lease, other.lease]))
    run_sync(app.settle([(app.handle(one), Done()), (app.handle(other), Failed("so it is"))]))
    run_sync(app.cancel(waiting.id))
    run_sync(app.retry(waiting.id))
    app.offset += 1
    (late,) = run_sync(app.claim(worker=app.actor, limit=1))
    app.offset += 1
    run_sync(app.reclaim())
    try:
        run_sync(app.settle([(app.handle(late), Done())]))
    except LeaseLost:
        pass
    for job in run_sync(app.claim(worker=app.actor, limit=9)):
        run_sync(app.settle([(app.handle(job), Snoozed(MOMENT))]))
    connection.close()
    run_sync(app.close())
    (app.folder / "passed").write_text(f"{app.point.statements} {app.point.commits}")


def pruner(app: Client, options: dict[str, Any]) -> None:
    """Removes all that is finished."""
    nothing = timedelta(0)
    run_sync(app.store.prune(Retention(finished=nothing, failed=nothing), 1000))
    run_sync(app.close())


def checkpointed(app: Client, options: dict[str, Any]) -> None:
    """Enqueues and works with a checkpoint after nearly every commit, until it dies."""
    checkpoint.CHECKPOINT_BYTES = 50_000
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run_sync(app.enqueue_many([app.new(key="k"), *(app.new() for _ in range(20))]))
        for job in run_sync(app.claim(worker=app.actor, limit=20)):
            run_sync(app.settle([(app.handle(job), Done())]))


def hand(app: Client, options: dict[str, Any]) -> None:
    """Claims one job by hand, is slow about it, and settles it."""
    (job,) = run_sync(app.claim(worker=app.actor, limit=1))
    with recorded_run(job, app.recorder, app.fence):
        while not (app.folder / "go").exists():
            time.sleep(0.005)
    try:
        run_sync(app.settle([(job, Done('"hand"'))]))
    except LeaseLost as lost:
        (app.folder / "lost").write_text(str(lost.token))
    run_sync(app.close())


def crowd_producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues well-behaved jobs of some size, from an event loop, as fast as it can."""
    asyncio.run(_crowd(app, options["jobs"]))


async def _crowd(app: Client, jobs: int) -> None:
    stored = 0
    while stored < jobs:
        new = [crowd_job(app) for _ in range(app.rng.randint(1, 50))]
        if app.rng.random() < 0.7:
            await app.enqueue_many(new)
        else:
            await asyncio.gather(*(app.enqueue_many([job]) for job in new))
        stored += len(new)
    await app.close()


def crowd_job(app: Client) -> NewJob:
    lease = timedelta(minutes=5)
    if app.rng.random() < 0.1:
        return app.new(lease=lease, key=app.rng.choice(["k1", "k2", "k3"]), tags=("red", "blue"))
    return app.new(lease=lease, does=["done " * app.rng.choice([1, 300])])


def limited_writer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues while no file may grow beyond a size, and again when they may."""
    run_sync(app.enqueue_many(app.some_jobs()))
    limit_files(500_000)
    refused = 0
    while refused < 10:
        try:
            run_sync(app.enqueue_many([app.new(does=["x" * 20_000]), app.new(key="k")]))
        except StoreUnavailable:
            refused += 1
    limit_files(resource.RLIM_INFINITY)
    run_sync(app.enqueue_many(app.some_jobs()))
    run_sync(app.close())


def limited_worker(app: Client, options: dict[str, Any]) -> None:
    """Works off a backlog while writes begin to fail, and stop failing some time later."""
    for _ in range(50):
        run_sync(app.enqueue_many([app.new(does=["x" * 2_000]) for _ in range(4)]))
    wal = (app.folder / "jobs.db-wal").stat().st_size
    limit_files(wal + 50_000)
    asyncio.run(_work_off(app))


async def _work_off(app: Client) -> None:
    working = Worker(app, name=app.actor, concurrency=5, sweep=timedelta(seconds=0.1))
    refusals = _Refusals()
    logging.getLogger("penstock").addHandler(refusals)
    async with asyncio.TaskGroup() as group:
        group.create_task(working.run())
        async with asyncio.timeout(60):
            while not refusals.seen:
                await asyncio.sleep(0.01)
            limit_files(resource.RLIM_INFINITY)
            while (await app.store.backlog())[0]:
                await asyncio.sleep(0.01)
        working.stop()
    await app.close()


class _Refusals(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen = False

    def emit(self, record: logging.LogRecord) -> None:
        self.seen = self.seen or "did not answer" in record.getMessage()


def limit_files(size: int) -> None:
    """Let no file grow beyond this; Python ignores SIGXFSZ, so that writes fail with EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


ROLES: dict[str, Callable[[Client, dict[str, Any]], None]] = {
    role.__name__: role
    for role in (
        producer,
        plain_producer,
        worker,
        reader,
        script,
        pruner,
        checkpointed,
        hand,
        crowd_producer,
        limited_writer,
        limited_worker,
    )
}


def run(role: str, folder: Path, options: dict[str, Any]) -> None:
    """Be this client; an error that no client should meet is noted, and raised."""
    variants.apply(options.get("variant"))
    app = Client(role, folder, options)
    arm(app.point)
    try:
        ROLES[role](app, options)
    except PenstockError as error:
        app.recorder.note(Trouble, error=f"{type(error).__name__}: {error}")
        raise

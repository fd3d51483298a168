"""The clients of the crash tests: each function of `ROLES` is the life of one process."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from msgspec.structs import replace

from penstock.core.errors import LeaseLost, PenstockError, QueueFull, StoreUnavailable
from penstock.core.job import NewJob, Retention
from penstock.core.lifecycle import Done, Failed, Snoozed
from penstock.core.progress import Report
from penstock.core.query import JobQuery
from penstock.core.retry import RetryPolicy
from penstock.engine.penstock import run_sync
from penstock.stores.postgres.connection import address
from penstock.stores.sqlite import checkpoints
from penstock.worker.worker import Worker
from tests.crash import (
    chaining,
    enduring,
    journaling,
    limiting,
    migrating,
    serving,
    variants,
    variants_postgres,
)
from tests.crash.client import MOMENT, Client, orders
from tests.crash.points import arm
from tests.crash.recording import (
    Recorder,
    Trouble,
    is_journal,
    is_postgres,
    recorded_run,
    store_url,
)
from tests.crash.scenes import SCENES
from tests.crash.steps import some_line, walker
from tests.environment import SOON


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
                # PostgreSQL lets others go on meanwhile, also with a key or past a limit.
                job = app.new() if is_postgres(app.folder) else app.any_job()
                await asyncio.to_thread(app.enqueue_within, connection, job)
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


# Kills and late renewals use up attempts, on a slow machine many.
OFTEN = RetryPolicy(attempts=100, delay=MOMENT, factor=1)


def novel_producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues jobs of a task that only newer versions of the program know."""
    while True:
        task, version = app.rng.choice([("novel", 1), ("novel", 2), ("fresh", 1), ("fresh", 2)])
        new = app.new(task="novel", key=app.rng.choice(["n1", None]), retry=OFTEN)
        run_sync(app.enqueue_many([replace(new, task=task, task_version=version)]))
        time.sleep(app.rng.uniform(0, 0.1))


def own_connection(folder: Path) -> Any:
    """An application's own connection to the database of the store, with a table of its own."""
    made = f"CREATE TABLE IF NOT EXISTS {orders(folder)} (mark TEXT PRIMARY KEY)"
    if not is_postgres(folder):
        connection = sqlite3.connect(
            folder / "jobs.db", timeout=60, isolation_level=None, check_same_thread=False
        )
        connection.execute(made)
        return connection
    where = address(store_url(folder))
    postgres = psycopg.connect(where.conninfo, autocommit=True)
    # Whoever comes at the same time would fail.
    postgres.execute(f"SELECT pg_advisory_lock(1); {made}; SELECT pg_advisory_unlock(1)".encode())
    return postgres


def worker(app: Client, options: dict[str, Any]) -> None:
    """Works until it is asked to stop."""
    if not options.get("outages"):  # else it may say that the store does not answer
        logging.getLogger("penstock").addHandler(_Troubles(app.recorder))
    asyncio.run(_work(app, options))


async def _work(app: Client, options: dict[str, Any]) -> None:
    working = Worker(
        app,
        name=app.connection.actor,
        concurrency=options.get("concurrency", 6),
        sweep=timedelta(seconds=options.get("sweep", 0.1)),
        retention=Retention(),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
    await working.run()
    await app.close()


class _Troubles(logging.Handler):
    """A worker continues whatever the store answers; here it is recorded all the same."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.WARNING)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "job_id"):  # a handler that failed as it was told
            return
        text = record.getMessage()
        if "reclaimed" not in text and "was lost before its run ended" not in text:
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
        deadline = time.monotonic() + app.rng.uniform(0.1, 0.7)
        for _ in connection.execute("SELECT * FROM penstock_job"):
            if stopped.wait(0.0005) or time.monotonic() > deadline:
                break
        connection.execute("COMMIT")
        connection.close()
        run_sync(app.close())


def script(app: Client, options: dict[str, Any]) -> None:
    """Every verb of the store in a fixed order, so that each statement can be died at."""
    run_sync(app.limits.queue("limited", 2))
    run_sync(app.enqueue_many([app.new(key="k", priority=n) for n in (3, 9)]))
    run_sync(app.enqueue_many([app.new(tags=("red",), dedupe="d")]))
    later = app.new(queue="limited", delay=timedelta(seconds=15))  # not before it is told to
    _, waiting = run_sync(app.enqueue_many([app.new(dedupe="d"), later]))
    if is_postgres(app.folder) or is_journal(app.folder):
        run_sync(app.enqueue_many([app.new(key="k")]))
    else:
        with contextlib.closing(own_connection(app.folder)) as connection:
            app.enqueue_within(connection, app.new(key="k"))
    run_sync(app.enqueue_many([app.new(priority=0)]))  # the only one that meets nobody
    run_sync(app.queues.pause("default"))
    run_sync(app.leases.claim(worker=app.connection.actor, limit=5))
    run_sync(app.queues.resume("default"))
    one, other = run_sync(app.leases.claim(worker=app.connection.actor, limit=2))
    run_sync(app.leases.renew([one.lease, other.lease]))
    run_sync(app.leases.start([one, other.lease]))
    run_sync(app.leases.report([Report(lease=one.lease, state="1", lines=(some_line(),))]))
    run_sync(
        app.leases.settle(
            [(app.handle(one), Done(detail="[1]")), (app.handle(other), Failed("so it is"))]
        )
    )
    run_sync(app.cancel(waiting.id))
    run_sync(app.retry(waiting.id))
    app.offset += 1
    (late,) = run_sync(app.leases.claim(worker=app.connection.actor, limit=1))
    app.offset += 1
    run_sync(app.leases.reclaim())
    with contextlib.suppress(LeaseLost):
        run_sync(app.leases.settle([(app.handle(late), Done())]))
    for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=9)):
        run_sync(app.leases.settle([(app.handle(job), Snoozed(MOMENT))]))
    run_sync(app.statistics.roll_up())
    run_sync(app.close())
    (app.folder / "passed").write_text(f"{app.point.statements} {app.point.commits}")


def pruner(app: Client, options: dict[str, Any]) -> None:
    """Removes all that is finished."""
    nothing = timedelta(0)
    run_sync(app.store.prune(Retention(finished=nothing, failed=nothing), 1000))
    run_sync(app.close())


def digester(app: Client, options: dict[str, Any]) -> None:
    """Counts the log, in small portions."""
    while run_sync(app.store.roll_up(5)):
        pass
    run_sync(app.close())


def checkpointed(app: Client, options: dict[str, Any]) -> None:
    """Enqueues and works with a checkpoint after nearly every commit, until it dies."""
    checkpoints._PAUSE = 0
    checkpoints._RESTART_FRAMES = 10
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        run_sync(app.enqueue_many([app.new(key="k"), *(app.new() for _ in range(20))]))
        for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=20)):
            run_sync(app.leases.settle([(app.handle(job), Done())]))


def hand(app: Client, options: dict[str, Any]) -> None:
    """Claims one job by hand, is slow about it, and settles it."""
    (job,) = run_sync(app.leases.claim(worker=app.connection.actor, limit=1))
    with recorded_run(job, app.recorder, app.fence):
        while not (app.folder / "go").exists():
            time.sleep(0.005)
    try:
        run_sync(app.leases.settle([(job, Done('"hand"'))]))
    except LeaseLost as lost:
        (app.folder / "lost").write_text(str(lost.token))
    run_sync(app.close())


def parent(app: Client, options: dict[str, Any]) -> None:
    """Forks a process, as handlers may, and dies in the middle of a write; the other lives on."""
    run_sync(app.enqueue_many([app.new()]))
    if os.fork() == 0:
        deadline = time.monotonic() + 300  # longer than the test waits
        while not (app.folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os._exit(0)
    run_sync(app.enqueue_many([app.new(key="k")]))


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
    return app.new(lease=lease, does=["done " * app.rng.choice([1, 500])])


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
    limit_files(40_000)  # also where the write-ahead log is started anew meanwhile
    asyncio.run(_work_off(app))


async def _work_off(app: Client) -> None:
    working = Worker(app, name=app.connection.actor, concurrency=5, sweep=timedelta(seconds=0.1))
    refusals = _Refusals()
    logging.getLogger("penstock").addHandler(refusals)
    async with asyncio.TaskGroup() as group:
        group.create_task(working.run())
        async with asyncio.timeout(SOON):
            await refusals.seen.wait()
        limit_files(resource.RLIM_INFINITY)
        assert (await app.queues.drain(timeout=timedelta(seconds=60))).status == "drained"
        working.stop()
    await app.close()


class _Refusals(logging.Handler):
    """Tells that a worker met a store that does not answer."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        if "did not answer" in record.getMessage():
            self._loop.call_soon_threadsafe(self.seen.set)


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
        digester,
        checkpointed,
        novel_producer,
        hand,
        parent,
        crowd_producer,
        limited_writer,
        limited_worker,
        walker,
        *SCENES,
        *limiting.ROLES,
        *chaining.ROLES,
        *migrating.ROLES,
        *serving.ROLES,
        *enduring.ROLES,
        *journaling.ROLES,
    )
}


def run(role: str, folder: Path, options: dict[str, Any]) -> None:
    """Be this client; an error that no client should meet is noted, and raised."""
    if is_postgres(folder):
        variants_postgres.apply(options.get("variant"), folder)
    else:
        variants.apply(options.get("variant"))
    app = Client(role, folder, options)
    arm(app.point)
    try:
        ROLES[role](app, options)
    except PenstockError as error:
        app.recorder.note(Trouble, error=f"{type(error).__name__}: {error}")
        raise

"""Short scenes in which a broken variant has to show itself, and a whole Penstock must not."""

import contextlib
from typing import Any

from penstock.core.errors import LeaseLost, QueueFull, TransitionRefused
from penstock.core.job import Job
from penstock.core.lifecycle import Done, Failed, Outcome
from penstock.core.retry import RetryPolicy
from penstock.engine.penstock import run_sync
from tests.crash.client import MOMENT, Client
from tests.crash.processes import meet


def run_one(app: Client, job: Job, outcome: Outcome | None = None) -> None:
    """Run a job and settle it; a refusal is noted by the client, and by the log."""
    app.handle(job)
    with contextlib.suppress(LeaseLost, TransitionRefused):
        run_sync(app.leases.settle([(job, outcome or Done())]))


def stale_settle(app: Client, options: dict[str, Any]) -> None:
    """A lease runs out, another one begins, and both settle."""
    run_sync(app.enqueue_many([app.new()]))
    (first,) = run_sync(app.leases.claim(worker=app.connection.actor))
    app.offset += 1
    run_sync(app.leases.reclaim())
    (second,) = run_sync(app.leases.claim(worker=app.connection.actor))
    run_one(app, first)
    run_one(app, second)


def two_by_turns(app: Client, options: dict[str, Any]) -> None:
    for _ in range(2):
        run_sync(app.enqueue_many([app.new()]))
        (job,) = run_sync(app.leases.claim(worker=app.connection.actor))
        run_one(app, job)


def enqueues(app: Client, options: dict[str, Any]) -> None:
    for _ in range(10):
        run_sync(app.enqueue_many([app.new()]))


def batches(app: Client, options: dict[str, Any]) -> None:
    for n in range(10):  # tagged: a single plain job has no COMMIT of its own to die at
        run_sync(app.enqueue_many([app.new(tags=(f"batch-{n}",)) for _ in range(5)]))


def works(app: Client, options: dict[str, Any]) -> None:
    run_sync(app.enqueue_many([app.new() for _ in range(3)]))
    for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=3)):
        run_one(app, job)


def jobs_of_a_key(app: Client, options: dict[str, Any]) -> None:
    """The first fails once; priorities speak for the last."""
    for priority in (2, 3, 4, 5):
        run_sync(app.enqueue_many([app.new(key="k", priority=priority)]))
    for n in range(10):
        if n > 2:
            app.offset += 1
        for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=9)):
            run_one(app, job, Failed("the first time") if n == 0 else Done())


def race(app: Client, options: dict[str, Any]) -> None:
    run_sync(app.limits.queue("limited", 1))
    with contextlib.suppress(QueueFull):
        run_sync(app.enqueue_many([app.new(**options["job"])]))


def takes(app: Client, options: dict[str, Any]) -> None:
    """Enqueues a job and does what it is given, when both have claimed."""
    run_sync(app.enqueue_many([app.new(**options.get("job", {}))]))
    jobs = run_sync(app.leases.claim(worker=app.connection.actor, limit=9))
    meet(app.folder, "claimed")
    for job in jobs:
        run_one(app, job)


def silent_worker(app: Client, options: dict[str, Any]) -> None:
    """A worker begins one job again and again, and is never heard of."""
    run_sync(app.enqueue_many([app.new(retry=RetryPolicy(attempts=2, delay=MOMENT))]))
    for _ in range(4):
        run_sync(app.leases.claim(worker=app.connection.actor))
        app.offset += 1
        run_sync(app.leases.reclaim())


def pause(app: Client, options: dict[str, Any]) -> None:
    run_sync(app.enqueue_many([app.new() for _ in range(4)]))
    for steer in (app.queues.pause, app.queues.resume):
        run_sync(steer("default"))
        for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=4)):
            run_one(app, job)


SCENES = (
    stale_settle,
    two_by_turns,
    enqueues,
    batches,
    works,
    jobs_of_a_key,
    race,
    takes,
    silent_worker,
    pause,
)

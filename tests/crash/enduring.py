"""Clients of a server: it goes away and comes back, has many clients, and a clock of its own."""

import signal
import threading
import time
from datetime import timedelta
from typing import Any

from penstock.core.errors import QueueFull, StoreUnavailable
from penstock.core.job import NewJob, Scope
from penstock.core.lifecycle import Done
from penstock.engine.penstock import run_sync
from tests.crash.client import LONG_LEASE, Client


def steady_producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues until it is asked to stop; what was refused is not asked for again."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.is_set():
        jobs = app.some_jobs() if app.rng.random() < 0.3 else [app.any_job()]
        try:
            run_sync(app.enqueue_many(jobs))
        except (QueueFull, StoreUnavailable):
            stopped.wait(0.02)
        stopped.wait(app.rng.uniform(0, 0.02))
    run_sync(app.close())


def busy_producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues jobs with keys, priorities and dedupe keys that no worker should lose."""
    left = options["jobs"]
    while left > 0:
        jobs = [busy_job(app) for _ in range(app.rng.randint(1, 40))]
        run_sync(app.enqueue_many(jobs))
        left -= len(jobs)
    run_sync(app.close())


def busy_job(app: Client) -> NewJob:
    rng = app.rng
    wanted: dict[str, Any] = {"lease": LONG_LEASE, "priority": rng.randrange(11)}
    if rng.random() < 0.3:
        wanted["key"] = f"k{rng.randrange(30)}"
    if rng.random() < 0.1:
        wanted |= {"dedupe": f"d{rng.randrange(20)}", "scope": rng.choice(list(Scope))}
    return app.new(**wanted)


def follower(app: Client, options: dict[str, Any]) -> None:
    """Reads the log as it grows, from where it stopped, and counts it, until it is stopped."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    seen: list[int] = []
    while True:
        last = stopped.is_set()
        entries = run_sync(app.log(after=seen[-1] if seen else None, limit=100))
        seen += [entry.id for entry in entries]
        run_sync(app.store.roll_up(500))
        if last and not entries:
            break
        if not entries:
            stopped.wait(0.01)
    (app.folder / "followed").write_text(" ".join(map(str, seen)))
    run_sync(app.close())


def skewed_worker(app: Client, options: dict[str, Any]) -> None:
    """Looks at a queue with a wrong clock, and does a job of its own, which is due at once."""
    skew(options["skew"])
    taken_back = sum(run_sync(app.leases.reclaim()) for _ in range(3))
    assert run_sync(app.leases.claim(worker=app.connection.actor, limit=9)) == []
    assert taken_back == 0
    later = app.new(delay=timedelta(minutes=30))
    job, waiting = run_sync(app.enqueue_many([app.new(lease=LONG_LEASE), later]))
    (claimed,) = run_sync(app.leases.claim(worker=app.connection.actor, limit=9))
    assert claimed.id == job.id
    run_sync(app.leases.renew([claimed.lease]))
    run_sync(app.leases.settle([(app.handle(claimed), Done())]))
    run_sync(app.cancel(waiting.id))
    run_sync(app.close())


def skew(seconds: float) -> None:
    """Let the clock of this process go wrong."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)


def skewed(app: Client, options: dict[str, Any]) -> None:
    """Claims a job with a wrong clock, is slow about it, keeps its lease, and settles it."""
    skew(options["skew"])
    (job,) = run_sync(app.leases.claim(worker=app.connection.actor, limit=1))
    app.handle(job)
    deadline = time.monotonic() + 300
    while not (app.folder / "go").exists() and time.monotonic() < deadline:
        run_sync(app.leases.renew([job.lease]))
        time.sleep(0.01)
    run_sync(app.leases.settle([(job, Done())]))
    run_sync(app.close())


ROLES = (steady_producer, busy_producer, follower, skewed_worker, skewed)

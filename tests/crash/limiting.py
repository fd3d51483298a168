"""Clients that are limited in every way there is, and what their history has to show."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from penstock.core.errors import QueueFull
from penstock.core.job import Job, LogEntry, NewJob
from penstock.core.lifecycle import Done, State
from penstock.core.lifecycle import Event as Happened
from penstock.core.limits import throttle_limit
from penstock.engine.penstock import run_sync
from penstock.runtime import system_clock
from tests.crash.client import Client
from tests.crash.history import Stored, Violation
from tests.crash.recording import Ended, Event, Started
from tests.crash.variants import rewrite

QUEUES: Mapping[str, int] = {"narrow": 3}
TASKS: Mapping[str, int] = {"plain": 2}
THROTTLES: Mapping[str, int] = {"pair-": 2}
RATES: Mapping[str, tuple[int, timedelta]] = {"rated": (20, timedelta(seconds=0.5))}
BACKLOG = 40

DEEDS = [["done"], ["slow"], ["slow"], ["fail", "slow", "done"], ["snooze"], ["fail"]]


def set_limits(app: Client) -> None:
    for queue in ("default", "narrow", "rated"):
        run_sync(
            app.limits.queue(queue, BACKLOG, concurrency=QUEUES.get(queue), rate=RATES.get(queue))
        )
    for task, n in TASKS.items():
        run_sync(app.limits.task(task, n))
    for prefix, n in THROTTLES.items():
        run_sync(app.limits.throttle(prefix, n))


def throng(app: Client, options: dict[str, Any]) -> None:
    """Enqueues jobs that are limited by queue, task, throttle or all, of several tenants."""
    while True:
        try:
            run_sync(app.enqueue_many([limited_job(app) for _ in range(app.rng.randint(1, 6))]))
        except QueueFull:
            time.sleep(0.01)
        time.sleep(app.rng.uniform(0, 0.01))


def limited_job(app: Client) -> NewJob:
    rng = app.rng
    options: dict[str, Any] = {
        "queue": rng.choice(["default", "narrow", "rated"]),
        "task": rng.choice(["work", "plain"]),
        "priority": rng.choice([3, 5, 7]),
        "does": rng.choice(DEEDS),
    }
    for name, values in (
        ("throttle", ["one-1", "one-2", "pair-1", "pair-2"]),
        ("tenant", ["a", "b", "c"]),
        ("key", ["k1", "k2"]),
    ):
        if rng.random() < 0.4:
            options[name] = rng.choice(values)
    if rng.random() < 0.2:
        options["tags"] = ("red",)
    return app.new(**options)


def overdraw(app: Client, options: dict[str, Any]) -> None:
    """Claims, a few at a time and without settling, all that it is given; perhaps too much."""
    if (broken := options.get("broken")) is not None:
        rewrite(*BROKEN[broken])
    app.stands_at = system_clock()  # all within one window of a rate, however slow it is
    set_limits(app)
    jobs = [app.new(queue="narrow") for _ in range(5)]
    jobs += [app.new(task="plain") for _ in range(4)]
    jobs += [app.new(throttle="one-1") for _ in range(3)]
    jobs += [app.new(queue="rated") for _ in range(25)]
    run_sync(app.enqueue_many(jobs))
    given = [
        job
        for _ in range(12)
        for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=4))
    ]
    run_sync(app.leases.settle([(app.handle(job), Done()) for job in given]))
    run_sync(app.close())


ROLES = (throng, overdraw)

BROKEN = {
    "counts no queues": ("open_queues", "queue = q.name AND stage = 3", "0"),
    "counts no tasks": ("running_by_task", "stage = 3", "stage = 3 AND 0"),
    "counts no throttles": ("running_of_throttle", "stage = 3", "stage = 3 AND 0"),
    "remembers no starts": ("set_starts", "VALUES (?, ?)", "SELECT ?, '[]' WHERE ? > ''"),
}
"""Statements of a claim, and how they read where a care is taken away."""


# What may never be seen


def check_limits(history: Sequence[Event], stored: Stored) -> list[Violation]:
    """Every moment at which more ran, or started, than a limit allows."""
    return [*_in_the_log(stored), *_by_the_handlers(history, stored), *_rates(stored)]


def places(job: Job) -> list[tuple[str, int]]:
    """The limited places that a running job takes, and how many there are of each."""
    found = []
    if job.queue in QUEUES:
        found.append((f"queue {job.queue}", QUEUES[job.queue]))
    if job.task in TASKS:
        found.append((f"task {job.task}", TASKS[job.task]))
    if job.throttle is not None:
        found.append((f"throttle {job.throttle}", throttle_limit(THROTTLES, job.throttle)))
    return found


def _in_the_log(stored: Stored) -> Iterator[Violation]:
    running: dict[str, set[int]] = defaultdict(set)
    for entry in stored.log:
        for place, limit in places(stored.jobs[entry.job_id]):
            if entry.state is not State.RUNNING:
                running[place].discard(entry.job_id)
            elif entry.event is Happened.CLAIMED:
                running[place].add(entry.job_id)
                if len(running[place]) > limit:
                    yield Violation(5, f"{place} runs {len(running[place])} of {limit}")


def _by_the_handlers(history: Sequence[Event], stored: Stored) -> Iterator[Violation]:
    """As handlers saw it, of runs that were settled: others may have overstayed their lease."""
    settled = {entry.token for entry in stored.log if _settles(entry)}
    running: Counter[str] = Counter()
    begun: set[int] = set()
    ended = {note.token for note in history if isinstance(note, Ended)}
    for note in history:  # by time
        if not isinstance(note, Started | Ended) or note.token not in settled & ended:
            continue
        for place, limit in places(stored.jobs[note.job]):
            if isinstance(note, Started):
                running[place] += 1
                begun.add(note.token)
                if running[place] > limit:
                    yield Violation(5, f"{running[place]} handlers of {place} at once")
            elif note.token in begun:
                running[place] -= 1


def _settles(entry: LogEntry) -> bool:
    return entry.token is not None and entry.event in {
        Happened.DONE,
        Happened.FAILED,
        Happened.SNOOZED,
    }


def _rates(stored: Stored) -> Iterator[Violation]:
    for queue, (n, window) in RATES.items():
        starts = sorted(
            entry.at
            for entry in stored.log
            if entry.event is Happened.CLAIMED and stored.jobs[entry.job_id].queue == queue
        )
        for first, last in zip(starts, starts[n:], strict=False):
            if last - first < window:
                yield Violation(5, f"queue {queue} started more than {n} from {first} on")

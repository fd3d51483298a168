from datetime import UTC, datetime, timedelta

import pytest

from penstock import State
from penstock.cli.live.figures import Figures, figures
from penstock.core.queue import QueueStatus
from penstock.jobs import Event, Waiting
from penstock.leases import WorkerInfo
from penstock.queues import Queue
from penstock.statistics import Interval, Spread

NOW = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(minutes_ago: int, **counts: int) -> Interval:
    return Interval(
        at=NOW.replace(second=0) - minutes_ago * MINUTE,
        queue="q",
        counts={Event(name): n for name, n in counts.items()},
        wait=Spread(),
        run=Spread(),
    )


def one(
    queue: Queue | None = None,
    *,
    pending: int = 0,
    running: int = 0,
    workers: list[WorkerInfo] | None = None,
    intervals: list[Interval] | None = None,
) -> Figures:
    status = QueueStatus(
        queue=queue or Queue(name="q"),
        counts={(State.PENDING, Waiting.READY): pending, (State.RUNNING, None): running},
        oldest_ready=None,
    )
    (found,) = figures([status], workers or [], intervals or [], NOW)
    return found


def worker(name: str, concurrency: int, **fields: object) -> WorkerInfo:
    known = {"host": "h", "seen_at": NOW, **fields}
    return WorkerInfo(name=name, concurrency=concurrency, **known)  # type: ignore[arg-type] # as told


def test_rates_are_of_this_minute_and_the_one_before() -> None:
    seen = [at(0, enqueued=90, done=9), at(1, done=81), at(2, enqueued=10_000, done=10_000)]
    found = one(intervals=seen)
    assert (found.rate_in, found.rate_out) == (1.0, 1.0)
    assert found.done_per_minute[-3:] == (10_000, 81, 9)
    assert len(found.done_per_minute) == 20


@pytest.mark.parametrize(
    ("pending", "done", "enqueued", "left"),
    [
        (0, 0, 0, timedelta(0)),
        (100, 180, 90, timedelta(seconds=100)),
        (100, 90, 90, None),
        (100, 0, 0, None),
    ],
)
def test_time_to_empty_is_known_only_while_it_falls(
    pending: int, done: int, enqueued: int, left: timedelta | None
) -> None:
    found = one(pending=pending, intervals=[at(0, done=done, enqueued=enqueued)])
    assert found.time_to_empty == left


def test_slots_are_those_of_living_workers_that_take_the_queue() -> None:
    workers = [
        worker("all", 4),
        worker("named", 2, queues=("q",)),
        worker("other", 50, queues=("x",)),
        worker("silent", 50, seen_at=NOW - timedelta(hours=1)),
    ]
    found = one(running=3, workers=workers)
    assert (found.slots, found.utilisation) == (6, 0.5)
    limited = one(Queue(name="q", concurrency=3), running=3, workers=workers)
    assert (limited.slots, limited.utilisation) == (3, 1.0)
    assert one(running=1).utilisation is None


def test_queue_is_full_at_its_limit() -> None:
    assert one(Queue(name="q", max_pending=2), pending=2).full
    assert not one(Queue(name="q", max_pending=2), pending=1).full

"""Statistics as they have to be, by looking at every log entry."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.core.job import LogEntry
from penstock.core.lifecycle import Event
from penstock.core.statistics import BOUNDS, Counters, Interval, Spread
from penstock.core.store import Store
from tests.contract.support import everything

LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RUN_ENDS = (Event.DONE, Event.FAILED, Event.EXPIRED, Event.CANCELLED)


async def minutes(store: Store, step: timedelta = MINUTE, **asked: Any) -> list[Interval]:
    asked = {"since": LONG_AGO, "until": None, "queue": None, **asked}
    return await store.intervals(step=step, **asked)


def spread(durations: Iterable[timedelta]) -> Spread:
    found = [max(one, timedelta(0)) for one in durations]
    buckets = [0] * (len(BOUNDS) + 1)
    for one in found:
        buckets[sum(one > bound for bound in BOUNDS)] += 1
    return Spread(len(found), sum(found, timedelta(0)), tuple(buckets))


def fields(entries: list[LogEntry]) -> dict[str, Any]:
    timed = [entry for entry in entries if entry.duration is not None]
    return {
        "counts": dict(Counter(entry.event for entry in entries)),
        "wait": spread(
            one.duration for one in timed if one.event is Event.CLAIMED and one.duration is not None
        ),
        "run": spread(
            one.duration for one in timed if one.event in RUN_ENDS and one.duration is not None
        ),
    }


async def expected(store: Store) -> tuple[list[Interval], list[Counters]]:
    queues = {job.id: job.queue for job in await everything(store)}
    by_minute: dict[tuple[datetime, str], list[LogEntry]] = {}
    by_queue: dict[str, list[LogEntry]] = {}
    for entry in await store.log(limit=100_000):
        queue = queues[entry.job_id]
        at = entry.at.replace(second=0, microsecond=0)
        by_minute.setdefault((at, queue), []).append(entry)
        by_queue.setdefault(queue, []).append(entry)
    return (
        [Interval(at=at, queue=q, **fields(found)) for (at, q), found in sorted(by_minute.items())],
        [Counters(queue=q, **fields(found)) for q, found in sorted(by_queue.items())],
    )


async def assert_exact(store: Store) -> None:
    in_minutes, for_ever = await expected(store)
    assert await minutes(store) == in_minutes
    assert await store.counters() == for_ever

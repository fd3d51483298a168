"""Routes for statistics: the throughput of queues over time, and the condition of the store."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.lifecycle import Event
from penstock.core.queue import QueueQuery
from penstock.core.redaction import redacted
from penstock.core.statistics import BOUNDS, KEPT, Interval, Spread
from penstock.core.times import from_micros
from penstock.core.tokens import Access
from penstock.engine.penstock import Penstock
from penstock.server.offload import offload
from penstock.server.requests import Instant, Name
from penstock.stores.observed import Timing
from penstock.web.jobs import seconds
from penstock.web.problems import Problem
from penstock.web.routes import Answer, route

_encode = msgspec.json.Encoder().encode
_MOST_STEPS = 1_500
# A page has fewer queues if there are many steps: 10,000 intervals are about 6 MB.
_MOST_INTERVALS = 10_000
_MINUTE = 60
_DEFAULT_SPAN = timedelta(hours=1)
_BOUNDS = tuple(bound.total_seconds() for bound in BOUNDS)
_EXAMPLE = {
    "count": 1800,
    "total": 69.5,
    "p50": 0.0361,
    "p95": 0.0486,
    "p99": 0.0497,
    "buckets": [0, 0, 0, 0, 180, 1620, *[0] * 12],
}


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A period, and the length of its steps in seconds."""

    since: Annotated[Instant, Meta(description="Default: an hour ago.")] | None = None
    until: Annotated[Instant, Meta(description="Default: now.")] | None = None
    queue: Name | None = None
    together: Annotated[bool, Meta(description="All queues as one; `queue` is then null.")] = False
    name: Annotated[Name, Meta(description="The name of the queue contains this text.")] | None = (
        None
    )
    after: Annotated[Name, Meta(description="The last name of the previous page.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Queues per page.")] = 100
    step: Annotated[int, Meta(ge=_MINUTE, le=86_400, multiple_of=_MINUTE)] = _MINUTE


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of durations in seconds; quantiles are estimates, null if there are none.

    Each of `buckets` counts the durations up to its bound and above the bound before; the last
    one counts those above all bounds. Buckets of several steps can be added.
    """

    count: int
    total: float
    p50: float | None
    p95: float | None
    p99: float | None
    buckets: tuple[int, ...]


class IntervalShape(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a queue during one step.

    `rates` are per second. `wait` is how long claimed jobs had been due, `run` how long runs took
    that ended.
    """

    at: datetime
    queue: str | None
    counts: dict[str, int]
    rates: dict[str, float]
    wait: Times
    run: Times


class HistoryAnswer(msgspec.Struct, frozen=True):
    """What happened, by time and queue. Steps in which nothing happened are left out.

    `bounds` are the bounds of the buckets in seconds. `after` requests the next page of queues.
    """

    since: datetime
    until: datetime
    step: int
    bounds: tuple[float, ...]
    intervals: list[IntervalShape]
    after: str | None = None


class HistoryRoutes:
    """The history of the queues."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    @route(
        "GET",
        "/api/v1/history",
        Access.READ,
        examples={
            "200": {
                "since": "2030-01-01T12:00:00Z",
                "until": "2030-01-01T13:00:00Z",
                "step": 3600,
                "bounds": _BOUNDS,
                "intervals": [
                    {
                        "at": "2030-01-01T12:00:00Z",
                        "queue": "mail",
                        "counts": {"enqueued": 3600, "claimed": 1800, "done": 1800},
                        "rates": {"enqueued": 1.0, "claimed": 0.5, "done": 0.5},
                        "wait": _EXAMPLE,
                        "run": _EXAMPLE,
                    }
                ],
            }
        },
    )
    async def history(self, query: HistoryQuery) -> Answer[HistoryAnswer]:
        """Get the throughput of queues over time.

        Rates and durations per queue and step, for up to the last 8 days.

        Covers one `queue`, all queues `together`, or each queue of a page, which is the page that
        the list of queues has with the same `name`, `after` and `limit`.
        """
        now = from_micros(self._penstock.clock())
        since = max(query.since or now - _DEFAULT_SPAN, now - KEPT)
        until = min(query.until or now, now)
        step = timedelta(seconds=query.step)
        if (until - since) / step > _MOST_STEPS:
            raise Problem(
                422,
                f"step: the period has more than {_MOST_STEPS:,} steps; choose longer ones",
                field="step",
            )
        if query.together and query.queue is not None:
            raise Problem(422, "queue: cannot be combined with together", field="queue")
        await self._penstock.statistics.roll_up()
        names, after = await self._page(query, max(1, -((since - until) // step)))
        found = await self._penstock.statistics.intervals(
            since, until, names, step, together=query.together
        )

        def answer() -> bytes:
            shapes = _shapes(found, step, now)
            return _encode(HistoryAnswer(since, until, query.step, _BOUNDS, shapes, after))

        return Answer(200, await offload(self._penstock.runtime, len(found), answer))

    async def _page(self, query: HistoryQuery, steps: int) -> tuple[list[str] | None, str | None]:
        """Return the names of the requested queues, and after which the next page begins."""
        if query.together:
            return None, None
        if query.queue is not None:
            return [query.queue], None
        limit = max(1, min(query.limit, _MOST_INTERVALS // steps))
        found = await self._penstock.queues.list(
            QueueQuery(contains=query.name, after=query.after, limit=limit + 1)
        )
        names, more = [queue.name for queue in found[:limit]], len(found) > limit
        return names, names[-1] if more else None


def _shapes(found: list[Interval], step: timedelta, now: datetime) -> list[IntervalShape]:
    second = timedelta(seconds=1)
    return [_shape(one, min(step, max(now - one.at, second))) for one in found]


def _shape(interval: Interval, length: timedelta) -> IntervalShape:
    counts = {event.value: n for event, n in interval.counts.items()}
    return IntervalShape(
        at=interval.at,
        queue=interval.queue or None,
        counts=counts,
        rates={event: n / length.total_seconds() for event, n in counts.items()},
        wait=_times(interval.wait),
        run=_times(interval.run),
    )


def _times(spread: Spread) -> Times:
    p50, p95, p99 = (seconds(spread.quantile(part)) for part in (0.5, 0.95, 0.99))
    return Times(
        count=spread.count,
        total=spread.total.total_seconds(),
        p50=p50,
        p95=p95,
        p99=p99,
        buckets=spread.buckets,
    )


class VerbShape(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one store verb by this process: their number, total duration and errors.

    `writes` says whether the verb writes to the store.
    """

    verb: str
    writes: bool
    calls: int
    seconds: float
    errors: int


class StoreShape(msgspec.Struct, frozen=True, kw_only=True):
    """The condition of the store.

    `bytes` is its size, `wal_bytes` the size of SQLite's write-ahead log, `dead_rows` how many
    rows await vacuum in PostgreSQL; null where a store has no such thing. `refused` counts writes
    of workers whose lease had expired, since the store was created.
    """

    kind: str
    url: str
    bytes: int | None
    wal_bytes: int | None
    dead_rows: int | None
    refused: int
    expired: int
    newest_log: int
    calls: list[VerbShape]


class StoreRoutes:
    """The condition of the store."""

    def __init__(self, penstock: Penstock, timings: Mapping[str, Timing]) -> None:
        self._penstock = penstock
        self._timings = timings

    @route("GET", "/api/v1/store", Access.READ)
    async def store(self) -> StoreShape:
        """Get the condition of the store.

        Its size, how long its verbs took in this process, and how many writes it refused.

        The cost does not depend on the number of jobs.
        """
        await self._penstock.statistics.roll_up()
        counters = await self._penstock.statistics.counters()
        size = await self._penstock.store.size()
        return StoreShape(
            kind=size.kind,
            url=redacted(self._penstock.url),
            bytes=size.bytes,
            wal_bytes=size.wal_bytes,
            dead_rows=size.dead_rows,
            refused=sum(one.counts.get(Event.REFUSED, 0) for one in counters),
            expired=sum(one.counts.get(Event.EXPIRED, 0) for one in counters),
            newest_log=await self._penstock.newest_log(),
            calls=[
                VerbShape(
                    verb=verb,
                    writes=one.writes,
                    calls=one.calls,
                    seconds=one.seconds,
                    errors=one.errors,
                )
                for verb, one in sorted(dict(self._timings).items())
            ],
        )

"""The route for the history: how much went through the queues, and how long it took."""

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.history import BOUNDS, KEPT, Interval, Spread
from penstock.core.job import QueueQuery
from penstock.core.times import from_micros
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.problems import Problem
from penstock.http.routes import Answer, route
from penstock.server.aside import aside
from penstock.server.shapes import Instant, Name, seconds

_encode = msgspec.json.Encoder().encode
_MOST_STEPS = 1_500
# A page has fewer queues where they have many steps: 10,000 intervals are some 6 MB.
_MOST_INTERVALS = 10_000
_MINUTE = 60
_UNASKED = timedelta(hours=1)
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
    """Which time to look at, in steps of how many seconds."""

    since: Annotated[Instant, Meta(description="By default an hour ago.")] | None = None
    until: Annotated[Instant, Meta(description="By default now.")] | None = None
    queue: Name | None = None
    together: Annotated[bool, Meta(description="All queues as one; `queue` is null then.")] = False
    name: Annotated[Name, Meta(description="Of queues with this text in their name.")] | None = None
    after: Annotated[Name, Meta(description="The last name of the page before.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Queues of a page.")] = 100
    step: Annotated[int, Meta(ge=_MINUTE, le=86_400, multiple_of=_MINUTE)] = _MINUTE


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, in seconds; the quantiles are estimates, null without any.

    `buckets` has how many took up to each of the bounds that are kept, and above the bound
    before; the last number is of those above all bounds. Buckets of several steps can be added.
    """

    count: int
    total: float
    p50: float | None
    p95: float | None
    p99: float | None
    buckets: tuple[int, ...]


class IntervalShape(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened in a queue in one step.

    `rates` are per second. `wait` is how long claimed jobs had been due, `run` how long the runs
    took that ended.
    """

    at: datetime
    queue: str | None
    counts: dict[str, int]
    rates: dict[str, float]
    wait: Times
    run: Times


class HistoryAnswer(msgspec.Struct, frozen=True):
    """What has happened, by time and queue. Steps in which nothing did are left out.

    `bounds` are those of the buckets, in seconds. `after` asks for the queues of the next page.
    """

    since: datetime
    until: datetime
    step: int
    bounds: tuple[float, ...]
    intervals: list[IntervalShape]
    after: str | None = None


class HistoryRoutes:
    """What the server serves of the history."""

    def __init__(self, penstock: Penstock) -> None:
        self._penstock = penstock

    @route(
        "GET",
        "/api/v1/history",
        Access.READ,
        "See what went through",
        answers={200: HistoryAnswer},
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
    async def history(self, query: HistoryQuery) -> Answer:
        """Rates and times per queue and step, for the last 8 days at most.

        Of one queue, of all queues `together`, or else of each queue on a page of them, which is
        that of the list of queues with the same `name`, `after` and `limit`.
        """
        now = from_micros(self._penstock.clock())
        since = max(query.since or now - _UNASKED, now - KEPT)
        until = min(query.until or now, now)
        step = timedelta(seconds=query.step)
        if (until - since) / step > _MOST_STEPS:
            raise Problem(
                422, f"step: more than {_MOST_STEPS:,} steps; choose a longer one", field="step"
            )
        if query.together and query.queue is not None:
            raise Problem(422, "queue: name one, or ask for all together", field="queue")
        await self._penstock.digest()
        names, after = await self._page(query, max(1, -((since - until) // step)))
        found = await self._penstock.history(since, until, names, step, together=query.together)

        def answer() -> bytes:
            shapes = _shapes(found, step, now)
            return _encode(HistoryAnswer(since, until, query.step, _BOUNDS, shapes, after))

        return Answer(200, await aside(len(found), answer))

    async def _page(self, query: HistoryQuery, steps: int) -> tuple[list[str] | None, str | None]:
        """The names of the queues that are asked about, and where the next page begins."""
        if query.together:
            return None, None
        if query.queue is not None:
            return [query.queue], None
        limit = max(1, min(query.limit, _MOST_INTERVALS // steps))
        found = await self._penstock.queues(
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

"""Routes for queues: their limits, counts and sums, pause, resume, drain."""

import asyncio
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core import queue as core
from penstock.core.lifecycle import State, Waiting
from penstock.core.queue import Ages, Queue, QueueQuery, QueueStatus, by_state
from penstock.core.times import from_micros
from penstock.core.tokens import Access
from penstock.engine.penstock import Penstock
from penstock.server.offload import offload
from penstock.server.requests import Name, NamePage, SomeSeconds
from penstock.web.bodies import wait_for_disconnect
from penstock.web.jobs import seconds
from penstock.web.problems import RETRY_AFTER, Problem
from penstock.web.routes import Call, route

_AGES = Annotated[list[SomeSeconds], Meta(min_length=1, max_length=10)]
_COUNT = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RateShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most `count` starts within any period of `seconds`."""

    count: _COUNT
    seconds: SomeSeconds


class QueueShape(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its limits and the number of its jobs.

    `waiting` counts its pending jobs by what they wait for. `oldest_ready_age` is for how many
    seconds its oldest ready job has been due. A pause with `paused_until` ends by itself.
    """

    name: str
    paused: bool
    paused_until: datetime | None
    max_pending: int | None
    concurrency: int | None
    rate: RateShape | None
    promote_after: float | list[float] | None
    states: dict[str, int]
    waiting: dict[str, int]
    oldest_ready_age: float | None


class QueueList(msgspec.Struct, frozen=True):
    """A page of queues, sorted by name. `after` requests the next page; null on the last."""

    queues: list[QueueShape]
    after: str | None = None


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all queues: their number, how many are paused, and their jobs by state.

    `oldest_ready_age` is for how many seconds the oldest ready job has been due.
    """

    queues: int
    paused: int
    states: dict[str, int]
    waiting: dict[str, int]
    oldest_ready_age: float | None


class QueueChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits to change: null removes a limit, an absent field leaves it as it is."""

    max_pending: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET
    concurrency: _COUNT | UnsetType | None = UNSET
    rate: RateShape | UnsetType | None = UNSET
    promote_after: SomeSeconds | _AGES | UnsetType | None = UNSET


class PauseOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of seconds after which a pause ends by itself; by default it does not."""

    duration: SomeSeconds | None = None


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of seconds to wait until the queue is drained."""

    timeout: Annotated[float, Meta(ge=0, le=3_600)] = 60


class DrainedShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a drain ended (`drained`, `timeout` or `paused`) and how many jobs remain."""

    status: str
    remaining: int
    elapsed: float


_EXAMPLE = {
    "name": "mail",
    "paused": False,
    "paused_until": None,
    "max_pending": 10_000,
    "concurrency": None,
    "rate": {"count": 100, "seconds": 60.0},
    "promote_after": None,
    "states": {state.value: 0 for state in State} | {"pending": 3},
    "waiting": {"ready": 2, "scheduled": 1, "blocked": 0},
    "oldest_ready_age": 1.5,
}


# A summary that took longer than `_QUICK` is kept for `_KEPT_TIMES` as long: computing it
# takes at most a fiftieth of the time of one thread, however many queues there are and however
# often it is requested.
_QUICK = 0.01
_KEPT_TIMES = 50


class CachedSummary:
    """The sums over all queues but some, computed rarely if there are very many queues."""

    def __init__(self, penstock: Penstock) -> None:
        self.penstock = penstock
        self._lock = asyncio.Lock()
        self._summary: core.QueueSummary | None = None
        self._without: frozenset[str] = frozenset()
        self._until = 0.0

    async def get(self, without: Collection[str] = ()) -> core.QueueSummary:
        """Return the summary; if there are very many queues, it may be some seconds old."""
        left_out, monotonic = frozenset(without), self.penstock.runtime.monotonic
        async with self._lock:  # concurrent callers share one answer
            is_old = monotonic() >= self._until
            if self._summary is None or left_out != self._without or is_old:
                began = monotonic()
                self._summary = await self.penstock.queues.summary(left_out)
                self._without = left_out
                took = monotonic() - began
                self._until = 0.0 if took < _QUICK else began + took * (1 + _KEPT_TIMES)
            return self._summary


class QueueRoutes:
    """Queues: list, limit, pause, resume, drain and remove."""

    def __init__(self, penstock: Penstock, stopping: asyncio.Event) -> None:
        self._penstock = penstock
        self._stopping = stopping
        self._summary = CachedSummary(penstock)

    @route(
        "GET",
        "/api/v1/queues",
        Access.READ,
        examples={"200": {"queues": [_EXAMPLE], "after": None}},
    )
    async def page(self, query: NamePage) -> QueueList:
        """List queues.

        Lists every queue that has had a job or a setting, by name, in pages.

        The cost depends on the size of the page, not on the number of queues.
        """
        one_more = QueueQuery(contains=query.name, after=query.after, limit=query.limit + 1)
        found = await self._penstock.queues.statuses(one_more)
        page, more = found[: query.limit], len(found) > query.limit
        now = from_micros(self._penstock.clock())
        shapes = await offload(
            self._penstock.runtime, len(page), lambda: [_shape(one, now) for one in page]
        )
        return QueueList(shapes, page[-1].queue.name if more else None)

    @route(
        "GET",
        "/api/v1/summary",
        Access.READ,
        examples={
            "200": {
                "queues": 1,
                "paused": 0,
                **{name: _EXAMPLE[name] for name in ("states", "waiting", "oldest_ready_age")},
            }
        },
    )
    async def summary(self) -> QueueSummary:
        """Sum up all queues.

        If there are very many queues, the answer may be some seconds old.
        """
        found = await self._summary.get()
        return QueueSummary(
            queues=found.queues,
            paused=found.paused,
            states={state.value: n for state, n in by_state(found.counts).items()},
            waiting={one.value: found.counts.get((State.PENDING, one), 0) for one in Waiting},
            oldest_ready_age=_age(found.oldest_ready, from_micros(self._penstock.clock())),
        )

    @route("GET", "/api/v1/queues/{name}", Access.READ, examples={"200": _EXAMPLE})
    async def get(self, name: Name) -> QueueShape:
        """Get a queue.

        Answers with its limits and the number of its jobs.
        """
        found = await self._penstock.queues.statuses(QueueQuery(names=(name,)))
        if not found:
            raise Problem(404, f"there is no queue {name!r}")
        return _shape(found[0], from_micros(self._penstock.clock()))

    @route(
        "PATCH",
        "/api/v1/queues/{name}",
        Access.ADMIN,
        examples={"body": {"concurrency": 8, "rate": None}, "200": _EXAMPLE},
    )
    async def limit(self, name: Name, body: QueueChange) -> QueueShape:
        """Set limits of a queue.

        The limits hold for every process. A queue that does not exist yet is created.
        """
        if body == QueueChange():
            raise Problem(
                422, f"the body is empty; send at least one of {', '.join(body.__struct_fields__)}"
            )
        rate, promote = body.rate, body.promote_after
        if isinstance(rate, RateShape):
            window = timedelta(seconds=rate.seconds)
        queue = await self._penstock.limits.queue(
            name,
            body.max_pending,
            concurrency=body.concurrency,
            rate=(rate.count, window) if isinstance(rate, RateShape) else rate,
            promote_after=_ages(promote) if isinstance(promote, float | list) else promote,
        )
        return await self._changed(queue)

    @route("DELETE", "/api/v1/queues/{name}", Access.ADMIN, examples={"200": _EXAMPLE})
    async def remove(self, name: Name) -> QueueShape:
        """Remove a queue.

        Removes its limits and its pause, and answers with the queue as it was.

        The queue disappears with its last finished job, at once if it has none. A queue with
        unfinished jobs is refused with 409.
        """
        queue = await self.get(name)
        await self._penstock.queues.remove(name)
        return queue

    @route("POST", "/api/v1/queues/{name}/pause", Access.ADMIN)
    async def pause(self, name: Name, query: PauseOptions) -> QueueShape:
        """Pause a queue.

        No process starts further jobs of the queue; running jobs continue.

        With `duration`, the pause ends by itself after that many seconds; repeat the call to extend
        it.
        """
        given = query.duration
        duration = None if given is None else timedelta(seconds=given)
        return await self._changed(await self._penstock.queues.pause(name, duration=duration))

    @route("POST", "/api/v1/queues/{name}/resume", Access.ADMIN)
    async def resume(self, name: Name) -> QueueShape:
        """Resume a queue.

        Ends a pause: workers start jobs of the queue again.
        """
        return await self._changed(await self._penstock.queues.resume(name))

    @route(
        "POST",
        "/api/v1/queues/{name}/drain",
        Access.ADMIN,
        examples={"200": {"status": "drained", "remaining": 0, "elapsed": 2.5}},
    )
    async def drain(self, name: Name, query: DrainOptions, call: Call) -> DrainedShape:
        """Wait until the jobs of a queue have finished.

        Waits for the jobs that are unfinished now; later ones do not count.
        """
        timeout = timedelta(seconds=query.timeout)
        draining = asyncio.create_task(self._penstock.queues.drain(name, timeout=timeout))
        leaving = asyncio.create_task(wait_for_disconnect(call.receive, self._stopping))
        try:
            await asyncio.wait((draining, leaving), return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                drained = draining.result()
                return DrainedShape(
                    status=drained.status,
                    remaining=drained.remaining,
                    elapsed=drained.elapsed.total_seconds(),
                )
        finally:
            draining.cancel()
            leaving.cancel()
        raise Problem(503, "the server is shutting down; try again", headers=RETRY_AFTER)

    async def _changed(self, queue: Queue) -> QueueShape:
        """Return the status of a queue whose settings have just changed."""
        found = await self._penstock.queues.statuses(QueueQuery(names=(queue.name,)))
        status = QueueStatus(queue=queue, counts={}, oldest_ready=None)
        if found:
            status = msgspec.structs.replace(found[0], queue=queue)
        return _shape(status, from_micros(self._penstock.clock()))


def _ages(given: float | list[float]) -> Ages:
    if isinstance(given, list):
        return tuple(timedelta(seconds=age) for age in given)
    return timedelta(seconds=given)


def _ages_in_seconds(ages: Ages | None) -> float | list[float] | None:
    if isinstance(ages, tuple):
        return [age.total_seconds() for age in ages]
    return seconds(ages)


def _shape(status: QueueStatus, now: datetime) -> QueueShape:
    queue = status.queue
    return QueueShape(
        name=queue.name,
        paused=queue.paused,
        paused_until=queue.paused_until,
        max_pending=queue.max_pending,
        concurrency=queue.concurrency,
        rate=None
        if queue.rate is None
        else RateShape(count=queue.rate[0], seconds=queue.rate[1].total_seconds()),
        promote_after=_ages_in_seconds(queue.promote_after),
        states={state.value: n for state, n in status.states.items()},
        waiting={waiting.value: n for waiting, n in status.waiting.items()},
        oldest_ready_age=_age(status.oldest_ready, now),
    )


def _age(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())

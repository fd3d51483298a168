"""Routes for queues: their limits and counts, pause, resume, drain."""

import asyncio
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.job import Ages, Queue, QueueQuery, QueueStatus, by_state
from penstock.core.lifecycle import State, Waiting
from penstock.core.times import from_micros
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.problems import RETRY_AFTER, Problem
from penstock.http.routes import Call, route
from penstock.server.aside import aside
from penstock.server.leaving import until_gone
from penstock.server.shapes import Name, NamePage, SomeSeconds, seconds
from penstock.server.survey import Survey

_AGES = Annotated[list[SomeSeconds], Meta(min_length=1, max_length=10)]
_COUNT = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RateShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many starts within any time of so many seconds."""

    count: _COUNT
    seconds: SomeSeconds


class QueueShape(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its limits, and how many jobs it has.

    `waiting` tells what its pending jobs wait for, `oldest_ready_age` for how many seconds one
    of them has been ready. A pause ends by itself at `paused_until`, if that is given.
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
    """A page of queues, by name. `after` asks for the next one; it is null on the last."""

    queues: list[QueueShape]
    after: str | None = None


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What all queues have together: how many there are, how many are paused, jobs by state.

    `oldest_ready_age` is for how many seconds the oldest ready job has been due.
    """

    queues: int
    paused: int
    states: dict[str, int]
    waiting: dict[str, int]
    oldest_ready_age: float | None


class QueueChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change about a queue: null lifts a limit, what is not given stays."""

    max_pending: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET
    concurrency: _COUNT | UnsetType | None = UNSET
    rate: RateShape | UnsetType | None = UNSET
    promote_after: SomeSeconds | _AGES | UnsetType | None = UNSET


class PauseOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After how many seconds a pause ends by itself; never, where that is not given."""

    duration: SomeSeconds | None = None


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many seconds to wait for the end of a drain."""

    timeout: Annotated[float, Meta(ge=0, le=3_600)] = 60


class DrainedShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a drain ended: `drained`, `timeout` or `paused`, and what is left."""

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


class QueueRoutes:
    """What the server serves of queues."""

    def __init__(self, penstock: Penstock, stopping: asyncio.Event) -> None:
        self._penstock = penstock
        self._stopping = stopping
        self._survey = Survey(penstock)

    @route(
        "GET",
        "/api/v1/queues",
        Access.READ,
        "List queues",
        answers={200: QueueList},
        examples={"200": {"queues": [_EXAMPLE], "after": None}},
    )
    async def page(self, query: NamePage) -> QueueList:
        """The queues that have held a job or a setting, by name, in pages.

        The cost grows with the page, not with the queues.
        """
        one_more = QueueQuery(contains=query.name, after=query.after, limit=query.limit + 1)
        found = await self._penstock.queue_statuses(one_more)
        page, more = found[: query.limit], len(found) > query.limit
        now = from_micros(self._penstock.clock())
        shapes = await aside(len(page), lambda: [_shape(one, now) for one in page])
        return QueueList(shapes, page[-1].queue.name if more else None)

    @route(
        "GET",
        "/api/v1/summary",
        Access.READ,
        "Sum up all queues",
        answers={200: QueueSummary},
        examples={
            "200": {
                "queues": 1,
                "paused": 0,
                **{name: _EXAMPLE[name] for name in ("states", "waiting", "oldest_ready_age")},
            }
        },
    )
    async def summary(self) -> QueueSummary:
        """What all queues have together. With very many, it may be some seconds old."""
        found = await self._survey.of_all()
        return QueueSummary(
            queues=found.queues,
            paused=found.paused,
            states={state.value: n for state, n in by_state(found.counts).items()},
            waiting={one.value: found.counts.get((State.PENDING, one), 0) for one in Waiting},
            oldest_ready_age=_age(found.oldest_ready, from_micros(self._penstock.clock())),
        )

    @route(
        "GET",
        "/api/v1/queues/{name}",
        Access.READ,
        "Look at a queue",
        answers={200: QueueShape},
        examples={"200": _EXAMPLE},
    )
    async def get(self, name: Name) -> QueueShape:
        """A queue with its limits and counts."""
        found = await self._penstock.queue_statuses(QueueQuery(names=(name,)))
        if not found:
            raise Problem(404, f"there is no queue {name!r}")
        return _shape(found[0], from_micros(self._penstock.clock()))

    @route(
        "PATCH",
        "/api/v1/queues/{name}",
        Access.ADMIN,
        "Set limits of a queue",
        answers={200: QueueShape},
        examples={"body": {"concurrency": 8, "rate": None}, "200": _EXAMPLE},
    )
    async def limit(self, name: Name, body: QueueChange) -> QueueShape:
        """Change limits of a queue, for every process. A queue that is not known yet is made."""
        if body == QueueChange():
            raise Problem(422, f"name a limit: {', '.join(body.__struct_fields__)}")
        rate, promote = body.rate, body.promote_after
        if isinstance(rate, RateShape):
            window = timedelta(seconds=rate.seconds)
        queue = await self._penstock.limit(
            name,
            body.max_pending,
            concurrency=body.concurrency,
            rate=(rate.count, window) if isinstance(rate, RateShape) else rate,
            promote_after=_ages(promote) if isinstance(promote, float | list) else promote,
        )
        return await self._changed(queue)

    @route(
        "DELETE",
        "/api/v1/queues/{name}",
        Access.ADMIN,
        "Remove a queue",
        answers={200: QueueShape},
        examples={"200": _EXAMPLE},
    )
    async def remove(self, name: Name) -> QueueShape:
        """Lift all limits of a queue, and its pause; the answer is the queue as it was.

        It goes with its last job, at once without any. While it has unfinished jobs, it is refused.
        """
        queue = await self.get(name)
        await self._penstock.remove_queue(name)
        return queue

    @route(
        "POST",
        "/api/v1/queues/{name}/pause",
        Access.ADMIN,
        "Pause a queue",
        answers={200: QueueShape},
    )
    async def pause(self, name: Name, query: PauseOptions) -> QueueShape:
        """Start no more jobs of a queue, in any process; running ones go on.

        With `duration`, the pause ends by itself after so many seconds; ask again for more.
        """
        given = query.duration
        duration = None if given is None else timedelta(seconds=given)
        return await self._changed(await self._penstock.pause(name, duration=duration))

    @route(
        "POST",
        "/api/v1/queues/{name}/resume",
        Access.ADMIN,
        "Resume a queue",
        answers={200: QueueShape},
    )
    async def resume(self, name: Name) -> QueueShape:
        """Start jobs of a queue again."""
        return await self._changed(await self._penstock.resume(name))

    @route(
        "POST",
        "/api/v1/queues/{name}/drain",
        Access.ADMIN,
        "Wait until a queue is empty",
        answers={200: DrainedShape},
        examples={"200": {"status": "drained", "remaining": 0, "elapsed": 2.5}},
    )
    async def drain(self, name: Name, query: DrainOptions, call: Call) -> DrainedShape:
        """Wait until the jobs that are unfinished now have finished; later ones do not count."""
        timeout = timedelta(seconds=query.timeout)
        draining = asyncio.create_task(self._penstock.drain(name, timeout=timeout))
        leaving = asyncio.create_task(until_gone(call.receive, self._stopping))
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
        raise Problem(503, "the server stops; ask again", headers=RETRY_AFTER)

    async def _changed(self, queue: Queue) -> QueueShape:
        """A queue as it was just set."""
        found = await self._penstock.queue_statuses(QueueQuery(names=(queue.name,)))
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

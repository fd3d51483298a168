"""Routes for queues: their limits and counts, pause, resume, drain."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.job import Ages, Counts, Queue
from penstock.core.lifecycle import State, Waiting
from penstock.core.times import from_micros
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.http.problems import RETRY_AFTER, Problem
from penstock.http.routes import Call, route
from penstock.server.leaving import until_gone
from penstock.server.shapes import Name, SomeSeconds, seconds

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
    """Every queue, by name."""

    queues: list[QueueShape]


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

    @route(
        "GET",
        "/api/v1/queues",
        Access.READ,
        "List queues",
        answers={200: QueueList},
        examples={"200": {"queues": [_EXAMPLE]}},
    )
    async def page(self) -> QueueList:
        """Every queue that has held a job or a setting, by name."""
        return QueueList(await self._shapes(await self._penstock.queues()))

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
        found = [queue for queue in await self._penstock.queues() if queue.name == name]
        if not found:
            raise Problem(404, f"there is no queue {name!r}")
        return (await self._shapes(found))[0]

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
        return (await self._shapes([queue]))[0]

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
        return (await self._shapes([await self._penstock.pause(name, duration=duration)]))[0]

    @route(
        "POST",
        "/api/v1/queues/{name}/resume",
        Access.ADMIN,
        "Resume a queue",
        answers={200: QueueShape},
    )
    async def resume(self, name: Name) -> QueueShape:
        """Start jobs of a queue again."""
        return (await self._shapes([await self._penstock.resume(name)]))[0]

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

    async def _shapes(self, queues: list[Queue]) -> list[QueueShape]:
        counts = await self._penstock.count()
        oldest = await self._penstock.oldest_ready()
        now = from_micros(self._penstock.clock())
        return [_shape(queue, counts, oldest, now) for queue in queues]


def _ages(given: float | list[float]) -> Ages:
    if isinstance(given, list):
        return tuple(timedelta(seconds=age) for age in given)
    return timedelta(seconds=given)


def _ages_in_seconds(ages: Ages | None) -> float | list[float] | None:
    if isinstance(ages, tuple):
        return [age.total_seconds() for age in ages]
    return seconds(ages)


def _shape(
    queue: Queue, counts: Counts, oldest: Mapping[str, datetime], now: datetime
) -> QueueShape:
    own = {
        (state, waiting): n for (name, state, waiting), n in counts.items() if name == queue.name
    }
    since = oldest.get(queue.name)
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
        states={
            state.value: sum(n for (found, _), n in own.items() if found is state)
            for state in State
        },
        waiting={waiting.value: own.get((State.PENDING, waiting), 0) for waiting in Waiting},
        oldest_ready_age=None if since is None else max(0.0, (now - since).total_seconds()),
    )

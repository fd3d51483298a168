"""Queues and their limits: the part of `Penstock` that pauses, limits and drains them."""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Literal

import msgspec

from penstock.checks import (
    check_concurrency,
    check_duration,
    check_identifier,
    check_key,
    check_kind,
    check_limit,
    check_name,
    check_queue_limits,
)
from penstock.core.job import (
    ALL_QUEUES,
    Ages,
    JobId,
    Overall,
    Queue,
    QueueQuery,
    QueueSettings,
    QueueStatus,
)
from penstock.core.lifecycle import State, Waiting
from penstock.core.limits import Limit
from penstock.core.mirror import Mirror
from penstock.core.times import from_micros
from penstock.opening import Opened


class Drained(msgspec.Struct, frozen=True):
    """How a drain ended: what is left of the backlog that was there when it began."""

    status: Literal["drained", "timeout", "paused"]
    remaining: int
    elapsed: timedelta


class Queues(Opened):
    """The part of `Penstock` that steers queues, and holds tasks and throttles to their limits."""

    # What tasks were registered with, until it is stored.
    _task_limits: dict[str, int]

    async def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        """The queues with their limits, by name: all of them, or those that a query asks for.

        There may be tens of thousands: ask for pages by `QueueQuery(after=…, limit=…)`.
        """
        if query.limit is not None:
            check_limit(query.limit)
        return await self.store.queues(query)

    async def queue_statuses(self, query: QueueQuery = ALL_QUEUES) -> list[QueueStatus]:
        """As `queues`, each with its jobs by state and since when its oldest ready one is due.

        The cost grows with the queues of the answer.
        """
        found = await self.queues(query)
        names = [queue.name for queue in found]
        stages: dict[str, dict[tuple[State, Waiting | None], int]] = {name: {} for name in names}
        for (name, state, waiting), n in (await self.store.count(names)).items():
            stages[name][state, waiting] = n
        oldest = await self.store.oldest_ready(names)
        return [
            QueueStatus(queue=one, counts=stages[one.name], oldest_ready=oldest.get(one.name))
            for one in found
        ]

    async def overall(self, without: Collection[str] = ()) -> Overall:
        """What all queues, but these, have together: how many there are, and jobs by state."""
        return await self.store.overall(without)

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running ones go on.

        After `duration` the pause ends by itself, whatever became of who asked for it; to pause
        again sets a new end. Without one it lasts until `resume`, also if a pause with a
        duration is asked for meanwhile.
        """
        until = None
        if duration is not None:
            check_duration("duration", duration)
            until = from_micros(self.clock()) + duration
        return await self._configure(QueueSettings(name=queue, paused=True, paused_until=until))

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        return await self._configure(QueueSettings(name=queue, paused=False))

    async def limit(
        self,
        queue: str,
        max_pending: int | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET,
        promote_after: Ages | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Queue:
        """Set a queue's limits, for every process; None lifts one, what is not given stays.

        While `max_pending` jobs are pending, new ones are refused with `QueueFull`. At most
        `concurrency` run at a time, and at most `rate[0]` start within any time of `rate[1]`.
        A ready job counts as one priority higher for each `promote_after` that it has waited, or,
        where that is several ages, for each of them that it has reached.
        """
        settings = QueueSettings(
            name=queue,
            max_pending=max_pending,
            concurrency=concurrency,
            rate=rate,
            promote_after=promote_after,
        )
        check_queue_limits(settings)
        return await self._configure(settings)

    async def remove_queue(self, queue: str) -> bool:
        """Lift all limits of a queue, and its pause; whether there was such a queue.

        Without jobs it is gone at once, else it goes with the last of them, as a queue that nobody
        has configured does by itself. Raises `QueueInUse` while it has unfinished jobs.
        """
        check_name("queue", queue)
        return await self.store.remove_queue(queue)

    async def limit_queues(self, most: int | None) -> None:
        """Have at most so many queues in the store, for every process; None: 100,000.

        A job of a further queue is refused with `TooManyQueues`; the queues that are there stay.
        """
        if most is not None:
            check_limit(most, least=1)
        await self.store.limit(Limit(kind="queues", name="", concurrency=most))

    async def limit_task(self, task: str, concurrency: int | None) -> None:
        """Run at most so many jobs of a task at a time, in all processes; None for any number."""
        check_name("task", task)
        await self._limit(Limit(kind="task", name=task, concurrency=concurrency))
        self._task_limits.pop(task, None)

    async def limit_throttle(self, prefix: str, concurrency: int | None) -> None:
        """Run at most so many jobs at a time of each throttle that begins so; None: as if unset.

        The longest prefix that fits a throttle counts, and where none does, one job runs at a
        time. The empty prefix fits all.
        """
        if prefix:
            check_key("prefix", prefix)
        await self._limit(Limit(kind="throttle", name=prefix, concurrency=concurrency))

    async def _limit(self, limit: Limit) -> None:
        if limit.concurrency is not None:
            check_concurrency(limit.concurrency)
        await self.store.limit(limit)

    async def limits(self) -> list[Limit]:
        """The limits of tasks, of throttles and of the number of queues; others are in `queues`."""
        return await self.store.limits()

    async def _declare_limits(self) -> None:
        """Store what tasks were registered with, before the first of their jobs is claimed."""
        declared = dict(self._task_limits)
        stored = {one.name: one for one in await self.limits() if one.kind == "task"}
        for name, n in declared.items():
            if name not in stored or stored[name].concurrency != n:
                await self.limit_task(name, n)
        for name in declared:
            self._task_limits.pop(name, None)

    async def mirror(self, mirror: Mirror) -> None:
        """Let rows of your own follow the jobs of a queue, in the transactions that change them.

        It stays in the database, for every program that changes a job there; one of the same name
        takes its place. Jobs that are there already are mirrored with their next change.
        Raises `ConfigurationError` where there is no database.
        """
        check_identifier("mirror", mirror.name)
        check_name("queue", mirror.queue)
        await self.store.mirror(mirror)

    async def _configure(self, settings: QueueSettings) -> Queue:
        check_name("queue", settings.name)
        return await self.store.configure(settings)

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later ones do not count.

        Ends at once with `paused` when a paused queue keeps the backlog from moving.
        """
        check_kind("timeout", timeout, timedelta)
        start = time.monotonic()
        remaining, newest = await self.store.backlog(queue)
        seen = 0
        while remaining:
            left = timeout.total_seconds() - (time.monotonic() - start)
            if await self._stands_still(queue, newest):
                return Drained("paused", remaining, timedelta(seconds=time.monotonic() - start))
            if left <= 0:
                return Drained("timeout", remaining, timedelta(seconds=time.monotonic() - start))
            seen = await self.store.wait(seen, min(left, 1.0))
            remaining, _ = await self.store.backlog(queue, newest)
        return Drained("drained", 0, timedelta(seconds=time.monotonic() - start))

    async def _stands_still(self, queue: str | None, newest: JobId) -> bool:
        """Whether all that is left of a backlog lies in paused queues, with nothing running."""
        names = None if queue is None else (queue,)
        found = await self.queues(QueueQuery(names=names))
        paused = {one.name for one in found if one.paused}
        if not paused:
            return False
        left = {
            (name, state)
            for (name, state, _), n in (await self.store.count(names)).items()
            if n and not state.final
        }
        moving = {name for name, state in left if name not in paused or state is State.RUNNING}
        for name in moving:
            if (await self.store.backlog(name, newest))[0]:
                return False
        return bool((await self.store.backlog(queue, newest))[0])

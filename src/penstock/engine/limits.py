"""Limits: `Penstock.limits`, for queues, tasks, throttles and the number of queues."""

import builtins
import contextlib
from collections.abc import Iterator
from datetime import timedelta

from msgspec import UNSET, UnsetType

from penstock.core.limits import Limit
from penstock.core.queue import Ages, Queue, QueueSettings
from penstock.engine.connection import Connection
from penstock.engine.sync_calls import SyncLimits
from penstock.engine.validation import (
    check_concurrency,
    check_key,
    check_limit,
    check_name,
    check_queue_limits,
)


class Limits:
    """The limits of a store, which hold in every process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.declared: dict[str, int] = {}
        """Limits that tasks were registered with."""
        self.unstored: set[str] = set()
        """The tasks whose declared limit is not stored yet."""
        self.declared_reserved: set[str] = set()
        """Queues that were reserved here."""
        self.reserving: set[str] = set()
        """Those of them that are not reserved in the store yet."""

    @property
    def sync(self) -> SyncLimits:
        """The same calls from synchronous code, without `await`."""
        return SyncLimits(self)

    async def queue(
        self,
        queue: str,
        max_pending: int | UnsetType | None = UNSET,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: tuple[int, timedelta] | UnsetType | None = UNSET,
        promote_after: Ages | UnsetType | None = UNSET,
    ) -> Queue:
        """Set limits of a queue; None removes one, and what is not given stays.

        While `max_pending` jobs are pending, new ones are refused with `QueueFull`. At most
        `concurrency` run at a time, and at most `rate[0]` start within any period of `rate[1]`. A
        ready job counts as one priority higher for each `promote_after` that it has waited or, if
        that is a tuple of ages, for each of them that it has reached.
        """
        settings = QueueSettings(
            name=queue,
            max_pending=max_pending,
            concurrency=concurrency,
            rate=rate,
            promote_after=promote_after,
        )
        check_queue_limits(settings)
        check_name("queue", queue)
        return await self._connection.store.configure(settings)

    async def task(self, task: str, concurrency: int | None) -> None:
        """Limit how many jobs of a task run at a time, in all processes; None removes the limit."""
        check_name("task", task)
        await self._set(Limit(kind="task", name=task, concurrency=concurrency))
        self.unstored.discard(task)

    async def throttle(self, prefix: str, concurrency: int | None) -> None:
        """Limit how many jobs of each throttle with this prefix run at a time; None removes it.

        The longest prefix that matches a throttle counts. If none does, one job runs at a time.
        The empty prefix matches all.
        """
        if prefix:
            check_key("prefix", prefix)
        await self._set(Limit(kind="throttle", name=prefix, concurrency=concurrency))

    async def queues(self, most: int | None) -> None:
        """Limit the number of queues in the store; None restores the default of 100,000.

        A job for a queue beyond the limit is refused with `TooManyQueues`; existing queues stay.
        """
        if most is not None:
            check_limit(most, least=1)
        await self._connection.store.limit(Limit(kind="queues", name="", concurrency=most))

    def reserve(self, *queues: str) -> None:
        """Reserve queues: in every process, only workers that name them take their jobs.

        The store keeps this from the next call of this program that stores or claims jobs, or
        prepares tables. Not a coroutine.
        """
        for queue in queues:
            check_name("queue", queue)
        self.declared_reserved.update(queues)
        self.reserving.update(queues)

    def declare(self, task: str, concurrency: int) -> None:
        """Remember the limit of a task, which the next claim of this program stores."""
        self.declared[task] = concurrency
        self.unstored.add(task)

    async def reserved(self) -> frozenset[str]:
        """Return the queues that are reserved for workers that name them."""
        stored = await self._connection.store.limits()
        return frozenset(one.name for one in stored if one.kind == "reserved") | self.reserving

    async def list(self) -> builtins.list[Limit]:
        """Return the limits of tasks, throttles and the number of queues.

        Those of queues are in `Penstock.queues.list`.
        """
        return [one for one in await self._connection.store.limits() if one.kind != "reserved"]

    async def store_reserved(self) -> None:
        """Store the queues that were reserved here."""
        reserving = frozenset(self.reserving)
        stored = await self._connection.store.limits()
        for queue in sorted(reserving - {one.name for one in stored if one.kind == "reserved"}):
            limit = Limit(kind="reserved", name=queue, concurrency=0)
            await self._connection.store.limit(limit)
        self.reserving -= reserving

    async def store_declared(self) -> None:
        """Store what was declared here: limits of tasks and reserved queues."""
        if self.reserving:
            await self.store_reserved()
        unstored = sorted(self.unstored)
        stored = {one.name: one for one in await self.list() if one.kind == "task"}
        for name in unstored:
            if name not in stored or stored[name].concurrency != self.declared[name]:
                await self.task(name, self.declared[name])
        self.unstored.difference_update(unstored)

    @contextlib.contextmanager
    def afresh(self) -> Iterator[None]:
        """Inside the block, where another store is used, store what is declared again."""
        kept = self.unstored, self.reserving
        self.unstored, self.reserving = set(self.declared), set(self.declared_reserved)
        try:
            yield
        finally:
            self.unstored, self.reserving = kept

    async def _set(self, limit: Limit) -> None:
        if limit.concurrency is not None:
            check_concurrency(limit.concurrency)
        await self._connection.store.limit(limit)

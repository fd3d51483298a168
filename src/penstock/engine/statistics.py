"""Statistics: `Penstock.statistics`, sums over the log that outlive jobs and processes."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from penstock.core.errors import ConfigurationError
from penstock.core.queue import QueueQuery
from penstock.core.statistics import MINUTE, TOGETHER, Counters, Interval
from penstock.engine.connection import Connection
from penstock.engine.sync_calls import SyncStatistics
from penstock.engine.validation import check_name

ROLLED_UP_AT_ONCE = 10_000
# A call ends soon after, and the next continues where it stopped.
_LONGEST = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Statistics:
    """What has happened in the queues of a store, counted and timed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def sync(self) -> SyncStatistics:
        """The same calls from synchronous code, without `await`."""
        return SyncStatistics(self)

    async def roll_up(self) -> int:
        """Count the log entries added since the last time, and return how many. Workers do this.

        Works for a second at most: after a long backlog, call it again. However many processes do
        this, each entry is counted once.
        """
        monotonic = self._connection.runtime.monotonic
        passed, deadline = 0, monotonic() + _LONGEST
        while portion := await self._connection.store.roll_up(ROLLED_UP_AT_ONCE):
            passed += portion
            if monotonic() > deadline:
                break
        return passed

    async def intervals(
        self,
        since: datetime,
        until: datetime | None = None,
        queue: str | QueueQuery | Collection[str] | None = None,
        step: timedelta = MINUTE,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """Return what has happened since then, per queue and `step`, by time and queue.

        For one queue, several, those that match a query, or all. With `together`, all queues form
        one sum, under the empty name, whose cost does not grow with the queues.

        Steps are whole minutes and begin at multiples of themselves, in UTC: the first contains
        `since`. Steps without events are left out. Statistics cover 8 days, up to the last
        `roll_up`.
        """
        _check_instant("since", since)
        if until is not None:
            _check_instant("until", until)
        if queue is not None:
            if together:
                raise ConfigurationError("name queues, or request all of them together, not both")
            if isinstance(queue, QueueQuery):
                queue = [found.name for found in await self._connection.store.queues(queue)]
            for name in [queue] if isinstance(queue, str) else queue:
                check_name("queue", name)
        _check_step(step)
        begin = since - (since - _EPOCH) % step
        wanted = TOGETHER if together else queue
        return await self._connection.store.intervals(begin, until, wanted, step)

    async def counters(self) -> list[Counters]:
        """Return what has happened in each queue since the store exists, by the queue's name.

        Up to the last `roll_up`. These numbers never decrease, even when jobs are removed. Only a
        limited number of queues, 100 unless a server is configured otherwise, have counters of
        their own, and keep them until they are removed. The others are counted under the empty
        name.
        """
        return await self._connection.store.counters()


def _check_instant(field: str, instant: object) -> None:
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        raise ConfigurationError(
            f"{field} must be an instant with a time zone: datetime.now(UTC) - …, "
            f"not {instant!r:.80}"
        )


def _check_step(step: object) -> None:
    if not isinstance(step, timedelta) or step < MINUTE or step % MINUTE:
        raise ConfigurationError(f"step must be a timedelta of whole minutes, not {step!r:.80}")

"""Rates and times over time: the part of `Penstock` that sums up the log."""

import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from penstock.checks import check_name
from penstock.core.errors import ConfigurationError
from penstock.core.history import MINUTE, TOGETHER, Counters, Interval
from penstock.core.job import QueueQuery
from penstock.opening import Opened

DIGESTED_AT_ONCE = 10_000
# A call ends soon after, and another goes on where it stopped.
_LONGEST = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class History(Opened):
    """What has happened in the queues of a Penstock, in sums that outlive jobs and processes."""

    async def digest(self) -> int:
        """Count what the log has got since the last time. Workers do this by themselves.

        Returns how many entries it has passed. Works for a second at most: with much to catch
        up on, call it again. However many processes do this, each entry is counted once.
        """
        passed, deadline = 0, time.monotonic() + _LONGEST
        while portion := await self.store.digest(DIGESTED_AT_ONCE):
            passed += portion
            if time.monotonic() > deadline:
                break
        return passed

    async def history(
        self,
        since: datetime,
        until: datetime | None = None,
        queue: str | QueueQuery | Collection[str] | None = None,
        step: timedelta = MINUTE,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """What has happened from `since` on, per queue and `step`, by time and queue.

        Of one queue, of several, of those that a query finds, or of all. With `together`, all
        queues are one sum, under the empty name, whose cost does not grow with the queues.

        Steps are whole minutes and begin at multiples of themselves, in UTC: the first is the one
        that `since` lies in. Those in which nothing happened are left out. It is known for 8 days,
        up to the last `digest`.
        """
        _check_instant("since", since)
        if until is not None:
            _check_instant("until", until)
        if queue is not None:
            if together:
                raise ConfigurationError("name queues, or ask for all of them together; not both")
            if isinstance(queue, QueueQuery):
                queue = [found.name for found in await self.store.queues(queue)]
            for name in [queue] if isinstance(queue, str) else queue:
                check_name("queue", name)
        _check_step(step)
        wanted = TOGETHER if together else queue
        return await self.store.history(since - (since - _EPOCH) % step, until, wanted, step)

    async def counters(self) -> list[Counters]:
        """What has happened in each queue since the store began to count, by the queue's name.

        Up to the last `digest`. These numbers never fall, also when jobs are removed. Only so many
        queues have counters of their own, 100 unless a server is told otherwise, and keep them
        until they are removed. What happens in the others is counted under the empty name.
        """
        return await self.store.counters()


def _check_instant(field: str, instant: object) -> None:
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        raise ConfigurationError(
            f"{field} is an instant with a time zone: datetime.now(UTC) - …, not {instant!r:.80}"
        )


def _check_step(step: object) -> None:
    if not isinstance(step, timedelta) or step < MINUTE or step % MINUTE:
        raise ConfigurationError(f"a step is a timedelta of whole minutes, not {step!r:.80}")

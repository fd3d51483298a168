"""Who works on a store: what workers say of themselves, and what their leases tell of them."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

SILENT_AFTER = timedelta(seconds=30)
"""A worker that was not heard of for so long is most likely dead: it greets every ten seconds."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: what it says of itself when it greets, and the leases that it holds now.

    `queues` are all where it is None. Of one that holds leases and never greeted, only its name
    and its leases are known; it was last seen when it claimed or renewed one of them.
    `oldest_start` is when the first of its running jobs began, `expires_at` when the first of its
    leases ends. `draining` tells that it was asked to take no more jobs and to end with those
    that it has.
    """

    name: str
    host: str | None = None
    pid: int | None = None
    queues: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    concurrency: int | None = None
    started_at: datetime | None = None
    seen_at: datetime
    running: int = 0
    oldest_start: datetime | None = None
    expires_at: datetime | None = None
    draining: bool = False

    def is_silent(self, now: datetime) -> bool:
        """Whether it was not heard of for over 30 seconds.

        One that never greeted is heard of only when it renews, which may be seldom: it is silent
        when one of its leases is over as well.
        """
        overdue = self.host is not None or self.expires_at is None or self.expires_at <= now
        return overdue and now - self.seen_at > SILENT_AFTER


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What the leases of one worker tell of it."""

    worker: str
    running: int
    oldest_start: datetime
    expires_at: datetime
    seen_at: datetime


def roster(greeted: Iterable[WorkerInfo], holdings: Iterable[Holding]) -> list[WorkerInfo]:
    """Every worker that greeted or holds a lease, by name; a renewal counts as a greeting."""
    known = {worker.name: worker for worker in greeted}
    for holding in holdings:
        worker = known.get(holding.worker)
        if worker is None:
            worker = WorkerInfo(name=holding.worker, seen_at=holding.seen_at)
        known[worker.name] = replace(
            worker,
            seen_at=max(worker.seen_at, holding.seen_at),
            running=holding.running,
            oldest_start=holding.oldest_start,
            expires_at=holding.expires_at,
        )
    return [known[name] for name in sorted(known)]

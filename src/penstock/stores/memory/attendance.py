"""Who works on the store, in memory."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec.structs import replace

from penstock.core.job import Job
from penstock.core.worker import Holding, WorkerInfo, roster


class Attendance:
    """The workers that greeted, by name."""

    def __init__(self) -> None:
        self._greeted: dict[str, WorkerInfo] = {}

    def greet(self, workers: Iterable[WorkerInfo], now: datetime) -> None:
        """See `Store.greet`."""
        for worker in workers:
            self._greeted[worker.name] = replace(worker, seen_at=now)

    def dismiss(self, names: Iterable[str]) -> None:
        """See `Store.dismiss`."""
        for name in names:
            self._greeted.pop(name, None)

    def roster(self, running: Iterable[Job]) -> list[WorkerInfo]:
        """See `Store.workers`."""
        return roster(self._greeted.values(), _holdings(running))


def _holdings(running: Iterable[Job]) -> Iterator[Holding]:
    held: dict[str, list[tuple[datetime, datetime, datetime]]] = {}
    for job in running:
        if job.worker is not None and job.started_at is not None and job.expires_at is not None:
            seen = max(job.started_at, job.expires_at - job.lease_time)
            held.setdefault(job.worker, []).append((job.started_at, job.expires_at, seen))
    for worker, leases in held.items():
        starts, ends, seen_at = zip(*leases, strict=True)
        yield Holding(
            worker=worker,
            running=len(leases),
            oldest_start=min(starts),
            expires_at=min(ends),
            seen_at=max(seen_at),
        )

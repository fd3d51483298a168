"""Who works on the store, in memory."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from penstock.core.job import Job
from penstock.core.worker import Holding, WorkerInfo, roster
from penstock.stores.memory.batch import Batch


class Attendance:
    """The workers that greeted, by name."""

    def __init__(self) -> None:
        self._greeted: dict[str, WorkerInfo] = {}

    def apply(self, batch: Batch) -> None:
        """Take over what a batch says."""
        for worker in batch.greeted:
            self._greeted[worker.name] = worker
        for name in batch.dismissed:
            self._greeted.pop(name, None)

    @property
    def draining(self) -> set[str]:
        """The names of those that should drain."""
        return {name for name, worker in self._greeted.items() if worker.draining}

    def all(self) -> list[WorkerInfo]:
        """What the workers have said."""
        return list(self._greeted.values())

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

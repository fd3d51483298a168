"""The registry of workers, in memory."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from penstock.core.job import Job
from penstock.core.workers import DepartedTask, Holding, WorkerInfo, remembered, roster
from penstock.stores.memory.batch import WriteBatch


class StoredWorkers:
    """The registered workers, by name."""

    def __init__(self) -> None:
        self._registered: dict[str, WorkerInfo] = {}
        self._departed: list[DepartedTask] = []

    def apply(self, batch: WriteBatch) -> None:
        """Apply the heartbeats and deregistrations of a batch."""
        for worker in batch.workers:
            self._registered[worker.name] = worker
        for name in batch.deregistered:
            if (gone := self._registered.pop(name, None)) is not None:
                self._departed = remembered(self._departed, gone)

    def get(self, name: str) -> WorkerInfo | None:
        """Return a registered worker as of its last heartbeat."""
        return self._registered.get(name)

    def is_draining(self, name: str) -> bool:
        """Return whether a worker was asked to drain."""
        worker = self._registered.get(name)
        return worker is not None and worker.draining

    def departed(self) -> list[DepartedTask]:
        """Return the tasks of workers that were deregistered, by name."""
        return list(self._departed)

    def all(self) -> list[WorkerInfo]:
        """Return the registered workers as of their last heartbeats."""
        return list(self._registered.values())

    def roster(self, running: Iterable[Job]) -> list[WorkerInfo]:
        """Return the workers that are registered or hold one of these running jobs, by name."""
        return roster(self._registered.values(), _holdings(running))


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

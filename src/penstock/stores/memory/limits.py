"""Limits in memory: what was set, and the starts that rates count.

Running jobs are counted when a limit needs it, from the jobs themselves.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from penstock.core.job import Job
from penstock.core.limits import (
    Held,
    Limit,
    Places,
    QueueLoad,
    Start,
    held_places,
    next_start,
    throttle_limit,
)
from penstock.core.queue import Queue
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.stores.memory.batch import WriteBatch


class StoredLimits:
    """The limits of tasks, throttles and the number of queues, and the starts of queues."""

    def __init__(self) -> None:
        self._limits: dict[tuple[Any, str], int] = {}
        self.starts: dict[str, list[Start]] = {}

    def apply(self, batch: WriteBatch) -> None:
        """Apply the limits and starts of a batch."""
        for limit in batch.limits:
            if limit.concurrency is None:
                self._limits.pop((limit.kind, limit.name), None)
            else:
                self._limits[limit.kind, limit.name] = limit.concurrency
        self.starts.update(batch.starts)

    def forget(self, queue: str) -> None:
        """Drop the starts of a queue that was removed."""
        self.starts.pop(queue, None)

    def all(self) -> list[Limit]:
        """Return every limit, by kind and name."""
        return [
            Limit(kind=kind, name=name, concurrency=n)
            for (kind, name), n in sorted(self._limits.items())
        ]

    @property
    def most_queues(self) -> int | None:
        """How many queues there may be; None for the default."""
        return self._limits.get(("queues", ""))

    @property
    def any_of_tasks(self) -> bool:
        """Whether a task has a limit."""
        return any(kind == "task" for kind, _ in self._limits)

    def load(self, queue: Queue, running: int) -> QueueLoad:
        """Return the limits of a queue with what counts towards them."""
        rate, window = None, 0
        if queue.rate is not None:
            rate, window = queue.rate[0], span_to_micros(queue.rate[1])
        return QueueLoad(
            name=queue.name,
            concurrency=queue.concurrency,
            running=running,
            rate=rate,
            window=window,
            starts=self.starts.get(queue.name, ()),
        )

    def places(self, queues: Iterable[Queue], running: Sequence[Job], now: datetime) -> Places:
        """Return the free places of these queues and of all tasks and throttles."""
        in_queues = Counter(job.queue for job in running)
        of_tasks = Counter(job.task for job in running)
        of_throttles = Counter(job.throttle for job in running)
        prefixes = self._prefixes()
        at = to_micros(now)
        return Places(
            queues={
                queue.name: self.load(queue, in_queues[queue.name]).room(at) for queue in queues
            },
            tasks={
                name: n - of_tasks[name]
                for (kind, name), n in self._limits.items()
                if kind == "task"
            },
            throttle=lambda name: throttle_limit(prefixes, name) - of_throttles[name],
        )

    def held(self, job: Job, queue: Queue, running: Sequence[Job], now: datetime) -> list[Held]:
        """Return the limits that keep a job from starting."""
        found = self.load(queue, sum(one.queue == queue.name for one in running)).held(
            to_micros(now)
        )
        if ("task", job.task) in self._limits:
            taken = sum(one.task == job.task for one in running)
            found += held_places("task", job.task, taken, self._limits["task", job.task])
        if job.throttle is not None:
            limit = throttle_limit(self._prefixes(), job.throttle)
            taken = sum(one.throttle == job.throttle for one in running)
            found += held_places("throttle", job.throttle, taken, limit)
        return found

    def next_start(self, queues: Iterable[Queue], after: datetime) -> datetime | None:
        """Return when a rate of these queues that is used up admits the next start."""
        at = next_start((self.load(queue, 0) for queue in queues), to_micros(after))
        return None if at is None else from_micros(at)

    def _prefixes(self) -> dict[str, int]:
        return {name: n for (kind, name), n in self._limits.items() if kind == "throttle"}

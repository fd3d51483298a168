"""Indexes over stored values: by rank, by id, and by the key of jobs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State, Waiting

SLACK = 64
"""How many stale entries an index may hold before it is worth rebuilding."""

Ranked = tuple[Any, ...]
"""The parts of a rank, then the id."""

V = TypeVar("V")


class Ranking:
    """Job ids ordered by rank.

    A heap that discards a dropped entry when it reaches the top, or when dropped entries outnumber
    the others.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[Ranked] = []
        self._live: dict[JobId, Ranked] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Ranked]:
        """Yield the entries in order without removing them: a walk down from the heap's top."""
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, place = heappop(frontier)
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(frontier, (heap[child], child))
            if self._live.get(entry[-1]) is entry:
                yield entry

    def ids(self) -> Iterable[JobId]:
        """Return the ids in no particular order."""
        return self._live.keys()

    def first(self) -> Ranked | None:
        """Return the first entry, if any."""
        return self._heap[0] if self._heap else None

    def put(self, job_id: JobId, *rank: object) -> None:
        """Add an id, or move it to another rank."""
        entry = (*rank, job_id)
        moved = job_id in self._live
        self._live[job_id] = entry
        heappush(self._heap, entry)
        if moved:
            self._tidy()

    def drop(self, job_id: JobId) -> None:
        """Remove an id, if it is there."""
        if self._live.pop(job_id, None) is not None:
            self._tidy()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = list(self._live.values())
            heapify(self._heap)
        while self._heap and self._live.get(self._heap[0][-1]) is not self._heap[0]:
            heappop(self._heap)


class ById(Generic[V]):
    """Values by increasing ids, readable forwards and backwards from any id."""

    __slots__ = ("_ids", "_values")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._values: dict[int, V] = {}

    def __getitem__(self, place: int) -> V:
        return self._values[place]

    def get(self, place: int) -> V | None:
        """Return the value with this id, if any."""
        return self._values.get(place)

    def put(self, place: int, value: V) -> None:
        """Set the value of an id; a new id must be higher than all before."""
        if place not in self._values:
            self._ids.append(place)
        self._values[place] = value

    def pop(self, place: int) -> V:
        """Remove and return a value."""
        value = self._values.pop(place)
        if len(self._ids) > 2 * len(self._values) + SLACK:
            self._ids = list(self._values)
        return value

    def values(self) -> list[V]:
        """Return all values, ordered by id."""
        return list(self._values.values())

    def after(self, place: int | None) -> Iterator[V]:
        """Yield the values after an id, forwards; all of them for None."""
        start = 0 if place is None else bisect_right(self._ids, place)
        return self._read(range(start, len(self._ids)))

    def before(self, place: int | None) -> Iterator[V]:
        """Yield the values before an id, backwards; all of them for None."""
        end = len(self._ids) if place is None else bisect_left(self._ids, place)
        return self._read(range(end - 1, -1, -1))

    def _read(self, indexes: range) -> Iterator[V]:
        for index in indexes:
            if (value := self._values.get(self._ids[index])) is not None:
                yield value


class LineIndex:
    """The unfinished jobs of one key, and which of them is visible to claims."""

    __slots__ = ("pending", "running", "visible")

    def __init__(self) -> None:
        self.pending = Ranking()
        self.running: set[JobId] = set()
        self.visible: JobId | None = None

    def __len__(self) -> int:
        return len(self.pending) + len(self.running)

    def ids(self) -> list[JobId]:
        """Return the jobs of the line in no particular order."""
        return [*self.pending.ids(), *self.running]

    def put(self, job: Job) -> None:
        """Add a job of the key, or change its place, as its state says."""
        self.pending.drop(job.id)
        self.running.discard(job.id)
        if job.state is State.PENDING:
            self.pending.put(job.id)
        elif job.state is State.RUNNING:
            self.running.add(job.id)
        if job.state is State.PENDING and job.waiting is not Waiting.BLOCKED:
            self.visible = job.id
        elif self.visible == job.id:
            self.visible = None

    def oldest(self) -> JobId | None:
        """Return the pending job with the lowest id, if any."""
        first = self.pending.first()
        return None if first is None else first[-1]

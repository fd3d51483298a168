"""The structures that jobs lie in: by rank, by id, by key."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State

SLACK = 64
"""How many stale entries a structure may hold before it is worth rebuilding."""

Ranked = tuple[Any, ...]
V = TypeVar("V")


class Ranking:
    """Job ids in the order of their ranks.

    A heap that forgets a dropped entry when it comes up, or when the dropped outnumber the rest.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[Ranked] = []
        self._live: dict[JobId, Ranked] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Ranked]:
        """The entries in order, without taking them off: a walk down from the heap's top."""
        heap = self._heap
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, place = heappop(frontier)
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(frontier, (heap[child], child))
            if self._live.get(entry[-1]) is entry:
                yield entry

    def ids(self) -> Iterable[JobId]:
        """The ids in no order."""
        return self._live.keys()

    def first(self) -> Ranked | None:
        """The foremost entry: the parts of its rank, then the id."""
        return self._heap[0] if self._heap else None

    def put(self, job_id: JobId, *rank: object) -> None:
        """Place an id; if it was there before, it moves."""
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


class Shelf(Generic[V]):
    """Values by growing ids, to be read from any id onwards or backwards."""

    __slots__ = ("_ids", "_values")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._values: dict[int, V] = {}

    def __getitem__(self, place: int) -> V:
        return self._values[place]

    def get(self, place: int) -> V | None:
        """The value there, if any."""
        return self._values.get(place)

    def put(self, place: int, value: V) -> None:
        """Set the value of an id; a new id is higher than all before."""
        if place not in self._values:
            self._ids.append(place)
        self._values[place] = value

    def take(self, place: int) -> V:
        """Remove a value."""
        value = self._values.pop(place)
        if len(self._ids) > 2 * len(self._values) + SLACK:
            self._ids = list(self._values)
        return value

    def values(self) -> list[V]:
        """All values, by their ids."""
        return list(self._values.values())

    def after(self, place: int | None) -> Iterator[V]:
        """The values behind an id, onwards; from the first for None."""
        start = 0 if place is None else bisect_right(self._ids, place)
        return self._read(range(start, len(self._ids)))

    def before(self, place: int | None) -> Iterator[V]:
        """The values before an id, backwards; from the last for None."""
        end = len(self._ids) if place is None else bisect_left(self._ids, place)
        return self._read(range(end - 1, -1, -1))

    def _read(self, indexes: range) -> Iterator[V]:
        for index in indexes:
            if (value := self._values.get(self._ids[index])) is not None:
                yield value


class Line:
    """The unfinished jobs of one key: at most one of them is visible to a claim."""

    __slots__ = ("pending", "running", "visible")

    def __init__(self) -> None:
        self.pending = Ranking()
        self.running: set[JobId] = set()
        self.visible: JobId | None = None

    def put(self, job: Job) -> None:
        """Note where this job of the key stands now."""
        self.pending.drop(job.id)
        self.running.discard(job.id)
        if job.state is State.PENDING:
            self.pending.put(job.id)
        elif job.state is State.RUNNING:
            self.running.add(job.id)

    def head(self) -> JobId | None:
        """The job that is next, unless one is running."""
        first = None if self.running else self.pending.first()
        return None if first is None else first[-1]

"""Limits: how many jobs may run, start and wait, and which limits hold a job.

A running job takes a place of its queue, of its task and of its throttle; a start counts towards
the rate of its queue; a pending job takes a place of its queue's length. Nothing here counts: a
store passes what runs and waits, and remembers the starts. Times are in microseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from penstock.core.errors import QueueFull, TooManyQueues
from penstock.core.times import from_micros

if TYPE_CHECKING:
    from penstock.core.choosing import Candidate

DEFAULT_THROTTLE = 1
"""How many jobs of one throttle run at a time if no prefix sets another limit."""

MOST_QUEUES = 100_000
"""How many queues a store may have if no limit sets another number."""

# Starts that are closer together than this part of the window are remembered as one, so that the
# cost of a rate does not grow with it; the window becomes longer by at most this part.
_GRAIN = 100

Start = tuple[int, int, int]
"""Starts remembered as one: the times of the first and the last of them, and their number."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many jobs of a task, or of each throttle with a prefix, run at a time; None: any number.

    The kind "queues", whose name is empty, sets how many queues the store may have. The kind
    "reserved" has the name of a queue, and no places for workers that do not name the queue.
    """

    kind: Literal["task", "throttle", "queues", "reserved"]
    name: str
    concurrency: int | None


class Held(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit that keeps a ready job from starting: `taken` places of `limit`.

    `until` is when a rate admits the next start.
    """

    kind: Literal["queue", "task", "throttle", "rate"]
    name: str
    taken: int
    limit: int
    until: datetime | None = None


def throttle_limit(prefixes: Mapping[str, int], throttle: str) -> int:
    """Return how many jobs of a throttle run at a time: the limit of its longest known prefix."""
    matching = [prefix for prefix in prefixes if throttle.startswith(prefix)]
    return prefixes[max(matching, key=len)] if matching else DEFAULT_THROTTLE


# Lengths


def queue_full(queue: str, limit: int | None, pending: int, more: int) -> QueueFull | None:
    """Return the error if a queue has no room for that many more pending jobs.

    `more` is net of the jobs that leave the queue in the same transaction: a job that replaces a
    pending one of the same queue needs no room, even if the queue is over its limit.
    """
    if limit is None or more <= 0 or pending + more <= limit:
        return None
    return QueueFull(queue, limit)


def too_many_queues(queues: int, more: int, limit: int | None) -> TooManyQueues | None:
    """Return an error if `more` queues would exceed the limit of a store with `queues` of them.

    `limit` is the stored one, None for the default. Existing queues stay, whatever the limit.
    """
    limit = MOST_QUEUES if limit is None else limit
    return TooManyQueues(limit) if more and queues + more > limit else None


# Rates: never more than `limit` starts within any `window`.


def started(starts: Sequence[Start], now: int, n: int, window: int) -> list[Start]:
    """Return the starts to remember after `n` more; those that left the window are dropped."""
    kept = [start for start in starts if _counts(start[1], now, window)]
    if kept and 0 <= now - kept[-1][0] < window // _GRAIN:
        first, _, before = kept.pop()
        return [*kept, (first, now, before + n)]
    return [*kept, (now, now, n)]


def rate_taken(starts: Sequence[Start], now: int, window: int) -> int:
    """Return how many starts lie in the window that ends now."""
    return sum(n for _, last, n in starts if _counts(last, now, window))


def _counts(last: int, now: int, window: int) -> bool:
    """Whether a start is in the window; one far ahead is from before the clock was set back."""
    return now - window < last <= now + window


def free_at(starts: Sequence[Start], limit: int, window: int) -> int | None:
    """Return when a rate admits the next start, even if that is past.

    None if the remembered starts do not reach the limit, or if the limit admits none at all.
    """
    left = sum(n for _, _, n in starts)
    if left < limit:
        return None
    for _, last, n in starts:
        left -= n
        if left < limit:
            return last + window
    return None


class QueueLoad(NamedTuple):
    """The limits of a queue and what counts towards them: `rate` starts within `window`."""

    name: str
    concurrency: int | None = None
    running: int = 0
    rate: int | None = None
    window: int = 0
    starts: Sequence[Start] = ()

    def room(self, now: int) -> int | None:
        """Return how many jobs of the queue may start; None for any number."""
        rooms = []
        if self.concurrency is not None:
            rooms.append(self.concurrency - self.running)
        if self.rate is not None:
            rooms.append(self.rate - rate_taken(self.starts, now, self.window))
        return min(rooms, default=None)

    def started(self, n: int, now: int) -> list[Start] | None:
        """Return the starts to remember after `n` more; None if the queue has no rate."""
        return None if self.rate is None else started(self.starts, now, n, self.window)

    def next_start(self) -> int | None:
        """Return when the rate admits the next start; see `free_at`."""
        return None if self.rate is None else free_at(self.starts, self.rate, self.window)

    def held(self, now: int) -> list[Held]:
        """Return which limits of the queue admit no start now."""
        found: list[Held] = []
        if self.concurrency is not None and self.running >= self.concurrency:
            found.append(
                Held(kind="queue", name=self.name, taken=self.running, limit=self.concurrency)
            )
        if self.rate is not None:
            taken = rate_taken(self.starts, now, self.window)
            if taken >= self.rate:
                free = self.next_start()
                until = None if free is None else from_micros(free)
                found.append(
                    Held(kind="rate", name=self.name, taken=taken, limit=self.rate, until=until)
                )
        return found


def next_start(queues: Iterable[QueueLoad], after: int) -> int | None:
    """Return the first time later than `after` at which a rate of these queues admits a start."""
    instants = (queue.next_start() for queue in queues)
    return min((at for at in instants if at is not None and at > after), default=None)


def held_places(kind: Literal["task", "throttle"], name: str, taken: int, limit: int) -> list[Held]:
    """Return the limit of a task or throttle if all its places are taken, in a list."""
    return [Held(kind=kind, name=name, taken=taken, limit=limit)] if taken >= limit else []


class Places:
    """The free places that one claim can take."""

    def __init__(
        self,
        *,
        queues: Mapping[str, int | None],
        tasks: Mapping[str, int],
        throttle: Callable[[str], int],
    ) -> None:
        """Set how many jobs may start per queue (None: any number), limited task and throttle."""
        self._queues = {name: room for name, room in queues.items() if room is not None}
        self._tasks = dict(tasks)
        self._throttles: dict[str, int] = {}
        self._throttle_room = throttle

    def queue_is_open(self, name: str) -> bool:
        """Return whether one more job of this queue may start."""
        return self._queues.get(name, 1) > 0

    def holder(self, job: "Candidate") -> tuple[str, str] | None:
        """Return the kind and name of a limit that holds this job, other than its queue's."""
        if self._tasks.get(job.task, 1) <= 0:
            return "task", job.task
        if job.throttle is not None and self.throttle(job.throttle) <= 0:
            return "throttle", job.throttle
        return None

    def throttle(self, name: str) -> int:
        """Return how many more jobs of this throttle may start."""
        if name not in self._throttles:
            self._throttles[name] = self._throttle_room(name)
        return self._throttles[name]

    def task(self, name: str) -> int | None:
        """Return how many more jobs of this task may start; None if it has no limit."""
        return self._tasks.get(name)

    def take(self, job: "Candidate") -> None:
        """Take the places of a job that starts."""
        for rooms, name in ((self._queues, job.queue), (self._tasks, job.task)):
            if name in rooms:
                rooms[name] -= 1
        if job.throttle is not None:
            self._throttles[job.throttle] = self.throttle(job.throttle) - 1

"""What may start, and what is held: rules that every store follows alike.

A running job takes a place of its queue, of its task and of its throttle; a start counts for its
queue's rate. Nothing here counts for itself: a store says how many run, and keeps the starts.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from penstock.core.choosing import Candidate

DEFAULT_THROTTLE = 1
"""How many jobs of one throttle run at a time, where no prefix says otherwise."""

MOST_QUEUES = 100_000
"""How many queues a store may have, where no limit says otherwise."""

# Starts so close together, as a part of the window, are remembered as one: what a rate costs
# does not grow with it, and the window gets longer by at most this part.
_GRAIN = 100

Start = tuple[int, int, int]
"""Starts remembered as one: the first and the last of them in microseconds, and how many."""


class Limit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many jobs of a task, or of each throttle that begins with a prefix, run at a time.

    Of the kind "queues", which has no name: how many queues the store may have.
    """

    kind: Literal["task", "throttle", "queues"]
    name: str
    concurrency: int | None


class Held(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit that keeps a ready job from starting: how many run or started, of how many.

    A rate says when it lets the next one start.
    """

    kind: Literal["queue", "task", "throttle", "rate"]
    name: str
    taken: int
    limit: int
    until: datetime | None = None


def throttle_limit(prefixes: Mapping[str, int], throttle: str) -> int:
    """How many jobs of a throttle run at a time: as the longest prefix of it says."""
    fitting = [prefix for prefix in prefixes if throttle.startswith(prefix)]
    return prefixes[max(fitting, key=len)] if fitting else DEFAULT_THROTTLE


# Rates: never more than `limit` starts within any `window`.


def started(starts: Sequence[Start], now: int, n: int, window: int) -> list[Start]:
    """The starts to remember after `n` more; those that left the window are forgotten."""
    kept = [start for start in starts if _counts(start[1], now, window)]
    if kept and 0 <= now - kept[-1][0] < window // _GRAIN:
        first, _, before = kept.pop()
        return [*kept, (first, now, before + n)]
    return [*kept, (now, now, n)]


def rate_taken(starts: Sequence[Start], now: int, window: int) -> int:
    """How many starts lie in the window that ends now."""
    return sum(n for _, last, n in starts if _counts(last, now, window))


def _counts(last: int, now: int, window: int) -> bool:
    """Whether a start is in the window; one far ahead is from before the clock was set back."""
    return now - window < last <= now + window


def free_at(starts: Sequence[Start], limit: int, window: int) -> int | None:
    """When another one may start, also if that is past; None if that was never in question."""
    left = sum(n for _, _, n in starts)
    if left < limit:
        return None
    for _, last, n in starts:
        left -= n
        if left < limit:
            return last + window
    return None  # nothing may ever start


class Places:
    """The places that are free, while one claim takes them."""

    def __init__(
        self,
        *,
        queues: Mapping[str, int | None],
        tasks: Mapping[str, int],
        throttle: Callable[[str], int],
    ) -> None:
        """How many may start per queue, None for any number, per limited task and per throttle."""
        self._queues = {name: room for name, room in queues.items() if room is not None}
        self._tasks = dict(tasks)
        self._throttles: dict[str, int] = {}
        self._throttle_room = throttle

    def queue_is_open(self, name: str) -> bool:
        """Whether one more job of this queue may start."""
        return self._queues.get(name, 1) > 0

    def holder(self, job: "Candidate") -> tuple[str, str] | None:
        """The kind and name of a limit, but the queue's, that holds this job."""
        if self._tasks.get(job.task, 1) <= 0:
            return "task", job.task
        if job.throttle is not None and self.throttle(job.throttle) <= 0:
            return "throttle", job.throttle
        return None

    def throttle(self, name: str) -> int:
        """How many more of this throttle may start."""
        if name not in self._throttles:
            self._throttles[name] = self._throttle_room(name)
        return self._throttles[name]

    def task(self, name: str) -> int | None:
        """How many more of this task may start; None without a limit."""
        return self._tasks.get(name)

    def take(self, job: "Candidate") -> None:
        """This job starts."""
        for rooms, name in ((self._queues, job.queue), (self._tasks, job.task)):
            if name in rooms:
                rooms[name] -= 1
        if job.throttle is not None:
            self._throttles[job.throttle] = self.throttle(job.throttle) - 1

"""Queues: their settings, and how many jobs they have."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.lifecycle import State, Waiting

Ages = timedelta | tuple[timedelta, ...]
"""When waiting raises a priority: each time this long has passed, or once at each of these ages."""

Counts = Mapping[tuple[str, State, Waiting | None], int]
"""How many jobs there are by queue, state and, if pending, what they wait for."""

Stages = Mapping[tuple[State, Waiting | None], int]
"""How many jobs there are by state and, if pending, what they wait for."""


class Queue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A named queue with its settings, which all processes share.

    At most `max_pending` jobs may be pending, `concurrency` may run at once, and `rate[0]` may
    start within any period of `rate[1]`. `promote_after` raises the priority of a job that waits:
    by one each time that period passes, or once at each of several ages. A pause ends at
    `paused_until`; without it, the pause lasts until the queue is resumed.
    """

    name: str
    paused: bool = False
    paused_until: datetime | None = None
    max_pending: int | None = None
    concurrency: int | None = None
    rate: tuple[int, timedelta] | None = None
    promote_after: Ages | None = None


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which queues to list, ordered by name; every field narrows the result.

    `names` are exact, unknown ones are ignored. `contains` is a substring of the name. A page
    starts after the name `after` and has at most `limit` queues.
    """

    names: tuple[str, ...] | None = None
    contains: str | None = None
    after: str | None = None
    limit: int | None = None

    def wants(self, name: str) -> bool:
        """Return whether the query selects a queue of this name, regardless of `limit`."""
        return (
            (self.names is None or name in self.names)
            and (self.contains is None or self.contains in name)
            and (self.after is None or name > self.after)
        )


ALL_QUEUES = QueueQuery()


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change of a queue's settings; unset fields stay as they are."""

    name: str
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    paused_until: datetime | msgspec.UnsetType | None = msgspec.UNSET
    max_pending: int | msgspec.UnsetType | None = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET
    promote_after: Ages | msgspec.UnsetType | None = msgspec.UNSET


def queue_at(queue: Queue, now: datetime) -> Queue:
    """Return a queue as it is at an instant: not paused if its pause has ended by then."""
    over = queue.paused_until is not None and queue.paused_until <= now
    return replace(queue, paused=False, paused_until=None) if over else queue


def apply_settings(queue: Queue, settings: QueueSettings) -> Queue:
    """Return a queue with these settings changed.

    A pause with an end never replaces one without: holding a queue for a while must not undo a
    decision to pause it indefinitely.
    """
    changed = {
        name: value for name, value in asdict(settings).items() if value is not msgspec.UNSET
    }
    if "paused" in changed:
        changed.setdefault("paused_until", None)
    lasts = queue.paused and queue.paused_until is None and settings.paused is True
    queue = replace(queue, **changed)
    return replace(queue, paused_until=None) if lasts or not queue.paused else queue


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its settings and its jobs.

    `counts` has the number of its jobs by state; `oldest_ready` is when its oldest ready job
    became due.
    """

    queue: Queue
    counts: Stages
    oldest_ready: datetime | None

    @property
    def states(self) -> dict[State, int]:
        """The number of jobs in each state, zeros included."""
        return by_state(self.counts)

    @property
    def waiting(self) -> dict[Waiting, int]:
        """The number of pending jobs by what they wait for."""
        return {waiting: self.counts.get((State.PENDING, waiting), 0) for waiting in Waiting}

    @property
    def totals(self) -> dict[State | Waiting, int]:
        """Both `states` and `waiting` in one dictionary."""
        return dict([*self.states.items(), *self.waiting.items()])


def by_state(counts: Stages) -> dict[State, int]:
    """Return the number of jobs in each state, zeros included."""
    states = dict.fromkeys(State, 0)
    for (state, _), n in counts.items():
        states[state] += n
    return states


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Several queues taken together: how many there are, how many are paused, and their jobs.

    `oldest_ready` is when the oldest ready job of any of them became due.
    """

    queues: int
    paused: int
    counts: Stages
    oldest_ready: datetime | None

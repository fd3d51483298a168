"""Where a claim begins to look, while the dead are not buried.

A claim reads the index of ready jobs from its beginning. What was claimed before stays there until
a vacuum takes it away, which comes once a minute, and cannot as long as a transaction that began
earlier is open, in whatever part of the database: every claim would have to step over all that was
claimed since. So as long as that takes time, claims go on from where the last one ended, and look
at the beginning only now and then: what has come there meanwhile, with a higher priority or an
earlier time, waits that long.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Place = tuple[int, int, int]
"""The rank, the due time and the id of a ready job."""

BEGINNING: Place = (-11, -(2**63), 0)
# What takes longer than this, and to ask for one job, if the dead are in the way.
_SLOW = 0.004
_WASTE = 0.001
# How often to ask.
_PAUSE = 0.05
# Which part of the time may go into steps over the dead, and how long a look may be put off.
_SHARE = 10
_LONGEST = 2.0


class Places(NamedTuple):
    """Where to begin in each queue; old ones are not the beginning."""

    by_queue: dict[str, Place]
    are_old: bool


class ClaimPlaces:
    """The places at which the claims of this process have ended."""

    def __init__(self) -> None:
        self._ended: dict[str, Place] = {}
        self._until = 0.0
        self._asked = 0.0

    def of(self, queues: Sequence[str]) -> Places:
        """Where to begin now."""
        if time.monotonic() >= self._until:
            return self.beginnings(queues)
        return Places({queue: self._ended.get(queue, BEGINNING) for queue in queues}, are_old=True)

    def beginnings(self, queues: Sequence[str]) -> Places:
        """The beginning of each."""
        return Places(dict.fromkeys(queues, BEGINNING), are_old=False)

    def claimed(self, queue: str, place: Place) -> None:
        """Note that this job was claimed; within a claim, they come in their order."""
        self._ended[queue] = place

    def looked(self, took: float, ask_for_one: Callable[[], object]) -> None:
        """Note how long a look at the beginning took; the next may have to wait."""
        now = time.monotonic()
        if took < _SLOW or now < self._asked + _PAUSE:
            return
        # Twice: once it may have been something else.
        wasted = min(_timed(ask_for_one), _timed(ask_for_one))
        self._asked = time.monotonic()
        if wasted > _WASTE:
            self._until = self._asked + min(_LONGEST, _SHARE * wasted)


def _timed(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began

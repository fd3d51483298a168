"""Where a claim begins to look, while a transaction of somebody keeps the dead from being buried.

A claim reads the index of ready jobs from its beginning. What was claimed before is gone from
there, unless a transaction that began earlier is still open, in whatever part of the database:
then every claim would have to step over all that was claimed since. So as long as that is so,
claims go on from where the last one ended, and look at the beginning only now and then: what has
come there meanwhile, with a higher priority or an earlier time, waits that long.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Place = tuple[int, int, int]
"""The rank, the due time and the id of a ready job."""

BEGINNING: Place = (-11, -(2**63), 0)
# A look that takes longer than this is worth to be spared, if it is the dead who take the time.
_SLOW = 0.01
# Which part of the time may go into looks at the beginning, and how long one may be put off.
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

    def looked(self, took: float, is_haunted: Callable[[], bool]) -> None:
        """Note how long a look at the beginning took; the next may have to wait."""
        if took > _SLOW and is_haunted():
            self._until = time.monotonic() + min(_LONGEST, _SHARE * took)

"""Where claims begin to scan, while dead tuples await vacuum.

A claim scans the index of ready jobs from its beginning. What was claimed before stays there until
vacuum removes it, which runs once a minute, and cannot as long as an older transaction is open
anywhere in the database: every claim would step over all that was claimed since. So while that
takes time, claims continue where the last one ended, and look at the beginning only now and then:
jobs added there meanwhile, with a higher priority or an earlier time, wait that long.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Position = tuple[int, int, int]
"""The rank, the due time and the id of a ready job."""

BEGINNING: Position = (-11, -(2**63), 0)
# A scan that takes longer than this, and a probe for one job that does so as well, mean that dead
# tuples are in the way; in seconds.
_SLOW = 0.004
_WASTE = 0.001
# How often to probe.
_PAUSE = 0.05
# The reciprocal share of time that may go into steps over dead tuples, and the longest pause.
_SHARE = 10
_LONGEST = 2.0


class Positions(NamedTuple):
    """Where to begin in each queue, and whether that is after the beginning."""

    by_queue: dict[str, Position]
    are_advanced: bool


class ScanPositions:
    """The positions at which the claims of this process have ended."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ended: dict[str, Position] = {}
        self._until = 0.0
        self._probed = 0.0

    def of(self, queues: Sequence[str]) -> Positions:
        """Return where to begin now."""
        if self._monotonic() >= self._until:
            return self.beginnings(queues)
        return Positions({queue: self._ended.get(queue, BEGINNING) for queue in queues}, True)  # noqa: FBT003

    def beginnings(self, queues: Sequence[str]) -> Positions:
        """Return the beginning of each queue."""
        return Positions(dict.fromkeys(queues, BEGINNING), False)  # noqa: FBT003

    def advance(self, queue: str, position: Position) -> None:
        """Note that this job was claimed; within a claim, they come in their order."""
        self._ended[queue] = position

    def measure(self, took: float, probe: Callable[[], object]) -> None:
        """Note how long a scan from the beginning took; the next may have to wait."""
        now = self._monotonic()
        if took < _SLOW or now < self._probed + _PAUSE:
            return
        # Twice: once it may have been something else.
        wasted = min(self._timed(probe), self._timed(probe))
        self._probed = self._monotonic()
        if wasted > _WASTE:
            self._until = self._probed + min(_LONGEST, _SHARE * wasted)

    def _timed(self, probe: Callable[[], object]) -> float:
        began = self._monotonic()
        probe()
        return self._monotonic() - began

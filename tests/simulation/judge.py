"""The judge of a simulated world: all promises, and whether leases were lost without need."""

from collections.abc import Collection, Iterator, Sequence

from penstock.core.lifecycle import Event as Happened
from tests.crash.history import Stored, Violation, check
from tests.crash.recording import Event
from tests.simulation.plan import Event as Planned
from tests.simulation.plan import Fault

_KEEP_LEASES = frozenset({"kill", "kill-producer", "stop", "die-at-disk", "crash", "crash-at-disk"})
"""Faults after which a worker that was not hit itself keeps its leases."""


def judge(
    plan: Sequence[Planned], history: Sequence[Event], stored: Stored, disturbed: Collection[str]
) -> list[Violation]:
    """Every broken promise. `disturbed` are the processes that died or stood still."""
    kinds = {event.kind for event in plan if isinstance(event, Fault)}
    found = check(history, stored, steady_clock="jump" not in kinds)
    if kinds <= _KEEP_LEASES:
        found += _needless_expiries(stored, disturbed)
    return found


def _needless_expiries(stored: Stored, disturbed: Collection[str]) -> Iterator[Violation]:
    """A worker that runs keeps the leases of its jobs, however long these take."""
    holders: dict[int, str] = {}
    for entry in stored.log:
        if entry.event is Happened.CLAIMED:
            holders[entry.job_id] = entry.actor
        elif entry.event is Happened.EXPIRED and holders.get(entry.job_id) not in disturbed:
            yield Violation(2, f"{holders.get(entry.job_id)} lost job {entry.job_id}, but lives")

"""Jobs that belong together: chains of new jobs, and the state of a batch."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from penstock.core.errors import InvalidJob
from penstock.core.job import NewJob
from penstock.core.lifecycle import State
from penstock.core.query import Tally

Jobs = NewJob | Sequence[NewJob]
"""One job, or several, which may be chains themselves."""


class Batch(msgspec.Struct, frozen=True):
    """The jobs of one correlation, counted by state."""

    correlation: str
    tally: Tally

    @property
    def total(self) -> int:
        """How many jobs there are."""
        return sum(self.tally.values())

    @property
    def status(self) -> Literal["running", "done", "failed"]:
        """Running while a job is unfinished; then done, or failed if one did not succeed."""
        if any(not state.final for state in self.tally):
            return "running"
        return "failed" if {State.FAILED, State.CANCELLED} & self.tally.keys() else "done"


def chain(*steps: Jobs) -> list[NewJob]:
    """Make each step wait for all jobs of the step before: `chain(load, [resize, scan], mail)`.

    Pass the result to `Penstock.enqueue_many`, which stores all of it or nothing. What a job does
    when one before it fails is its own `on_failure`.
    """
    if not steps:
        raise InvalidJob("a chain needs at least one job")
    chained: list[NewJob] = []
    ends: Sequence[int] = ()
    for step in steps:
        start = len(chained)
        jobs = [step] if isinstance(step, NewJob) else list(step)
        chained += [_placed(job, start, ends) for job in jobs]
        followed = {place for job in chained[start:] for place in job.follows}
        ends = [place for place in range(start, len(chained)) if place not in followed]
    return chained


def _placed(job: NewJob, start: int, ends: Sequence[int]) -> NewJob:
    """Return a job of the step that begins at `start`; its first jobs wait for the ends before."""
    inner = tuple(place + start for place in job.follows)
    return replace(job, follows=inner or tuple(ends))

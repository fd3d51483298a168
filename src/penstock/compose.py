"""Ways to put new jobs together, for `Penstock.enqueue_many`: one call stores all or none."""

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.errors import InvalidJob
from penstock.core.job import NewJob

Jobs = NewJob | Sequence[NewJob]
"""One job, or several that may have been put together before."""


def chain(*steps: Jobs) -> list[NewJob]:
    """Each step waits for all jobs of the step before it: `chain(load, [resize, scan], mail)`.

    What a job does when one before it fails is its own `on_failure`.
    """
    if not steps:
        raise InvalidJob("a chain has at least one job")
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
    """A job of a step that begins at `start`; its first jobs wait for the ends before it."""
    inner = tuple(place + start for place in job.follows)
    return replace(job, follows=inner or tuple(ends))

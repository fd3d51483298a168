"""One job, steered by hand: the part of `Penstock` that cancels, retries and removes it."""

from collections.abc import Callable

from penstock.checks import check_priority
from penstock.core import lifecycle
from penstock.core.errors import PenstockError, TransitionRefused
from penstock.core.job import Change, Job, bind
from penstock.core.lifecycle import Move
from penstock.looking import Looking

# A move is decided anew this often when others keep changing the job, before giving up.
_DECISIONS = 100


class Steering(Looking):
    """The part of `Penstock` that decides anew what becomes of a job."""

    async def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop."""
        return await self._decide(job_id, lambda job: lifecycle.cancel(job, reason))

    async def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again."""
        return await self._decide(job_id, lambda job: lifecycle.reset(job, reason))

    async def reset(self, job_id: int, reason: str | None = None) -> Job:
        """As `retry`; a running job is taken from its worker, which is refused from then on."""
        return await self._decide(job_id, lambda job: lifecycle.reset(job, reason, forced=True))

    async def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once."""
        check_priority(priority)
        return await self._decide(job_id, lambda job: lifecycle.reprioritise(job, priority, reason))

    async def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was.

        Raises `TransitionRefused` for an unfinished one.
        """
        job = await self.get(job_id)
        if job.state.final and await self.store.delete([job]):
            return job
        job = await self.get(job_id)
        raise TransitionRefused(f"job {job_id} is {job.state}; only finished jobs are removed")

    async def _decide(self, job_id: int, decide: Callable[[Job], Move]) -> Job:
        for _ in range(_DECISIONS):
            job = await self.get(job_id)
            (answer,) = await self.store.transition([Change(job, decide(job))], actor=self.actor)
            if answer is not None:
                return bind([answer], self)[0]
        raise PenstockError(f"job {job_id} keeps changing; try again")

"""Why a job is not running: the part of `Penstock` that tells."""

from datetime import datetime
from typing import Literal

import msgspec

from penstock.core.job import Job, JobId, JobQuery, Queue, QueueQuery, headline
from penstock.core.lifecycle import State, Waiting
from penstock.core.limits import Held
from penstock.core.times import from_micros
from penstock.looking import Looking

_ENDED = {
    State.DONE: "it finished at",
    State.FAILED: "it failed at",
    State.CANCELLED: "it was cancelled at",
    State.SUPERSEDED: "it was superseded at",
}


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is, or is not, running."""

    job_id: JobId
    reason: Literal["ready", "scheduled", "blocked", "held", "running", "finished"]
    text: str
    blocked_by: JobId | None = None


class Explaining(Looking):
    """The part of `Penstock` that says what a job waits for, or what became of it."""

    async def explain(self, job_id: int) -> Explanation:
        """Why this job is not running, or what else became of it."""
        job = await self.get(job_id)
        if job.state is State.RUNNING:
            return Explanation(job.id, "running", self._explain_running(job))
        if job.state.final:
            reason = (await self.log(job.id))[-1].reason
            because = headline(job.error) if job.error else reason
            text = f"{_ENDED[job.state]} {_moment(job.finished_at)}"
            return Explanation(job.id, "finished", f"{text}: {because}" if because else text)
        return await self._explain_pending(job)

    def _explain_running(self, job: Job) -> str:
        attempt = f"attempt {job.attempt} of {job.retry.attempts}"
        stop = "; it was asked to stop" if job.cancel_requested else ""
        if job.expires_at is not None and job.expires_at < from_micros(self.clock()):
            return (
                f"{attempt} began on {job.worker}, which fell silent: its lease ended at "
                f"{_moment(job.expires_at)}, and the next worker takes the job back{stop}"
            )
        return f"it runs on {job.worker}, {attempt}, leased until {_moment(job.expires_at)}{stop}"

    async def _explain_pending(self, job: Job) -> Explanation:
        found = await self.store.queues(QueueQuery(names=(job.queue,)))
        if found and (paused := found[0]).paused:
            text = f"queue {job.queue!r} is paused{_until(paused)}; resume it to let its jobs go on"
            return Explanation(job.id, "held", text)
        if job.needs:
            return await self._explain_needs(job)
        due = job.waiting is Waiting.SCHEDULED and job.run_at <= from_micros(self.clock())
        if (due or job.waiting is Waiting.READY) and (held := await self.store.held(job)):
            return Explanation(job.id, "held", "; ".join(map(_holding, held)))
        if job.waiting is Waiting.BLOCKED and (first := await self._holder_of_key(job)):
            text = f"job {first.id}, which is {first.state}, holds its key {job.key!r}"
            return Explanation(job.id, "blocked", text, first.id)
        if job.waiting is Waiting.SCHEDULED and not due:
            text = f"its time comes at {_moment(job.run_at)}"
            if job.error:
                attempt = f"attempt {job.attempt} of {job.retry.attempts}"
                text += f", after {attempt} failed: {headline(job.error)}"
            return Explanation(job.id, "scheduled", text)
        return Explanation(job.id, "ready", "it is ready; no free worker has claimed it yet")

    async def _explain_needs(self, job: Job) -> Explanation:
        open_ends = [
            edge.needed
            for edge in await self.store.edges([job.id])
            if edge.job_id == job.id and not edge.resolved
        ]
        if not open_ends:  # they have ended meanwhile
            return await self.explain(job.id)
        needed = (await self.store.get(open_ends[:1]))[0]
        text = f"it waits for job {needed.id}, which is {needed.state}"
        if len(open_ends) > 1:
            text += f", and for {len(open_ends) - 1} more"
        return Explanation(job.id, "blocked", text, needed.id)

    async def _holder_of_key(self, job: Job) -> Job | None:
        for state in (State.RUNNING, State.PENDING):
            query = JobQuery(key=job.key, states=frozenset({state}), newest_first=False, limit=1)
            for holder in await self.find(query):
                if holder.id != job.id:
                    return holder
        return None


def _until(queue: Queue) -> str:
    return "" if queue.paused_until is None else f" until {_moment(queue.paused_until)}"


def _holding(held: Held) -> str:
    match held.kind:
        case "rate":
            when = "" if held.until is None else f", the next may at {_moment(held.until)}"
            text = f"{held.taken} of {held.limit} jobs of queue {held.name!r} have started"
            return f"{text} within its rate{when}"
        case _:
            return f"{held.kind} {held.name!r} runs {held.taken} of {held.limit}"


def _moment(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"

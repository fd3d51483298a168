"""Why a job is, or is not, running: worded from facts that the caller has gathered."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from penstock.core.job import Job, JobId, headline
from penstock.core.lifecycle import State, Waiting
from penstock.core.limits import Held
from penstock.core.queue import Queue
from penstock.core.workers import MissingTask

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


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the explanation of a job depends on besides the job.

    `reason` is that of the newest log entry, and matters for a finished job. The others matter for
    a pending job: its queue, its task if no live worker knows it, the limits that hold it, the
    first job that it needs and how many more there are, and the first job of its key.
    """

    now: datetime
    reason: str | None = None
    queue: Queue | None = None
    unknown_task: MissingTask | None = None
    held: Sequence[Held] = ()
    needed: Job | None = None
    more_needed: int = 0
    first_of_key: Job | None = None


def explain(job: Job, facts: Facts) -> Explanation:
    """Explain why a job is not running, or what became of it.

    Of several causes that keep a pending job from starting, the first is named: the pause of its
    queue, a job that it needs, its unknown task, a limit, a job of its key, its time.
    """
    if job.state is State.RUNNING:
        return Explanation(job.id, "running", _running(job, facts.now))
    if job.state.final:
        because = headline(job.error) if job.error else facts.reason
        text = f"{_ENDED[job.state]} {_moment(job.finished_at)}"
        return Explanation(job.id, "finished", f"{text}: {because}" if because else text)
    return _pending(job, facts)


def is_due(job: Job, now: datetime) -> bool:
    """Return whether a pending job could start now but for pauses and limits."""
    if job.waiting is Waiting.SCHEDULED:
        return job.run_at <= now
    return job.waiting is Waiting.READY


def _running(job: Job, now: datetime) -> str:
    attempt = f"attempt {job.attempt} of {job.retry.attempts}"
    stop = "; it was asked to stop" if job.cancel_requested else ""
    if job.expires_at is not None and job.expires_at < now:
        return (
            f"{attempt} started on {job.worker}, which no longer responds: its lease expired at "
            f"{_moment(job.expires_at)}, and another worker will reclaim the job{stop}"
        )
    return f"it runs on {job.worker}, {attempt}, leased until {_moment(job.expires_at)}{stop}"


def _pending(job: Job, facts: Facts) -> Explanation:
    if facts.queue is not None and facts.queue.paused:
        until = facts.queue.paused_until
        end = "" if until is None else f" until {_moment(until)}"
        text = f"queue {job.queue!r} is paused{end}; resume it to start its jobs"
        return Explanation(job.id, "held", text)
    if facts.needed is not None:
        text = f"it waits for job {facts.needed.id}, which is {facts.needed.state}"
        if facts.more_needed:
            text += f", and for {facts.more_needed} more"
        return Explanation(job.id, "blocked", text, facts.needed.id)
    if is_due(job, facts.now) and (facts.unknown_task is not None or facts.held):
        limits = "; ".join(map(_limit, facts.held))
        text = limits if facts.unknown_task is None else str(facts.unknown_task)
        return Explanation(job.id, "held", text)
    if job.waiting is Waiting.BLOCKED and (first := facts.first_of_key) is not None:
        text = f"job {first.id}, which is {first.state}, holds its key {job.key!r}"
        return Explanation(job.id, "blocked", text, first.id)
    if job.waiting is Waiting.SCHEDULED and not is_due(job, facts.now):
        text = f"it is scheduled for {_moment(job.run_at)}"
        if job.error:
            attempt = f"attempt {job.attempt} of {job.retry.attempts}"
            text += f", after {attempt} failed: {headline(job.error)}"
        return Explanation(job.id, "scheduled", text)
    return Explanation(job.id, "ready", "it is ready; no free worker has claimed it yet")


def _limit(held: Held) -> str:
    if held.kind == "rate":
        when = "" if held.until is None else f", the next can start at {_moment(held.until)}"
        text = f"{held.taken} of {held.limit} jobs of queue {held.name!r} have started"
        return f"{text} within its rate{when}"
    return f"{held.kind} {held.name!r} runs {held.taken} of {held.limit}"


def _moment(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"

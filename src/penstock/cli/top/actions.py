"""What can be done: how many jobs it would be, the question, the deed, and what it came to."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.admin import Bulk
from penstock.cli.output import jobs_of, span
from penstock.cli.store import App
from penstock.cli.top.looks import standing
from penstock.core.job import Job, JobQuery
from penstock.queues import Drained

LONGEST_DRAIN = timedelta(hours=1)
"""For how long the view waits for the end of a drain."""


class Action(NamedTuple):
    """A deed that is asked about first."""

    question: str
    detail: str
    run: Callable[[], Awaitable[str]]
    """Returns what is said afterwards."""


_PAST = {"cancel": "Cancelled", "retry": "Retried", "delete": "Deleted", "priority": "Changed"}
_OF_ONE = {
    "cancel": "It ends; if it runs, it is asked to stop.",
    "retry": "It runs again now, with all its attempts.",
    "delete": "It is removed with its log, for good.",
    "priority": "Claims follow it at once.",
}
_WHAT = {
    "cancel": "Pending ones end, running ones are asked to stop.",
    "retry": "They run again now, with all their attempts.",
    "delete": "They are removed with their log, for good.",
    "priority": "Claims follow it at once.",
}


def on_job(app: App, verb: str, job: Job, priority: int = 0) -> Action:
    """For one job."""
    calls: dict[str, Callable[[], Awaitable[Job]]] = {
        "cancel": lambda: app.cancel(job.id),
        "retry": lambda: app.retry(job.id),
        "delete": lambda: app.delete(job.id),
        "priority": lambda: app.set_priority(job.id, priority),
    }

    async def run() -> str:
        moved = await calls[verb]()
        if verb == "delete":
            return f"Job {job.id} is deleted."
        if verb == "priority":
            return f"Job {job.id} has priority {moved.priority}."
        return f"Job {job.id} is {standing(moved)}."

    question = f"{_asked(verb, priority)} 1 job: {job.id}, {job.task}?"
    return Action(question, _OF_ONE[verb], run)


def _asked(verb: str, priority: int) -> str:
    return f"Give priority {priority} to" if verb == "priority" else verb.capitalize()


def _bulk(app: App, verb: str, priority: int) -> Callable[..., Awaitable[Bulk]]:
    match verb:
        case "cancel":
            return app.cancel_all
        case "retry":
            return app.retry_all
        case "delete":
            return app.delete_all

    def reprioritise(query: JobQuery, **how: Any) -> Awaitable[Bulk]:
        return app.reprioritise(query, priority, **how)

    return reprioritise


async def on_jobs(
    app: App, verb: str, query: JobQuery, described: str, priority: int = 0
) -> Action | None:
    """For all jobs that fit and can be changed so, counted now; None if there are none."""
    change = _bulk(app, verb, priority)
    n = (await change(query, dry_run=True)).matched
    if not n:
        return None

    async def run() -> str:
        done = await change(query)
        rest = f"; {done.skipped:,} could not or need not change" if done.skipped else ""
        return f"{_PAST[verb]} {jobs_of(done.changed)}{rest}."

    question = f"{_asked(verb, priority)} {jobs_of(n)}?"
    return Action(question, f"{described} {_WHAT[verb]}", run)


def pausing(app: App, queue: str, waiting: int) -> Action:
    """Start no more jobs of a queue."""

    async def run() -> str:
        await app.pause(queue)
        return f"Queue {queue} is paused."

    detail = f"{jobs_of(waiting)} in it will wait; what runs goes on."
    return Action(f"Pause queue {queue}?", detail, run)


def resuming(app: App, queue: str, waiting: int) -> Action:
    """Start jobs of a queue again."""

    async def run() -> str:
        await app.resume(queue)
        return f"Queue {queue} goes on."

    return Action(f"Resume queue {queue}?", f"{jobs_of(waiting)} in it may start.", run)


def draining(app: App, queue: str, unfinished: int) -> Action:
    """Wait for the end of what a queue holds now."""

    async def run() -> str:
        drained = await app.drain(queue, timeout=LONGEST_DRAIN)
        return f"Queue {queue}: {_drained(drained)}"

    detail = f"Waits until {jobs_of(unfinished)} of now have finished, and says so."
    return Action(f"Drain queue {queue}?", detail, run)


def _drained(drained: Drained) -> str:
    if drained.status == "drained":
        return f"drained after {span(drained.elapsed)}."
    why = "it is paused" if drained.status == "paused" else "the time is over"
    return f"not drained, {why}; {jobs_of(drained.remaining)} left."

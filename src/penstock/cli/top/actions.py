"""Actions of `top`: the number of jobs they affect, the question, the change, the result."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.cli.output import jobs_of, span, state_word
from penstock.core.job import Job
from penstock.core.query import JobQuery
from penstock.core.schedule import Schedule
from penstock.engine.bulk import Bulk
from penstock.engine.protocol import App
from penstock.engine.queues import Drained

LONGEST_DRAIN = timedelta(hours=1)
"""How long the view waits for a drain."""


class Action(NamedTuple):
    """A change that needs a confirmation."""

    question: str
    detail: str
    run: Callable[[], Awaitable[str]]
    """Carries it out, and returns a message about the result."""


_PAST = {"cancel": "Cancelled", "retry": "Retried", "delete": "Deleted", "priority": "Changed"}
_FOR_ONE = {
    "cancel": "A pending job ends; a running one is asked to stop.",
    "retry": "The job runs again now, with all its attempts.",
    "delete": "The job is removed with its log. This cannot be undone.",
    "priority": "Takes effect with the next claim.",
}
_FOR_MANY = {
    "cancel": "Pending jobs end, running ones are asked to stop.",
    "retry": "They run again now, with all their attempts.",
    "delete": "They are removed with their logs. This cannot be undone.",
    "priority": "Takes effect with the next claim.",
}


def on_job(app: App, verb: str, job: Job, priority: int = 0) -> Action:
    """Return an action on one job."""
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
        return f"Job {job.id} is {state_word(moved)}."

    question = f"{_asked(verb, priority)} 1 job: {job.id}, {job.task}?"
    return Action(question, _FOR_ONE[verb], run)


def _asked(verb: str, priority: int) -> str:
    return f"Set priority {priority} for" if verb == "priority" else verb.capitalize()


def _bulk(app: App, verb: str, priority: int) -> Callable[..., Awaitable[Bulk]]:
    def change(query: JobQuery, **how: Any) -> Awaitable[Bulk]:
        jobs = app.bulk(query)
        match verb:
            case "cancel":
                return jobs.cancel(**how)
            case "retry":
                return jobs.retry(**how)
            case "delete":
                return jobs.delete(**how)
        return jobs.reprioritise(priority, **how)

    return change


async def on_jobs(
    app: App, verb: str, query: JobQuery, described: str, priority: int = 0
) -> Action | None:
    """Return an action on all jobs that match and can change; None if there are none."""
    change = _bulk(app, verb, priority)
    n = (await change(query, dry_run=True)).matched
    if not n:
        return None

    async def run() -> str:
        done = await change(query)
        rest = f"; {done.skipped:,} could not be changed" if done.skipped else ""
        return f"{_PAST[verb]} {jobs_of(done.changed)}{rest}."

    question = f"{_asked(verb, priority)} {jobs_of(n)}?"
    return Action(question, f"{described} {_FOR_MANY[verb]}", run)


def pause(app: App, queue: str, waiting: int) -> Action:
    """Return the action that pauses a queue."""

    async def run() -> str:
        await app.queues.pause(queue)
        return f"Queue {queue} is paused."

    detail = f"{jobs_of(waiting)} will wait; running jobs continue."
    return Action(f"Pause queue {queue}?", detail, run)


def resume(app: App, queue: str, waiting: int) -> Action:
    """Return the action that resumes a queue."""

    async def run() -> str:
        await app.queues.resume(queue)
        return f"Queue {queue} is resumed."

    return Action(f"Resume queue {queue}?", f"{jobs_of(waiting)} can start.", run)


def drain(app: App, queue: str, unfinished: int) -> Action:
    """Return the action that waits until the jobs of a queue have finished."""

    async def run() -> str:
        drained = await app.queues.drain(queue, timeout=LONGEST_DRAIN)
        return f"Queue {queue}: {_drained(drained)}"

    detail = f"Waits until {jobs_of(unfinished)} finished, and says so."
    return Action(f"Drain queue {queue}?", detail, run)


def run_schedule(app: App, schedule: Schedule) -> Action:
    """Return the action that enqueues the job of a schedule now."""

    async def run() -> str:
        job = await app.schedules.run_now(schedule.name)
        if job.duplicate:
            return f"Job {job.id} of {schedule.name} is unfinished; no other was enqueued."
        return f"Enqueued job {job.id} of {schedule.name}."

    detail = f"Enqueues a job of {schedule.task}; the next run stays the same."
    return Action(f"Run schedule {schedule.name} now?", detail, run)


def pause_schedule(app: App, schedule: Schedule) -> Action:
    """Return the action that pauses a schedule, or resumes one that is paused."""

    async def run() -> str:
        if schedule.paused:
            await app.schedules.resume(schedule.name)
            return f"Schedule {schedule.name} is resumed."
        await app.schedules.pause(schedule.name)
        return f"Schedule {schedule.name} is paused."

    if schedule.paused:
        detail = "Runs during the pause are skipped."
        return Action(f"Resume schedule {schedule.name}?", detail, run)
    return Action(
        f"Pause schedule {schedule.name}?", "It enqueues no more jobs, in all processes.", run
    )


def _drained(drained: Drained) -> str:
    if drained.status == "drained":
        return f"drained after {span(drained.elapsed)}."
    why = "it is paused" if drained.status == "paused" else "it took too long"
    return f"not drained, {why}; {jobs_of(drained.remaining)} left."

"""Explanations: gathers the facts from which `core.explanation` says why a job is not running."""

from datetime import datetime

from msgspec.structs import replace

from penstock.core import explanation
from penstock.core.explanation import Explanation, Facts, is_due
from penstock.core.job import Job
from penstock.core.lifecycle import State, Waiting
from penstock.core.query import JobQuery
from penstock.core.queue import QueueQuery
from penstock.core.tasks import TaskVersion
from penstock.core.times import from_micros
from penstock.core.workers import MissingTask, unknown_task
from penstock.engine.connection import Connection
from penstock.engine.results import job_not_found


async def explain(connection: Connection, job: Job) -> Explanation:
    """Explain why this job is not running, or how it ended."""
    facts = await _facts(connection, job, Facts(now=from_micros(connection.clock())))
    if facts is not None:
        return explanation.explain(job, facts)
    found = await connection.store.get([job.id])
    if not found:
        raise job_not_found(job.id)
    return await explain(connection, found[0])


async def _facts(connection: Connection, job: Job, facts: Facts) -> Facts | None:
    """Return what the explanation depends on; None if what the job needed has ended meanwhile."""
    store = connection.store
    if job.state.final:
        return replace(facts, reason=(await store.log(job.id))[-1].reason)
    if job.state is State.PENDING:
        found = await store.queues(QueueQuery(names=(job.queue,)))
        facts = replace(facts, queue=found[0] if found else None)
    if job.state is State.RUNNING or (facts.queue is not None and facts.queue.paused):
        return facts
    if job.needs:
        edges = await store.edges([job.id])
        needed = [one.needed for one in edges if one.job_id == job.id and not one.resolved]
        first = await store.get(needed[:1])
        return replace(facts, needed=first[0], more_needed=len(needed) - 1) if first else None
    if is_due(job, facts.now):
        unknown = await _unknown_task(connection, job, facts.now)
        return replace(facts, held=await store.held(job), unknown_task=unknown)
    blocked = job.waiting is Waiting.BLOCKED
    first_of_key = await _holder_of_key(connection, job) if blocked else None
    return replace(facts, first_of_key=first_of_key)


async def _unknown_task(connection: Connection, job: Job, now: datetime) -> MissingTask | None:
    """Return the job's task if no live worker knows it.

    Jobs of a reserved queue are for programs that claim them by other means than the tasks of a
    worker.
    """
    limits = await connection.store.limits()
    if any(one.kind == "reserved" and one.name == job.queue for one in limits):
        return None
    task = TaskVersion(job.task, job.task_version)
    store = connection.store
    return unknown_task(task, await store.workers(), await store.departed_tasks(), now)


async def _holder_of_key(connection: Connection, job: Job) -> Job | None:
    for state in (State.RUNNING, State.PENDING):
        query = JobQuery(key=job.key, states=frozenset({state}), newest_first=False, limit=1)
        for holder in await connection.store.find(query):
            if holder.id != job.id:
                return holder
    return None

"""Plain jobs: a single one is added in one statement, which is a transaction of its own.

No other job decides what becomes of a plain job: it is ready at once, and has no key, dedupe key,
dependency, tenant, tag or throttle. This is one of the two places where SQL decides for this
database: the trigger of `penstock_plain` checks the queue, the migration lock and external inserts
itself. A decision in Python takes nine more statements, a third of the processor time.
"""

import sqlite3

from penstock.core.job import Job
from penstock.core.lifecycle import State, Waiting
from penstock.core.times import from_micros
from penstock.stores.sql import rows
from penstock.stores.sql.database import Addition
from penstock.stores.sql.rows import READY
from penstock.stores.sqlite.transaction import SQL

# Where `rows.options` has what the statements take: queue, task, priority and lease time, and what
# few jobs have: timeout, retry policy, correlation, parent, trace and the version of the task.
_TAKEN = slice(2, 6)
_OPTIONAL = (7, 12, 13, 15, 17, 18)


def add(connection: sqlite3.Connection, addition: Addition, now: int) -> list[Job] | None:
    """Add a plain job; return None if it is none, or if the store has to decide about it."""
    jobs, actor, tail = addition
    if len(jobs) != 1 or tail is not None:
        return None
    new = jobs[0]
    if new.delay is not None or new.run_at is not None or new.after or new.follows:
        return None
    options = rows.options(new, READY, now, 0)
    query, parameters = "add_plain", (now, *options[_TAKEN], new.payload, actor)
    is_common = options[rows.RARE] == rows.NONE_OF_THEM
    if not is_common:
        if new.key or new.dedupe or new.tags or new.tenant or new.throttle:
            return None
        query = "add_plain_with_options"
        parameters = (*parameters, *[options[place] for place in _OPTIONAL])
    # The statement ends, and commits, when all of its rows have been read.
    added = connection.execute(SQL[query], parameters).fetchall()
    if not added:
        return None
    [(job_id, version)] = added
    at = from_micros(now)
    if not is_common:
        return [rows.new_job(new, job_id, version, READY, now, 0, at)]
    # The same, without naming twelve fields that have their defaults: half of the time.
    job = Job(
        id=job_id,
        version=version,
        task=new.task,
        payload=new.payload,
        queue=new.queue,
        priority=new.priority,
        state=State.PENDING,
        waiting=Waiting.READY,
        attempt=0,
        enqueued_at=at,
        run_at=at,
        lease_time=new.lease,
    )
    return [job]

"""Transactions of callers, in which jobs are added and finished.

Each is one call of a SQL function. What has to exist before, and would stay locked for others until
the caller commits, is created on connections of the store.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigurationError, JobNotFound, LeaseLost, QueueFull
from penstock.core.job import Job, LogId, NewJob
from penstock.core.lifecycle import Done, advance
from penstock.core.migration_lock import MigrationLock, MigrationPhase, check_open
from penstock.core.store import Clock
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.core.transition import fields_after_move
from penstock.stores.postgres.arrays import Texts, storable
from penstock.stores.postgres.caller_connections import Fetch, Joined, joined
from penstock.stores.postgres.connection import DAY, Address
from penstock.stores.postgres.timeline import UnknownTimeline
from penstock.stores.sql import rows
from penstock.stores.sql.database import Reader
from penstock.stores.sql.rows import encoded

_OPTIONS = (
    "stage", "run_at", "queue", "task", "priority", "lease_time", "merged", "timeout", "key",
    "dedupe", "scope", "tags", "retry", "correlation", "tenant", "parent", "throttle", "trace",
    "task_version", "needs",
)  # fmt: skip
# How long a queue is taken for granted, in microseconds. If it is removed meanwhile, the job takes
# two statements more.
_TRUSTED = 10_000_000
_REMEMBERED = 10_000
_REFUSALS = {
    "autocommit": "the connection is in autocommit mode: begin a transaction first",
    "elsewhere": "the connection is to another database than the store",
}


class NotPrepared(Exception):
    """A queue is missing, or rows of other programs are no jobs yet; nothing was changed."""


class CallerTransactions:
    """The access of one store to transactions of its callers."""

    def __init__(self, where: Address, sql: Mapping[str, str], clock: Clock | None) -> None:
        self._where = where
        self._sql = sql
        self._clock = clock
        self._source: int | None = None
        self._last_day = 0
        self._seen: dict[str, int] = {}  # queue: when it existed
        self._known: WeakSet[Any] = WeakSet()  # connections to a database with the schema

    def is_prepared(self, queues: Collection[str], now: int) -> bool:
        """Return whether everything exists that jobs of these queues need."""
        seen = self._seen
        return self._has_days(now // DAY) and all(
            0 <= now - seen.get(queue, -_TRUSTED) < _TRUSTED for queue in queues
        )

    def prepare(self, reader: Reader, queues: Collection[str], now: int) -> None:
        """Create what jobs of these queues need."""
        if not self._has_days(now // DAY):  # most calls find them there, and save four round trips
            (self._source,) = reader.execute("source").fetchone()
            day = reader.clock() // DAY
            for one in (day, day + 1):
                reader.execute("add_partitions", (one,))
            self._last_day = day + 1
        reader.execute("add_queues", (Texts(sorted(queues)),))
        if len(self._seen) + len(queues) > _REMEMBERED:
            self._seen.clear()
        self._seen.update(dict.fromkeys(queues, now))

    def _has_days(self, day: int) -> bool:
        return self._source is not None and day < self._last_day

    async def add(
        self, connection: Any, jobs: Sequence[NewJob], actor: str, *, prepared: bool = True
    ) -> list[Job]:
        """See `TableStore.add_within`; raises `NotPrepared` unless `prepared` is false."""
        caller = joined(connection)
        given = {"actor": storable(actor), "jobs": [_given(job) for job in jobs]}
        name = "add_within" if prepared else "add_within_unprepared"
        answer = await self._call(connection, caller, name, given)
        if "missing" in answer:
            raise JobNotFound(f"there is no job {answer['missing']} to wait for")
        if "full" in answer:
            raise QueueFull(answer["full"], answer["limit"])
        at = from_micros(answer["now"])
        stored = answer["jobs"]
        held = await self._jobs(caller.fetch, [one[0] for one in stored if len(one) == 1])
        return [
            replace(held[job_id], duplicate=True)
            if not stored_as
            else _new(new, job_id, stored_as, at)
            for new, (job_id, *stored_as) in zip(jobs, stored, strict=True)
        ]

    async def finish(self, connection: Any, job: Job, outcome: Done, actor: str) -> Job:
        """See `TableStore.finish`."""
        given = {
            "job": job.id,
            "token": job.token,
            "worker": job.worker,
            "result": outcome.result,
            "detail": outcome.detail,
            "actor": storable(actor),
        }
        answer = await self._call(connection, joined(connection), "finish_within", given)
        if "lost" in answer:
            raise LeaseLost(job.id, job.token)
        at = from_micros(answer["now"])
        fields = fields_after_move(advance(job, outcome), None, at=at, waiting=None)
        return replace(job, version=LogId(answer["version"]), **fields)

    async def _call(
        self, connection: Any, caller: Joined, name: str, given: dict[str, Any]
    ) -> dict[str, Any]:
        # In a transaction of a connection that was asked before, one round trip is enough.
        if not (caller.is_in_transaction() and self._is_known(connection)):
            given["transaction"] = await self._transaction(connection, caller.fetch)
        given["source"] = str(self._source)
        given["now"] = None if self._clock is None else self._clock()
        given["ring"] = self._where.schema if self._where.notify else None
        (text,) = await caller.fetch(self._sql[name], encoded(given))
        if text is None:
            raise NotPrepared
        answer: dict[str, Any] = msgspec.json.decode(text)
        if answer.get("refused") == "timeline":
            raise UnknownTimeline(
                f"{self._where.name}: another server was promoted; nothing was changed, try again "
                "in another transaction"
            )
        if "refused" in answer:
            raise ConfigurationError(_REFUSALS[answer["refused"]])
        if "sealed" in answer:
            passage, peer, place = answer["sealed"]
            check_open(MigrationLock(phase=MigrationPhase(passage), peer=peer, place=place))
        return answer

    async def _transaction(self, connection: Any, fetch: Fetch) -> str:
        """Return the id of the caller's transaction, by which the next statement recognises it."""
        transaction, is_there = await fetch(self._sql["caller_transaction"], "")
        if not is_there:
            raise ConfigurationError(
                f"the database of the connection has no schema {self._where.schema} of a store"
            )
        with suppress(TypeError):  # some have no room for a weak reference
            self._known.add(connection)
        return str(transaction)

    def _is_known(self, connection: Any) -> bool:
        try:
            return connection in self._known
        except TypeError:
            return False

    async def _jobs(self, fetch: Fetch, ids: Sequence[int]) -> dict[int, Job]:
        if not ids:
            return {}
        (text,) = await fetch(self._sql["jobs_within"], encoded(ids))
        return {job.id: job for job in map(rows.job, rows.jobs.decode(text))}


def _new(new: NewJob, job_id: int, stored_as: Sequence[int], at: datetime) -> Job:
    version, stage, run_at = stored_as
    return rows.new_job(new, job_id, version, stage, run_at, 0, at)


def _given(job: NewJob) -> dict[str, Any]:
    """Return a new job as the function `add_within` takes it."""
    fields = dict(zip(_OPTIONS, rows.options(job, 0, 0, 0), strict=True))
    fields["run_at"] = (
        None if job.run_at is None or job.delay is not None else to_micros(job.run_at)
    )
    fields["delay"] = 0 if job.delay is None else span_to_micros(job.delay)
    fields["body"] = job.payload
    fields["after"] = job.after
    fields["follows"] = job.follows
    fields["on_failure"] = job.on_failure
    return {
        name: storable(value) if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }

"""The Store protocol on a database: the verbs, as far as they do not depend on which."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar, cast

from penstock.core.errors import LeaseLost
from penstock.core.history import Counters, Interval
from penstock.core.job import (
    ALL_QUEUES,
    LONGEST_LINE,
    Change,
    Claim,
    Counts,
    Edge,
    Job,
    JobId,
    JobQuery,
    KeyLine,
    Lease,
    LogEntry,
    LogId,
    NewJob,
    Origin,
    Overall,
    Queue,
    QueueQuery,
    QueueSettings,
    Record,
    Retention,
    Tail,
    Tally,
)
from penstock.core.lifecycle import Done, State, advance, supersede
from penstock.core.limits import Held, Limit
from penstock.core.note import Line, Note, Notes, Progress
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.seal import Seal
from penstock.core.size import StoreSize
from penstock.core.tables import Statements, Tables, Within
from penstock.core.times import from_micros
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo
from penstock.stores.sql import (
    adding,
    attendance,
    history,
    looking,
    noting,
    queues,
    removing,
    restoring,
    rows,
    schedules,
    seals,
    starting,
    tables,
    tokens,
)
from penstock.stores.sql.adding import Addition
from penstock.stores.sql.claiming import (
    held_by,
    ready_tags,
    room_is_wanted,
)
from penstock.stores.sql.moving import Moving
from penstock.stores.sql.queues import oldest_ready
from penstock.stores.sql.rows import STAGES, encoded
from penstock.stores.sql.transaction import Freed, Reading, Transaction
from penstock.stores.sql.writer import Verb

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")


class SqlStore(ABC):
    """Jobs in a database, durable on return."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._noting = noting.Noting()
        self._announced = 0

    # How verbs reach the database

    @abstractmethod
    async def _write(self, verb: Verb[C, A], call: C) -> A:
        """Do `call` with the next transaction; returns or raises when that is durable."""

    @abstractmethod
    async def _read(self, read: Callable[[Reading], T]) -> T:
        """Read outside of any transaction that writes."""

    @abstractmethod
    def _claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        """Give jobs out, when those who wait have heard of what ended outside of this package."""

    @abstractmethod
    async def _add_within(self, connection: Any, call: Addition) -> list[Job]:
        """Add jobs inside a caller's own transaction."""

    # Writing

    async def add(
        self,
        jobs: Sequence[NewJob],
        *,
        actor: str,
        connection: Any = None,
        tail: Tail | None = None,
        reason: str | None = None,
    ) -> list[Job]:
        """See `Store.add`."""
        if reason is not None:
            return await self._write(adding.add_explained, (jobs, actor, reason))
        if connection is None:
            return await self._write(adding.add, (jobs, actor, tail))
        return await self._add_within(connection, (jobs, actor, tail))

    async def claim(self, wanted: Claim) -> list[Job]:
        """See `Store.claim`."""
        return await self._write(self._claim, wanted)

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """See `Store.renew`."""
        return await self._write(starting.renew, leases)

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """See `Store.transition`."""
        return await self._write(self._transition, (changes, actor))

    @abstractmethod
    async def finish(
        self, ended: Sequence[tuple[Job, Done]], *, actor: str, connection: Any
    ) -> list[Job]:
        """See `Store.finish`."""

    @abstractmethod
    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """See `Store.supersede`."""

    async def transact(self, work: Callable[[Within], T]) -> T:
        """See `Store.transact`."""
        answer: T = await self._write(tables.transact, work)
        return answer

    async def read(self, work: Callable[[Statements], T]) -> T:
        """See `Store.read`."""

        def read(reading: Reading) -> T:
            with reading.moment():
                return work(tables.Spoken(reading))

        return await self._read(read)

    async def prepare(self, name: str, steps: Tables) -> None:
        """See `Store.prepare`."""
        if not await self._read(lambda reading: tables.is_prepared(reading, name, steps)):
            await self._write(tables.prepare, (name, steps))

    async def watch(self, ids: Sequence[JobId]) -> list[Job]:
        """See `Store.watch`."""
        return await self._write(looking.watch, ids)

    async def configure(self, settings: QueueSettings) -> Queue:
        """See `Store.configure`."""
        return await self._write(queues.configure, settings)

    async def remove_queue(self, name: str) -> bool:
        """See `Store.remove_queue`."""
        return await self._write(queues.remove, name)

    async def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        """See `Store.delete`."""
        return await self._write(removing.delete, jobs)

    async def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        notes: Mapping[JobId, Notes] | None = None,
    ) -> list[Job | None]:
        """See `Store.restore`."""
        return await self._write(restoring.restore, (records, origin, actor, notes or {}))

    async def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        """See `Store.seal`."""
        return await self._write(seals.put, (seal, was))

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        """See `Store.note`."""
        return await self._write(self._noting.write, notes)

    async def limit(self, limit: Limit) -> None:
        """See `Store.limit`."""
        await self._write(queues.limit, limit)

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:  # noqa: ARG002 - it keeps no days
        """See `Store.prune`."""
        return await self._write(removing.prune, (retention, limit))

    async def digest(self, limit: int) -> int:
        """See `Store.digest`."""
        counted = await self._read(lambda reading: history.digest(reading, limit))
        if counted.end == counted.start and counted.forget_before is None:
            return 0
        return await self._write(history.write, counted)

    # Reading

    async def expired(self, limit: int) -> list[Job]:
        """See `Store.expired`."""
        return await self._read(lambda reading: looking.expired(reading, limit))

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        """See `Store.get`."""
        return await self._read(lambda reading: reading.jobs(ids))

    async def edges(self, ids: Sequence[JobId]) -> list[Edge]:
        """See `Store.edges`."""
        wanted = (encoded(ids),)
        found = await self._read(lambda reading: reading.execute("edges", wanted).fetchall())
        return [rows.edge(row) for row in found]

    async def find(self, query: JobQuery) -> list[Job]:
        """See `Store.find`."""
        return await self._read(
            lambda reading: [rows.job(row) for row in reading.search("find", query)]
        )

    async def find_ids(self, query: JobQuery) -> list[JobId]:
        """See `Store.find_ids`."""
        return await self._read(
            lambda reading: [row[0] for row in reading.search("find_ids", query)]
        )

    async def tally(self, query: JobQuery) -> Tally:
        """See `Store.tally`."""
        return await self._read(lambda reading: looking.tally(reading, query))

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """See `Store.count`."""

        def read(reading: Reading) -> Counts:
            found = (
                reading.execute("totals")
                if queues is None
                else reading.execute("totals_of", (encoded(sorted(queues)),))
            )
            return {(queue, *STAGES[stage]): n for queue, stage, n in found}

        return await self._read(read)

    async def ready_tags(
        self, queue: str, limit: int = 1000, *, among: Sequence[str] | None = None
    ) -> list[str]:
        """See `Store.ready_tags`."""
        return await self._read_let_in(
            lambda reading, now: ready_tags(reading.execute, queue, limit, among, now)
        )

    async def keys(self, after: str | None, limit: int) -> list[KeyLine]:
        """See `Store.keys`."""
        wanted = (after or "", limit, LONGEST_LINE)
        found = await self._read(lambda reading: reading.execute("keys", wanted).fetchall())
        return [KeyLine(key=key, first=first, length=n) for key, first, n in found]

    async def oldest_ready(self, queues: Collection[str] | None = None) -> dict[str, datetime]:
        """See `Store.oldest_ready`."""

        def read(reading: Reading, _now: int) -> dict[str, datetime]:
            with reading.moment():
                found = oldest_ready(reading.execute, queues)
            return {queue: from_micros(at) for queue, at in found.items()}

        return await self._read_let_in(read)

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """See `Store.backlog`."""
        return await self._read(lambda reading: queues.backlog(reading, queue, until))

    async def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        """See `Store.queues`."""
        return await self._read(lambda reading: queues.find(reading, query))

    async def overall(self, without: Collection[str] = ()) -> Overall:
        """See `Store.overall`."""

        def read(reading: Reading, _now: int) -> Overall:
            with reading.moment():
                return queues.overall(reading, frozenset(without))

        return await self._read_let_in(read)

    async def limits(self) -> list[Limit]:
        """See `Store.limits`."""
        return await self._read(queues.limits)

    async def held(self, job: Job) -> list[Held]:
        """See `Store.held`."""
        return await self._read(lambda reading: held_by(reading.execute, job, reading.now()))

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """See `Store.log`."""
        name = "log" if job_id is None else "log_of_job"
        parameters = (*(() if job_id is None else (job_id,)), after or 0, limit)
        found = await self._read(lambda reading: reading.execute(name, parameters).fetchall())
        return [rows.log_entry(row) for row in found]

    async def newest_log(self) -> LogId:
        """See `Store.newest_log`."""
        found = await self._read(lambda reading: reading.execute("last_ids").fetchone())
        return LogId(found[1])

    async def histories(self, ids: Sequence[JobId]) -> list[Record]:
        """See `Store.histories`."""
        return await self._read(lambda reading: looking.histories(reading, ids))

    async def origin(self) -> Origin:
        """See `Store.origin`."""
        return await self._read(looking.origin)

    async def places(self, source: int, ids: Sequence[JobId]) -> Mapping[JobId, JobId]:
        """See `Store.places`."""
        wanted = (source, encoded(ids))
        return await self._read(
            lambda reading: dict(reading.execute("taken_over", wanted).fetchall())
        )

    async def sealed(self) -> Seal | None:
        """See `Store.sealed`."""
        return await self._read(seals.find)

    async def progress(self, ids: Sequence[JobId]) -> Mapping[JobId, Progress]:
        """See `Store.progress`."""
        return await self._read(lambda reading: noting.progress(reading, ids))

    async def checkpoint(self, job_id: JobId) -> str | None:
        """See `Store.checkpoint`."""
        return await self._read(lambda reading: self._noting.checkpoint(reading, job_id))

    async def notes(self, ids: Sequence[JobId]) -> Mapping[JobId, Notes]:
        """See `Store.notes`."""
        return await self._read(lambda reading: noting.notes(reading, ids))

    async def lines(self, job_id: JobId, *, after: int = 0, limit: int = 1000) -> list[Line]:
        """See `Store.lines`."""
        return await self._read(lambda reading: noting.lines(reading, job_id, after, limit))

    async def history(
        self,
        since: datetime,
        until: datetime | None,
        queue: str | Collection[str] | None,
        step: timedelta,
    ) -> list[Interval]:
        """See `Store.history`."""
        return await self._read(lambda reading: history.find(reading, since, until, queue, step))

    async def counters(self) -> list[Counters]:
        """See `Store.counters`."""
        return await self._read(history.counters)

    async def series(self, limit: int | None = None) -> list[str]:
        """See `Store.series`."""
        if await self._read(lambda reading: history.lacks_series(reading, limit)):
            await self._write(history.give_series, limit)
        return await self._read(history.series)

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """See `Store.schedules`."""
        return await self._read(lambda reading: schedules.find(reading, names))

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """See `Store.put_schedule`."""
        return await self._write(schedules.put, schedule)

    async def drop_schedule(self, name: str) -> bool:
        """See `Store.drop_schedule`."""
        return await self._write(schedules.drop, name)

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        """See `Store.due`."""
        known = tasks, declared
        return await self._read(lambda reading: schedules.due(reading, known, limit))

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        """See `Store.fire`."""
        return await self._write(schedules.fire, (firing, actor))

    async def tokens(self) -> list[Token]:
        """See `Store.tokens`."""
        return await self._read(tokens.find)

    async def add_token(self, token: Token) -> bool:
        """See `Store.add_token`."""
        return await self._write(tokens.add, token)

    async def drop_token(self, name: str) -> bool:
        """See `Store.drop_token`."""
        return await self._write(tokens.drop, name)

    async def greet(self, workers: Sequence[WorkerInfo]) -> list[str]:
        """See `Store.greet`."""
        return await self._write(attendance.greet, workers)

    async def drain(self, name: str) -> bool:
        """See `Store.drain`."""
        return await self._write(attendance.drain, name)

    async def dismiss(self, names: Sequence[str]) -> None:
        """See `Store.dismiss`."""
        await self._write(attendance.dismiss, names)

    async def workers(self) -> list[WorkerInfo]:
        """See `Store.workers`."""
        return await self._read(attendance.find)

    async def size(self) -> StoreSize:
        """See `Store.size`."""
        ((size, dead),) = await self._read(lambda reading: reading.execute("size").fetchall())
        return StoreSize(kind=self.kind, bytes=size, dead_rows=dead)

    async def _read_let_in(self, read: Callable[[Reading, int], T]) -> T:
        """Read when what has fallen due by now is ready; what does so meanwhile does not count."""
        now = await self._read(lambda reading: reading.now())

        def look(reading: Reading) -> T | None:
            due = reading.execute("any_due", (now,)).fetchone()
            return None if due else read(reading, now)

        # What is due has to be let in sooner or later; then it stands with the others.
        while (found := await self._read(look)) is None:
            await self._write(starting.let_in, now)
        return found

    def _is_wanted(self, reading: Reading, freed: Collection[Freed]) -> bool:
        """Whether a ready job still waits for what was freed, and others should look for it."""
        return bool(freed) and room_is_wanted(reading.execute, freed, reading.now())

    # Moving on

    def _transition(
        self, tx: Transaction, calls: Sequence[tuple[Sequence[Change], str]]
    ) -> list[list[Job | None] | Exception]:
        seals.check_open(tx)
        moving = Moving(tx, tx.now())
        moving.look_up([change.job.id for changes, _ in calls for change in changes])
        answers = moving.write([moving.call(changes, actor) for changes, actor in calls])
        if self._noting.resumable:
            self._noting.settle(tx, answers)
        return answers

    def _finish_within(
        self, tx: Transaction, ended: Sequence[tuple[Job, Done]], actor: str
    ) -> list[Job]:
        """End runs in a transaction of which this is a part."""
        found = {job.id: job for job in tx.jobs([job.id for job, _ in ended])}
        changes = []
        for job, outcome in ended:
            now = found.get(job.id)
            if now is None or now.state is not State.RUNNING or now.lease != job.lease:
                raise LeaseLost(job.id, job.token)
            changes.append(Change(now, advance(now, outcome)))
        done = answered(self._transition(tx, [(changes, actor)]))
        return cast("list[Job]", done)  # nobody else writes meanwhile

    def _supersede_within(self, tx: Transaction, job_id: JobId, by: JobId, actor: str) -> bool:
        """Let a job take another's place, in a transaction of which this is a part."""
        found = tx.jobs([job_id])
        if not found or found[0].state is not State.PENDING:
            return False
        change = Change(found[0], supersede(found[0], by))
        (moved,) = answered(self._transition(tx, [([change], actor)]))
        return moved is not None


def answered(answers: Sequence[A | Exception]) -> A:
    """The answer to the only call of a verb."""
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer

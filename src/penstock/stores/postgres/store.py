"""The Store protocol on PostgreSQL."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, TypeVar

import psycopg
from msgspec.structs import replace
from psycopg.errors import LockNotAvailable

from penstock.core.errors import ConfigurationError, StoreError, StoreUnavailable
from penstock.core.job import (
    Change,
    Claim,
    Job,
    JobId,
    LogEntry,
    LogId,
    NewJob,
    Retention,
    Tail,
    kept_error,
    moved_fields,
)
from penstock.core.lifecycle import Done, Event, State
from penstock.core.mirror import Mirror
from penstock.core.seal import Seal
from penstock.core.store import Clock
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.stores.postgres import mirrors
from penstock.stores.postgres.arrays import Int8s, Texts
from penstock.stores.postgres.arriving import adopt
from penstock.stores.postgres.bell import Bell
from penstock.stores.postgres.connection import address, connect, prepare, queries, translated
from penstock.stores.postgres.places import ClaimPlaces, Places
from penstock.stores.postgres.shelves import drop_days
from penstock.stores.postgres.transaction import (
    Connection,
    Mode,
    NeedsAlone,
    PostgresReading,
    PostgresTransaction,
    ours,
)
from penstock.stores.postgres.within import Joining
from penstock.stores.postgres.writer import PostgresWriter
from penstock.stores.sql import history, rows, seals
from penstock.stores.sql.adding import Addition
from penstock.stores.sql.claiming import next_start
from penstock.stores.sql.rows import READY, STAGE_OF, encoded
from penstock.stores.sql.store import SqlStore, answered
from penstock.stores.sql.tables import Joined
from penstock.stores.sql.transaction import Reading, Transaction
from penstock.stores.sql.writer import Verb

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")

_READER_THREADS = 2
# How long to wait for transactions of others that are under way, and how often to look.
_PATIENCE = 30.0
_LOOK = 0.05
_MODES = {
    "_add_beside": Mode.BESIDE,
    "_adopt": Mode.BESIDE,
    "_claim": Mode.SHARED,
    "_finish": Mode.SHARED,
    "_renew": Mode.SHARED,
    "write": Mode.SHARED,  # notes
    "_prune": Mode.SHARED,
    "_delete": Mode.SHARED,
    "_let_in": Mode.SHARED,
    "_transact": Mode.BESIDE,
    "_greet": Mode.BESIDE,
    "_dismiss": Mode.BESIDE,
    "_drain": Mode.BESIDE,
    "_drop_days": Mode.BESIDE,
    "_write_digest": Mode.BESIDE,
}
_FINISHING = {Event.DONE, Event.FAILED, Event.CANCELLED}


class PostgresStore(SqlStore):
    """Jobs in one PostgreSQL database, shared by processes on any number of machines."""

    kind = "postgres"

    def __init__(self, url: str, clock: Clock | None, *, create: bool = True) -> None:
        super().__init__()
        self._where = address(url)
        self._clock = clock
        self.clock: Clock = self._server_time if clock is None else clock
        self._sql = queries(self._where.schema)
        with translated(self._where.name):
            ahead = prepare(self._where, create=create)
        self._bell = Bell(self._where)
        self._writer = PostgresWriter(self._where, self._sql, clock, _MODES, self._after)
        self._writer.ahead = ahead
        if self._where.notify:
            self._writer.rings_as(self._bell.name)
        self._readers: deque[Connection] = deque()
        self._threads = ThreadPoolExecutor(_READER_THREADS, "penstock-reader")
        self._queues: set[str] = set()
        # Which queues the last claim asked for, and which of them were open.
        self._open_queues: tuple[tuple[str, ...] | None, Sequence[str]] = None, ()
        self._places = ClaimPlaces()
        self._joining = Joining(self._where, self._sql, clock)
        self._closed = False

    def _server_time(self) -> int:
        """The server's time, as near as this process can tell without asking."""
        return time.time_ns() // 1000 + self._writer.ahead

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        self._bell.close()
        self._writer.close()
        self._threads.shutdown()
        while self._readers:
            self._readers.pop().close()

    async def mirror(self, mirror: Mirror) -> None:
        """See `Store.mirror`."""
        await self._write(mirrors.install, mirror)

    # How verbs reach the database

    async def _write(self, verb: Verb[C, A], call: C) -> A:
        return await self._writer.run(verb, call)

    async def _read(self, read: Callable[[Reading], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._where.name} was closed")
        if await self._aside(lambda: self._read_here(_has_newcomers)):
            await self._write(self._adopt, None)
        return await self._aside(lambda: self._read_here(read))

    def _adopt(self, tx: Transaction, calls: Sequence[None]) -> list[None]:
        """Make the jobs of newcomers, beside others."""
        adopt(tx)
        return list(calls)

    async def _aside(self, do: Callable[[], T]) -> T:
        """Do what takes time where it keeps no event loop waiting."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        return do() if loop is None else await loop.run_in_executor(self._threads, do)

    def _read_here(self, read: Callable[[Reading], T]) -> T:
        with translated(self._where.name):
            try:
                return self._read_once(read)
            except psycopg.OperationalError:  # perhaps only of the connection
                while self._readers:
                    self._readers.pop().close()
                return self._read_once(read)

    def _read_once(self, read: Callable[[Reading], T]) -> T:
        try:
            connection = self._readers.pop()
        except IndexError:  # all in use by other threads
            connection = connect(self._where)
        try:
            answer = read(PostgresReading(connection, self._sql, self._where, self._clock))
        except BaseException:
            connection.close()
            raise
        if len(self._readers) < _READER_THREADS and not self._closed:
            self._readers.append(connection)
        else:
            connection.close()
        return answer

    def _after(self, transaction: PostgresTransaction) -> None:
        """What follows a commit: who waits here is woken, and others where it was not yet said."""
        if transaction.ring:
            self._bell.ring()
        if transaction.freed and not transaction.ring_others and self._where.notify:
            self._read_here(
                lambda reading: (
                    self._is_wanted(reading, transaction.freed)
                    and reading.execute("ring", (self._where.schema, self._bell.name))
                )
            )

    async def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        """See `Store.seal`. Waits for those who began to write before."""
        if not await super().seal(seal, was=was):
            return False
        # A number of its own: who has entered before is below it, also who has written nothing yet.
        numbers = await self._read(lambda reading: reading.execute("reserve", (0, 1)).fetchone()[1])
        newest = numbers[0]
        deadline = time.monotonic() + _PATIENCE
        while (await self.newest_log()) < newest:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._where.name}: a transaction that has enqueued jobs is still open; "
                    "end it, and try again"
                )
            await self._aside(lambda: time.sleep(_LOOK))
        await self._write(self._link_arrived, None)
        return True

    def _link_arrived(self, _tx: Transaction, calls: Sequence[None]) -> list[None]:
        """Have the queue alone once: that links what has come with the last transactions."""
        return list(calls)

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        if not self._bell.listens:
            await self._aside(self._bell.listen)
        now = self._bell.seen()
        if now != seen:
            return now
        due, clock = await self._read(self._look_ahead)
        if due is not None and due <= clock:
            # Once for all who wait here: it may be long until one of them can take it.
            self._announced = clock
            self._bell.ring()
        elif due is not None:
            timeout = min(timeout, (due - clock) / 1e6)
        return await self._bell.wait(seen, timeout)

    def _look_ahead(self, reading: Reading) -> tuple[int | None, int]:
        """When the next job falls due, a pause ends, or a rate lets a job start; and the time."""
        clock, due, is_rated = reading.execute("next_change", (self._announced,)).fetchone()
        now = clock if self._clock is None else self._clock()
        if is_rated:
            start = next_start(reading.execute, self._announced, now)
            due = min((at for at in (due, start) if at is not None), default=None)
        return due, now

    # Adding

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
        alone = connection is None and tail is None and reason is None
        if alone and not any(map(_depends, jobs)):
            return await self._write(self._add_beside, (jobs, actor, None))
        return await super().add(jobs, actor=actor, connection=connection, tail=tail, reason=reason)

    async def _add_within(self, connection: Any, call: Addition) -> list[Job]:
        if isinstance(connection, Joined):
            return connection.guarded(lambda: self._add_joined(ours(connection.tx), call))
        jobs, actor, _ = call
        await self._prepare_to_join({job.queue for job in jobs})
        return await self._joining.add(connection, jobs, actor)

    def _add_joined(self, tx: PostgresTransaction, call: Addition) -> list[Job]:
        if tx.mode is not Mode.ALONE and any(map(_depends, call[0])):
            raise NeedsAlone
        return answered(self._add_beside(tx, [call]))

    async def _prepare_to_join(self, queues: Collection[str]) -> None:
        if not self._joining.is_prepared(queues, self.clock()):
            await self._read(lambda reading: self._joining.prepare(reading, queues))

    def _add_beside(
        self, tx: Transaction, calls: Sequence[Addition]
    ) -> Sequence[list[Job] | Exception]:
        """Add jobs that have nothing to do with others."""
        tx = ours(tx)
        if tx.mode is Mode.ALONE:
            return self._add(tx, calls)
        asked = [(job, actor) for jobs, actor, _ in calls for job in jobs]
        if any(job.tags or job.tenant or job.throttle for job, _ in asked):
            names = {job.queue for job, _ in asked}
            if tx.execute("any_bounded", (encoded(names),)).fetchone()[0]:
                raise NeedsAlone
            return self._add(tx, calls)
        added: list[Job] = []
        for _, group in groupby(asked, key=_options):
            added += self._add_alike(tx, list(group))
        tx.written = tx.ring = tx.ring_others = bool(added)
        answers: list[list[Job] | Exception] = []
        for jobs, _, _ in calls:
            answers.append(added[: len(jobs)])
            added = added[len(jobs) :]
        return answers

    def _add_alike(self, tx: PostgresTransaction, asked: Sequence[tuple[NewJob, str]]) -> list[Job]:
        new = asked[0][0]
        if new.queue not in self._queues:
            tx.execute("add_queue", (new.queue,))
        options = rows.options(new, READY, 0, 0)
        parameters = (
            Texts([job.payload for job, _ in asked]),
            Texts([actor for _, actor in asked]),
            tx.now(),
            None if new.run_at is None or new.delay is not None else to_micros(new.run_at),
            0 if new.delay is None else span_to_micros(new.delay),
            new.queue,
            new.task,
            new.priority,
            options[5],
            options[6],
            options[11],
            new.correlation,
            new.parent,
            new.trace,
        )
        found = tx.execute("add_plain", parameters).fetchall()
        if not found:  # the queue has a limit
            raise NeedsAlone
        self._queues.add(new.queue)
        _, _, now, due = found[0]
        first = rows.new_job(new, 0, 0, int(due > now), due, 0, from_micros(now))
        return [
            replace(first, id=job_id, version=version, payload=job.payload)
            for (job, _), (job_id, version, _, _) in zip(asked, found, strict=True)
        ]

    # Claiming

    def _claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        tx = ours(tx)
        return [self._claim_next(tx, wanted) for wanted in calls]

    def _claim_next(self, tx: PostgresTransaction, wanted: Claim) -> list[Job]:
        if (jobs := self._claim_as_before(tx, wanted)) is not None:
            return jobs
        more, queues = self._outlook(tx, wanted)
        if more:
            more = self._promote(tx, tx.now())
            _, queues = self._outlook(tx, wanted)  # among those may be some that limits hold
        if queues is None:
            return super()._claim(tx, [wanted])[0]
        jobs = self._claim_plain(tx, wanted, queues)
        return jobs or (self._claim_next(tx, wanted) if more else [])

    def _outlook(self, tx: PostgresTransaction, wanted: Claim) -> tuple[bool, Sequence[str] | None]:
        """Whether jobs have fallen due, and the open queues; None if limits have a say there."""
        queues = None if wanted.queues is None else Texts(wanted.queues)
        any_due, any_arrived, limited, open_queues = tx.execute(
            "outlook", (tx.now(), queues)
        ).fetchone()
        if (any_arrived or limited) and tx.mode is not Mode.ALONE:
            raise NeedsAlone
        if any_arrived:
            seals.check_open(tx)
        self._open_queues = wanted.queues, open_queues
        return any_due, None if limited else [*filter(wanted.wants, open_queues)]

    def _claim_as_before(self, tx: PostgresTransaction, wanted: Claim) -> list[Job] | None:
        """Claim with the outlook of the claim before; None if it does not hold any more."""
        asked, open_queues = self._open_queues
        queues = [*filter(wanted.wants, open_queues)] if asked == wanted.queues else []
        places = self._places.of(queues)
        if not queues or wanted.tags or places.are_old:
            return None
        return self._claim_from(tx, wanted, places, open_queues)

    def _claim_plain(
        self, tx: PostgresTransaction, wanted: Claim, queues: Sequence[str]
    ) -> list[Job]:
        if not queues:
            return []
        if wanted.tags:
            source = (Texts(queues), Texts(wanted.tags))
            return self._started(tx, wanted, "claim_tagged", source) or []
        places = self._places.of(queues)
        jobs = self._claim_from(tx, wanted, places) or []
        if places.are_old and len(jobs) < wanted.limit:  # there may be more before them
            rest = replace(wanted, limit=wanted.limit - len(jobs))
            jobs += self._claim_from(tx, rest, self._places.beginnings(queues)) or []
        return jobs

    def _claim_from(
        self,
        tx: PostgresTransaction,
        wanted: Claim,
        places: Places,
        open_queues: Sequence[str] | None = None,
    ) -> list[Job] | None:
        outlook = (
            None if open_queues is None else Texts(open_queues),
            None if wanted.queues is None else Texts(wanted.queues),
        )
        if len(places.by_queue) == 1:
            [(queue, place)] = places.by_queue.items()
            name = "claim_of_one"
            source: tuple[Any, ...] = (queue, *place)
        else:
            columns = zip(*places.by_queue.values(), strict=True)
            name, source = "claim_of_many", (Texts(list(places.by_queue)), *map(Int8s, columns))
        began = time.monotonic()
        jobs = self._started(tx, wanted, name, source, outlook)
        if not places.are_old:
            took = time.monotonic() - began
            queues = Texts(list(places.by_queue))
            self._places.looked(took, lambda: tx.execute("any_ready", (queues,)).fetchall())
        return jobs

    def _started(
        self,
        tx: PostgresTransaction,
        wanted: Claim,
        name: str,
        source: tuple[Any, ...],
        outlook: tuple[Any, ...] = (),
    ) -> list[Job] | None:
        parameters = (tx.now(), wanted.worker, *source, wanted.limit, *outlook)
        found = tx.execute(name, parameters).fetchall()
        if found and not found[0][0]:
            return None
        if found and found[0][4] is None:  # no job was ready
            return []
        tx.written = tx.written or bool(found)
        for _, rank, run_at, _, job_id, *columns in found:
            self._places.claimed(columns[8], (rank, run_at, job_id))
        return [rows.job(row[4:]) for row in found]

    # Moving on

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """See `Store.transition`."""
        ids = {change.job.id for change in changes}
        if changes and len(ids) == len(changes) and all(map(_finishes, changes)):
            return await self._write(self._finish, (changes, actor))
        return await super().transition(changes, actor=actor)

    async def finish(self, job: Job, outcome: Done, *, actor: str, connection: Any) -> Job:
        """See `Store.finish`."""
        if isinstance(connection, Joined):
            tx = ours(connection.tx)
            return connection.guarded(lambda: self._finish_joined(tx, job, outcome, actor))
        await self._prepare_to_join(())
        return await self._joining.finish(connection, job, outcome, actor)

    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """See `Store.supersede`."""
        if not isinstance(connection, Joined):
            raise ConfigurationError("a job takes another's place in a transaction of the store")
        tx = ours(connection.tx)
        return connection.guarded(lambda: self._supersede_joined(tx, job_id, by, actor))

    def _supersede_joined(
        self, tx: PostgresTransaction, job_id: JobId, by: JobId, actor: str
    ) -> bool:
        if tx.mode is not Mode.ALONE:
            raise NeedsAlone
        return self._supersede_within(tx, job_id, by, actor)

    def _finish_joined(self, tx: PostgresTransaction, job: Job, outcome: Done, actor: str) -> Job:
        if tx.mode is not Mode.ALONE:
            raise NeedsAlone
        return self._finish_within(tx, job, outcome, actor)

    def _finish(
        self, tx: Transaction, calls: Sequence[tuple[Sequence[Change], str]]
    ) -> Sequence[list[Job | None] | Exception]:
        """End jobs that run here and that no other job depends on."""
        tx = ours(tx)
        if tx.mode is Mode.ALONE:
            return self._transition(tx, calls)
        ended = [(change, actor) for changes, actor in calls for change in changes]
        versions: dict[int, int] = {}
        for _, group in groupby(ended, key=_way):
            self._finish_alike(tx, list(group), versions)
        if len(versions) < len(ended):
            raise NeedsAlone
        tx.written = tx.ring = True
        at = from_micros(tx.now())
        answers = [[_ended(change, versions, at) for change in changes] for changes, _ in calls]
        if self._noting.resumable:
            self._noting.settle(tx, answers)
        return answers

    def _finish_alike(
        self,
        tx: PostgresTransaction,
        ended: Sequence[tuple[Change, str]],
        versions: dict[int, int],
    ) -> None:
        moves = [change.move for change, _ in ended]
        move, actor = moves[0], ended[0][1]
        found = tx.execute(
            "finish",
            (
                Int8s([change.job.id for change, _ in ended]),
                Int8s([change.job.version for change, _ in ended]),
                Texts([move.result for move in moves]),
                Texts([move.error for move in moves]),
                Texts([kept_error(change.job, change.move) for change, _ in ended]),
                Texts([move.reason for move in moves]),
                Texts([move.detail for move in moves]),
                tx.now(),
                move.event,
                move.state,
                actor,
                STAGE_OF[move.state],
                move.attempt,
            ),
        ).fetchall()
        versions.update((ended[n - 1][0].job.id, number) for n, number, _ in found)
        if found and found[0][2]:
            tx.freed.update(
                (change.job.queue, change.job.task, change.job.throttle) for change, _ in ended
            )

    # Retention

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:
        """See `Store.prune`."""
        if not whole_days:
            return await super().prune(retention, limit)
        try:
            return await self._write(self._drop_days, retention)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, LockNotAvailable):
                return 0  # somebody looks at them; the next time will do
            raise

    def _drop_days(self, tx: Transaction, calls: Sequence[Retention]) -> list[int]:
        tx = ours(tx)
        if tx.execute("any_arrived").fetchone()[0]:
            return [0] * len(calls)  # see below; the next time will do
        return [drop_days(tx, retention) for retention in calls]

    def _remove(self, tx: Transaction, found: str) -> int:
        # Who waits for a job that has just ended must hear of it before it is gone.
        if ours(tx).mode is not Mode.ALONE and tx.execute("any_arrived").fetchone()[0]:
            raise NeedsAlone
        return super()._remove(tx, found)

    # The log and its sums

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """See `Store.log`."""
        if job_id is not None:
            return await super().log(job_id, after=after, limit=limit)

        def read(reading: Reading) -> list[LogEntry]:
            (complete,) = reading.execute("complete").fetchone()
            found = reading.execute("log", (after or 0, limit, complete)).fetchall()
            return [rows.log_entry(row) for row in found]

        return await self._read(read)

    async def newest_log(self) -> LogId:
        """See `Store.newest_log`."""
        found = await self._read(lambda reading: reading.execute("complete").fetchone())
        return LogId(found[0])

    async def digest(self, limit: int) -> int:
        """See `Store.digest`. Also adds up the totals."""

        def read(reading: Reading) -> tuple[history.Digest, int]:
            folded, complete = reading.execute("folded").fetchone()
            if complete > folded:
                reading.execute("fold", (folded, complete))
            return history.digest(reading, limit, complete), complete

        counted, _ = await self._read(read)
        if counted.end == counted.start and counted.forget_before is None:
            return 0
        return await self._write(self._write_digest, counted)

    def _write_digest(self, tx: Transaction, digests: Sequence[history.Digest]) -> list[int]:
        return history.write(tx, digests)


def _has_newcomers(reading: Reading) -> bool:
    return bool(reading.execute("newcomers").fetchone()[0])


def _options(asked: tuple[NewJob, str]) -> tuple[Any, ...]:
    """What jobs that are written together have in common."""
    job, _ = asked
    return (
        job.queue, job.task, job.priority, job.lease, job.timeout, job.retry, job.correlation,
        job.parent, job.trace, job.delay, job.run_at,
    )  # fmt: skip


def _depends(job: NewJob) -> bool:
    """Whether other jobs decide what becomes of this one."""
    return bool(job.key or job.dedupe or job.after or job.follows)


def _finishes(change: Change) -> bool:
    """Whether a move ends a job that runs, as far as the job itself can tell."""
    job, move = change.job, change.move
    return (
        move.event in _FINISHING
        and move.state.final
        and not move.stays
        and move.successor is None
        and job.state is State.RUNNING
        and job.key is None
        and not job.needs
    )


def _way(ended: tuple[Change, str]) -> tuple[Any, ...]:
    """What ends that are written together have in common."""
    change, actor = ended
    move = change.move
    return move.event, move.state, move.attempt, actor


def _ended(change: Change, versions: dict[int, int], at: Any) -> Job | None:
    fields = moved_fields(change.move, kept_error(change.job, change.move), at=at, waiting=None)
    return replace(change.job, version=versions[change.job.id], **fields)

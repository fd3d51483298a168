"""The Store protocol on one SQLite file."""

import asyncio
import os
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.core.errors import ConfigurationError, QueueFull, StoreError, TransitionRefused
from penstock.core.job import (
    Change,
    Claim,
    Counts,
    Job,
    JobId,
    JobQuery,
    Lease,
    LogEntry,
    LogId,
    NewJob,
    Queue,
    QueueSettings,
    Retention,
    Scope,
    kept_error,
    moved,
)
from penstock.core.lifecycle import FINAL, Event, Move, State, give_way
from penstock.core.store import Clock
from penstock.core.times import from_micros, span_to_micros
from penstock.stores.sql import load_queries
from penstock.stores.sqlite import rows
from penstock.stores.sqlite.bell import Bell
from penstock.stores.sqlite.connection import connect, prepare, translated
from penstock.stores.sqlite.rows import BLOCKED, READY, RUNNING, SCHEDULED, STAGES, encoded
from penstock.stores.sqlite.writer import Transaction, Writer, reading

T = TypeVar("T")

_SQL = load_queries("penstock.stores.sqlite")
# Jobs that fall due at once are let in by portions, so that no claim waits for a million.
_PROMOTED_AT_ONCE = 1_000
_READER_THREADS = 2

Totals = dict[tuple[str, int], int]


class SqliteStore:
    """Jobs in one SQLite file, durable on return, shared by the processes of one machine."""

    def __init__(self, path: str | os.PathLike[str], clock: Clock) -> None:
        self._path = Path(path)
        self._clock = clock
        with translated(self._path):
            self._readers: deque[sqlite3.Connection] = deque([connect(self._path)])
            prepare(self._readers[0], self._path)
            self._watcher = connect(self._path)
            self._writer = Writer(self._path, self._committed)
        self._bell = Bell(self._path, self._change_counter)
        self._threads = ThreadPoolExecutor(_READER_THREADS, "penstock-reader")
        self._closed = False

    # Writing

    async def add(self, jobs: Sequence[NewJob], *, actor: str, connection: Any = None) -> list[Job]:
        """See `Store.add`."""
        if connection is None:
            return await self._write(self._add, (jobs, actor))
        return self._add_within(connection, jobs, actor)

    async def claim(self, wanted: Claim) -> list[Job]:
        """See `Store.claim`."""
        return await self._write(self._claim, wanted)

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """See `Store.renew`."""
        return await self._write(self._renew, leases)

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """See `Store.transition`."""
        return await self._write(self._transition, (changes, actor))

    async def configure(self, settings: QueueSettings) -> Queue:
        """See `Store.configure`."""
        return await self._write(self._configure, settings)

    async def prune(self, retention: Retention, limit: int) -> int:
        """See `Store.prune`."""
        return await self._write(self._prune, (retention, limit))

    # Reading

    async def expired(self, limit: int) -> list[Job]:
        """See `Store.expired`."""

        def read(connection: sqlite3.Connection) -> list[Job]:
            found = connection.execute(_SQL["expired"], (self._clock(), limit)).fetchone()[0]
            return _jobs(connection.execute, found)

        return await self._read(read)

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        """See `Store.get`."""
        return await self._read(lambda connection: _jobs(connection.execute, encoded(ids)))

    async def find(self, query: JobQuery) -> list[Job]:
        """See `Store.find`."""
        clauses, parameters = rows.conditions(query)
        if query.tag is not None:
            parameters.insert(0, query.tag)
        sql = (
            f"{_SQL['find' if query.tag is None else 'find_tagged']} {' AND '.join(clauses)} "
            f"ORDER BY j.id {'DESC' if query.newest_first else 'ASC'} LIMIT ?"
        )
        parameters.append(query.limit)
        return await self._read(
            lambda connection: [rows.job(row) for row in connection.execute(sql, parameters)]
        )

    async def count(self) -> Counts:
        """See `Store.count`."""
        found = await self._read(lambda connection: connection.execute(_SQL["totals"]).fetchall())
        return {(queue, *STAGES[stage]): n for queue, stage, n in found}

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """See `Store.backlog`."""

        def read(connection: sqlite3.Connection) -> tuple[int, JobId]:
            newest = connection.execute(_SQL["last_ids"]).fetchone()[0] if until is None else until
            n, last = connection.execute(_SQL["backlog"], (queue, newest)).fetchone()
            return n, newest if last is None else last

        return await self._read(read)

    async def queues(self) -> list[Queue]:
        """See `Store.queues`."""
        found = await self._read(lambda connection: connection.execute(_SQL["queues"]).fetchall())
        return [rows.queue(row) for row in found]

    async def log(
        self, job_id: JobId | None = None, *, after: LogId | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """See `Store.log`."""
        name = "log" if job_id is None else "log_of_job"
        parameters = (*(() if job_id is None else (job_id,)), after or 0, limit)
        found = await self._read(
            lambda connection: connection.execute(_SQL[name], parameters).fetchall()
        )
        return [rows.log_entry(row) for row in found]

    async def wait(self, seen: int, timeout: float) -> int:
        """See `Store.wait`."""
        due = await self._read(lambda connection: connection.execute(_SQL["next_due"]).fetchone())
        if due[0] is not None:
            timeout = min(timeout, max(0, due[0] - self._clock()) / 1e6)
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises
            return self._bell.wait_blocking(seen, timeout)
        return await self._bell.wait(seen, timeout)

    async def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        self._bell.close()
        self._writer.close()
        self._threads.shutdown()
        self._watcher.close()
        while self._readers:
            self._readers.pop().close()

    # How verbs reach the file

    async def _write(self, verb: Callable[[Transaction, Sequence[Any]], Any], call: Any) -> Any:
        return await self._writer.run(verb, call)

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path} was closed")
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises
        if loop is None:
            return self._read_here(read)
        return await loop.run_in_executor(self._threads, self._read_here, read)

    def _read_here(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with reading(self._path, self._readers) as connection:
            return read(connection)

    def _committed(self, transaction: Transaction) -> None:
        if transaction.ring:
            self._bell.ring(others=transaction.ring_others)

    def _change_counter(self) -> int:
        with translated(self._path):
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    # Adding

    def _add_within(
        self, connection: sqlite3.Connection, jobs: Sequence[NewJob], actor: str
    ) -> list[Job]:
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError("a SQLite store takes a sqlite3.Connection as connection")
        with translated(self._path):
            file = connection.execute("PRAGMA database_list").fetchone()[2]
            if not (file and self._path.samefile(file)):
                raise ConfigurationError(f"the connection is to {file!r}, not to {self._path}")
            if not connection.in_transaction:
                if connection.isolation_level is None:
                    raise ConfigurationError(
                        "the connection is in autocommit mode: begin a transaction first"
                    )
                connection.execute("BEGIN IMMEDIATE")
            text_factory, connection.text_factory = connection.text_factory, str
            cursor = connection.cursor()
            cursor.row_factory = None
            try:
                (answer,) = self._add(Transaction(cursor), [(jobs, actor)])
            finally:
                connection.text_factory = text_factory
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _add(
        self, tx: Transaction, calls: Sequence[tuple[Sequence[NewJob], str]]
    ) -> list[list[Job] | Exception]:
        adding = _Adding(tx, self._clock())
        adding.look_up_keys(job.key for jobs, _ in calls for job in jobs if job.key is not None)
        answers = [adding.call(jobs, actor) for jobs, actor in calls]
        adding.write()
        return answers

    # Claiming

    def _claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        now = self._clock()
        self._promote(tx, now)
        return [self._claim_one(tx, wanted, now) for wanted in calls]

    def _promote(self, tx: Transaction, now: int) -> None:
        if not tx.execute(_SQL["any_due"], (now,)).fetchone():
            return
        totals: Totals = {}
        due = tx.execute(_SQL["promote_due"], (now, _PROMOTED_AT_ONCE)).fetchall()
        for (queue,), n in Counter(due).items():
            _shift(totals, queue, SCHEDULED, READY, n)
        _add_totals(tx, totals)

    def _claim_one(self, tx: Transaction, wanted: Claim, now: int) -> list[Job]:
        queues = {name for (name,) in tx.execute(_SQL["queues_with_ready"]).fetchall()}
        if wanted.queues is not None:
            queues &= set(wanted.queues)
        picked: set[tuple[int, int, int]] = set()
        for queue in queues:
            if not wanted.tags:
                found = tx.execute(_SQL["pick"], (queue, wanted.limit)).fetchone()[0]
                picked.update(rows.picks.decode(found))
            for tag in wanted.tags:
                found = tx.execute(_SQL["pick_tagged"], (queue, tag, wanted.limit)).fetchone()[0]
                picked.update(rows.picks.decode(found))
        if not picked:
            return []
        chosen = encoded([job_id for _, _, job_id in sorted(picked)[: wanted.limit]])
        _, last_log = tx.execute(_SQL["last_ids"]).fetchone()
        tx.execute(_SQL["log_claimed"], (last_log + 1, now, wanted.worker, chosen))
        tx.execute(_SQL["start"], (last_log + 1, now, wanted.worker, chosen))
        jobs = _jobs(tx.execute, chosen)
        totals: Totals = {}
        for queue, n in Counter([job.queue for job in jobs]).items():
            _shift(totals, queue, READY, RUNNING, n)
        _add_totals(tx, totals)
        return jobs

    def _renew(self, tx: Transaction, calls: Sequence[Sequence[Lease]]) -> list[list[Job]]:
        leases = encoded([(lease.job_id, lease.token) for call in calls for lease in call])
        renewed = [row[0] for row in tx.execute(_SQL["renew"], (self._clock(), leases)).fetchall()]
        tx.written = tx.written or bool(renewed)
        held = {(job.id, job.token): job for job in _jobs(tx.execute, encoded(renewed))}
        return [
            [held[lease.job_id, lease.token] for lease in call if (lease.job_id, lease.token) in held]
            for call in calls
        ]

    # Moving on

    def _transition(
        self, tx: Transaction, calls: Sequence[tuple[Sequence[Change], str]]
    ) -> list[list[Job | None] | Exception]:
        moving = _Moving(tx, self._clock())
        moving.look_up([change.job.id for changes, _ in calls for change in changes])
        return moving.write([moving.call(changes, actor) for changes, actor in calls])

    # Queues and retention

    def _configure(self, tx: Transaction, calls: Sequence[QueueSettings]) -> list[Queue]:
        return [self._configure_one(tx, settings) for settings in calls]

    def _configure_one(self, tx: Transaction, settings: QueueSettings) -> Queue:
        row = tx.execute(_SQL["queue"], (settings.name,)).fetchone()
        queue = Queue(name=settings.name) if row is None else rows.queue(row)
        changed = {
            name: value
            for name, value in msgspec.structs.asdict(settings).items()
            if value is not msgspec.UNSET
        }
        queue = msgspec.structs.replace(queue, **changed)
        tx.execute(_SQL["configure"], (queue.name, queue.paused, queue.max_pending))
        tx.written = tx.ring = tx.ring_others = True
        return queue

    def _prune(self, tx: Transaction, calls: Sequence[tuple[Retention, int]]) -> list[int]:
        return [self._prune_one(tx, retention, limit) for retention, limit in calls]

    def _prune_one(self, tx: Transaction, retention: Retention, limit: int) -> int:
        now, removed = self._clock(), 0
        for state in FINAL:
            before = now - span_to_micros(retention.keeps(state))
            parameters = (rows.STAGE_OF[state], before, limit - removed)
            found = tx.execute(_SQL["prunable"], parameters).fetchone()[0]
            if found != "[]":
                tx.execute(_SQL["remember_last_ids"], tx.execute(_SQL["last_ids"]).fetchone())
                tx.execute(_SQL["prune_log"], (found,))
                tx.execute(_SQL["prune_payloads"], (found,))
                gone = tx.execute(_SQL["prune_jobs"], (found,)).fetchall()
                _add_totals(tx, {key: -n for key, n in Counter(gone).items()})
                removed += len(gone)
        return removed


class _Adding:
    """New jobs of one transaction: decides for each call, then writes them all at once."""

    def __init__(self, tx: Transaction, now: int) -> None:
        self._tx = tx
        self._now = now
        self._at = from_micros(now)
        last_job, last_log = tx.execute(_SQL["last_ids"]).fetchone()
        self._first, self._first_log = last_job + 1, last_log + 1
        self._rows: list[Sequence[Any]] = []
        self._payloads: list[tuple[int, str]] = []
        self._actors: list[tuple[str, int]] = []
        self._totals: Totals = {}
        self._rooms: dict[str, tuple[int, int] | None] = {}
        self._held_keys: set[str] = set()
        self._deduped: dict[str, Job] = {}

    def look_up_keys(self, keys: Iterable[str]) -> None:
        """Which of these keys already have an unfinished job."""
        if wanted := set(keys):
            found = self._tx.execute(_SQL["held_keys"], (encoded(wanted),)).fetchone()[0]
            self._held_keys.update(rows.names.decode(found))

    def call(self, jobs: Sequence[NewJob], actor: str) -> list[Job] | Exception:
        """Take the jobs of one caller, all or none."""
        holders = {job.dedupe: holder for job in jobs if (holder := self._holder(job)) is not None}
        first_of = {job.dedupe: job for job in reversed(jobs) if job.dedupe is not None}
        asked: dict[str, int] = {}
        for job in jobs:
            if job.dedupe is None or (
                first_of[job.dedupe] is job and job.dedupe not in holders
            ):
                asked[job.queue] = asked.get(job.queue, 0) + 1
        for queue, n in asked.items():
            room = self._room(queue)
            if room is not None and n > room[0]:
                return QueueFull(queue, room[1])
        before = len(self._rows)
        taken = [
            self._take(job)
            if job.dedupe is None
            else self._existing(holders.get(job.dedupe) or self._deduped.get(job.dedupe))
            or self._take(job)
            for job in jobs
        ]
        for queue, n in asked.items():
            room = self._rooms[queue]
            if room is not None:
                self._rooms[queue] = (room[0] - n, room[1])
        self._actors.append((actor, len(self._rows) - before))
        return taken

    def write(self) -> None:
        """Write every job that was taken."""
        if not self._rows:
            return
        self._tx.executemany(_SQL["add_jobs"], self._rows)
        if self._payloads:
            self._tx.executemany(_SQL["add_payloads"], self._payloads)
        first = self._first
        for actor, group in groupby(self._actors, key=itemgetter(0)):
            n = sum(taken for _, taken in group)
            self._tx.execute(_SQL["log_added"], (actor, first, first + n - 1))
            first += n
        _add_totals(self._tx, self._totals)
        self._tx.ring = self._tx.ring_others = True

    def _take(self, new: NewJob) -> Job:
        n = len(self._rows)
        job_id = self._first + n
        run_at, stage = self._now, READY
        if new.delay is not None or new.run_at is not None:
            run_at = rows.due(new, self._now)
            stage = READY if run_at <= self._now else SCHEDULED
        if new.key is not None:
            if new.key in self._held_keys:
                stage = BLOCKED
            self._held_keys.add(new.key)
        row, job = rows.added(
            new, job_id, stage, self._first_log + n, run_at, self._now, self._at
        )
        self._rows.append(row)
        if len(new.payload) > rows.INLINE_PAYLOAD:
            self._payloads.append((job_id, new.payload))
        total = (new.queue, stage)
        self._totals[total] = self._totals.get(total, 0) + 1
        if new.dedupe is not None:
            self._deduped[new.dedupe] = job
        return job

    def _existing(self, holder: Job | None) -> Job | None:
        return None if holder is None else msgspec.structs.replace(holder, duplicate=True)

    def _holder(self, job: NewJob) -> Job | None:
        if job.dedupe is None:
            return None
        if job.dedupe in self._deduped:
            return self._deduped[job.dedupe]
        holder = _dedupe_holder(self._tx, job.dedupe, job.scope)
        return None if holder is None else _jobs(self._tx.execute, encoded([holder]))[0]

    def _room(self, queue: str) -> tuple[int, int] | None:
        """How many more jobs a queue takes, and its limit; None without a limit."""
        if queue not in self._rooms:
            row = self._tx.execute(_SQL["queue"], (queue,)).fetchone()
            if row is None:
                self._tx.execute(_SQL["add_queue"], (queue,))
            limit = None if row is None else rows.queue(row).max_pending
            self._rooms[queue] = None
            if limit is not None:
                pending = self._tx.execute(_SQL["pending_total"], (queue,)).fetchone()[0]
                self._rooms[queue] = (limit - pending, limit)
        return self._rooms[queue]


class _Moving:
    """Moves of one transaction: checks each against its job, then writes them all at once."""

    def __init__(self, tx: Transaction, now: int) -> None:
        self._tx = tx
        self._now = now
        self._at = from_micros(now)
        self._current: dict[int, tuple[int, int]] = {}
        self._alive: set[int] = set()
        # Moves that differ only in their jobs: what they write, and the jobs.
        self._groups: dict[tuple[Any, ...], list[JobId]] = {}
        self._totals: Totals = {}
        self._keys: set[str] = set()
        self._reset_keys: set[str] = set()
        self._pending_dedupes: dict[str, int] = {}
        self._versions: dict[int, int] = {}
        self._stages: dict[int, int] = {}

    def look_up(self, job_ids: Sequence[JobId]) -> None:
        """The versions and stages that these jobs have now."""
        found = self._tx.execute(_SQL["versions"], (encoded(job_ids),)).fetchone()[0]
        for job_id, (version, stage, expires_at) in zip(
            job_ids, rows.versions.decode(found), strict=True
        ):
            if version is not None and stage is not None:
                self._current[job_id] = (version, stage)
            if expires_at is not None and expires_at > self._now:
                self._alive.add(job_id)

    def call(self, changes: Sequence[Change], actor: str) -> "list[Change | None] | Exception":
        """Take the moves of one caller whose jobs are what the caller believes."""
        try:
            moves = [self._checked(change) for change in changes]
        except TransitionRefused as error:
            return error
        return [
            None if move is None else self._take(change, move, actor)
            for change, move in zip(changes, moves, strict=True)
        ]

    def write(
        self, answers: "Sequence[list[Change | None] | Exception]"
    ) -> list[list[Job | None] | Exception]:
        """Write every move that was taken, and what it means for the jobs of the same key."""
        if self._groups:
            version = self._tx.execute(_SQL["last_ids"]).fetchone()[1] + 1
            for group, job_ids in self._groups.items():
                self._write_group(version, group, job_ids)
                version += len(job_ids)
            self._write_keys()
            _add_totals(self._tx, self._totals)
            self._tx.ring = True
        return [
            answer if isinstance(answer, Exception) else [self._moved(change) for change in answer]
            for answer in answers
        ]

    def _checked(self, change: Change) -> Move | None:
        job, move = change.job, change.move
        current = self._current.get(job.id)
        if current is None or current[0] != job.version:
            return None
        if move.event is Event.EXPIRED and job.id in self._alive:
            return None
        if job.dedupe is not None and move.state is State.PENDING and not move.stays:
            rival = self._pending_dedupes.get(job.dedupe) or _dedupe_holder(
                self._tx, job.dedupe, job.scope, but=job.id
            )
            if rival is not None:
                return give_way(job, move, rival)
        return move

    def _take(self, change: Change, move: Move, actor: str) -> Change | None:
        job = change.job
        old_version, old_stage = self._current[job.id]
        if old_version != job.version:  # moved by an earlier change of this transaction
            return None
        stage, run_at = self._target(job, move)
        self._current[job.id] = (-1, old_stage if stage is None else stage)
        group = (stage, run_at, actor, move, kept_error(job, move))
        self._groups.setdefault(group, []).append(job.id)
        if stage is not None:
            _shift(self._totals, job.queue, old_stage, stage, 1)
            if job.key is not None:
                self._keys.add(job.key)
                if move.event is Event.RESET:
                    self._reset_keys.add(job.key)
            if job.dedupe is not None and move.state is State.PENDING:
                self._pending_dedupes[job.dedupe] = job.id
        if move.event is Event.CANCEL_REQUESTED or stage in (READY, SCHEDULED):
            self._tx.ring_others = True
        return change if move is change.move else Change(job, move)

    def _target(self, job: Job, move: Move) -> tuple[int | None, int | None]:
        """The stage a move leads to, None to stay, and a new due time, None to keep the old."""
        if move.stays:
            return None, None
        if move.state is not State.PENDING:
            return rows.STAGE_OF[move.state], None
        run_at = self._now + span_to_micros(move.delay)
        if job.key is not None:
            return BLOCKED, run_at
        return READY if run_at <= self._now else SCHEDULED, run_at

    def _write_group(self, version: int, group: tuple[Any, ...], job_ids: list[JobId]) -> None:
        stage, run_at, actor, move, error = group
        ids = encoded(job_ids)
        self._tx.execute(
            _SQL["log_moved"],
            (version, ids, self._now, move.event, move.state, actor, move.reason, move.error),
        )
        if stage is None:
            self._tx.execute(_SQL["note"], (version, ids, move.cancel_requested))
        else:
            finished_at = self._now if move.state.final else None
            self._tx.execute(
                _SQL["move"],
                (version, ids, stage, move.attempt, run_at, finished_at, error, move.result),
            )
        self._versions.update(zip(job_ids, range(version, version + len(job_ids)), strict=True))

    def _write_keys(self) -> None:
        if self._reset_keys:
            keys = encoded(self._reset_keys)
            visible = self._tx.execute(_SQL["visible_behind"], (keys,)).fetchall()
            self._tx.execute(_SQL["block"], (encoded([row[0] for row in visible]),))
            for job_id, queue, stage in visible:
                self._restage(job_id, queue, stage, BLOCKED)
        if self._keys:
            parameters = (self._now, encoded(self._keys))
            for job_id, queue, stage in self._tx.execute(_SQL["unblock"], parameters).fetchall():
                self._restage(job_id, queue, BLOCKED, stage)

    def _restage(self, job_id: int, queue: str, before: int, after: int) -> None:
        _shift(self._totals, queue, before, after, 1)
        self._stages[job_id] = after
        self._tx.ring_others = True

    def _moved(self, change: Change | None) -> Job | None:
        if change is None:
            return None
        job_id = change.job.id
        stage = self._stages.get(job_id, self._current[job_id][1])
        return moved(
            change.job,
            change.move,
            at=self._at,
            version=LogId(self._versions[job_id]),
            waiting=STAGES[stage][1],
        )


def _jobs(execute: Callable[..., sqlite3.Cursor], ids: str) -> list[Job]:
    found = execute(_SQL["jobs"], (ids,)).fetchone()[0]
    return [rows.job(row) for row in rows.jobs.decode(found)]


def _dedupe_holder(tx: Transaction, dedupe: str, scope: Scope, but: int = 0) -> int | None:
    """Who keeps a job with this dedupe key from being pending."""
    for job_id, stage, held_scope in tx.execute(_SQL["dedupe_holders"], (dedupe,)).fetchall():
        if job_id != but and (stage < RUNNING or Scope.UNFINISHED in (scope, held_scope)):
            return int(job_id)
    return None


def _shift(totals: Totals, queue: str, before: int, after: int, n: int) -> None:
    totals[queue, before] = totals.get((queue, before), 0) - n
    totals[queue, after] = totals.get((queue, after), 0) + n


def _add_totals(tx: Transaction, totals: Totals) -> None:
    tx.executemany(_SQL["add_totals"], [(*key, n) for key, n in totals.items() if n])
    tx.written = True

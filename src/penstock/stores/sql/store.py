"""The Store protocol on a database: the verbs, as far as they do not depend on which."""

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, groupby, islice
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from penstock.core.errors import LeaseLost
from penstock.core.history import Counters, Interval
from penstock.core.job import (
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
    Queue,
    QueueSettings,
    Record,
    Retention,
    Tail,
    Tally,
    configured,
)
from penstock.core.lifecycle import FINAL, Done, State, advance, supersede
from penstock.core.limits import Held, Limit
from penstock.core.note import Line, Note, Notes, Progress
from penstock.core.schedule import Due, Firing, Schedule
from penstock.core.seal import Seal
from penstock.core.size import StoreSize
from penstock.core.tables import Statements, Tables, Within
from penstock.core.times import from_micros, span_to_micros
from penstock.core.token import Token
from penstock.core.worker import WorkerInfo
from penstock.stores.sql import attendance, history, noting, rows, schedules, seals, tables, tokens
from penstock.stores.sql.adding import Adding, Addition, Following, explain, is_new
from penstock.stores.sql.claiming import (
    Claiming,
    held_by,
    oldest_ready,
    ready_tags,
    room_is_wanted,
)
from penstock.stores.sql.moving import Moving
from penstock.stores.sql.restoring import Restoring
from penstock.stores.sql.rows import READY, RUNNING, SCHEDULED, STAGES, encoded
from penstock.stores.sql.transaction import Freed, Reading, Totals, Transaction, shift
from penstock.stores.sql.writer import Verb

A = TypeVar("A")
C = TypeVar("C")
T = TypeVar("T")
Pick = tuple[int, int, int]
"""How a ready job ranks: less is first. The last part is its id."""

# Jobs that fall due at once are let in by portions, so that no claim waits for a million.
_PROMOTED_AT_ONCE = 1_000


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
            return await self._write(self._add_explained, (jobs, actor, reason))
        if connection is None:
            return await self._write(self._add, (jobs, actor, tail))
        return await self._add_within(connection, (jobs, actor, tail))

    async def claim(self, wanted: Claim) -> list[Job]:
        """See `Store.claim`."""
        return await self._write(self._claim, wanted)

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """See `Store.renew`."""
        return await self._write(self._renew, leases)

    async def transition(self, changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        """See `Store.transition`."""
        return await self._write(self._transition, (changes, actor))

    @abstractmethod
    async def finish(self, job: Job, outcome: Done, *, actor: str, connection: Any) -> Job:
        """See `Store.finish`."""

    @abstractmethod
    async def supersede(self, job_id: JobId, by: JobId, *, actor: str, connection: Any) -> bool:
        """See `Store.supersede`."""

    async def transact(self, work: Callable[[Within], T]) -> T:
        """See `Store.transact`."""
        answer: T = await self._write(self._transact, work)
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
        return await self._write(self._watch, ids)

    async def configure(self, settings: QueueSettings) -> Queue:
        """See `Store.configure`."""
        return await self._write(self._configure, settings)

    async def delete(self, jobs: Sequence[Job]) -> list[JobId]:
        """See `Store.delete`."""
        return await self._write(self._delete, jobs)

    async def restore(
        self,
        records: Sequence[Record],
        *,
        origin: Origin,
        actor: str,
        notes: Mapping[JobId, Notes] | None = None,
    ) -> list[Job | None]:
        """See `Store.restore`."""
        return await self._write(self._restore, (records, origin, actor, notes or {}))

    async def seal(self, seal: Seal | None, *, was: Seal | None) -> bool:
        """See `Store.seal`."""
        return await self._write(seals.put, (seal, was))

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        """See `Store.note`."""
        return await self._write(self._noting.write, notes)

    async def limit(self, limit: Limit) -> None:
        """See `Store.limit`."""
        await self._write(self._limit, limit)

    async def prune(self, retention: Retention, limit: int, *, whole_days: bool = False) -> int:  # noqa: ARG002 - it keeps no days
        """See `Store.prune`."""
        return await self._write(self._prune, (retention, limit))

    async def digest(self, limit: int) -> int:
        """See `Store.digest`."""
        counted = await self._read(lambda reading: history.digest(reading, limit))
        if counted.end == counted.start and counted.forget_before is None:
            return 0
        return await self._write(history.write, counted)

    # Reading

    async def expired(self, limit: int) -> list[Job]:
        """See `Store.expired`."""

        def read(reading: Reading) -> list[Job]:
            found = reading.execute("expired", (reading.now(), limit)).fetchone()[0]
            return reading.jobs(rows.ids.decode(found))

        return await self._read(read)

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
        found = await self._read(lambda reading: reading.search("tally", query).fetchall())
        tally: Counter[State] = Counter()
        for stage, n in found:
            tally[STAGES[stage][0]] += n
        return dict(tally)

    async def count(self) -> Counts:
        """See `Store.count`."""
        found = await self._read(lambda reading: reading.execute("totals").fetchall())
        return {(queue, *STAGES[stage]): n for queue, stage, n in found}

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

    async def oldest_ready(self) -> dict[str, datetime]:
        """See `Store.oldest_ready`."""

        def read(reading: Reading, _now: int) -> dict[str, int]:
            with reading.moment():
                return oldest_ready(reading.execute)

        found = await self._read_let_in(read)
        return {queue: from_micros(at) for queue, at in found.items()}

    async def backlog(
        self, queue: str | None = None, until: JobId | None = None
    ) -> tuple[int, JobId]:
        """See `Store.backlog`."""

        def read(reading: Reading) -> tuple[int, JobId]:
            newest = reading.execute("last_ids").fetchone()[0] if until is None else until
            n, last = reading.execute("backlog", (queue, newest)).fetchone()
            return n, newest if last is None else last

        return await self._read(read)

    async def queues(self) -> list[Queue]:
        """See `Store.queues`."""

        def read(reading: Reading) -> list[Queue]:
            now = reading.now()
            return [rows.queue(row, now) for row in reading.execute("queues").fetchall()]

        return await self._read(read)

    async def limits(self) -> list[Limit]:
        """See `Store.limits`."""
        found = await self._read(lambda reading: reading.execute("limits").fetchall())
        return [Limit(kind=kind, name=name, concurrency=n) for kind, name, n in found]

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

        def read(reading: Reading) -> list[Record]:
            with reading.moment():
                found = reading.jobs(ids)
                entries = reading.execute("histories", (encoded(ids),)).fetchall()
                waiting = reading.execute("open_edges", (encoded(ids),)).fetchall()
            logs: dict[int, list[LogEntry]] = {job.id: [] for job in found}
            for entry in map(rows.log_entry, entries):
                logs[entry.job_id].append(entry)
            edges: dict[int, list[Edge]] = {}
            for edge in map(rows.edge, waiting):
                edges.setdefault(edge.job_id, []).append(edge)
            return [
                Record(job=job, log=tuple(logs[job.id]), edges=tuple(edges.get(job.id, ())))
                for job in found
            ]

        return await self._read(read)

    async def origin(self) -> Origin:
        """See `Store.origin`."""

        def read(reading: Reading) -> Origin:
            (source,) = reading.execute("source").fetchone()
            last_job, last_log = reading.execute("last_ids").fetchone()
            return Origin(source=source, last_job=last_job, last_log=last_log)

        return await self._read(read)

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
        self, since: datetime, until: datetime | None, queue: str | None, step: timedelta
    ) -> list[Interval]:
        """See `Store.history`."""
        return await self._read(lambda reading: history.find(reading, since, until, queue, step))

    async def counters(self) -> list[Counters]:
        """See `Store.counters`."""
        return await self._read(history.counters)

    async def schedules(self, names: Collection[str] | None = None) -> list[Schedule]:
        """See `Store.schedules`."""
        return await self._read(lambda reading: schedules.find(reading, names))

    async def put_schedule(self, schedule: Schedule) -> Schedule | None:
        """See `Store.put_schedule`."""
        return await self._write(self._put_schedules, schedule)

    async def drop_schedule(self, name: str) -> bool:
        """See `Store.drop_schedule`."""
        return await self._write(self._drop_schedules, name)

    async def due(self, tasks: Collection[str], declared: Collection[str], limit: int) -> Due:
        """See `Store.due`."""
        known = tasks, declared
        return await self._read(lambda reading: schedules.due(reading, known, limit))

    async def fire(self, firing: Firing, *, actor: str) -> list[Job] | None:
        """See `Store.fire`."""
        return await self._write(self._fire, (firing, actor))

    async def tokens(self) -> list[Token]:
        """See `Store.tokens`."""
        return await self._read(tokens.find)

    async def add_token(self, token: Token) -> bool:
        """See `Store.add_token`."""
        return await self._write(self._add_tokens, token)

    async def drop_token(self, name: str) -> bool:
        """See `Store.drop_token`."""
        return await self._write(self._drop_tokens, name)

    async def greet(self, workers: Sequence[WorkerInfo]) -> list[str]:
        """See `Store.greet`."""
        return await self._write(self._greet, workers)

    async def drain(self, name: str) -> bool:
        """See `Store.drain`."""
        return await self._write(self._drain, name)

    async def dismiss(self, names: Sequence[str]) -> None:
        """See `Store.dismiss`."""
        await self._write(self._dismiss, names)

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
            await self._write(self._let_in, now)
        return found

    def _is_wanted(self, reading: Reading, freed: Collection[Freed]) -> bool:
        """Whether a ready job still waits for what was freed, and others should look for it."""
        return bool(freed) and room_is_wanted(reading.execute, freed, reading.now())

    # Adding

    def _add(self, tx: Transaction, calls: Sequence[Addition]) -> list[list[Job] | Exception]:
        seals.check_open(tx)
        now = tx.now()
        adding = Adding(tx, now, sum([len(jobs) for jobs, _, _ in calls]))
        adding.look_up_keys(job.key for jobs, _, _ in calls for job in jobs if job.key is not None)
        following: Following | None = None
        answers: list[list[Job] | Exception] = []
        for new, actor, tail in calls:
            if tail is None:
                answers.append(adding.call(new, actor))
            else:
                following = following or Following(tx, now, adding)
                answers.append(following.add(new, actor, tail))
        adding.write()
        if adding.abandoned or following is not None:
            return (following or Following(tx, now, adding)).write(calls, answers)
        return answers

    def _add_explained(
        self, tx: Transaction, calls: Sequence[tuple[Sequence[NewJob], str, str]]
    ) -> list[list[Job] | Exception]:
        answers = self._add(tx, [(jobs, actor, None) for jobs, actor, _ in calls])
        for (_, _, reason), answer in zip(calls, answers, strict=True):
            if not isinstance(answer, Exception):
                explain(tx, {job.version: reason for job in answer if is_new(job)})
        return answers

    # Claiming

    def _claim(self, tx: Transaction, calls: Sequence[Claim]) -> list[list[Job]]:
        seals.check_open(tx)
        now = tx.now()
        more = self._promote(tx, now)
        answers = [self._claim_one(tx, wanted, now) for wanted in calls]
        while more and not all(answers):
            more = self._promote(tx, now)
            answers = [
                answer or self._claim_one(tx, wanted, now)
                for wanted, answer in zip(calls, answers, strict=True)
            ]
        return answers

    def _promote(self, tx: Transaction, now: int) -> bool:
        """Make jobs ready that have fallen due; whether there may be more."""
        if not tx.execute("any_due", (now,)).fetchone():
            return False
        totals: Totals = {}
        due = tx.execute("promote_due", (now, _PROMOTED_AT_ONCE)).fetchall()
        for (queue,), n in Counter(due).items():
            shift(totals, queue, SCHEDULED, READY, n)
        tx.add_totals(totals)
        return len(due) == _PROMOTED_AT_ONCE

    def _let_in(self, tx: Transaction, calls: Sequence[int]) -> list[bool]:
        return [self._promote(tx, max(calls))] * len(calls)

    def _claim_one(self, tx: Transaction, wanted: Claim, now: int) -> list[Job]:
        found = dict(tx.execute("queues_with_ready", (now,)).fetchall())
        queues = set(filter(wanted.wants, found))
        if any(map(found.__getitem__, queues)):
            ids = Claiming(tx, wanted, now).choose(queues)
        else:
            ids = self._next(tx, wanted, queues)
        return self._start(tx, wanted, ids, now) if ids else []

    def _next(self, tx: Transaction, wanted: Claim, queues: Collection[str]) -> list[int]:
        sources = [(queue, tag) for queue in queues for tag in wanted.tags or (None,)]
        portion = -(-wanted.limit // max(1, len(sources)))
        ranked = [_ready(tx, queue, tag, portion) for queue, tag in sources]
        if len(ranked) == 1:
            picks = islice(ranked[0], wanted.limit)
        else:
            # A job that fits several tags comes up once for each, one after the other.
            picks = islice((pick for pick, _ in groupby(heapq.merge(*ranked))), wanted.limit)
        return [pick[-1] for pick in picks]

    def _start(self, tx: Transaction, wanted: Claim, ids: Sequence[int], now: int) -> list[Job]:
        chosen = encoded(ids)
        _, tokens = tx.reserve(0, len(ids))
        parameters = (tx.numbers(tokens), now, wanted.worker, chosen)
        tx.execute("log_claimed", parameters)
        tx.execute("start", parameters)
        jobs = tx.jobs(ids)
        totals: Totals = {}
        for queue, n in Counter([job.queue for job in jobs]).items():
            shift(totals, queue, READY, RUNNING, n)
        tx.add_totals(totals)
        return jobs

    def _renew(self, tx: Transaction, calls: Sequence[Sequence[Lease]]) -> list[list[Job]]:
        leases = encoded([msgspec.structs.astuple(lease) for call in calls for lease in call])
        renewed = [row[0] for row in tx.execute("renew", (tx.now(), leases)).fetchall()]
        tx.written = tx.written or bool(renewed)
        held = {job.lease: job for job in tx.jobs(renewed)}
        return [[held[lease] for lease in call if lease in held] for call in calls]

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

    def _finish_within(self, tx: Transaction, job: Job, outcome: Done, actor: str) -> Job:
        """End a run in a transaction of which this is a part."""
        found = tx.jobs([job.id])
        if not found or found[0].state is not State.RUNNING or found[0].lease != job.lease:
            raise LeaseLost(job.id, job.token)
        change = Change(found[0], advance(found[0], outcome))
        (done,) = answered(self._transition(tx, [([change], actor)]))
        return cast("Job", done)  # nobody else writes meanwhile

    def _supersede_within(self, tx: Transaction, job_id: JobId, by: JobId, actor: str) -> bool:
        """Let a job take another's place, in a transaction of which this is a part."""
        found = tx.jobs([job_id])
        if not found or found[0].state is not State.PENDING:
            return False
        change = Change(found[0], supersede(found[0], by))
        (moved,) = answered(self._transition(tx, [([change], actor)]))
        return moved is not None

    def _transact(self, tx: Transaction, calls: Sequence[tables.Work]) -> list[Any]:
        seals.check_open(tx)
        return tables.run(tx, calls)

    def _watch(self, tx: Transaction, calls: Sequence[Sequence[JobId]]) -> list[list[Job]]:
        wanted = [job_id for ids in calls for job_id in ids]
        tx.execute("await", (encoded(wanted),))
        tx.written = True
        return [tx.jobs(ids) for ids in calls]

    # Queues and retention

    def _configure(self, tx: Transaction, calls: Sequence[QueueSettings]) -> list[Queue]:
        seals.check_lasting(tx)
        return [self._configure_one(tx, settings) for settings in calls]

    def _configure_one(self, tx: Transaction, settings: QueueSettings) -> Queue:
        row = tx.execute("queue", (settings.name,)).fetchone()
        queue = Queue(name=settings.name) if row is None else rows.queue(row, tx.now())
        queue = configured(queue, settings)
        tx.execute("configure", rows.queue_columns(queue))
        tx.written = tx.ring = tx.ring_others = True
        return queue

    def _delete(self, tx: Transaction, calls: Sequence[Sequence[Job]]) -> list[list[JobId]]:
        return [self._delete_one(tx, jobs) for jobs in calls]

    def _delete_one(self, tx: Transaction, jobs: Sequence[Job]) -> list[JobId]:
        wanted = encoded([(job.id, job.version) for job in jobs])
        found = tx.execute("deletable", (wanted,)).fetchone()[0]
        self._remove(tx, found)
        return [JobId(job_id) for job_id in rows.ids.decode(found)]

    def _restore(
        self,
        tx: Transaction,
        calls: Sequence[tuple[Sequence[Record], Origin, str, Mapping[JobId, Notes]]],
    ) -> list[list[Job | None]]:
        seals.check_lasting(tx)
        now = tx.now()
        return [
            Restoring(tx, now, origin, actor, notes).call(records)
            for records, origin, actor, notes in calls
        ]

    def _limit(self, tx: Transaction, calls: Sequence[Limit]) -> list[None]:
        if any(limit.concurrency is not None for limit in calls):
            seals.check_lasting(tx)
        for limit in calls:
            if limit.concurrency is None:
                tx.execute("remove_limit", (limit.kind, limit.name))
            else:
                tx.execute("set_limit", (limit.kind, limit.name, limit.concurrency))
        tx.written = tx.ring = tx.ring_others = True
        return [None] * len(calls)

    def _prune(self, tx: Transaction, calls: Sequence[tuple[Retention, int]]) -> list[int]:
        return [self._prune_one(tx, retention, limit) for retention, limit in calls]

    def _prune_one(self, tx: Transaction, retention: Retention, limit: int) -> int:
        now, removed = tx.now(), 0
        for state in FINAL:
            before = now - span_to_micros(retention.keeps(state))
            parameters = (rows.STAGE_OF[state], before, limit - removed)
            found = tx.execute("prunable", parameters).fetchone()[0]
            removed += self._remove(tx, found)
        return removed

    def _remove(self, tx: Transaction, found: str) -> int:
        """Remove finished jobs, by a JSON list of ids, with all that belongs to them."""
        if found == "[]":
            return 0
        tx.keep_numbers()
        tx.execute("prune_log", (found,))
        tx.execute("prune_edges", (found,))
        tx.execute("prune_payloads", (found,))
        gone = tx.execute("prune_jobs", (found,)).fetchall()
        tx.add_totals({key: -n for key, n in Counter(gone).items()})
        return len(gone)

    # Schedules

    def _put_schedules(
        self, tx: Transaction, calls: Sequence[Schedule]
    ) -> list[Schedule | Exception | None]:
        seals.check_lasting(tx)
        return [schedules.put(tx, schedule) for schedule in calls]

    def _drop_schedules(self, tx: Transaction, calls: Sequence[str]) -> list[bool]:
        return [schedules.drop(tx, name) for name in calls]

    def _fire(
        self, tx: Transaction, calls: Sequence[tuple[Firing, str]]
    ) -> list[list[Job] | Exception | None]:
        seals.check_open(tx)
        return schedules.fire(tx, calls, tx.now())

    # Access tokens

    def _add_tokens(self, tx: Transaction, calls: Sequence[Token]) -> list[bool]:
        seals.check_lasting(tx)
        return [tokens.add(tx, token) for token in calls]

    def _drop_tokens(self, tx: Transaction, calls: Sequence[str]) -> list[bool]:
        return [tokens.drop(tx, name) for name in calls]

    # Workers

    def _greet(self, tx: Transaction, calls: Sequence[Sequence[WorkerInfo]]) -> list[list[str]]:
        return [attendance.greet(tx, workers, tx.now()) for workers in calls]

    def _drain(self, tx: Transaction, calls: Sequence[str]) -> list[bool]:
        return [attendance.drain(tx, name) for name in calls]

    def _dismiss(self, tx: Transaction, calls: Sequence[Sequence[str]]) -> list[None]:
        for names in calls:
            attendance.dismiss(tx, names)
        return [None] * len(calls)


def answered(answers: Sequence[A | Exception]) -> A:
    """The answer to the only call of a verb."""
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ready(tx: Transaction, queue: str, tag: str | None, portion: int) -> Iterator[Pick]:
    """The ready jobs of a queue, in their order, read by portions as they are wanted."""
    name, source = ("pick", (queue,)) if tag is None else ("pick_tagged", (queue, tag))
    for offset in count(0, portion):
        found = rows.picks.decode(tx.execute(name, (*source, portion, offset)).fetchone()[0])
        yield from found
        if len(found) < portion:
            return

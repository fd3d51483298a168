"""Takes over jobs of other stores, in one transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from penstock.core.job import (
    Change,
    Job,
    JobId,
    LogEntry,
    LogId,
    OnFailure,
    Origin,
    Record,
    asked,
)
from penstock.core.lifecycle import Event, State, abandon, frees
from penstock.core.note import Notes
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.stores.sql import names, noting, rows, seals
from penstock.stores.sql.adding import add_tags
from penstock.stores.sql.moving import Moving
from penstock.stores.sql.rows import BLOCKED, READY, SCHEDULED, STAGES, encoded
from penstock.stores.sql.transaction import Totals, Transaction, shift

Restoration = tuple[Sequence[Record], Origin, str, Mapping[JobId, Notes]]
"""One call of `restore`: the records, where they come from, the actor, and notes by ids there."""


def restore(tx: Transaction, calls: Sequence[Restoration]) -> list[list[Job | None]]:
    """See `Store.restore`."""
    seals.check_lasting(tx)
    now = tx.now()
    return [
        Restoring(tx, now, origin, actor, notes).call(records)
        for records, origin, actor, notes in calls
    ]


class Restoring:
    """Records of one caller on their way into the file."""

    def __init__(
        self,
        tx: Transaction,
        now: int,
        origin: Origin,
        actor: str,
        notes: Mapping[JobId, Notes],
    ) -> None:
        self._tx = tx
        self._now = now
        self._origin = origin
        self._actor = actor
        self._notes = notes
        self._last_job, last_log = tx.stop_numbering()
        self._last_log = max(last_log, origin.last_log)
        self._places: dict[int, JobId] = {}
        self._totals: Totals = {}
        self._names = names.Names(tx)
        self._keys: set[str] = set()
        self._edges: list[tuple[int, int, OnFailure, bool]] = []
        self._lost: dict[int, tuple[int, State]] = {}
        # Jobs of this call by their original ids, and who waits for one that comes later in it.
        self._coming: dict[int, State] = {}
        self._early: list[tuple[JobId, int, OnFailure]] = []

    def call(self, records: Sequence[Record]) -> list[Job | None]:
        """Write those that are not here yet."""
        originals = {record.job.id for record in records}
        originals |= {record.job.parent for record in records if record.job.parent is not None}
        originals |= {edge.needed for record in records for edge in record.edges}
        self._places = dict(
            self._tx.execute("taken_over", (self._origin.source, encoded(originals))).fetchall()
        )
        queues = {record.job.queue for record in records}
        self._names.look_up(queues)
        if refused := self._names.add(queues):
            raise refused
        self._coming = {record.job.id: record.job.state for record in records}
        answers = [self._take(record) for record in records]
        self._link()
        self._show_heads()
        floors = (max(self._last_job, self._origin.last_job), self._last_log)
        self._tx.number_on(*floors)
        self._tx.add_totals(self._totals)
        names.remove_unused(self._tx, queues)  # of jobs that were not taken
        self._tx.ring = self._tx.ring_others = True
        if self._lost:
            self._abandon()
        found = {job.id: job for job in self._tx.jobs([job for job in answers if job is not None])}
        return [None if answer is None else found[answer] for answer in answers]

    def _take(self, record: Record) -> JobId | None:
        job = record.job
        if job.id in self._places or self._is_held(job):
            return None
        self._last_job = max(self._last_job + 1, job.id)
        place = JobId(self._last_job)
        log = self._renumbered(record, place)
        tokens = {old.id: new.id for old, new in zip(record.log, log, strict=False)}
        parent = None if job.parent is None else self._places.get(job.parent)
        moved = replace(
            job, id=place, version=log[-1].id, token=tokens.get(LogId(job.token), 0), parent=parent
        )
        needs = self._needs(record, place) if record.edges else 0
        stage = self._stage(job, needs)
        merged = self._names.is_merged(job.queue, job.tenant)
        options = rows.options(asked(moved), stage, to_micros(moved.run_at), needs, merged=merged)
        self._tx.restore_job(_row(moved, stage, options), job.payload)
        add_tags(self._tx, [place], options)
        self._tx.restore_log(_log_rows(log), job.queue)
        if job.id in self._notes:
            noting.restore(self._tx, place, self._notes[job.id])
        self._tx.execute("take_over", (self._origin.source, job.id, place))
        self._places[job.id] = place
        self._totals[job.queue, stage] = self._totals.get((job.queue, stage), 0) + 1
        return place

    def _is_held(self, job: Job) -> bool:
        if job.state is not State.PENDING or job.dedupe is None:
            return False
        return self._tx.dedupe_holder(job.dedupe, job.scope) is not None

    def _renumbered(self, record: Record, place: JobId) -> list[LogEntry]:
        """Its log as it will be here, with one entry more. A token is the id of its claim."""
        numbers = {
            entry.id: LogId(self._last_log + n) for n, entry in enumerate(record.log, start=1)
        }
        self._last_log += len(record.log) + 1
        taken_over = LogEntry(
            id=LogId(self._last_log),
            job_id=place,
            at=from_micros(self._now),
            event=Event.RESTORED,
            state=record.job.state,
            actor=self._actor,
            reason=f"job {record.job.id} of store {self._origin.source}",
        )
        moved = [
            replace(
                entry,
                id=numbers[entry.id],
                job_id=place,
                token=None if entry.token is None else numbers.get(LogId(entry.token)),
            )
            for entry in record.log
        ]
        return [*moved, taken_over]

    def _needs(self, record: Record, place: JobId) -> int:
        """How many jobs this one waits for here, of those that came along."""
        early = [
            (place, edge.needed, edge.on_failure)
            for edge in record.edges
            if not edge.resolved and edge.needed in self._coming.keys() - self._places.keys()
        ]
        self._early += early
        needed = {
            self._places[edge.needed]: edge.on_failure
            for edge in record.edges
            if edge.needed in self._places and not edge.resolved
        }
        found = self._tx.execute("stages", (encoded(list(needed)),)).fetchall()
        states = {one: STAGES[stage][0] for one, stage in found}
        for one, state in states.items():
            self._wait(place, one, state, needed[one])
        return sum(not state.final for state in states.values()) + len(early)

    def _wait(self, place: JobId, needed: JobId, state: State, rule: OnFailure) -> None:
        self._edges.append((needed, place, rule, state.final))
        if state.final and not frees(state, run_anyway=rule is OnFailure.RUN):
            self._lost[place] = (needed, state)

    def _link(self) -> None:
        for place, original, rule in self._early:
            if original in self._places:  # else it was not taken
                state = self._coming[original]
                self._wait(place, self._places[original], state, rule)
        self._write_edges()
        if self._early:
            ids = encoded({place for place, _, _ in self._early})
            self._tx.execute("recount_needs", (ids,))
            for _, queue, stage in self._tx.execute("free", (self._now, ids)).fetchall():
                shift(self._totals, queue, BLOCKED, stage)

    def _write_edges(self) -> None:
        if self._edges:
            self._tx.execute("add_edges", (encoded(self._edges),))
            needed = {needed for needed, _, _, resolved in self._edges if not resolved}
            self._tx.execute("await", (encoded(needed),))

    def _abandon(self) -> None:
        """Those that wait for a job which did not succeed here meanwhile."""
        moving = Moving(self._tx, self._now)
        jobs = [job for job in self._tx.jobs(list(self._lost)) if job.state is State.PENDING]
        moving.look_up([job.id for job in jobs])
        moving.write(
            [
                moving.call([Change(job, abandon(job, *self._lost[job.id]))], self._actor)
                for job in jobs
            ]
        )

    def _stage(self, job: Job, needs: int) -> int:
        if job.state is not State.PENDING:
            return rows.STAGE_OF[job.state]
        if job.key is not None:
            self._keys.add(job.key)
            return BLOCKED
        if needs:
            return BLOCKED
        return READY if to_micros(job.run_at) <= self._now else SCHEDULED

    def _show_heads(self) -> None:
        if self._keys:
            parameters = (self._now, encoded(self._keys))
            for _, queue, stage in self._tx.execute("unblock", parameters).fetchall():
                shift(self._totals, queue, BLOCKED, stage)


def _row(job: Job, stage: int, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters of the query `restore_job`."""
    _, run_at, queue, task, priority, lease_time, *rare = options
    return (
        job.id, stage, job.version, job.attempt, job.token, run_at, _micros(job.started_at),
        _micros(job.finished_at), job.worker, queue, task, priority, to_micros(job.enqueued_at),
        lease_time, *rare, job.error, job.result_json,
    )  # fmt: skip


def _log_rows(log: Sequence[LogEntry]) -> list[tuple[Any, ...]]:
    """The parameters of the query `restore_log`, each entry chained to the one before.

    The last one happens here; those before it were taken over.
    """
    previous: list[LogId | None] = [None, *(entry.id for entry in log)]
    return [
        (
            entry.id, entry.job_id, before, to_micros(entry.at), entry.event, entry.state,
            entry.actor, entry.token,
            None if entry.duration is None else span_to_micros(entry.duration),
            entry.reason, entry.error, entry.detail, None if entry is log[-1] else True,
        )
        for before, entry in zip(previous, log, strict=False)
    ]  # fmt: skip


def _micros(instant: datetime | None) -> int | None:
    return None if instant is None else to_micros(instant)

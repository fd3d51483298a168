"""Moves the jobs of one transaction: checks each against the file, then writes them all at once."""

from collections.abc import Sequence
from typing import Any

from penstock.core.errors import TransitionRefused
from penstock.core.job import Change, Job, JobId, LogId, kept_error, moved
from penstock.core.lifecycle import Event, Move, State, give_way
from penstock.core.times import from_micros, span_to_micros
from penstock.stores.sqlite import rows
from penstock.stores.sqlite.rows import BLOCKED, READY, SCHEDULED, STAGES, encoded
from penstock.stores.sqlite.transaction import SQL, Totals, Transaction, shift


class Moving:
    """Moves that are to be written, as far as their jobs are still what the callers believe."""

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
        self._touched: dict[int, State] = {}
        self._put_back: dict[str, int] = {}
        self._versions: dict[int, int] = {}
        self._stages: dict[int, int] = {}

    def look_up(self, job_ids: Sequence[JobId]) -> None:
        """The versions and stages that these jobs have now."""
        found = self._tx.execute(SQL["versions"], (encoded(job_ids),)).fetchone()[0]
        for job_id, (version, stage, expires_at) in zip(
            job_ids, rows.versions.decode(found), strict=True
        ):
            if version is not None and stage is not None:
                self._current[job_id] = (version, stage)
            if expires_at is not None and expires_at > self._now:
                self._alive.add(job_id)

    def call(self, changes: Sequence[Change], actor: str) -> list[Change | None] | Exception:
        """Take the moves of one caller whose jobs are what the caller believes; in order."""
        before = self._touched.copy(), self._put_back.copy()
        try:
            moves = [self._checked(change) for change in changes]
        except TransitionRefused as error:
            self._touched, self._put_back = before
            return error
        return [
            None if move is None else self._take(change, move, actor)
            for change, move in zip(changes, moves, strict=True)
        ]

    def write(
        self, answers: Sequence[list[Change | None] | Exception]
    ) -> list[list[Job | None] | Exception]:
        """Write every move that was taken, and what it means for the jobs of the same key."""
        if self._groups:
            version = self._tx.execute(SQL["last_ids"]).fetchone()[1] + 1
            for group, job_ids in self._groups.items():
                self._write_group(version, group, job_ids)
                version += len(job_ids)
            self._write_keys()
            self._tx.add_totals(self._totals)
            self._tx.ring = True
        return [
            answer if isinstance(answer, Exception) else [self._moved(change) for change in answer]
            for answer in answers
        ]

    def _checked(self, change: Change) -> Move | None:
        job, move = change.job, change.move
        version, _ = self._current.get(job.id, (None, None))
        if version != job.version or job.id in self._touched:
            return None
        if move.event is Event.EXPIRED and job.id in self._alive:
            return None
        if job.dedupe is not None and move.state is State.PENDING and not move.stays:
            rival = self._rival(job, job.dedupe)
            if rival is not None:
                move = give_way(job, move, rival)
            else:
                self._put_back[job.dedupe] = job.id
        self._touched[job.id] = move.state
        return move

    def _rival(self, job: Job, dedupe: str) -> int | None:
        """Who holds the dedupe key, after the moves that were taken before."""
        if dedupe in self._put_back:
            return self._put_back[dedupe]
        over = {job.id, *(touched for touched, state in self._touched.items() if state.final)}
        return self._tx.dedupe_holder(dedupe, job.scope, but=over)

    def _take(self, change: Change, move: Move, actor: str) -> Change:
        job = change.job
        old_stage = self._current[job.id][1]
        stage, run_at = self._target(job, move)
        group = (stage, run_at, actor, move, kept_error(job, move))
        self._groups.setdefault(group, []).append(job.id)
        if stage is not None:
            self._stages[job.id] = stage
            shift(self._totals, job.queue, old_stage, stage)
            if job.key is not None:
                self._keys.add(job.key)
                if move.event is Event.RESET:
                    self._reset_keys.add(job.key)
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
            SQL["log_moved"],
            (version, ids, self._now, move.event, move.state, actor, move.reason, move.error),
        )
        if stage is None:
            self._tx.execute(SQL["note"], (version, ids, move.cancel_requested))
        else:
            finished_at = self._now if move.state.final else None
            self._tx.execute(
                SQL["move"],
                (version, ids, stage, move.attempt, run_at, finished_at, error, move.result),
            )
        self._versions.update(zip(job_ids, range(version, version + len(job_ids)), strict=True))

    def _write_keys(self) -> None:
        if self._reset_keys:
            keys = encoded(self._reset_keys)
            visible = self._tx.execute(SQL["visible_behind"], (keys,)).fetchall()
            self._tx.execute(SQL["block"], (encoded([row[0] for row in visible]),))
            for job_id, queue, stage in visible:
                self._restage(job_id, queue, stage, BLOCKED)
        if self._keys:
            parameters = (self._now, encoded(self._keys))
            for job_id, queue, stage in self._tx.execute(SQL["unblock"], parameters).fetchall():
                self._restage(job_id, queue, BLOCKED, stage)

    def _restage(self, job_id: int, queue: str, before: int, after: int) -> None:
        shift(self._totals, queue, before, after, 1)
        self._stages[job_id] = after
        self._tx.ring_others = True

    def _moved(self, change: Change | None) -> Job | None:
        if change is None:
            return None
        job_id = change.job.id
        stage = self._stages[job_id] if job_id in self._stages else self._current[job_id][1]
        return moved(
            change.job,
            change.move,
            at=self._at,
            version=LogId(self._versions[job_id]),
            waiting=STAGES[stage][1],
        )

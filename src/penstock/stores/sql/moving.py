"""Moves the jobs of one transaction: checks each against the file, then writes them all at once."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import TransitionRefused
from penstock.core.job import Change, Job, JobId, OnFailure, kept_error, moved_fields
from penstock.core.lifecycle import Event, Move, State, abandon, frees, give_way, undetailed
from penstock.core.times import from_micros, span_to_micros
from penstock.stores.sql import edges, noting, rows
from penstock.stores.sql.rows import BLOCKED, READY, RUNNING, SCHEDULED, STAGES, encoded
from penstock.stores.sql.transaction import Current, Totals, Transaction, shift


class _Group:
    """Moves that differ only in their jobs and details; they are written together."""

    __slots__ = ("actor", "details", "error", "fields", "jobs", "move", "run_at", "stage")

    def __init__(
        self, move: Move, error: str | None, actor: str, stage: int | None, run_at: int | None
    ) -> None:
        self.move = move
        self.error = error
        self.actor = actor
        self.stage = stage
        self.run_at = run_at
        self.jobs: list[Job] = []
        # One for each job, or none at all.
        self.details: list[str] = []
        self.fields: dict[str, Any] = {}


Taken = tuple[Job, _Group]


class Moving:
    """Moves that are to be written, as far as their jobs are still what the callers believe."""

    def __init__(self, tx: Transaction, now: int) -> None:
        self._tx = tx
        self._now = now
        self._at = from_micros(now)
        self._current: dict[int, Current] = {}
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._last: _Group | None = None
        self._totals: Totals = {}
        self._keys: set[str] = set()
        self._reset_keys: set[str] = set()
        self._touched: dict[int, State] = {}
        self._put_back: dict[str, int] = {}
        self._versions: dict[int, int] = {}
        self._restaged: dict[int, int] = {}
        # The awaited jobs that come to an end, and those that wait for fewer others than before.
        self._ended: dict[int, tuple[State, str]] = {}
        self._needs_less: set[int] = set()
        # Awaited jobs whose place another one takes; and whether a cancelled job returns to its
        # key, which is checked against the file: neither may meet the other in a transaction.
        self._successors: dict[int, int] = {}
        self._one_returns = False
        # Those that lost what they wait for, and were moved here too: another move must follow.
        self._lost: dict[int, tuple[int, State, str]] = {}

    def look_up(self, job_ids: Sequence[JobId]) -> None:
        """What these jobs are now: versions, stages, ends of leases, what they need, awaited."""
        self._current.update(zip(job_ids, self._tx.current(job_ids), strict=True))

    def call(self, changes: Sequence[Change], actor: str) -> list[Taken | None] | Exception:
        """Take the moves of one caller whose jobs are what the caller believes; in order."""
        before = self._touched.copy(), self._put_back.copy(), self._ended.copy()
        successors = self._successors.copy()
        try:
            moves = [self._checked(change, actor) for change in changes]
        except TransitionRefused as error:
            self._touched, self._put_back, self._ended = before
            self._successors = successors
            return error
        return [
            None if move is None else self._take(change.job, move, actor)
            for change, move in zip(changes, moves, strict=True)
        ]

    def arrive(
        self,
        came: Collection[int],
        their_keys: Collection[str],
        ended: Mapping[int, tuple[State, str]],
        freed_keys: Collection[str],
    ) -> None:
        """Take along what others wrote: blocked jobs that need a look, and ends of jobs."""
        self._needs_less.update(came)
        self._reset_keys.update(their_keys)  # they may be older than the visible ones
        self._ended.update(ended)
        self._keys.update(freed_keys)

    def write(
        self, answers: Sequence[list[Taken | None] | Exception]
    ) -> list[list[Job | None] | Exception]:
        """Write every move that was taken, and what it means for the jobs of the same key."""
        if self._groups or self._needs_less or self._ended or self._keys:
            self._hand_over()
            self._release()
            n = sum(len(group.jobs) for group in self._groups.values())
            _, versions = self._tx.reserve(0, n)
            first = 0
            for group in self._groups.values():
                last = first + len(group.jobs)
                self._write_group(versions[first:last], group)
                first = last
            self._write_freed()
            self._write_keys()
            self._note_freed()
            self._tx.add_totals(self._totals)
            self._tx.ring = True
        if self._lost:
            after = Moving(self._tx, self._now)
            after._abandon(self._lost)
            after.write([])
        moved = [
            answer
            if isinstance(answer, Exception)
            else [None if taken is None else self._moved(*taken) for taken in answer]
            for answer in answers
        ]
        return self._as_they_are(moved) if self._needs_less else moved

    def _checked(self, change: Change, actor: str) -> Move | None:
        job, move = change.job, change.move
        version, _, expires_at, _, awaited = self._current[job.id]
        if version != job.version or job.id in self._touched:
            return None
        if move.event is Event.EXPIRED and expires_at is not None and expires_at > self._now:
            return None
        if job.dedupe is not None and move.state is State.PENDING and not move.stays:
            rival = self._rival(job, job.dedupe)
            if rival is not None:
                move = give_way(job, move, rival)
            else:
                self._put_back[job.dedupe] = job.id
        if not self._keeps_order(job, move):
            return None
        self._touched[job.id] = move.state
        if awaited and move.state.final:
            self._ended[job.id] = (move.state, actor)
            if move.successor is not None:
                self._successors[job.id] = move.successor
        return move

    def _keeps_order(self, job: Job, move: Move) -> bool:
        """Whether it is certain that no job waits for itself then; else the caller asks again."""
        if move.successor is not None:
            return not self._one_returns
        if (
            move.event is not Event.RESET
            or job.state is not State.CANCELLED
            or job.key is None
            or not self._current[job.id][3]
            or not edges.any_newer_needed(self._tx)
        ):
            return True
        if self._one_returns or self._successors:
            return False
        edges.check_order(self._tx, job)
        self._one_returns = True
        return True

    def _rival(self, job: Job, dedupe: str) -> int | None:
        """Who holds the dedupe key, after the moves that were taken before."""
        if dedupe in self._put_back:
            return self._put_back[dedupe]
        over = {job.id, *(touched for touched, state in self._touched.items() if state.final)}
        return self._tx.dedupe_holder(dedupe, job.scope, but=over)

    def _take(self, job: Job, move: Move, actor: str) -> Taken:
        detail, error, group = move.detail, kept_error(job, move), self._last
        if detail is not None:
            move = undetailed(move)
        # Comparing with the last is cheaper than looking for the group.
        if (
            group is None
            or move is not group.move
            or (detail is None) is bool(group.details)
            or error != group.error
            or actor != group.actor
            or job.key is not None
            or job.needs
        ):
            group = self._group(job, move, error, actor, detailed=detail is not None)
            self._last = group if job.key is None and not job.needs else None
        group.jobs.append(job)
        if detail is not None:
            group.details.append(detail)
        return job, group

    def _group(
        self, job: Job, move: Move, error: str | None, actor: str, *, detailed: bool
    ) -> _Group:
        stage, run_at = self._target(job, move)
        if stage is not None and job.key is not None:
            self._keys.add(job.key)
            if move.event is Event.RESET:
                self._reset_keys.add(job.key)
        if move.event is Event.CANCEL_REQUESTED or stage in (READY, SCHEDULED):
            self._tx.ring_others = True
        alike = (stage, run_at, actor, move, error, detailed)
        if alike not in self._groups:
            self._groups[alike] = _Group(move, error, actor, stage, run_at)
        return self._groups[alike]

    def _target(self, job: Job, move: Move) -> tuple[int | None, int | None]:
        """The stage a move leads to, None to stay, and a new due time, None to keep the old."""
        if move.stays:
            return None, None
        if move.state is not State.PENDING:
            return rows.STAGE_OF[move.state], None
        run_at = self._now + span_to_micros(move.delay)
        if job.key is not None or self._current[job.id][3]:
            return BLOCKED, run_at
        return READY if run_at <= self._now else SCHEDULED, run_at

    def _write_group(self, versions: Sequence[int], group: _Group) -> None:
        move = group.move
        job_ids = [job.id for job in group.jobs]
        ids, version = encoded(job_ids), self._tx.numbers(versions)
        if move.event is Event.RESET:
            noting.forget(self._tx, ids)
        name, logged = "log_moved", ids
        if group.details:
            name, logged = "log_detailed", encoded(list(zip(job_ids, group.details, strict=True)))
        entry = (self._now, move.event, move.state, group.actor, move.reason, move.error)
        self._tx.execute(name, (version, logged, *entry))
        if group.stage is None:
            waiting = None
            if move.priority is None:
                renewed_at = self._now if move.renews else None
                self._tx.execute("note", (version, ids, move.cancel_requested, renewed_at))
            else:
                self._tx.execute("reprioritise", (version, ids, move.priority))
        else:
            waiting = STAGES[group.stage][1]
            finished_at = self._now if move.state.final else None
            # A job that starts anew may have been finished.
            self._tx.execute(
                "bring_back" if move.event is Event.RESET else "move",
                (
                    version, ids, group.stage, move.attempt, group.run_at, finished_at,
                    group.error, move.result,
                ),
            )  # fmt: skip
            origins = Counter([(job.queue, self._current[job.id][1]) for job in group.jobs])
            for (queue, old_stage), n in origins.items():
                shift(self._totals, queue, old_stage, group.stage, n)
        group.fields = moved_fields(move, group.error, at=self._at, waiting=waiting)
        self._versions.update(zip(job_ids, versions, strict=True))

    def _note_freed(self) -> None:
        """Whose places other processes may wait for; those that are rung anyway need no note."""
        if self._tx.ring_others or not self._tx.execute("limited").fetchone()[0]:
            return
        for group in self._groups.values():
            if group.stage is not None:
                self._tx.freed.update(
                    (job.queue, job.task, job.throttle)
                    for job in group.jobs
                    if self._current[job.id][1] == RUNNING
                )

    def _hand_over(self) -> None:
        """Let those that wait for a job wait for the one that takes its place."""
        for ended, successor in self._successors.items():
            self._needs_less.update(edges.hand_over(self._tx, ended, successor))
            state = self._touched.get(successor)
            if state is not None and state.final:  # in this transaction, too
                self._ended.setdefault(successor, (state, self._ended[ended][1]))

    def _release(self) -> None:
        """What the ends of jobs mean for those that wait for them, and for those behind."""
        while self._ended:
            ended, self._ended = self._ended, {}
            self._tx.ring_others = True
            over = encoded(list(ended))
            waiting = self._tx.execute("waiting_for", (over,)).fetchall()
            if not waiting:
                return
            self._tx.execute("resolve", (over,))
            fewer = Counter([job_id for _, job_id, _ in waiting])
            self._tx.execute("need_less", (encoded(list(fewer.items())),))
            self._needs_less.update(fewer)
            orphans = {
                job_id: (needed, *ended[needed])
                for needed, job_id, on_failure in waiting
                if not frees(ended[needed][0], run_anyway=on_failure == OnFailure.RUN)
            }
            if orphans:
                self._abandon(orphans)

    def _abandon(self, orphans: dict[int, tuple[int, State, str]]) -> None:
        waiting = [job_id for job_id in orphans if job_id not in self._touched]
        self._lost.update(
            (job_id, why)
            for job_id, why in orphans.items()
            if self._touched.get(job_id) is State.PENDING
        )
        jobs = [job for job in self._tx.jobs(waiting) if job.state is State.PENDING]
        self.look_up([job.id for job in jobs])
        for job in jobs:
            needed, state, actor = orphans[job.id]
            self.call([Change(job, abandon(job, needed, state))], actor)

    def _write_freed(self) -> None:
        if self._needs_less:
            ids = encoded(self._needs_less)
            self._keys.update(key for (key,) in self._tx.execute("freed_keys", (ids,)))
            freed = self._tx.execute("free", (self._now, ids)).fetchall()
            for job_id, queue, stage in freed:
                self._restage(job_id, queue, BLOCKED, stage)

    def _write_keys(self) -> None:
        if self._reset_keys:
            keys = encoded(self._reset_keys)
            visible = self._tx.execute("visible_behind", (keys,)).fetchall()
            self._tx.execute("block", (encoded([row[0] for row in visible]),))
            for job_id, queue, stage in visible:
                self._restage(job_id, queue, stage, BLOCKED)
        if self._keys:
            parameters = (self._now, encoded(self._keys))
            for job_id, queue, stage in self._tx.execute("unblock", parameters).fetchall():
                self._restage(job_id, queue, BLOCKED, stage)

    def _restage(self, job_id: int, queue: str, before: int, after: int) -> None:
        shift(self._totals, queue, before, after, 1)
        self._restaged[job_id] = after
        self._tx.ring_others = True

    def _as_they_are(
        self, answers: Sequence[list[Job | None] | Exception]
    ) -> list[list[Job | None] | Exception]:
        """The answers, where a job was changed also by the end of another."""
        ids = [
            job.id
            for answer in answers
            if not isinstance(answer, Exception)
            for job in answer
            if job is not None and (self._lost or job.id in self._needs_less)
        ]
        now = {job.id: job for job in self._tx.jobs(ids)}
        return [
            answer
            if isinstance(answer, Exception)
            else [job and now.get(job.id, job) for job in answer]
            for answer in answers
        ]

    def _moved(self, job: Job, group: _Group) -> Job:
        job = replace(job, version=self._versions[job.id], **group.fields)
        if group.move.renews:
            return replace(job, expires_at=self._at + job.lease_time)
        if job.id in self._restaged:
            return replace(job, waiting=STAGES[self._restaged[job.id]][1])
        return job

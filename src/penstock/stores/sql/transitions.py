"""Transitions: the moves of one transaction, each checked against the database, written at once."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from penstock.core.dedupe import needs_key
from penstock.core.dependencies import Dependent, may_wait_for_itself, release
from penstock.core.errors import LeaseLost, TransitionRefused
from penstock.core.job import Job, JobId
from penstock.core.key_line import waiting
from penstock.core.lifecycle import (
    Done,
    Event,
    Move,
    State,
    abandon,
    advance,
    give_way,
    undetailed,
)
from penstock.core.lifecycle import supersede as supersede_by
from penstock.core.times import from_micros, span_to_micros
from penstock.core.transition import Change, error_after_move, fields_after_move, is_outdated
from penstock.stores.sql import edges, migration_lock, reports, rows
from penstock.stores.sql.database import Current, Totals, Transaction, Transition, shift
from penstock.stores.sql.dedupe import holder_of
from penstock.stores.sql.key_lines import rearrange
from penstock.stores.sql.rows import (
    READY,
    RUNNING,
    SCHEDULED,
    STAGE_OF_WAITING,
    STAGES,
    encoded,
)
from penstock.stores.sql.tables import answered

_ENDS = {Event.DONE, Event.FAILED, Event.CANCELLED}


def transition(tx: Transaction, calls: Sequence[Transition]) -> list[list[Job | None] | Exception]:
    """See `Store.transition`."""
    migration_lock.check_open(tx)
    transitions = Transitions(tx)
    transitions.look_up([change.job.id for changes, _ in calls for change in changes])
    answers = transitions.write([transitions.call(changes, actor) for changes, actor in calls])
    if tx.resumable:
        reports.drop_checkpoints(tx, answers)
    return answers


def are_plain_ends(changes: Sequence[Change]) -> bool:
    """Return whether these moves end running jobs, each once, without a key or dependencies."""
    return (
        bool(changes)
        and len({change.job.id for change in changes}) == len(changes)
        and all(map(_is_plain_end, changes))
    )


def _is_plain_end(change: Change) -> bool:
    job, move = change.job, change.move
    return (
        move.event in _ENDS
        and move.state.final
        and not move.stays
        and move.successor is None
        and job.state is State.RUNNING
        and job.key is None
        and not job.needs
    )


def finish(
    tx: Transaction, calls: Sequence[tuple[Sequence[tuple[Job, Done]], str]]
) -> list[list[Job]]:
    """See `TableStore.finish`; as a part of a transaction."""
    return [_finish_one(tx, ended, actor) for ended, actor in calls]


def _finish_one(tx: Transaction, ended: Sequence[tuple[Job, Done]], actor: str) -> list[Job]:
    tx.require_exclusive()
    found = {job.id: job for job in tx.jobs([job.id for job, _ in ended])}
    changes = []
    for job, outcome in ended:
        now = found.get(job.id)
        if now is None or now.state is not State.RUNNING or now.lease != job.lease:
            raise LeaseLost(job.id, job.token)
        changes.append(Change(now, advance(now, outcome)))
    done = answered(transition(tx, [(changes, actor)]))
    return cast("list[Job]", done)  # no other transaction changes them meanwhile


def supersede(tx: Transaction, calls: Sequence[tuple[JobId, JobId, str]]) -> list[bool]:
    """See `TableStore.supersede`; as a part of a transaction."""
    return [_supersede_one(tx, *call) for call in calls]


def _supersede_one(tx: Transaction, job_id: JobId, by: JobId, actor: str) -> bool:
    tx.require_exclusive()
    found = tx.jobs([job_id])
    if not found or found[0].state is not State.PENDING:
        return False
    change = Change(found[0], supersede_by(found[0], by))
    (moved,) = answered(transition(tx, [([change], actor)]))
    return moved is not None


class _Group:
    """Moves that differ only in their jobs and details, written together."""

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

Loss = tuple[int, State, str]
"""Why a job is abandoned: the job that it needed, how that one ended, and the actor."""


class Transitions:
    """Moves that are to be written, if their jobs still have the version they were decided on."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._at = from_micros(tx.now)
        self._current: dict[int, Current] = {}
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._last: _Group | None = None
        self._totals: Totals = {}
        # The keys whose lines have to be rearranged.
        self._keys: set[str] = set()
        self._touched: dict[int, State] = {}
        self._put_back: dict[str, int] = {}
        self._versions: dict[int, int] = {}
        self._restaged: dict[int, int] = {}
        # Awaited jobs that end, and jobs that wait for fewer others than before.
        self._ended: dict[int, tuple[State, str]] = {}
        self._needs_less: set[int] = set()
        # Awaited jobs that a successor replaces; and whether a cancelled job returns to its key,
        # which is checked against the database: a transaction does not mix the two.
        self._successors: dict[int, int] = {}
        self._one_returns = False
        # Dependents of ended jobs; and those that were moved here too: another move must follow.
        self._jobs: dict[int, Job] = {}
        self._lost: dict[int, Loss] = {}

    def look_up(self, job_ids: Sequence[JobId]) -> None:
        """Look up the current state of these jobs."""
        self._current.update(zip(job_ids, self._tx.current(job_ids), strict=True))

    def call(self, changes: Sequence[Change], actor: str) -> list[Taken | None] | Exception:
        """Accept the moves of one caller whose jobs have not changed, in order."""
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

    def add_external(
        self,
        added: Collection[int],
        ended: Mapping[int, tuple[State, str]],
        keys: Collection[str],
    ) -> None:
        """Include what other programs wrote: new blocked jobs, ends of jobs, and their keys."""
        self._needs_less.update(added)
        self._ended.update(ended)
        self._keys.update(keys)

    def write(
        self, answers: Sequence[list[Taken | None] | Exception]
    ) -> list[list[Job | None] | Exception]:
        """Write every accepted move, and what it means for dependents and jobs of the same key."""
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
            if self._keys or self._needs_less:
                self._rearrange()
            self._collect_freed()
            self._tx.add_totals(self._totals)
            self._tx.notify = True
        if self._lost:
            after = Transitions(self._tx)
            after.abandon(self._lost)
            after.write([])
        moved = [
            answer
            if isinstance(answer, Exception)
            else [None if taken is None else self._moved(*taken) for taken in answer]
            for answer in answers
        ]
        return self._reread(moved) if self._needs_less else moved

    def _checked(self, change: Change, actor: str) -> Move | None:
        job, move = change.job, change.move
        version, _, expires_at, _, awaited = self._current[job.id]
        if job.id in self._touched or is_outdated(change, version, expires_at, self._tx.now):
            return None
        if job.dedupe is not None and needs_key(job, move):
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
        """Return whether no job can end up waiting for itself; if unsure, the caller retries."""
        if move.successor is not None:
            return not self._one_returns
        needs = self._current[job.id][3]
        if (
            not needs
            or not may_wait_for_itself(replace(job, needs=needs), move)
            or not edges.any_newer_needed(self._tx)
        ):
            return True
        if self._one_returns or self._successors:
            return False
        edges.check_order(self._tx, job)
        self._one_returns = True
        return True

    def _rival(self, job: Job, dedupe: str) -> int | None:
        """Return who holds the dedupe key, after the moves accepted so far."""
        if dedupe in self._put_back:
            return self._put_back[dedupe]
        over = {job.id, *(touched for touched, state in self._touched.items() if state.final)}
        return holder_of(self._tx, dedupe, job.scope, over)

    def _take(self, job: Job, move: Move, actor: str) -> Taken:
        detail, error, group = move.detail, error_after_move(job, move), self._last
        if detail is not None:
            move = undetailed(move)
        # Comparing with the last group is cheaper than looking the group up.
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
        if move.event is Event.CANCEL_REQUESTED or stage in (READY, SCHEDULED):
            self._tx.notify_others = True
        alike = (stage, run_at, actor, move, error, detailed)
        if alike not in self._groups:
            self._groups[alike] = _Group(move, error, actor, stage, run_at)
        return self._groups[alike]

    def _target(self, job: Job, move: Move) -> tuple[int | None, int | None]:
        """Return the new stage, None to stay, and the new due time, None to keep the old."""
        if move.stays:
            return None, None
        if move.state is not State.PENDING:
            return rows.STAGE_OF[move.state], None
        run_at = self._tx.now + span_to_micros(move.delay)
        needs, behind = self._current[job.id][3], job.key is not None  # until its line is arranged
        return STAGE_OF_WAITING[waiting(run_at, self._tx.now, needs=needs, behind=behind)], run_at

    def _write_group(self, versions: Sequence[int], group: _Group) -> None:
        move = group.move
        job_ids = [job.id for job in group.jobs]
        ids, version = encoded(job_ids), self._tx.id_parameter(versions)
        if move.event is Event.RESET:
            reports.clear(self._tx, ids)
        name, logged = "log_moved", ids
        if group.details:
            name, logged = "log_detailed", encoded(list(zip(job_ids, group.details, strict=True)))
        entry = (self._tx.now, move.event, move.state, group.actor, move.reason, move.error)
        self._tx.execute(name, (version, logged, *entry))
        if group.stage is None:
            waiting = None
            if move.priority is None:
                renewed_at = self._tx.now if move.renews else None
                self._tx.execute("update_lease", (version, ids, move.cancel_requested, renewed_at))
            else:
                self._tx.execute("reprioritise", (version, ids, move.priority))
        else:
            waiting = STAGES[group.stage][1]
            finished_at = self._tx.now if move.state.final else None
            # A job that is reset may have been finished.
            self._tx.execute(
                "reset" if move.event is Event.RESET else "move",
                (
                    version, ids, group.stage, move.attempt, group.run_at, finished_at,
                    group.error, move.result,
                ),
            )  # fmt: skip
            origins = Counter([(job.queue, self._current[job.id][1]) for job in group.jobs])
            for (queue, old_stage), n in origins.items():
                shift(self._totals, queue, old_stage, group.stage, n)
        group.fields = fields_after_move(move, group.error, at=self._at, waiting=waiting)
        self._versions.update(zip(job_ids, versions, strict=True))

    def _collect_freed(self) -> None:
        """Collect jobs whose slots others may wait for, unless they are notified anyway."""
        if self._tx.notify_others or not self._tx.execute("any_limit").fetchone()[0]:
            return
        for group in self._groups.values():
            if group.stage is not None:
                self._tx.freed.update(
                    (job.queue, job.task, job.throttle)
                    for job in group.jobs
                    if self._current[job.id][1] == RUNNING
                )

    def _hand_over(self) -> None:
        """Let dependents of replaced jobs wait for the successors."""
        for ended, successor in self._successors.items():
            self._needs_less.update(edges.hand_over(self._tx, ended, successor))
            state = self._touched.get(successor)
            if state is not None and state.final:  # in this transaction, too
                self._ended.setdefault(successor, (state, self._ended[ended][1]))

    def _release(self) -> None:
        """Resolve the dependencies on ended jobs, and cancel dependents of failed ones."""
        if not self._ended:
            return
        self._tx.notify_others = True
        ended = {job_id: state for job_id, (state, _) in self._ended.items()}
        actors = {job_id: actor for job_id, (_, actor) in self._ended.items()}
        self._ended = {}
        found = release(ended, self._dependents, self._pending)
        if found.edges:
            needed = {edge[0] for edge in found.edges}
            fewer = Counter([job_id for _, job_id, _ in found.edges])
            self._tx.execute("resolve_ended", (encoded(needed),))
            self._tx.execute("decrement_needs", (encoded(list(fewer.items())),))
            self._needs_less.update(fewer)
        lost: dict[int, Loss] = {}
        for job_id, (needed_id, state) in found.abandoned.items():
            actors[job_id] = actors[needed_id]
            lost[job_id] = needed_id, state, actors[needed_id]
        self.abandon(lost)
        self._ended = {}  # their dependents were released with the others

    def abandon(self, lost: Mapping[int, Loss]) -> None:
        """Cancel those of these jobs that are pending: a job they need ended without success."""
        for job_id in self._pending(lost.keys()):
            needed, state, actor = lost[job_id]
            if job_id in self._touched:
                self._lost[job_id] = needed, state, actor
            else:
                job = self._jobs[job_id]
                self.call([Change(job, abandon(job, needed, state))], actor)

    def _dependents(self, ids: Collection[int]) -> list[Dependent]:
        return self._tx.execute("waiting_edges", (encoded(list(ids)),)).fetchall()

    def _pending(self, ids: Collection[int]) -> list[int]:
        """Return those of these jobs that are pending, and that no other transaction changes."""
        if unknown := [one for one in ids if one not in self._touched and one not in self._jobs]:
            self._jobs.update((job.id, job) for job in self._tx.jobs(unknown))
            self.look_up([JobId(one) for one in unknown])
        return [one for one in ids if self._is_pending(one)]

    def _is_pending(self, job_id: int) -> bool:
        if job_id in self._touched:
            return self._touched[job_id] is State.PENDING
        job = self._jobs.get(job_id)
        return (
            job is not None
            and job.state is State.PENDING
            and job.version == self._current[job_id][0]
        )

    def _rearrange(self) -> None:
        for job_id, queue, before, after in rearrange(self._tx, self._keys, self._needs_less):
            shift(self._totals, queue, before, after)
            self._restaged[job_id] = after
            self._tx.notify_others = True

    def _reread(
        self, answers: Sequence[list[Job | None] | Exception]
    ) -> list[list[Job | None] | Exception]:
        """Read answers again, where a job was also changed by the end of another."""
        ids = [
            job.id
            for answer in answers
            if not isinstance(answer, Exception)
            for job in answer
            if job is not None and (self._lost or job.id in self._needs_less)
        ]
        found = {job.id: job for job in self._tx.jobs(ids)}
        return [
            answer
            if isinstance(answer, Exception)
            else [job and found.get(job.id, job) for job in answer]
            for answer in answers
        ]

    def _moved(self, job: Job, group: _Group) -> Job:
        job = replace(job, version=self._versions[job.id], **group.fields)
        if group.move.renews:
            return replace(job, expires_at=self._at + job.lease_time)
        if job.id in self._restaged:
            return replace(job, waiting=STAGES[self._restaged[job.id]][1])
        return job

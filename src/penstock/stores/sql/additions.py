"""Additions: the new jobs of one transaction, decided caller by caller and written at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.dependencies import Cause, check_known, needed_by, new_edges, orphans
from penstock.core.errors import JobNotFound, Overtaken, QueueFull, TooManyQueues
from penstock.core.job import Job, JobId, NewJob
from penstock.core.key_line import waiting
from penstock.core.lifecycle import State, abandon, supersede
from penstock.core.limits import queue_full
from penstock.core.superseding import Tail, check_tail
from penstock.core.times import from_micros
from penstock.core.transition import Change
from penstock.stores.sql import edges, migration_lock, rows
from penstock.stores.sql.database import Addition, Totals, Transaction
from penstock.stores.sql.dedupe import Holders
from penstock.stores.sql.queue_names import QueueNames
from penstock.stores.sql.rows import READY, STAGE_OF_WAITING, STAGES, EdgeRow, edge_row, encoded
from penstock.stores.sql.transitions import Taken, Transitions


def add(tx: Transaction, calls: Sequence[Addition]) -> list[list[Job] | Exception]:
    """See `Store.add`."""
    migration_lock.check_open(tx)
    additions = Additions(tx, [job for jobs, _, _ in calls for job in jobs])
    effects: Effects | None = None
    answers: list[list[Job] | Exception] = []
    for new, actor, tail in calls:
        if tail is None:
            answers.append(additions.call(new, actor))
        else:
            effects = effects or Effects(tx, additions)
            answers.append(effects.supersede(new, actor, tail))
    additions.write()
    if additions.abandoned or effects is not None:
        return (effects or Effects(tx, additions)).write(calls, answers)
    return answers


def add_within(tx: Transaction, calls: Sequence[Addition]) -> list[list[Job] | Exception]:
    """See `TableStore.add_within`; for jobs that depend on others."""
    tx.require_exclusive()
    return add(tx, calls)


def add_with_reason(
    tx: Transaction, calls: Sequence[tuple[Sequence[NewJob], str, str]]
) -> list[list[Job] | Exception]:
    """See `Store.add`; with a reason for the log."""
    answers = add(tx, [(jobs, actor, None) for jobs, actor, _ in calls])
    for (_, _, reason), answer in zip(calls, answers, strict=True):
        if not isinstance(answer, Exception):
            log_reasons(tx, {job.version: reason for job in answer if is_new(job)})
    return answers


def is_plain(addition: Addition) -> bool:
    """Return whether no other job decides what becomes of the new ones."""
    jobs, _, tail = addition
    return tail is None and not any(
        job.key or job.dedupe or job.after or job.follows for job in jobs
    )


class Additions:
    """New jobs that are to be written at the end."""

    def __init__(self, tx: Transaction, jobs: Sequence[NewJob]) -> None:
        self._tx = tx
        self._at = from_micros(tx.now)
        # Runs of jobs that differ only in their payloads: their options, and the payloads.
        self._groups: list[tuple[tuple[Any, ...], list[str]]] = []
        self._last: Job | None = None
        self._actors: list[tuple[str, int]] = []
        self._totals: Totals = {}
        self._names = QueueNames(tx)
        # The limits of queues and how many pending jobs they have; None for those without a limit.
        queues = {job.queue for job in jobs}
        self._loads: dict[str, tuple[int, int] | None] = dict.fromkeys(queues)
        for queue, limit in self._names.look_up(queues).items():
            self._loads[queue] = (limit, tx.execute("pending_total", (queue,)).fetchone()[0])
        # The queue of a job that is replaced in the call under way.
        self._leaving: str | None = None
        # Keys that have an unfinished job, and those of new jobs.
        self._held_keys: set[str] = set()
        self.added_keys: set[str] = set()
        if keys := {job.key for job in jobs if job.key is not None}:
            found = tx.execute("held_keys", (encoded(keys),)).fetchone()[0]
            self._held_keys.update(rows.names.decode(found))
        self._holders = Holders(tx, {job.dedupe for job in jobs if job.dedupe is not None})
        self._deduped: dict[str, Job] = {}
        # Only now: next to other transactions, the log has to show the new jobs after the end of
        # those that were found to have ended.
        self._ids, self._versions = tx.reserve(len(jobs), len(jobs))
        self._n = 0
        # Edges from new jobs to others, new and stored.
        self._edges: list[EdgeRow] = []
        self.abandoned: dict[int, Cause] = {}

    def call(self, jobs: Sequence[NewJob], actor: str) -> list[Job] | Exception:
        """Accept the jobs of one caller, all or none."""
        for job in jobs:
            if job.dedupe is not None or job.after or job.follows:
                return self._call_related(jobs, actor)
        queues = [job.queue for job in jobs]
        wanted = Counter(queues) if len(queues) > 1 else dict.fromkeys(queues, 1)
        refused = self._take_room(wanted, actor)
        return refused or [self._take(job) for job in jobs]

    def call_replacing(
        self, jobs: Sequence[NewJob], actor: str, replaced: Job
    ) -> list[Job] | Exception:
        """Accept one job that replaces another, even in a full queue; see `call`."""
        self._leaving = replaced.queue
        answer = self.call(jobs, actor)
        self._leaving = None
        return answer

    def _call_related(self, jobs: Sequence[NewJob], actor: str) -> list[Job] | Exception:
        """Accept jobs with dedupe keys or dependencies; see `call`."""
        try:
            states = self._look_up_needed(jobs)
        except JobNotFound as error:
            return error
        holders, wanted = self._look_up_holders(jobs)
        if refused := self._take_room(wanted, actor):
            return refused
        taken: list[Job] = []
        ids: list[int] = []
        for job, holder in zip(jobs, holders, strict=True):
            if job.dedupe is not None and (held := holder or self._deduped.get(job.dedupe)):
                taken.append(replace(held, duplicate=True))
            elif job.after or job.follows:
                taken.append(self._take_after(job, ids, states))
            else:
                taken.append(self._take(job))
            ids.append(taken[-1].id)
            states[taken[-1].id] = taken[-1].state
        return taken

    def _take_room(self, wanted: Mapping[str, int], actor: str) -> QueueFull | TooManyQueues | None:
        """Take room for new jobs in their queues, or return why there is none."""
        # Net of the job that leaves: one that is replaced needs no room twice.
        more = {queue: n - (queue == self._leaving) for queue, n in wanted.items()}
        for queue, n in more.items():
            load = self._loads[queue]
            if load is not None and (full := queue_full(queue, *load, n)) is not None:
                return full
        if refused := self._names.add(wanted):
            return refused
        for queue, n in more.items():
            load = self._loads[queue]
            if load is not None:
                self._loads[queue] = (load[0], load[1] + n)
        taken = sum(wanted.values())
        if self._actors and self._actors[-1][0] == actor:
            taken += self._actors.pop()[1]
        self._actors.append((actor, taken))
        return None

    def _look_up_holders(self, jobs: Sequence[NewJob]) -> tuple[list[Job | None], dict[str, int]]:
        """Return who holds the dedupe keys, and how many jobs are to be stored in each queue."""
        holders: list[Job | None] = []
        promised: set[str] = set()
        wanted: dict[str, int] = {}
        for job in jobs:
            holder = None
            if job.dedupe is not None and job.dedupe not in promised:
                holder = self._holder(job)
                if holder is None:
                    promised.add(job.dedupe)
                    wanted[job.queue] = wanted.get(job.queue, 0) + 1
            elif job.dedupe is None:
                wanted[job.queue] = wanted.get(job.queue, 0) + 1
            holders.append(holder)
        return holders, wanted

    def write(self) -> None:
        """Write every accepted job."""
        if not self._n:
            return
        ids, versions = self._ids, self._versions
        if self._n < len(ids):  # fewer than were reserved
            ids, versions = ids[: self._n], versions[: self._n]
        self._tx.add_jobs(ids, versions, self._groups)
        first = 0
        for actor, taken in self._actors:
            last = first + taken
            if taken:
                entries = self._tx.id_parameter(versions[first:last])
                span = self._tx.id_parameter(ids[first:last]), ids[last - 1]
                self._tx.execute("log_added", (entries, *span, self._tx.now, actor))
            first = last
        if self._edges:
            edges.write(self._tx, self._edges)
        self._tx.add_totals(self._totals)
        self._tx.notify = self._tx.notify_others = True

    def _look_up_needed(self, jobs: Sequence[NewJob]) -> dict[int, State]:
        """Return the states of the stored jobs that these wait for."""
        wanted = {needed for job in jobs if job.after for needed in job.after}
        if not wanted:
            return {}
        found = self._tx.execute("stages", (encoded(wanted),)).fetchall()
        states = {job_id: STAGES[stage][0] for job_id, stage in found}
        check_known(wanted, states)
        return states

    def _take_after(self, new: NewJob, earlier: Sequence[int], states: Mapping[int, State]) -> Job:
        """Accept a job that waits for others, some of which may have ended already."""
        needed: dict[int, State] = {one: states[one] for one in needed_by(new, earlier)}
        job = self._take(new, needs=sum(not state.final for state in needed.values()))
        found = [edge_row(edge) for edge in new_edges(job.id, needed, new.on_failure)]
        self._edges += found
        self.abandoned.update(
            orphans(dict[int, State](needed.items()), [edge[:3] for edge in found])
        )
        return job

    def _take(self, new: NewJob, needs: int = 0) -> Job:
        run_at, stage = self._tx.now, READY
        if new.delay is not None or new.run_at is not None:
            run_at = rows.due(new, self._tx.now)
        if needs or new.key is not None or run_at > self._tx.now:
            behind = new.key in self._held_keys or new.key in self.added_keys
            stage = STAGE_OF_WAITING[waiting(run_at, self._tx.now, needs=needs, behind=behind)]
        if new.key is not None:
            self.added_keys.add(new.key)
        job_id, version = self._ids[self._n], self._versions[self._n]
        self._n += 1
        merged = self._names.is_merged(new.queue, new.tenant)
        options = rows.options(new, stage, run_at, needs, merged=merged)
        if self._last is not None and options == self._groups[-1][0]:
            self._groups[-1][1].append(new.payload)
            job = replace(self._last, id=job_id, version=version, payload=new.payload)
        else:
            self._groups.append((options, [new.payload]))
            job = rows.new_job(new, job_id, version, stage, run_at, needs, self._at)
        self._last = job
        total = (new.queue, stage)
        self._totals[total] = self._totals.get(total, 0) + 1
        if new.dedupe is not None:
            self._deduped[new.dedupe] = job
        return job

    def _holder(self, job: NewJob) -> Job | None:
        if job.dedupe is None:
            return None
        return self._deduped.get(job.dedupe) or self._holders.find(job.dedupe, job.scope)


class Effects:
    """What additions do to other jobs: replaced ones, and dependents of failed ones."""

    def __init__(self, tx: Transaction, additions: Additions) -> None:
        self._tx = tx
        self._additions = additions
        self.replaced: list[tuple[Job, JobId, str]] = []

    def supersede(self, jobs: Sequence[NewJob], actor: str, tail: Tail) -> list[Job] | Exception:
        """Accept a superseding job, if the job that it was merged with is the newest of its key."""
        (new,) = jobs
        try:
            check_tail(new.key, tail, self._newest(new.key))
        except Overtaken as error:
            return error
        if tail.replaced is None:
            return self._additions.call(jobs, actor)
        answer = self._additions.call_replacing(jobs, actor, tail.replaced)
        if not isinstance(answer, Exception) and not answer[0].duplicate:
            self.replaced.append((tail.replaced, answer[0].id, actor))
        return answer

    def _newest(self, key: str | None) -> tuple[int, int] | None:
        """Return the id and version of the newest pending job of a key."""
        if key in self._additions.added_keys:
            return 0, 0  # one of another caller in this transaction, which is not written yet
        (newest,) = self._tx.execute("tail_of_key", (key,)).fetchone()
        found = self._tx.jobs([newest]) if newest else []
        return (found[0].id, found[0].version) if found else None

    def write(
        self, calls: Sequence[Addition], answers: Sequence[list[Job] | Exception]
    ) -> list[list[Job] | Exception]:
        """Write the effects; return the answers with the new jobs as they are then."""
        for replaced, by, _ in self.replaced:
            edges.inherit(self._tx, replaced.id, by)
        transitions = Transitions(self._tx)
        transitions.look_up([job.id for job, _, _ in self.replaced])
        moves: list[list[Taken | None] | Exception] = [
            transitions.call([Change(job, supersede(job, by))], actor)
            for job, by, actor in self.replaced
        ]
        lost = self._additions.abandoned
        orphans = {job.id: job for job in self._tx.jobs(list(lost))}
        transitions.look_up(list(orphans))
        moves += [
            transitions.call([Change(job, abandon(job, *lost[job.id]))], actor)
            for (_, actor, _), answer in zip(calls, answers, strict=True)
            if not isinstance(answer, Exception)
            for added in answer
            if (job := orphans.get(added.id)) is not None and not added.duplicate
        ]
        transitions.write(moves)
        return [
            answer if isinstance(answer, Exception) else self._reread(answer) for answer in answers
        ]

    def _reread(self, answer: Sequence[Job]) -> list[Job]:
        found = {job.id: job for job in self._tx.jobs([job.id for job in answer])}
        return [replace(found[job.id], duplicate=job.duplicate) for job in answer]


def is_new(job: Job) -> bool:
    """Return whether the newest log entry of an added job is that it was enqueued."""
    return not job.duplicate and job.state is State.PENDING


def add_tags(tx: Transaction, ids: Sequence[int], options: tuple[Any, ...]) -> None:
    """Index stored jobs with the same options by their tags."""
    stage, run_at, queue, _, priority, *_ = options
    tags, tenant = options[rows.TAGS], options[rows.TENANT]
    if tags is None:
        return
    span = tx.id_parameter(ids), ids[-1]
    tx.execute("add_tags", (*span, tags))
    if stage == READY:
        merged = options[rows.MERGED]
        tx.execute("add_ready_tags", (*span, tags, queue, priority, tenant, run_at, merged))


def log_reasons(tx: Transaction, reasons: Mapping[int, str]) -> None:
    """Add to log entries, by their ids, why jobs were enqueued."""
    tx.executemany("log_reason", [(reason, entry) for entry, reason in reasons.items()])

"""Adds the jobs of one transaction: decides for each caller, then writes them all at once."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import JobNotFound, Overtaken, QueueFull, TooManyQueues
from penstock.core.job import Change, Job, NewJob, OnFailure, Tail
from penstock.core.lifecycle import State, abandon, frees, supersede
from penstock.core.times import from_micros
from penstock.stores.sql import names, rows, seals
from penstock.stores.sql.edges import inherit
from penstock.stores.sql.moving import Moving, Taken
from penstock.stores.sql.rows import BLOCKED, READY, SCHEDULED, STAGES, encoded
from penstock.stores.sql.transaction import Totals, Transaction

Addition = tuple[Sequence[NewJob], str, Tail | None]
"""One call of `add`: the new jobs, the actor, and what a superseding one was merged with."""


def add(tx: Transaction, calls: Sequence[Addition]) -> list[list[Job] | Exception]:
    """See `Store.add`."""
    seals.check_open(tx)
    now = tx.now()
    adding = Adding(tx, now, sum([len(jobs) for jobs, _, _ in calls]))
    adding.look_up_queues({job.queue for jobs, _, _ in calls for job in jobs})
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


def add_explained(
    tx: Transaction, calls: Sequence[tuple[Sequence[NewJob], str, str]]
) -> list[list[Job] | Exception]:
    """As `add`, with a reason for the log."""
    answers = add(tx, [(jobs, actor, None) for jobs, actor, _ in calls])
    for (_, _, reason), answer in zip(calls, answers, strict=True):
        if not isinstance(answer, Exception):
            explain(tx, {job.version: reason for job in answer if is_new(job)})
    return answers


class Adding:
    """New jobs on their way into the file."""

    def __init__(self, tx: Transaction, now: int, at_most: int) -> None:
        self._tx = tx
        self._now = now
        self._at = from_micros(now)
        self._ids, self._versions = tx.reserve(at_most, at_most)
        self._n = 0
        # Runs of jobs that differ only in their arguments: the rest of them, and the arguments.
        self._groups: list[tuple[tuple[Any, ...], list[str]]] = []
        self._last: Job | None = None
        self._actors: list[tuple[str, int]] = []
        self._totals: Totals = {}
        self._rooms: dict[str, tuple[int, int] | None] = {}
        self._names = names.Names(tx)
        self._held_keys: set[str] = set()
        self.added_keys: set[str] = set()
        self._deduped: dict[str, Job] = {}
        # Who waits for whom among the new jobs and those that were stored before.
        self._edges: list[tuple[int, int, OnFailure, bool]] = []
        self.abandoned: dict[int, tuple[int, State]] = {}

    def look_up_queues(self, queues: Collection[str]) -> None:
        """How many more jobs these queues take, and their limits; None for those without."""
        self._rooms = dict.fromkeys(queues)
        for queue, limit in self._names.look_up(queues).items():
            pending = self._tx.execute("pending_total", (queue,)).fetchone()[0]
            self._rooms[queue] = (limit - pending, limit)

    def look_up_keys(self, keys: Iterable[str]) -> None:
        """Which of these keys already have an unfinished job."""
        if wanted := set(keys):
            found = self._tx.execute("held_keys", (encoded(wanted),)).fetchone()[0]
            self._held_keys.update(rows.names.decode(found))

    def call(self, jobs: Sequence[NewJob], actor: str) -> list[Job] | Exception:
        """Take the jobs of one caller, all or none."""
        for job in jobs:
            if job.dedupe is not None or job.after or job.follows:
                return self._call_related(jobs, actor)
        queues = [job.queue for job in jobs]
        asked = Counter(queues) if len(queues) > 1 else dict.fromkeys(queues, 1)
        full = self._ask(asked, actor)
        return full or [self._take(job) for job in jobs]

    def call_in_place(
        self, jobs: Sequence[NewJob], actor: str, replaced: Job
    ) -> list[Job] | Exception:
        """As `call`, for one that takes another's place: also in a queue that is full."""
        (new,) = jobs
        room = self._rooms[new.queue]
        if room is None or new.queue != replaced.queue:
            return self.call(jobs, actor)
        self._rooms[new.queue] = (max(room[0], 0) + 1, room[1])
        answer = self.call(jobs, actor)
        self._rooms[new.queue] = room  # one comes, one goes; or neither
        return answer

    def _call_related(self, jobs: Sequence[NewJob], actor: str) -> list[Job] | Exception:
        """As `call`, for jobs that have to do with others."""
        try:
            states = self._look_up_needed(jobs)
        except JobNotFound as error:
            return error
        holders, asked = self._look_up_holders(jobs)
        if full := self._ask(asked, actor):
            return full
        taken: list[Job] = []
        for job, holder in zip(jobs, holders, strict=True):
            if job.dedupe is not None and (held := holder or self._deduped.get(job.dedupe)):
                taken.append(replace(held, duplicate=True))
            elif job.after or job.follows:
                taken.append(self._take_after(job, taken, states))
            else:
                taken.append(self._take(job))
        return taken

    def _ask(self, asked: Mapping[str, int], actor: str) -> QueueFull | TooManyQueues | None:
        """Whether the queues have no room for so many more; else it is theirs."""
        for queue, n in asked.items():
            room = self._rooms[queue]
            if room is not None and n > room[0]:
                return QueueFull(queue, room[1])
        if refused := self._names.add(asked):
            return refused
        for queue, n in asked.items():
            room = self._rooms[queue]
            self._rooms[queue] = None if room is None else (room[0] - n, room[1])
        taken = sum(asked.values())
        if self._actors and self._actors[-1][0] == actor:
            taken += self._actors.pop()[1]
        self._actors.append((actor, taken))
        return None

    def _look_up_holders(self, jobs: Sequence[NewJob]) -> tuple[list[Job | None], dict[str, int]]:
        """Who holds the dedupe keys, and how many jobs are to be stored in each queue."""
        holders: list[Job | None] = []
        promised: set[str] = set()
        asked: dict[str, int] = {}
        for job in jobs:
            holder = None
            if job.dedupe is not None and job.dedupe not in promised:
                holder = self._holder(job)
                if holder is None:
                    promised.add(job.dedupe)
                    asked[job.queue] = asked.get(job.queue, 0) + 1
            elif job.dedupe is None:
                asked[job.queue] = asked.get(job.queue, 0) + 1
            holders.append(holder)
        return holders, asked

    def write(self) -> None:
        """Write every job that was taken."""
        if not self._n:
            return
        ids, versions = self._ids, self._versions
        if self._n < len(ids):  # fewer than were asked for
            ids, versions = ids[: self._n], versions[: self._n]
        self._tx.add_jobs(ids, versions, self._now, self._groups)
        first = 0
        for actor, taken in self._actors:
            last = first + taken
            if taken:
                numbers = self._tx.numbers(versions[first:last])
                span = self._tx.numbers(ids[first:last]), ids[last - 1]
                self._tx.execute("log_added", (numbers, *span, self._now, actor))
            first = last
        if self._edges:
            self._tx.execute("add_edges", (encoded(self._edges),))
            open_ends = {needed for needed, _, _, resolved in self._edges if not resolved}
            self._tx.execute("await", (encoded(open_ends),))
        self._tx.add_totals(self._totals)
        self._tx.ring = self._tx.ring_others = True

    def _look_up_needed(self, jobs: Sequence[NewJob]) -> dict[int, State]:
        """The states of the stored jobs that these wait for."""
        wanted = {needed for job in jobs if job.after for needed in job.after}
        if not wanted:
            return {}
        found = self._tx.execute("stages", (encoded(wanted),)).fetchall()
        states = {job_id: STAGES[stage][0] for job_id, stage in found}
        if missing := wanted - states.keys():
            raise JobNotFound(f"there is no job {min(missing)} to wait for")
        return states

    def _take_after(self, new: NewJob, before: Sequence[Job], states: dict[int, State]) -> Job:
        """Take a job that waits for others, some of which may have ended already."""
        needed = {**{job_id: states[job_id] for job_id in new.after}}
        needed.update((before[place].id, before[place].state) for place in new.follows)
        ended = {job_id: state for job_id, state in needed.items() if state.final}
        job = self._take(new, needs=len(needed) - len(ended))
        self._edges += [(one, job.id, new.on_failure, one in ended) for one in needed]
        for one, state in ended.items():
            if not frees(state, run_anyway=new.on_failure is OnFailure.RUN):
                self.abandoned[job.id] = (one, state)
        return job

    def _take(self, new: NewJob, needs: int = 0) -> Job:
        run_at, stage = self._now, READY
        if new.delay is not None or new.run_at is not None:
            run_at = rows.due(new, self._now)
            stage = READY if run_at <= self._now else SCHEDULED
        if new.key is not None:
            if new.key in self._held_keys or new.key in self.added_keys:
                stage = BLOCKED
            self.added_keys.add(new.key)
        if needs:
            stage = BLOCKED
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
        if job.dedupe in self._deduped:
            return self._deduped[job.dedupe]
        holder = self._tx.dedupe_holder(job.dedupe, job.scope)
        return None if holder is None else self._tx.jobs([holder])[0]


class Following:
    """What adding jobs does to others, in the same transaction: replaced ones, and lost ends."""

    def __init__(self, tx: Transaction, now: int, adding: Adding) -> None:
        self._tx = tx
        self._now = now
        self._adding = adding
        self.replaced: list[tuple[Job, int, str]] = []

    def add(self, jobs: Sequence[NewJob], actor: str, tail: Tail) -> list[Job] | Exception:
        """Add a superseding job, if what it was merged with is still the newest of its key."""
        (new,) = jobs
        if new.key in self._adding.added_keys:  # by another caller in this transaction
            return _overtaken(new)
        (newest,) = self._tx.execute("tail_of_key", (new.key,)).fetchone()
        expected = None if tail.job is None else (tail.job.id, tail.job.version)
        found = [(job.id, job.version) for job in self._tx.jobs([newest])] if newest else [None]
        if found != [expected]:
            return _overtaken(new)
        if tail.job is None or not tail.replaces:
            return self._adding.call(jobs, actor)
        answer = self._adding.call_in_place(jobs, actor, tail.job)
        if not isinstance(answer, Exception) and not answer[0].duplicate:
            self.replaced.append((tail.job, answer[0].id, actor))
        return answer

    def write(
        self, calls: Sequence[Addition], answers: Sequence[list[Job] | Exception]
    ) -> list[list[Job] | Exception]:
        """Write these moves; the answers with the new jobs as they are then."""
        for replaced, by, _ in self.replaced:
            inherit(self._tx, replaced.id, by)
        moving = Moving(self._tx, self._now)
        moving.look_up([job.id for job, _, _ in self.replaced])
        moves: list[list[Taken | None] | Exception] = [
            moving.call([Change(job, supersede(job, by))], actor)
            for job, by, actor in self.replaced
        ]
        lost = self._adding.abandoned
        orphans = {job.id: job for job in self._tx.jobs(list(lost))}
        moving.look_up(list(orphans))
        moves += [
            moving.call([Change(job, abandon(job, *lost[job.id]))], actor)
            for (_, actor, _), answer in zip(calls, answers, strict=True)
            if not isinstance(answer, Exception)
            for added in answer
            if (job := orphans.get(added.id)) is not None and not added.duplicate
        ]
        moving.write(moves)
        return [
            answer if isinstance(answer, Exception) else self._as_they_are(answer)
            for answer in answers
        ]

    def _as_they_are(self, answer: Sequence[Job]) -> list[Job]:
        now = {job.id: job for job in self._tx.jobs([job.id for job in answer])}
        return [replace(now[job.id], duplicate=job.duplicate) for job in answer]


def _overtaken(new: NewJob) -> Overtaken:
    return Overtaken(f"the pending jobs of key {new.key!r} have changed; nothing was stored")


def is_new(job: Job) -> bool:
    """Whether the newest entry about an added job is that it was enqueued."""
    return not job.duplicate and job.state is State.PENDING


def add_tags(tx: Transaction, ids: Sequence[int], options: tuple[Any, ...]) -> None:
    """Let these jobs, which have the same options and are stored, be found by their tags."""
    stage, run_at, queue, _, priority, *_ = options
    tags, tenant = options[rows.TAGS], options[rows.TENANT]
    if tags is None:
        return
    span = tx.numbers(ids), ids[-1]
    tx.execute("add_tags", (*span, tags))
    if stage == READY:
        merged = options[rows.MERGED]
        tx.execute("add_ready_tags", (*span, tags, queue, priority, tenant, run_at, merged))


def explain(tx: Transaction, reasons: Mapping[int, str]) -> None:
    """Say in the log why jobs were enqueued, by the ids of the entries."""
    tx.executemany("log_reason", [(reason, entry) for entry, reason in reasons.items()])

"""What a write would change, decided before anything is."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.errors import JobNotFound
from penstock.core.job import (
    Edge,
    Job,
    JobId,
    LogEntry,
    LogId,
    NewJob,
    OnFailure,
    Scope,
    moved,
)
from penstock.core.lifecycle import UNFINISHED, Event, Move, State, Waiting
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.content import Content


class Draft:
    """The content as a verb would leave it: what it wrote so far, before what is stored."""

    def __init__(self, content: Content, now: datetime, actor: str) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.entries: list[LogEntry] = []
        self._content = content
        self._now = now
        self._actor = actor
        self._last_job = content.last_job
        self.last_log = content.last_log
        self._holders: dict[str, set[JobId]] = {}
        self._edges: dict[JobId, dict[JobId, Edge]] = {}
        self._ended: list[tuple[JobId, State]] = []
        # Jobs that were added when one they need had ended: they hear of it after the others.
        self._late: list[tuple[JobId, JobId, State, OnFailure]] = []

    def get(self, job_id: JobId) -> Job | None:
        """The job as the verb has left it so far."""
        return self.jobs.get(job_id) or self._content.jobs.get(job_id)

    def _current(self, job_id: JobId) -> Job:
        return self.jobs.get(job_id) or self._content.jobs[job_id]

    def batch(self) -> Batch:
        """All that was written, with what the ends of jobs mean for those that wait for them."""
        for news in self._late:
            self.tell(*news)
        while self._ended:
            self._release(*self._ended.pop())
        return Batch(
            jobs=list(self.jobs.values()),
            entries=self.entries,
            edges=self.edges(),
        )

    def edges(self) -> list[Edge]:
        """Who waits for whom, as far as the verb has changed that."""
        return [edge for edges in self._edges.values() for edge in edges.values()]

    def add(
        self,
        new: NewJob,
        before: Sequence[tuple[JobId, bool]] = (),
        reason: str | None = None,
    ) -> tuple[JobId, bool]:
        """The id of the new job, or of the one that holds its dedupe key and True.

        `before` are the answers for the jobs of the same call before it.
        """
        if new.dedupe is not None and (rival := self._rival(new.dedupe, new.scope)) is not None:
            return rival, True
        run_at = new.run_at or self._now if new.delay is None else self._now + new.delay
        self._last_job = job_id = JobId(self._last_job + 1)
        needed = {*map(JobId, new.after), *(before[place][0] for place in new.follows)}
        ended = self._link(new, job_id, needed)
        needs = len(needed) - len(ended)
        self._write(
            Job(
                id=job_id,
                version=self._log(job_id, Event.ENQUEUED, State.PENDING, reason=reason),
                task=new.task,
                payload=new.payload,
                queue=new.queue,
                priority=new.priority,
                state=State.PENDING,
                waiting=Waiting.BLOCKED if needs else self._waiting(new.key, run_at),
                attempt=0,
                enqueued_at=self._now,
                run_at=run_at.astimezone(UTC),
                key=new.key,
                dedupe=new.dedupe,
                scope=new.scope,
                tags=tuple(new.tags),
                retry=new.retry,
                timeout=new.timeout,
                lease_time=new.lease,
                correlation=new.correlation,
                tenant=new.tenant,
                parent=new.parent,
                needs=needs,
                throttle=new.throttle,
                trace=new.trace,
            )
        )
        self._late += [(job_id, one.id, one.state, new.on_failure) for one in ended]
        return job_id, False

    def replace(self, job: Job, by: JobId) -> None:
        """Let a new job take the place of a pending one, and wait for what that one waited for."""
        for edge in self._edges_of(job.id):
            if not edge.resolved and by not in self._edges_to(edge.needed):
                self._put_edge(replace(edge, job_id=by))
        self._recount(by)
        self.move(job, lifecycle.supersede(job, by))

    def _hand_over(self, ended: JobId, successor: JobId) -> None:
        """Let those that wait for a job wait for its successor, unless that waits for them."""
        waiting = [edge for edge in self._edges_to(ended).values() if not edge.resolved]
        ahead = self._ahead(successor) if waiting else set()
        for edge in waiting:
            if edge.job_id not in ahead:
                self._put_edge(replace(edge, resolved=True))
                if edge.job_id not in self._edges_to(successor):
                    self._put_edge(replace(edge, needed=successor))
                self._recount(edge.job_id)

    def _ahead(self, place: JobId) -> set[JobId]:
        """A job and all that have to end before it begins, by edges and by the order of keys."""
        ahead: set[JobId] = set()
        found = [place]
        while found:
            if (one := found.pop()) not in ahead:
                ahead.add(one)
                found += [edge.needed for edge in self._edges_of(one) if not edge.resolved]
                found += self._before(self._current(one))
        return ahead

    def _before(self, job: Job) -> list[JobId]:
        """The unfinished jobs that come before a pending one of their key."""
        if job.key is None or job.state is not State.PENDING:
            return []
        line = {*self._content.in_line(job.key), *self.jobs}
        return [
            one.id
            for one in map(self._current, line)
            if one.key == job.key
            and (one.state is State.RUNNING or (one.state is State.PENDING and one.id < job.id))
        ]

    def _check_order(self, job: Job) -> None:
        """Raise for a cancelled job that waits for one which would come after it in its key."""
        if job.key is None or not job.needs or job.state is not State.CANCELLED:
            return
        for one in map(self._current, sorted(self._ahead(job.id) - {job.id})):
            if one.key == job.key and one.id > job.id and not one.state.final:
                raise lifecycle.keep_back(job, one.id)

    def _edges_to(self, needed: JobId) -> dict[JobId, Edge]:
        """Who waits for a job, or did."""
        stored = self._content.dependents.get(needed, {})
        return {**stored, **self._edges.get(needed, {})}

    def _edges_of(self, job_id: JobId) -> list[Edge]:
        """What a job waits for, or did."""
        stored = self._content.needed.get(job_id, ())
        drafted = (needed for needed, edges in self._edges.items() if job_id in edges)
        return [self._edges_to(needed)[job_id] for needed in sorted({*stored, *drafted})]

    def _put_edge(self, edge: Edge) -> None:
        self._edges.setdefault(edge.needed, {})[edge.job_id] = edge

    def _recount(self, job_id: JobId) -> None:
        needs = sum(not edge.resolved for edge in self._edges_of(job_id))
        self._write(replace(self._current(job_id), needs=needs))

    def _link(self, new: NewJob, job_id: JobId, needed: set[JobId]) -> list[Job]:
        """Note who waits for whom; those of the needed jobs that have ended already."""
        ended: list[Job] = []
        for one in sorted(needed):
            job = self.get(one)
            if job is None:
                raise JobNotFound(f"there is no job {one} to wait for")
            over = job.state.final
            self._put_edge(
                Edge(needed=one, job_id=job_id, on_failure=new.on_failure, resolved=over)
            )
            if over:
                ended.append(job)
        return ended

    def _release(self, ended: JobId, state: State) -> None:
        """What the end of a job means for those that wait for it."""
        for job_id, edge in self._edges_to(ended).items():
            if edge.resolved:
                continue
            self._put_edge(replace(edge, resolved=True))
            job = self._current(job_id)
            job = replace(job, needs=job.needs - 1)
            if job.state is State.PENDING and not job.needs:
                job = replace(job, waiting=self._waiting(job.key, job.run_at))
            self._write(job)
            self.tell(job_id, ended, state, edge.on_failure)

    def tell(self, job_id: JobId, needed: JobId, state: State, on_failure: OnFailure) -> None:
        """Let a job know that one it needed has ended like this."""
        job = self._current(job_id)
        run_anyway = on_failure is OnFailure.RUN
        if job.state is State.PENDING and not lifecycle.frees(state, run_anyway=run_anyway):
            self.move(job, lifecycle.abandon(job, needed, state))

    def put(self, job: Job, edges: Sequence[Edge] = ()) -> None:
        """Write a job that comes from elsewhere; a pending one waits for what it waits for here."""
        for edge in edges:
            self._put_edge(edge)
        needs = sum(not edge.resolved for edge in edges)
        waiting = None
        if job.state is State.PENDING:
            waiting = Waiting.BLOCKED if needs else self._waiting(job.key, job.run_at)
        self._write(replace(job, waiting=waiting, needs=needs))

    def is_held(self, job: Job) -> bool:
        """Whether another job keeps this one from being pending."""
        return job.dedupe is not None and self._rival(job.dedupe, job.scope) is not None

    def claim(self, job: Job) -> None:
        """Give a job to the actor."""
        token = self._next_log()
        waited = max(timedelta(0), self._now - max(job.run_at, job.enqueued_at))
        self._log(job.id, Event.CLAIMED, State.RUNNING, token=token, duration=waited)
        self._write(
            replace(
                job,
                version=token,
                state=State.RUNNING,
                waiting=None,
                attempt=job.attempt + 1,
                token=token,
                worker=self._actor,
                started_at=self._now,
                expires_at=self._now + job.lease_time,
            )
        )

    def move(self, job: Job, move: Move) -> None:
        """Write a move; raises `TransitionRefused` where it has to give way and cannot."""
        running, waiting, duration = job.state is State.RUNNING, job.waiting, None
        if not move.stays:
            move = self._settled(job, move)
            if move.event is Event.RESET:
                self._check_order(job)
            if move.successor is not None:
                self._hand_over(job.id, JobId(move.successor))
            back = move.state is State.PENDING
            waiting = self._waiting(job.key, self._now + move.delay) if back else None
            if back and job.needs:
                waiting = Waiting.BLOCKED
            duration = self._now - job.started_at if running and job.started_at else None
        version = self._log(
            job.id,
            move.event,
            move.state,
            token=job.token if running else None,
            reason=move.reason,
            error=move.error,
            duration=duration,
            detail=move.detail,
        )
        self._write(moved(job, move, at=self._now, version=version, waiting=waiting))
        if move.state.final and not move.stays:
            self._ended.append((job.id, move.state))

    def _settled(self, job: Job, move: Move) -> Move:
        if move.state is not State.PENDING or job.dedupe is None:
            return move
        rival = self._rival(job.dedupe, job.scope, but=job.id)
        return move if rival is None else lifecycle.give_way(job, move, rival)

    def _waiting(self, key: str | None, run_at: datetime) -> Waiting:
        """Of a key, all are blocked until the store makes its head visible."""
        if key is not None:
            return Waiting.BLOCKED
        return Waiting.READY if run_at <= self._now else Waiting.SCHEDULED

    def _rival(self, dedupe: str, scope: Scope, but: JobId | None = None) -> JobId | None:
        """The job that keeps another one with that dedupe key from being pending."""
        holders = [job for place in sorted(self._held(dedupe)) if (job := self.get(place))]
        others = [job for job in holders if job.id != but]
        pending = [job.id for job in others if job.state is State.PENDING]
        running = [job.id for job in others if Scope.UNFINISHED in (scope, job.scope)]
        return next(iter(pending + running), None)

    def _held(self, dedupe: str) -> set[JobId]:
        if dedupe not in self._holders:
            stored = self._content.holders.get(dedupe, ())
            self._holders[dedupe] = set(stored)
        return self._holders[dedupe]

    def _write(self, job: Job) -> None:
        self.jobs[job.id] = job
        if job.dedupe is not None:
            held = self._held(job.dedupe)
            (held.add if job.state in UNFINISHED else held.discard)(job.id)

    def _next_log(self) -> LogId:
        return LogId(self.last_log + 1)

    def _log(
        self,
        job_id: JobId,
        event: Event,
        state: State,
        *,
        token: int | None = None,
        reason: str | None = None,
        error: str | None = None,
        duration: timedelta | None = None,
        detail: str | None = None,
    ) -> LogId:
        entry = LogEntry(
            id=self._next_log(),
            job_id=job_id,
            at=self._now,
            event=event,
            state=state,
            actor=self._actor,
            token=token,
            reason=reason,
            error=error,
            duration=duration,
            detail=detail,
        )
        self.last_log = entry.id
        self.entries.append(entry)
        return entry.id

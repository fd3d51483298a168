"""What a write would change, decided before anything is changed."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from penstock.core import dedupe, dependencies, lifecycle
from penstock.core.dependencies import Cause, Dependent, Edge
from penstock.core.job import Job, JobId, LogEntry, LogId, NewJob
from penstock.core.key_line import waiting
from penstock.core.lifecycle import UNFINISHED, Event, Move, State, Waiting
from penstock.core.limits import queue_full, too_many_queues
from penstock.core.restoration import Plan
from penstock.core.superseding import inherited
from penstock.core.transition import apply_move
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.content import Content

Added = tuple[JobId, bool]
"""What a new job resulted in: its id, or that of the job which holds its dedupe key, and True."""


class Draft:
    """The content as a verb would leave it: what it has written so far, over what is stored."""

    def __init__(self, content: Content, now: datetime, actor: str) -> None:
        self.jobs: dict[JobId, Job] = {}
        self._content = content
        self._now = now
        self._actor = actor
        self._last_job = content.last_job
        self._last_log = content.last_log
        self._entries: list[LogEntry] = []
        self._edges: dict[JobId, dict[JobId, Edge]] = {}
        self._holders: dict[str, set[JobId]] = {}
        self._ended: dict[int, State] = {}
        self._orphans: dict[int, Cause] = {}

    def get(self, job_id: JobId) -> Job | None:
        """Return a job as the verb has left it so far."""
        return self.jobs.get(job_id) or self._content.jobs.get(job_id)

    def batch(self) -> WriteBatch:
        """Return everything that was written, including what ends of jobs mean for others."""
        self._release()
        edges = [edge for edges in self._edges.values() for edge in edges.values()]
        return WriteBatch(jobs=list(self.jobs.values()), entries=self._entries, edges=edges)

    # Adding

    def add(self, new: NewJob, earlier: Sequence[Added] = (), reason: str | None = None) -> Added:
        """Add a job, unless its dedupe key is held.

        `earlier` has the results of the jobs before it in the same call.
        """
        if new.dedupe is not None and (held := self._holder(new.dedupe, new.scope)) is not None:
            return held, True
        run_at = new.run_at or self._now if new.delay is None else self._now + new.delay
        self._last_job += 1
        job_id = JobId(self._last_job)
        needs = self._link(new, job_id, [one for one, _ in earlier])
        self._write(
            Job(
                id=job_id,
                version=self._log(job_id, Event.ENQUEUED, State.PENDING, reason=reason),
                task=new.task,
                payload=new.payload,
                queue=new.queue,
                priority=new.priority,
                state=State.PENDING,
                waiting=self._waiting(new.key, run_at, needs),
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
                task_version=new.task_version,
            )
        )
        return job_id, False

    def _link(self, new: NewJob, job_id: JobId, earlier: Sequence[JobId]) -> int:
        """Write the edges of a new job; returns how many jobs it waits for."""
        if not new.after and not new.follows:
            return 0
        needed = dependencies.needed_by(new, earlier)
        states: dict[int, State] = {
            one: job.state for one in needed if (job := self.get(one)) is not None
        }
        dependencies.check_known(needed, states)
        edges = dependencies.new_edges(job_id, states, new.on_failure)
        for edge in edges:
            self._put_edge(edge)
        dependents = [(edge.needed, job_id, edge.on_failure) for edge in edges]
        self._orphans.update(dependencies.orphans(states, dependents))
        return sum(not edge.resolved for edge in edges)

    def replace(self, job: Job, by: JobId) -> None:
        """Let a new job take the place of a pending one, and wait for what that one waits for."""
        own = self._edges_of(by)
        for edge in inherited(self._edges_of(job.id), by, {edge.needed for edge in own}):
            self._put_edge(edge)
        self._recount(by)
        self.move(job, lifecycle.supersede(job, by))

    def check_limits(self) -> None:
        """Raise `QueueFull` or `TooManyQueues` if the jobs written so far exceed a limit."""
        growth: Counter[str] = Counter()
        for job in self.jobs.values():
            growth[job.queue] += job.state is State.PENDING
            if (old := self._content.jobs.get(job.id)) is not None:
                growth[job.queue] -= old.state is State.PENDING
        for name, more in growth.items():
            limit = self._content.queue(name).max_pending
            if limit is None:
                continue
            pending = sum(self._content.totals[name, State.PENDING, kind] for kind in Waiting)
            if (full := queue_full(name, limit, pending, more)) is not None:
                raise full
        check_names(self._content, growth)

    # Moving

    def claim(self, job: Job) -> None:
        """Lease a ready job to the actor."""
        token = LogId(self._last_log + 1)
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
        """Write a move; raises `TransitionRefused` if it has to give way and cannot."""
        running, wait, duration = job.state is State.RUNNING, job.waiting, None
        if not move.stays:
            move = self._settled(job, move)
            if dependencies.may_wait_for_itself(job, move):
                dependencies.check_order(job, self)
            if move.successor is not None:
                self._hand_over(job.id, JobId(move.successor))
            wait = None
            if move.state is State.PENDING:
                wait = self._waiting(job.key, self._now + move.delay, job.needs)
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
        self._write(apply_move(job, move, at=self._now, version=version, waiting=wait))
        if move.state.final and not move.stays:
            self._ended[job.id] = move.state

    def _settled(self, job: Job, move: Move) -> Move:
        """Return the move that results where another job may hold the dedupe key."""
        if job.dedupe is None or not dedupe.needs_key(job, move):
            return move
        held = self._holder(job.dedupe, job.scope, exclude={job.id})
        return move if held is None else lifecycle.give_way(job, move, held)

    # Ends of jobs

    def _hand_over(self, ended: JobId, successor: JobId) -> None:
        """Let the jobs that wait for one that was superseded wait for its successor."""
        edges = {edge.job_id: edge for edge in self._edges_to(ended) if not edge.resolved}
        known = {edge.job_id for edge in self._edges_to(successor)}
        for job_id in map(JobId, dependencies.handed_over(edges.keys(), successor, self)):
            self._put_edge(replace(edges[job_id], resolved=True))
            if job_id not in known:
                self._put_edge(replace(edges[job_id], needed=successor))
            self._recount(job_id)

    def _release(self) -> None:
        """Write what the ends of jobs mean for those that wait for them."""
        self._abandon(self._orphans)
        found = dependencies.release(self._ended, self._dependents, self._pending)
        for needed, place, _ in found.edges:
            job_id = JobId(place)
            edge = self._edge(JobId(needed), job_id)
            self._put_edge(replace(edge, resolved=True))
            job = self._current(job_id)
            job = replace(job, needs=job.needs - 1)
            if job.state is State.PENDING:
                job = replace(job, waiting=self._waiting(job.key, job.run_at, job.needs))
            self._write(job)
        self._abandon(found.abandoned)

    def _abandon(self, orphans: Mapping[int, Cause]) -> None:
        for job_id, (needed, state) in orphans.items():
            job = self._current(JobId(job_id))
            self.move(job, lifecycle.abandon(job, needed, state))

    def _dependents(self, ids: Collection[int]) -> Iterator[Dependent]:
        for needed in ids:
            for edge in self._edges_to(JobId(needed)):
                if not edge.resolved:
                    yield edge.needed, edge.job_id, edge.on_failure

    def _pending(self, ids: Collection[int]) -> Iterator[int]:
        return (one for one in ids if self._current(JobId(one)).state is State.PENDING)

    # Order: see `dependencies.Order`

    def before(self, ids: Collection[int]) -> Iterator[int]:
        """Yield what has to end before one of these jobs can begin."""
        for place in map(JobId, ids):
            yield from (edge.needed for edge in self._edges_of(place) if not edge.resolved)
            job = self._current(place)
            if job.key is not None and job.state is State.PENDING:
                for one in self._line(job.key):
                    if one.state is State.RUNNING or one.id < job.id:
                        yield one.id

    def newer_in_line(self, job: Job, among: Collection[int]) -> int | None:
        """Return the first of these that is an unfinished job of the key, newer than `job`."""
        line = self._line(job.key) if job.key is not None else ()
        return min((one.id for one in line if one.id > job.id and one.id in among), default=None)

    def _line(self, key: str) -> Iterator[Job]:
        """Yield the unfinished jobs of a key."""
        stored = self._content.lines[key].ids() if key in self._content.lines else ()
        for job in map(self._current, {*stored, *self.jobs}):
            if job.key == key and job.state in UNFINISHED:
                yield job

    # Restoring

    def is_held(self, job: Job) -> bool:
        """Return whether another job holds the dedupe key of this one."""
        return job.dedupe is not None and self._holder(job.dedupe, job.scope) is not None

    def restore(self, plan: Plan) -> None:
        """Write the jobs of a plan."""
        for one in plan.restored:
            self._entries += one.log
            for edge in one.edges:
                self._put_edge(edge)
            self._write(one.job)
        self._last_log = plan.last_log
        self._orphans.update(plan.abandoned)

    def raise_log(self, floor: int) -> None:
        """Number log entries from here on above `floor`."""
        self._last_log = floor

    # Reading and writing

    def _current(self, job_id: JobId) -> Job:
        return self.jobs.get(job_id) or self._content.jobs[job_id]

    def _write(self, job: Job) -> None:
        self.jobs[job.id] = job
        if job.dedupe is not None:
            held = self._held(job.dedupe)
            (held.add if job.state in UNFINISHED else held.discard)(job.id)

    def _holder(self, key: str, scope: str, exclude: Collection[int] = ()) -> JobId | None:
        jobs = map(self._current, self._held(key))
        held = ((job.id, job.state is State.PENDING, job.scope) for job in jobs)
        found = dedupe.holder(scope, held, exclude)
        return None if found is None else JobId(found)

    def _held(self, key: str) -> set[JobId]:
        """Return the unfinished jobs with a dedupe key."""
        if key not in self._holders:
            self._holders[key] = set(self._content.holders.get(key, ()))
        return self._holders[key]

    def _waiting(self, key: str | None, run_at: datetime, needs: int) -> Waiting:
        """Return what a pending job waits for; the line of a key is arranged with the batch."""
        return waiting(run_at, self._now, needs=needs, behind=key is not None)

    def _edge(self, needed: JobId, job_id: JobId) -> Edge:
        drafted = self._edges.get(needed, {}).get(job_id)
        return drafted or self._content.dependents[needed][job_id]

    def _edges_to(self, needed: JobId) -> Iterable[Edge]:
        """Return the edges to a job."""
        stored = self._content.dependents.get(needed, {})
        return {**stored, **self._edges.get(needed, {})}.values()

    def _edges_of(self, job_id: JobId) -> list[Edge]:
        """Return the edges of a job."""
        stored = self._content.needed.get(job_id, ())
        drafted = (needed for needed, edges in self._edges.items() if job_id in edges)
        return [self._edge(needed, job_id) for needed in sorted({*stored, *drafted})]

    def _put_edge(self, edge: Edge) -> None:
        self._edges.setdefault(edge.needed, {})[edge.job_id] = edge

    def _recount(self, job_id: JobId) -> None:
        needs = sum(not edge.resolved for edge in self._edges_of(job_id))
        self._write(replace(self._current(job_id), needs=needs))

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
        self._last_log += 1
        entry = LogEntry(
            id=LogId(self._last_log),
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
        self._entries.append(entry)
        return entry.id


def check_names(content: Content, names: Iterable[str]) -> None:
    """Raise `TooManyQueues` if there may not be queues of these names as well."""
    new = set(names).difference(content.queues)
    refused = too_many_queues(len(content.queues), len(new), content.limits.most_queues)
    if refused is not None:
        raise refused

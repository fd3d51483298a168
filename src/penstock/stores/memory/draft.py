"""What a write would change, decided before anything is."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.job import Job, JobId, LogEntry, LogId, NewJob, Queue, Scope, moved
from penstock.core.lifecycle import UNFINISHED, Event, Move, State, Waiting

if TYPE_CHECKING:
    from penstock.stores.memory.store import MemoryStore


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """All that one verb writes: the jobs and queues as they became, and what it logged."""

    jobs: list[Job] = []
    entries: list[LogEntry] = []
    queues: list[Queue] = []
    removed: list[JobId] = []


class Draft:
    """The store as a verb would leave it: what it wrote so far, before what is stored."""

    def __init__(self, store: "MemoryStore", now: datetime, actor: str) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.entries: list[LogEntry] = []
        self._store = store
        self._now = now
        self._actor = actor
        self._holders: dict[str, set[JobId]] = {}

    def get(self, job_id: JobId) -> Job | None:
        """The job as the verb has left it so far."""
        return self.jobs.get(job_id) or self._store._jobs.get(job_id)  # noqa: SLF001 - its draft

    def batch(self) -> Batch:
        """All that was written."""
        return Batch(jobs=list(self.jobs.values()), entries=self.entries)

    def add(self, new: NewJob) -> tuple[JobId, bool]:
        """The id of the new job, or of the one that holds its dedupe key and True."""
        if new.dedupe is not None and (rival := self._rival(new.dedupe, new.scope)) is not None:
            return rival, True
        run_at = new.run_at or self._now if new.delay is None else self._now + new.delay
        job_id = JobId(self._store._last_job + len(self.jobs) + 1)  # noqa: SLF001 - its draft
        self._write(
            Job(
                id=job_id,
                version=self._log(job_id, Event.ENQUEUED, State.PENDING),
                task=new.task,
                payload=new.payload,
                queue=new.queue,
                priority=new.priority,
                state=State.PENDING,
                waiting=self._waiting(new.key, run_at),
                attempt=0,
                enqueued_at=self._now,
                run_at=run_at.astimezone(UTC),
                key=new.key,
                dedupe=new.dedupe,
                scope=new.scope,
                tags=new.tags,
                retry=new.retry,
                timeout=new.timeout,
                lease_time=new.lease,
                correlation=new.correlation,
                tenant=new.tenant,
                parent=new.parent,
                throttle=new.throttle,
            )
        )
        return job_id, False

    def claim(self, job: Job) -> None:
        """Give a job to the actor."""
        token = self._next_log()
        self._log(job.id, Event.CLAIMED, State.RUNNING, token=token)
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
            back = move.state is State.PENDING
            waiting = self._waiting(job.key, self._now + move.delay) if back else None
            duration = self._now - job.started_at if running and job.started_at else None
        version = self._log(
            job.id,
            move.event,
            move.state,
            token=job.token if running else None,
            reason=move.reason,
            error=move.error,
            duration=duration,
        )
        self._write(moved(job, move, at=self._now, version=version, waiting=waiting))

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
            stored = self._store._holders.get(dedupe, ())  # noqa: SLF001 - its draft
            self._holders[dedupe] = set(stored)
        return self._holders[dedupe]

    def _write(self, job: Job) -> None:
        self.jobs[job.id] = job
        if job.dedupe is not None:
            held = self._held(job.dedupe)
            (held.add if job.state in UNFINISHED else held.discard)(job.id)

    def _next_log(self) -> LogId:
        return LogId(self._store._last_log + len(self.entries) + 1)  # noqa: SLF001 - its draft

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
        )
        self.entries.append(entry)
        return entry.id

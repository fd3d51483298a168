"""Leases: `Penstock.leases` and `Penstock.workers`, the protocol between workers and the store."""

import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from penstock.core import lifecycle
from penstock.core.errors import LeaseLost
from penstock.core.job import Claim, Job, JobId, Lease, bind
from penstock.core.lifecycle import Done, Event, Move, Outcome, State
from penstock.core.progress import Report
from penstock.core.tasks import AnnouncedTask, KnownTasks
from penstock.core.times import from_micros
from penstock.core.transition import Change
from penstock.core.workers import (
    MOST_COUNTED,
    WaitingTask,
    WorkerInfo,
    announced_task,
    waiting_tasks,
)
from penstock.engine.connection import Connection
from penstock.engine.decision import decide
from penstock.engine.limits import Limits
from penstock.engine.sync_calls import SyncLeases, SyncWorkers
from penstock.engine.tables import joined
from penstock.engine.validation import check_limit

_DONE = Done()
# How long what workers announce is relied upon, in seconds.
_ANNOUNCED_FOR = 2.0


class Leases:
    """Claims jobs, keeps their leases and settles them: what a worker in any process calls.

    Calls take a `Job` as it was claimed or its `Lease`; a job saves a read.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits

    @property
    def sync(self) -> SyncLeases:
        """The same calls from synchronous code, without `await`."""
        return SyncLeases(self)

    async def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        except_queues: Collection[str] = (),
        tags: Sequence[str] = (),
        tasks: KnownTasks | None = None,
    ) -> list[Job]:
        """Take up to `limit` ready jobs; each belongs to the worker while its lease is renewed.

        From these queues or, without `queues`, from all but `except_queues`. With `tasks`,
        only jobs of these.
        """
        check_limit(limit)
        if self._limits.unstored or self._limits.reserving:
            await self._limits.store_declared()
        wanted = Claim(
            worker=worker,
            limit=limit,
            queues=None if queues is None else tuple(queues),
            except_queues=frozenset(except_queues),
            tags=tuple(tags),
            tasks=tasks,
        )
        return await self._connection.store.claim(wanted)

    async def start(self, leases: Sequence[Job | Lease]) -> list[Job | None]:
        """Record in the log that the worker has started these, and renew their leases.

        One transaction. Returns None in the place of a job that is no longer held; the log records
        that too.
        """
        return await self._write(leases, lambda _, job: lifecycle.start(job))

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Renew these leases; a job that is missing in the answer is lost to the caller.

        The log records each loss. If a job in the answer has `cancel_requested`, stop it and
        settle it as cancelled.
        """
        renewed = await self._connection.store.renew(leases)
        if len(renewed) < len(leases):
            held = {job.lease for job in renewed}
            await self._refuse([one for one in leases if one not in held])
        return renewed

    async def report(self, reports: Sequence[Report]) -> list[bool]:
        """Keep the progress, lines and checkpoints that running jobs report, in one transaction.

        Returns for each whether its lease is still held. If not, nothing of it is kept, and the
        log records a checkpoint that was refused.
        """
        held = await self._connection.store.report(reports)
        if not all(held):
            await self._refuse(
                [
                    report.lease
                    for report, is_held in zip(reports, held, strict=True)
                    if not is_held and report.state is not None
                ]
            )
        return held

    async def settle(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job]:
        """Record the outcomes of runs of one worker, in one transaction for all still held.

        Raises `LeaseLost` for the first that is no longer held; the log records each.
        """
        settled = await self.settle_held(results)
        for (job, _), answer in zip(results, settled, strict=True):
            if answer is None:
                lease = _lease(job)
                raise LeaseLost(lease.job_id, lease.token)
        return [answer for answer in settled if answer is not None]

    async def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        """Settle as `settle` does, with None in the place of a job that is no longer held.

        Without `refuse`, the log records nothing of those: they may repeat what it contains.
        """
        random = self._connection.runtime.random.random
        return await self._write(
            [held for held, _ in results],
            lambda n, job: lifecycle.advance(job, results[n][1], random()),
            refuse=refuse,
        )

    async def finish(self, job: Job, outcome: Done = _DONE, *, connection: Any) -> Job:
        """End a claimed job successfully inside your own database transaction.

        It is done if and only if you commit, and must not be settled then. Raises `LeaseLost` if
        the job is no longer held: roll back.
        """
        return (await self.finish_all([(job, outcome)], connection=connection))[0]

    async def finish_all(self, ended: Sequence[tuple[Job, Done]], *, connection: Any) -> list[Job]:
        """Finish several jobs of one worker as `finish` does, all or none."""
        if not ended:
            return []
        own = self._connection
        actor = ended[0][0].worker or own.actor
        jobs = await own.tables.finish(ended, actor=actor, connection=joined(connection))
        return bind(jobs, own.results)

    async def reclaim(self, limit: int = 1000) -> int:
        """Take back jobs whose leases have expired, and return how many. Workers do this."""
        store = self._connection.store
        expired = [job for job in await store.expired(limit) if job.state is State.RUNNING]
        if not expired:
            return 0
        # Retries with jitter are spread evenly, so that each runs alone.
        changes = [
            Change(job, lifecycle.advance(job, lifecycle.Expired(), (n + 0.5) / len(expired)))
            for n, job in enumerate(expired)
        ]
        answers = await store.transition(changes, actor=self._connection.actor)
        return sum(answer is not None for answer in answers)

    async def _refuse(self, leases: Sequence[Lease]) -> None:
        """Record in the log that these leases have ended; of a deleted job, nothing."""
        await self._write(
            leases, lambda n, job: lifecycle.refuse(job, leases[n].token, leases[n].worker)
        )

    async def _write(
        self,
        holds: Sequence[Job | Lease],
        rule: Callable[[int, Job], Move],
        *,
        refuse: bool = True,
    ) -> list[Job | None]:
        """Write a move for each that is still held, by its place and the job as it is.

        One transaction, unless a job has changed meanwhile: those are decided again. The others
        are refused, with None in their places.
        """
        store = self._connection.store
        written: list[Job | None] = [None] * len(holds)
        known = {n: job for n, job in enumerate(holds) if isinstance(job, Job)}
        left: Sequence[int] = range(len(holds))

        async def attempt() -> list[Job | None] | None:
            nonlocal known, left
            if len(known) < len(left):
                unknown = {n: _lease(holds[n]).job_id for n in left if n not in known}
                known = dict(sorted({**known, **await self._known(unknown)}.items()))
            if not refuse:
                known = {n: job for n, job in known.items() if _holds(holds[n], job)}
            if not known:
                return written
            changes = [
                Change(job, rule(n, job) if _holds(holds[n], job) else _refusal(holds[n], job))
                for n, job in known.items()
            ]
            answers = await store.transition(changes, actor=holds[0].worker or "")
            left = []
            for n, change, answer in zip(known, changes, answers, strict=True):
                if answer is None:
                    left.append(n)
                elif change.move.event is not Event.REFUSED:
                    written[n] = answer
            known = {}
            return None if left else written

        return await decide(attempt, "the jobs that are written")

    async def _known(self, ids: Mapping[int, JobId]) -> dict[int, Job]:
        found = {job.id: job for job in await self._connection.store.get(list(ids.values()))}
        return {n: found[job_id] for n, job_id in ids.items() if job_id in found}


def _holds(hold: Job | Lease, job: Job) -> bool:
    return (job.state, job.token, job.worker) == (State.RUNNING, hold.token, hold.worker)


def _refusal(hold: Job | Lease, job: Job) -> Move:
    return lifecycle.refuse(job, hold.token, hold.worker or "")


def _lease(job: Job | Lease) -> Lease:
    return job.lease if isinstance(job, Job) else job


class Workers:
    """The workers of a store, in all processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._workers: builtins.list[WorkerInfo] = []
        self._read_again = 0.0

    @property
    def sync(self) -> SyncWorkers:
        """The same calls from synchronous code, without `await`."""
        return SyncWorkers(self)

    async def list(self) -> builtins.list[WorkerInfo]:
        """Return every worker, by name, with the number of jobs that it runs; also idle ones.

        One that was killed stays in the list for a day: `seen_at` is its last sign of life.
        """
        return await self._connection.store.workers()

    async def waiting_tasks(self) -> builtins.list[WaitingTask]:
        """Return the tasks whose ready jobs wait because no live worker knows them.

        Counts only jobs that a worker has seen, not those of queues without workers, and at most
        10,000 jobs of each task.
        """
        store = self._connection.store
        now = from_micros(self._connection.clock())
        aside = await store.set_aside(MOST_COUNTED)
        if not aside:
            return []
        return waiting_tasks(aside, await store.workers(), await store.departed_tasks(), now)

    async def announced(self, task: str) -> AnnouncedTask | None:
        """Return what live workers announce of a task, as of some seconds ago; None if nobody does.

        Of several, the newest version.
        """
        connection = self._connection
        if connection.runtime.monotonic() >= self._read_again:
            self._workers = await connection.store.workers()
            self._read_again = connection.runtime.monotonic() + _ANNOUNCED_FOR
        return announced_task(task, self._workers, from_micros(connection.clock()))

    async def drain(self, name: str) -> bool:
        """Ask a worker to take no more jobs, finish those that it has, and exit.

        It learns of this within ten seconds. Returns whether there is such a worker; one that only
        holds leases, and never registered, cannot be asked.
        """
        return await self._connection.store.drain_worker(name)

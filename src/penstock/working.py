"""What workers do: the part of `Penstock` that claims jobs, renews leases and settles."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from penstock.checks import check_limit
from penstock.core import lifecycle
from penstock.core.errors import LeaseLost, PenstockError
from penstock.core.job import Change, Claim, Job, JobId, Lease, bind
from penstock.core.lifecycle import Done, Event, Move, Outcome, State
from penstock.core.note import Note
from penstock.core.worker import WorkerInfo
from penstock.looking import Looking
from penstock.queues import Queues
from penstock.tables import joined

# A move is decided anew this often when others keep changing the job, before giving up.
_DECISIONS = 100
_DONE = Done()


class Working(Queues, Looking):
    """The part of `Penstock` that workers stand on; what they claim obeys the limits of queues."""

    async def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        queues: Sequence[str] | None = None,
        besides: Collection[str] = (),
        tags: Sequence[str] = (),
    ) -> list[Job]:
        """Take up to `limit` ready jobs; each stays the worker's while its lease is renewed.

        Of these queues, or without `queues` of all but those `besides`.
        """
        check_limit(limit)
        if self._task_limits:
            await self._declare_limits()
        wanted = Claim(
            worker=worker,
            limit=limit,
            queues=None if queues is None else tuple(queues),
            besides=frozenset(besides),
            tags=tuple(tags),
        )
        return await self.store.claim(wanted)

    async def start(self, leases: Sequence[Job | Lease]) -> list[Job | None]:
        """Note in the log that the worker began these, and prolong their leases.

        One transaction. None stands in the place of a job that is not held any more; the log
        notes that too. A `Job` as it was claimed saves looking it up.
        """
        return await self._write_held(leases, lambda _, job: lifecycle.start(job))

    async def renew(self, leases: Sequence[Lease]) -> list[Job]:
        """Prolong these leases; a job that is missing in the answer is lost to the caller.

        The log notes each that is lost. A job in the answer may have `cancel_requested`: then
        stop, and settle it as cancelled.
        """
        renewed = await self.store.renew(leases)
        if len(renewed) < len(leases):
            held = {job.lease for job in renewed}
            await self._refuse([one for one in leases if one not in held])
        return renewed

    async def note(self, notes: Sequence[Note]) -> list[bool]:
        """Keep what running jobs say about themselves, in one transaction.

        For each, whether its lease is still held; where it is not, nothing of it is kept, and
        the log notes a checkpoint that was refused.
        """
        held = await self.store.note(notes)
        if not all(held):
            await self._refuse(
                [
                    note.lease
                    for note, is_held in zip(notes, held, strict=True)
                    if not is_held and note.state is not None
                ]
            )
        return held

    async def _refuse(self, leases: Sequence[Lease]) -> None:
        """Note in the log that these leases are over; of a job that is gone nothing is noted."""
        await self._write_held(
            leases, lambda n, job: lifecycle.refuse(job, leases[n].token, leases[n].worker)
        )

    async def settle(self, results: Sequence[tuple[Job | Lease, Outcome]]) -> list[Job]:
        """Say what the runs of one worker came to; what is still held is one transaction.

        Raises `LeaseLost` for the first that is not held any more; the log notes each. A `Job`
        as it was claimed saves looking it up.
        """
        settled = await self.settle_held(results)
        for (job, _), answer in zip(results, settled, strict=True):
            if answer is None:
                lease = _lease(job)
                raise LeaseLost(lease.job_id, lease.token)
        return [answer for answer in settled if answer is not None]

    async def finish(self, job: Job, outcome: Done = _DONE, *, connection: Any) -> Job:
        """End a claimed job with success inside your own database transaction.

        It is done if and only if you commit, and needs no `settle` then. Raises `LeaseLost` if the
        job is not held any more: roll back.
        """
        return (await self.finish_all([(job, outcome)], connection=connection))[0]

    async def finish_all(self, ended: Sequence[tuple[Job, Done]], *, connection: Any) -> list[Job]:
        """As `finish`, for several jobs of one worker at once; all of them or none."""
        if not ended:
            return []
        actor = ended[0][0].worker or self.actor
        inside = joined(connection)
        return bind(await self.store.finish(ended, actor=actor, connection=inside), self)

    async def settle_held(
        self, results: Sequence[tuple[Job | Lease, Outcome]], *, refuse: bool = True
    ) -> list[Job | None]:
        """As `settle`, with None in the place of a job that is not held any more.

        Unless `refuse`, the log notes nothing of those: they may be repetitions of what it has.
        """
        return await self._write_held(
            [held for held, _ in results],
            lambda n, job: lifecycle.advance(job, results[n][1], random.random()),  # noqa: S311 - jitter
            refuse=refuse,
        )

    async def _write_held(
        self,
        holds: Sequence[Job | Lease],
        decide: Callable[[int, Job], Move],
        *,
        refuse: bool = True,
    ) -> list[Job | None]:
        """Write a move for each that is still held, decided by its place and the job as it is.

        One transaction, unless a job has changed meanwhile: those are looked at again. The others
        are refused; None stands in their places.
        """
        written: list[Job | None] = [None] * len(holds)
        known = {n: job for n, job in enumerate(holds) if isinstance(job, Job)}
        left: Sequence[int] = range(len(holds))
        for _ in range(_DECISIONS):
            if len(known) < len(left):
                unknown = {n: _lease(holds[n]).job_id for n in left if n not in known}
                known = dict(sorted({**known, **await self._known(unknown)}.items()))
            if not refuse:
                known = {n: job for n, job in known.items() if _holds(holds[n], job)}
            if not known:
                return written
            changes = [
                Change(job, decide(n, job) if _holds(holds[n], job) else _refusal(holds[n], job))
                for n, job in known.items()
            ]
            answers = await self.store.transition(changes, actor=holds[0].worker or "")
            left = []
            for n, change, answer in zip(known, changes, answers, strict=True):
                if answer is None:
                    left.append(n)
                elif change.move.event is not Event.REFUSED:
                    written[n] = answer
            known = {}
        raise PenstockError("the jobs keep changing while they are written; try again")

    async def _known(self, ids: Mapping[int, JobId]) -> dict[int, Job]:
        found = {job.id: job for job in await self.store.get(list(ids.values()))}
        return {n: found[job_id] for n, job_id in ids.items() if job_id in found}

    async def reclaim(self, limit: int = 1000) -> int:
        """Take back jobs whose leases ran out; how many. Workers do this by themselves."""
        expired = [job for job in await self.store.expired(limit) if job.state is State.RUNNING]
        if not expired:
            return 0
        # Those that are scattered are spread evenly, so that each runs alone.
        changes = [
            Change(job, lifecycle.advance(job, lifecycle.Expired(), (n + 0.5) / len(expired)))
            for n, job in enumerate(expired)
        ]
        answers = await self.store.transition(changes, actor=self.actor)
        return sum(answer is not None for answer in answers)

    async def workers(self) -> list[WorkerInfo]:
        """Every worker on this store, by name, with how many jobs it runs; idle ones as well.

        One that was killed stays in the list for a day: `seen_at` is when it was last heard of.
        """
        return await self.store.workers()

    async def drain_worker(self, name: str) -> bool:
        """Ask a worker to take no more jobs, finish those that it has, and end.

        It hears of it within ten seconds. Returns whether there is such a worker; one that only
        holds leases, without having said who it is, cannot be asked.
        """
        return await self.store.drain(name)


def _holds(hold: Job | Lease, job: Job) -> bool:
    return (job.state, job.token, job.worker) == (State.RUNNING, hold.token, hold.worker)


def _refusal(hold: Job | Lease, job: Job) -> Move:
    return lifecycle.refuse(job, hold.token, hold.worker or "")


def _lease(job: Job | Lease) -> Lease:
    return job.lease if isinstance(job, Job) else job

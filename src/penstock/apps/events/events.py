"""Publishes events, leases them to workers and records reports; repeated calls are idempotent.

A report carries the token of its lease, and a repeated report finds its own entry in the log.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from penstock import Job, JobNotFound, JobQuery, Penstock, State
from penstock.apps.events import contents, shapes, views
from penstock.apps.events.subscribers import Subscribers
from penstock.apps.kit import Problem, enqueue_readable, records_at
from penstock.jobs import Event, JobId, Record
from penstock.leases import Done, Failed, Lease, Outcome, Snoozed

# Jobs as they were claimed, so that most reports need no lookup.
_REMEMBERED = 10_000


class Report(msgspec.Struct, frozen=True, gc=False):
    """The report of a worker about its event; without a token, the worker's name identifies it."""

    event_id: int
    token: int | None
    outcome: Outcome
    said: shapes.Detail


Answer = shapes.Recorded | shapes.Exhausted


class Events:
    """The events of one Penstock."""

    def __init__(self, penstock: Penstock, *, retry_delay: float, lease: timedelta) -> None:
        self._penstock = penstock
        self.secrets = penstock.secrets
        self._retry_delay = retry_delay
        self._lease = lease
        self._held: OrderedDict[int, Job] = OrderedDict()
        self._subscribers = Subscribers(penstock, contents.QUEUE)
        self.running = self._subscribers.running
        self.answer_waiting = self._subscribers.answer_all

    async def publish(self, events: Sequence[shapes.NewEvent]) -> list[shapes.Published]:
        """Store these events in one transaction, all or none.

        If the dedupe key of an event is taken, the event that has it is returned in its place.
        """
        new = [contents.job_of(event, self._retry_delay, self._lease) for event in events]
        jobs = await enqueue_readable(self._penstock, new)
        published = [
            views.just_published(job, event, self.secrets)
            for job, event in zip(jobs, events, strict=True)
        ]
        taken = [job.id for job in jobs if job.duplicate]
        if taken:
            found = await self._penstock.archive.records(taken)
            known = {record.job.id: views.as_it_is(record, self.secrets) for record in found}
            published = [known.get(JobId(one.id), one) for one in published]
        return published

    # Leases

    async def subscribe(
        self,
        tags: Sequence[str],
        worker: str,
        limit: int,
        wait: float,
        gone: Callable[[], Coroutine[Any, Any, object]],
        *,
        check: Callable[[], object],
    ) -> list[Job]:
        """Lease up to `limit` events with any of these tags; wait for the first if necessary.

        `gone` returns when the worker has disconnected. `check` raises if the worker lost its
        access while it waited.
        """
        jobs = await self._penstock.leases.claim(
            worker=worker, limit=limit, queues=[contents.QUEUE], tags=tags
        )
        if jobs and await _has_left(gone):
            await self._subscribers.release(jobs)
            return []
        if not jobs and wait > 0:
            jobs = await self._subscribers.wait(tags, worker, limit, wait, gone, check=check)
        readable = await self._without_unreadable(jobs)
        for job in readable:
            self._remember(job)
        return readable

    async def _without_unreadable(self, jobs: Sequence[Job]) -> list[Job]:
        """Fail events that workers cannot read; the log says why."""
        reasons = {job.id: reason for job in jobs if (reason := contents.why_unreadable(job))}
        if reasons:
            await self._penstock.leases.settle_held(
                [
                    (job, Failed(reasons[job.id], permanent=True))
                    for job in jobs
                    if job.id in reasons
                ]
            )
        return [job for job in jobs if job.id not in reasons]

    async def start(self, event_id: int, worker: str, token: int | None) -> Job:
        """Record that work on an event has started, and renew the lease."""
        held = await self._hold(event_id, worker, token)
        (job,) = await self._penstock.leases.start([held])
        if job is None:
            raise _not_held(event_id, worker)
        self._remember(job)
        return job

    async def heartbeat(self, event_id: int, worker: str, token: int | None) -> Job:
        """Renew the lease."""
        held = await self._hold(event_id, worker, token)
        renewed = await self._penstock.leases.renew(
            [held if isinstance(held, Lease) else held.lease]
        )
        if not renewed:
            raise _not_held(event_id, worker)
        return renewed[0]

    async def release(self, event_id: int, worker: str, token: int | None) -> Job:
        """Release an event without using an attempt."""
        held = await self._hold(event_id, worker, token)
        outcome = Snoozed(reason=f"released by {worker}")
        (job,) = await self._penstock.leases.settle_held([(held, outcome)])
        if job is None:
            raise _not_held(event_id, worker)
        return job

    # Reports

    async def report(self, worker: str, reports: Sequence[Report]) -> list[Answer | Problem]:
        """Record the outcomes of events in one transaction; each report has its own answer.

        A repeated report gets the same answer, and no second entry in the log.
        """
        held: list[Job | Lease] = []
        for one in reports:
            job = self._held.get(one.event_id)
            if job is None or job.worker != worker or one.token not in (None, job.token):
                held.append(Lease(JobId(one.event_id), one.token or 0, worker))
            else:
                held.append(job)
        unknown = [n for n, job in enumerate(held) if isinstance(job, Lease)]
        answers: dict[int, Answer | Problem] = {}
        if unknown:
            answers = await self._look_up(worker, reports, held, unknown)
        todo = [n for n in range(len(reports)) if n not in answers]
        results = [(held[n], reports[n].outcome) for n in todo]
        settled = await self._penstock.leases.settle_held(results, refuse=False)
        lost, outdated = [], []
        for n, job in zip(todo, settled, strict=True):
            self._held.pop(reports[n].event_id, None)
            if job is not None:
                answers[n] = _answer(worker, reports[n], job)
            elif n in unknown:
                lost.append(n)
            else:  # another process may have leased it to the same worker since
                outdated.append(n)
        if lost:
            answers |= await self._refuse(worker, reports, lost)
        if outdated:
            again = await self.report(worker, [reports[n] for n in outdated])
            answers |= zip(outdated, again, strict=True)
        return [answers[n] for n in range(len(reports))]

    async def _refuse(
        self, worker: str, reports: Sequence[Report], lost: Sequence[int]
    ) -> dict[int, Answer | Problem]:
        """Answer reports without a lease: repeated ones as before; the log records the others."""
        answers: dict[int, Answer | Problem] = {}
        late: list[tuple[Job | Lease, Outcome]] = []
        for n, record in (await self._records(reports, lost)).items():
            one = reports[n]
            replay = _replay(worker, one, record)
            if replay is None:
                late.append((Lease(JobId(one.event_id), one.token or 0, worker), one.outcome))
            answers[n] = replay or _not_held(one.event_id, worker)
        await self._penstock.leases.settle_held(late)
        return answers

    async def _look_up(
        self,
        worker: str,
        reports: Sequence[Report],
        held: list[Job | Lease],
        unknown: Sequence[int],
    ) -> dict[int, Answer | Problem]:
        """Find the jobs that this process did not lease, and answer repeated reports."""
        answers: dict[int, Answer | Problem] = {}
        for n, record in (await self._records(reports, unknown)).items():
            if isinstance(record, Problem):
                answers[n] = record
                continue
            job, token = record.job, reports[n].token
            if job.state is State.RUNNING and job.worker == worker and token in (None, job.token):
                held[n] = job
            elif replay := _replay(worker, reports[n], record):
                answers[n] = replay
        return answers

    async def _records(
        self, reports: Sequence[Report], places: Sequence[int]
    ) -> dict[int, Record | Problem]:
        if not places:
            return {}
        wanted = [reports[n].event_id for n in places]
        found = {record.job.id: record for record in await self._penstock.archive.records(wanted)}
        return {
            n: record
            if (record := found.get(JobId(event_id))) and contents.is_event(record.job)
            else _unknown(event_id)
            for n, event_id in zip(places, wanted, strict=True)
        }

    # Reading and resetting

    async def get(self, event_id: int) -> Record:
        """Return an event with its log."""
        records = await self._penstock.archive.records([event_id])
        if not records or not contents.is_event(records[0].job):
            raise _unknown(event_id)
        return records[0]

    async def page(
        self, state: State | None, tags: Sequence[str], limit: int, offset: int
    ) -> tuple[list[Record], int]:
        """Return a page of events, newest first, and the number of all that match."""
        query = JobQuery(
            queue=contents.QUEUE,
            states=None if state is None else frozenset({state}),
            tags=tuple(tags),
            limit=limit,
        )
        records = await records_at(self._penstock, query, offset)
        return records, await self._penstock.bulk(query).count()

    async def reset(self, event_id: int, reason: str | None) -> Job:
        """Make an event pending again with all its attempts, even if a worker has it."""
        await self.get(event_id)
        self._held.pop(event_id, None)
        return await self._penstock.reset(event_id, reason)

    def _remember(self, job: Job) -> None:
        self._held[job.id] = job
        if len(self._held) > _REMEMBERED:
            self._held.popitem(last=False)

    async def _hold(self, event_id: int, worker: str, token: int | None) -> Job | Lease:
        # A remembered lease may have expired: the token shows that, a name alone does not.
        job = self._held.get(event_id)
        if job is None or job.worker != worker or token != job.token:
            try:
                job = await self._penstock.get(event_id)
            except JobNotFound:
                raise _unknown(event_id) from None
            if not contents.is_event(job):
                raise _unknown(event_id)
        if job.state is State.RUNNING and job.worker == worker and token in (None, job.token):
            return job
        return Lease(job.id, token or 0, worker)


async def _has_left(gone: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Return whether the worker has disconnected meanwhile."""
    leaving = asyncio.create_task(gone())
    await asyncio.sleep(0)
    return leaving.done() or not leaving.cancel()


def _answer(worker: str, report: Report, job: Job) -> Answer:
    """Return the answer to a report that has just been recorded."""
    if isinstance(report.outcome, Done):
        assert job.finished_at is not None  # noqa: S101 - it is done
        return views.completed(job.id, worker, job.finished_at, report.said)
    assert isinstance(report.outcome, Failed)  # noqa: S101 - there are no others
    error = report.outcome.error
    if job.state is State.FAILED:
        return views.exhausted(job)
    if job.state is State.PENDING:
        at = job.run_at - job.retry.delay_after(job.attempt, 0.5)
        return views.failed(job.id, worker, at, report.said, error, job.run_at)
    assert job.finished_at is not None  # noqa: S101 - it was cancelled or superseded
    return views.failed(job.id, worker, job.finished_at, report.said, error, None)


def _replay(worker: str, report: Report, record: Record | Problem) -> Answer | Problem | None:
    """Return the answer to a report that is already in the log; None if it is not."""
    if isinstance(record, Problem):
        return record
    wanted = Event.DONE if isinstance(report.outcome, Done) else Event.FAILED
    token = report.token
    for entry in reversed(record.log):
        if entry.actor != worker:
            continue
        if token is None and entry.event is Event.CLAIMED:  # it is about the last lease
            token = entry.token
        if entry.event is wanted and token in (None, entry.token):
            return views.replayed(entry, record.job)
    return None


def _unknown(event_id: int) -> Problem:
    return Problem(404, f"there is no event {event_id}")


def _not_held(event_id: int, worker: str) -> Problem:
    return Problem(409, f"event {event_id} is not held by {worker}; discard its result")

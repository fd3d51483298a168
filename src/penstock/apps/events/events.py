"""Events on the queue: publishing, holding and reporting, with the same answer to a repeated call.

Running twice is safe: a report carries the token of its hold, and a repeated one finds its own
entry in the log.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from penstock import (
    Done,
    Event,
    Failed,
    Job,
    JobId,
    JobNotFound,
    JobQuery,
    Lease,
    Outcome,
    Penstock,
    Record,
    Snoozed,
    State,
)
from penstock.apps.events import contents, shapes, views
from penstock.apps.events.subscribers import Subscribers
from penstock.http.problems import Problem

# Jobs as they were picked, so that most reports need not look them up.
_REMEMBERED = 10_000


class Report(msgspec.Struct, frozen=True, gc=False):
    """What a worker says about an event that it holds; without a token, by its name alone."""

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
        self.let_go = self._subscribers.let_go

    async def publish(self, events: Sequence[shapes.NewEvent]) -> list[shapes.Published]:
        """Store these events in one transaction, all or none.

        In the place of one whose dedupe key is taken stands the event that has it, as it is now.
        """
        new = [contents.job_of(event, self._retry_delay, self._lease) for event in events]
        jobs = await self._penstock.enqueue_many(new)
        published = [
            views.just_published(job, event, self.secrets)
            for job, event in zip(jobs, events, strict=True)
        ]
        taken = [job.id for job in jobs if job.duplicate]
        if taken:
            found = await self._penstock.records(taken)
            known = {record.job.id: views.as_it_is(record, self.secrets) for record in found}
            published = [known.get(JobId(one.id), one) for one in published]
        return published

    # Holding

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
        """Give a worker up to `limit` events with any of these tags; wait for the first if need be.

        `gone` returns when the worker does not wait any more; `check` raises what keeps it from
        having them after a wait.
        """
        jobs = await self._penstock.claim(
            worker=worker, limit=limit, queues=[contents.QUEUE], tags=tags
        )
        if jobs and await _has_left(gone):
            await self._subscribers.give_back(jobs)
            return []
        if not jobs and wait > 0:
            jobs = await self._subscribers.wait(tags, worker, limit, wait, gone, check=check)
        readable = await self._without_unreadable(jobs)
        for job in readable:
            self._remember(job)
        return readable

    async def _without_unreadable(self, jobs: Sequence[Job]) -> list[Job]:
        """End events that would end whoever reads them; their log says why."""
        reasons = {job.id: reason for job in jobs if (reason := contents.why_unreadable(job))}
        if reasons:
            await self._penstock.settle_held(
                [
                    (job, Failed(reasons[job.id], permanent=True))
                    for job in jobs
                    if job.id in reasons
                ]
            )
        return [job for job in jobs if job.id not in reasons]

    async def start(self, event_id: int, worker: str, token: int | None) -> Job:
        """Note that work on an event has begun; the lease goes on from now."""
        held = await self._hold(event_id, worker, token)
        (job,) = await self._penstock.start([held])
        if job is None:
            raise _not_held(event_id, worker)
        self._remember(job)
        return job

    async def heartbeat(self, event_id: int, worker: str, token: int | None) -> Job:
        """Let the lease go on from now."""
        held = await self._hold(event_id, worker, token)
        renewed = await self._penstock.renew([held if isinstance(held, Lease) else held.lease])
        if not renewed:
            raise _not_held(event_id, worker)
        return renewed[0]

    async def release(self, event_id: int, worker: str, token: int | None) -> Job:
        """Give an event back; it uses up no attempt."""
        held = await self._hold(event_id, worker, token)
        outcome = Snoozed(reason=f"released by {worker}")
        (job,) = await self._penstock.settle_held([(held, outcome)])
        if job is None:
            raise _not_held(event_id, worker)
        return job

    # Reporting

    async def report(self, worker: str, reports: Sequence[Report]) -> list[Answer | Problem]:
        """Record what came of events, in one transaction; each report has its own answer.

        What was reported before is answered as before, and leaves no second entry.
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
        settled = await self._penstock.settle_held(results, refuse=False)
        lost, outdated = [], []
        for n, job in zip(todo, settled, strict=True):
            self._held.pop(reports[n].event_id, None)
            if job is not None:
                answers[n] = _answer(worker, reports[n], job)
            elif n in unknown:
                lost.append(n)
            else:  # another process may have given it to the same worker since
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
        """Answer what is not held: as before what was reported before; the log notes the others."""
        answers: dict[int, Answer | Problem] = {}
        late: list[tuple[Job | Lease, Outcome]] = []
        for n, record in (await self._records(reports, lost)).items():
            one = reports[n]
            replay = _replay(worker, one, record)
            if replay is None:
                late.append((Lease(JobId(one.event_id), one.token or 0, worker), one.outcome))
            answers[n] = replay or _not_held(one.event_id, worker)
        await self._penstock.settle_held(late)
        return answers

    async def _look_up(
        self,
        worker: str,
        reports: Sequence[Report],
        held: list[Job | Lease],
        unknown: Sequence[int],
    ) -> dict[int, Answer | Problem]:
        """Find the jobs that this process did not hand out; answer what was reported before."""
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
        found = {record.job.id: record for record in await self._penstock.records(wanted)}
        return {
            n: record
            if (record := found.get(JobId(event_id))) and contents.is_event(record.job)
            else _unknown(event_id)
            for n, event_id in zip(places, wanted, strict=True)
        }

    # Looking and steering

    async def get(self, event_id: int) -> Record:
        """An event with its log."""
        records = await self._penstock.records([event_id])
        if not records or not contents.is_event(records[0].job):
            raise _unknown(event_id)
        return records[0]

    async def page(
        self, state: State | None, tags: Sequence[str], limit: int, offset: int
    ) -> tuple[list[Record], int]:
        """A page of the events, newest first, and how many there are."""
        query = JobQuery(
            queue=contents.QUEUE,
            states=None if state is None else frozenset({state}),
            tags=tuple(tags),
            limit=offset + limit,
        )
        ids = (await self._penstock.find_ids(query))[offset:]
        return await self._penstock.records(ids), await self._penstock.count_matching(query)

    async def reset(self, event_id: int, reason: str | None) -> Job:
        """Make an event pending again with all its attempts, whoever holds it."""
        await self.get(event_id)
        self._held.pop(event_id, None)
        return await self._penstock.reset(event_id, reason)

    def _remember(self, job: Job) -> None:
        self._held[job.id] = job
        if len(self._held) > _REMEMBERED:
            self._held.popitem(last=False)

    async def _hold(self, event_id: int, worker: str, token: int | None) -> Job | Lease:
        # What is remembered may be over; the token tells, a name alone does not.
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
    """Whether who asked has gone away meanwhile."""
    leaving = asyncio.create_task(gone())
    await asyncio.sleep(0)
    return leaving.done() or not leaving.cancel()


def _answer(worker: str, report: Report, job: Job) -> Answer:
    """The answer to a report that has just been recorded."""
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
    """The answer to a report that the log has already."""
    if isinstance(record, Problem):
        return record
    wanted = Event.DONE if isinstance(report.outcome, Done) else Event.FAILED
    token = report.token
    for entry in reversed(record.log):
        if entry.actor != worker:
            continue
        if token is None and entry.event is Event.CLAIMED:  # without one, it means its last hold
            token = entry.token
        if entry.event is wanted and token in (None, entry.token):
            return views.replayed(entry, record.job)
    return None


def _unknown(event_id: int) -> Problem:
    return Problem(404, f"there is no event {event_id}")


def _not_held(event_id: int, worker: str) -> Problem:
    return Problem(409, f"event {event_id} is not held by {worker}; discard what it came to")

"""The jobs of a server: as `Penstock` answers for a store, as far as the server offers it."""

import re
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from penstock.admin import Bulk, Progress
from penstock.checks import check_jobs
from penstock.client import shapes
from penstock.client.line import Line, line_to
from penstock.client.shapes import Body
from penstock.client.stream import Frame, frames
from penstock.client.wire import Request
from penstock.core import jsontext, note
from penstock.core.errors import ConfigurationError, InvalidJob, JobNotFound, QueueInUse
from penstock.core.history import MINUTE, TOGETHER, Interval
from penstock.core.job import (
    ALL_QUEUES,
    Ages,
    Counts,
    Job,
    JobId,
    JobQuery,
    LogEntry,
    NewJob,
    Overall,
    Queue,
    QueueQuery,
    QueueStatus,
)
from penstock.core.lifecycle import State
from penstock.core.schedule import Schedule
from penstock.core.secrets import Secrets
from penstock.core.token import Access
from penstock.core.worker import WorkerInfo
from penstock.explaining import Explanation
from penstock.looking import Batch
from penstock.queues import Drained

_JOBS, _QUEUES, _WORKERS = "/api/v1/jobs", "/api/v1/queues", "/api/v1/workers"
_HISTORY, _SCHEDULES = "/api/v1/history", "/api/v1/schedules"
_PAGE = 1_000
_STEPS = 1_440
# A call for many jobs works as long as it takes, in portions.
_BULK_TIME = 3_600.0


class RemotePenstock:
    """The queue behind a server, with those methods of `Penstock` that it offers over HTTP.

    All are coroutines. One that is `blocking` is for synchronous code: wrap calls in `run_sync`.
    """

    secrets = Secrets()
    """Nothing is left to be hidden: the server has."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retries: int = 3,
        timeout: timedelta = timedelta(seconds=30),
        blocking: bool = False,
    ) -> None:
        self._line = line_to(
            url, token, retries=retries, timeout=timeout.total_seconds(), blocking=blocking
        )
        self.url = self._line.url

    @classmethod
    def on(cls, line: Line) -> Self:
        """On a line that others use as well."""
        remote = cls(line.url)
        remote._line = line
        return remote

    async def close(self) -> None:
        """Let go of the connections."""
        await self._line.close()

    # Producers

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        """Store a job for a task by its name; the options are the fields of a `NewJob`.

        A call without an answer is repeated under a dedupe key of its own.
        """
        payload = jsontext.encode({} if args is None else args, "args", jsontext.DEPTH_LIMIT + 1)
        (job,) = await self.enqueue_many([NewJob(task=task, payload=payload, **options)])
        return job

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store up to 1,000 jobs in one transaction, all or none; the answer has their order."""
        check_jobs(jobs)
        once = f"client/{uuid.uuid4().hex}" if self._line.retries else None
        # A superseding job that arrives twice would supersede itself.
        repeats = not any(job.supersede for job in jobs)
        body = [
            shapes.asked(job, f"{once}/{n}" if once and repeats else None)
            for n, job in enumerate(jobs)
        ]
        request = Request(
            "POST",
            f"{_JOBS}/batch",
            body={"jobs": body},
            repeats=repeats,
            invalid=InvalidJob,
        )
        answer = await self._line.ask(request, Body)
        return [shapes.job(one) for one in shapes.several(answer, "jobs")]

    # Looking

    async def get(self, job_id: int) -> Job:
        """The job as it is now. Raises `JobNotFound`."""
        return shapes.job(await self._ask(f"{_JOBS}/{job_id}"))

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """The jobs that fit, newest first unless asked otherwise."""
        query = query or JobQuery()
        found: list[Job] = []
        while True:
            page = replace(query, limit=min(query.limit - len(found), _PAGE))
            answer = await self._ask(_JOBS, shapes.parameters(page))
            found += map(shapes.job, shapes.several(answer, "jobs"))
            after = answer.get("after")
            if after is None or len(found) >= query.limit:
                return found
            query = replace(query, after=JobId(after))

    async def log(
        self, job_id: int, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """The audit of one job behind an entry's id, oldest first."""
        found: list[LogEntry] = []
        while True:
            asked = {"after": after or 0, "limit": min(limit - len(found), _PAGE)}
            answer = await self._ask(f"{_JOBS}/{job_id}/log", asked)
            found += map(shapes.entry, shapes.several(answer, "log"))
            after = answer.get("after")
            if after is None or len(found) >= limit:
                return found

    def tail(self, after: int | None, job_id: int | None = None) -> Iterator[Frame]:
        """The log of all jobs, or of one, behind an entry's id, for ever; from now on if None.

        For synchronous code. The first frame has no entry, but the place where it begins.
        """
        return frames(self._line, after, job_id)

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Something, every time that the log has grown, and twice a minute; for an event loop.

        What it is has no meaning: look at what you show. Inside the block nothing is missed.
        """
        return self._line.pieces(Request("GET", "/api/v1/stream"))

    async def explain(self, job_id: int) -> Explanation:
        """Why this job is not running, or what else became of it."""
        return shapes.read(await self._ask(f"{_JOBS}/{job_id}/explain"), Explanation)

    async def progress(self, job_id: int) -> note.Progress | None:
        """How far a job is; None if it never said so."""
        said = (await self._ask(f"{_JOBS}/{job_id}")).get("progress")
        return None if said is None else shapes.read(said, note.Progress)

    async def lines(
        self, job_id: int, after: int | None = None, limit: int = 1000
    ) -> list[note.Line]:
        """What a job has logged, oldest first, behind a line's id."""
        asked = {"after": after or 0, "limit": min(limit, _PAGE)}
        answer = await self._ask(f"{_JOBS}/{job_id}/lines", asked)
        return [shapes.read(one, note.Line) for one in shapes.several(answer, "lines")]

    async def batch(self, correlation: str) -> Batch:
        """How the jobs of a batch fare."""
        answer = await self._ask(f"/api/v1/batches/{quote(correlation, safe='')}")
        states = shapes.read(answer.get("states"), dict[State, int])
        return Batch(correlation, {state: n for state, n in states.items() if n})

    # Steering

    async def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop."""
        return await self._steer(job_id, "cancel", reason)

    async def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again."""
        return await self._steer(job_id, "retry", reason)

    async def reset(self, job_id: int, reason: str | None = None) -> Job:
        """As `retry`; a running job is taken from its worker."""
        return await self._steer(job_id, "reset", reason)

    async def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once."""
        return await self._steer(job_id, "reprioritise", reason, priority=priority)

    async def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was."""
        request = Request("DELETE", f"{_JOBS}/{job_id}", repeats=False)
        return shapes.job(await self._line.ask(request, Body))

    async def _steer(self, job_id: int, verb: str, reason: str | None, **said: Any) -> Job:
        params = {**said} if reason is None else {**said, "reason": reason}
        request = Request("POST", f"{_JOBS}/{job_id}/{verb}", params=params, repeats=False)
        return shapes.job(await self._line.ask(request, Body))

    async def cancel_all(
        self,
        query: JobQuery,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Bulk:
        """End the pending jobs that fit, and ask the running ones to stop."""
        return await self._bulk("cancel", query, progress, dry_run=dry_run, reason=reason)

    async def retry_all(
        self,
        query: JobQuery,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Bulk:
        """Run the failed jobs that fit again; others only if the query's `states` name them."""
        return await self._bulk("retry", query, progress, dry_run=dry_run, reason=reason)

    async def reprioritise(
        self,
        query: JobQuery,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Bulk:
        """Give the pending jobs that fit another priority."""
        return await self._bulk(
            "reprioritise", query, progress, dry_run=dry_run, reason=reason, priority=priority
        )

    async def delete_all(
        self,
        query: JobQuery,
        *,
        archive: object = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Bulk:
        """Remove the finished jobs that fit, with their log; there is no archive over HTTP."""
        if archive is not None:
            raise ConfigurationError("an archive is written beside the store; a server writes none")
        return await self._bulk("delete", query, progress, dry_run=dry_run)

    async def _bulk(
        self, verb: str, query: JobQuery, progress: Progress | None, **said: Any
    ) -> Bulk:
        chosen = shapes.filtering(query)
        body = {"filter": chosen, "all": not chosen, **said}
        request = Request(
            "POST",
            f"{_JOBS}/bulk/{verb}",
            body={name: value for name, value in body.items() if value is not None},
            repeats=False,
            patience=_BULK_TIME,
        )
        bulk = shapes.read(await self._line.ask(request, Body), Bulk)
        if progress is not None:
            progress(bulk)
        return bulk

    # Queues

    async def queues(self, query: QueueQuery = ALL_QUEUES) -> list[Queue]:
        """The queues with their limits, by name: all of them, or those that a query asks for."""
        return [shapes.queue(one) for one in await self._counted(query)]

    async def queue_statuses(self, query: QueueQuery = ALL_QUEUES) -> list[QueueStatus]:
        """As `queues`, each with its jobs by state and since when its oldest ready one is due."""
        now = datetime.now(UTC)
        return [shapes.queue_status(one, now) for one in await self._counted(query)]

    async def overall(self) -> Overall:
        """What all queues have together: how many there are, and jobs by state."""
        said = await self._ask("/api/v1/summary")
        return Overall(
            queues=shapes.read(said.get("queues"), int),
            paused=shapes.read(said.get("paused"), int),
            counts=dict(shapes.counts(said)),
            oldest_ready=shapes.since(said, datetime.now(UTC)),
        )

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """How many jobs there are by queue, state and what they wait for."""
        return {
            (status.queue.name, *stage): n
            for status in await self.queue_statuses(_named(queues))
            for stage, n in status.counts.items()
        }

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Since when the job of each queue that is ready for the longest has been due."""
        found = {
            status.queue.name: status.oldest_ready
            for status in await self.queue_statuses(_named(queues))
        }
        return {name: since for name, since in found.items() if since is not None}

    async def _counted(self, query: QueueQuery) -> list[Body]:
        if query.names is not None:
            wanted = sorted(name for name in {*query.names} if query.wants(name))
            found = [one for name in wanted if (one := await self._queue(name)) is not None]
            return found[: query.limit]
        found, after = [], query.after
        while True:
            left = _PAGE if query.limit is None else query.limit - len(found)
            asked = {"name": query.contains, "after": after, "limit": min(left, _PAGE)}
            given = {name: value for name, value in asked.items() if value is not None}
            answer = await self._ask(_QUEUES, given)
            found += shapes.several(answer, "queues")
            after = answer.get("after")
            if after is None or len(found) == query.limit:
                return found

    async def _queue(self, name: str) -> Body | None:
        """One queue; None if there is none of this name."""
        try:
            return await self._ask(_of_queue(name))
        except JobNotFound:  # as every 404 is called
            return None

    async def workers(self) -> list[WorkerInfo]:
        """Who works on the store, busy or idle."""
        return [shapes.read(one, WorkerInfo) for one in await self._listed(_WORKERS, "workers")]

    async def scopes(self) -> frozenset[Access]:
        """What the token is good for; everything where the server asks for none."""
        found = await self._ask("/api/v1/session")
        return shapes.read(found.get("scopes"), frozenset[Access])

    async def schedules(self) -> list[Schedule]:
        """Every schedule, by name; of its job, the task and the queue."""
        return [shapes.schedule(one) for one in await self._listed(_SCHEDULES, "schedules")]

    async def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule at once; its rhythm goes on as before."""
        said = await self._of_schedule(name, "run")
        return replace(shapes.job(said), duplicate=bool(said.get("duplicate")))

    async def pause_schedule(self, name: str) -> Schedule:
        """Fire it no more, in any process, until it is resumed."""
        return shapes.schedule(await self._of_schedule(name, "pause"))

    async def resume_schedule(self, name: str) -> Schedule:
        """Fire it again from its next run on; runs that fell into the pause do not happen."""
        return shapes.schedule(await self._of_schedule(name, "resume"))

    async def _of_schedule(self, name: str, verb: str) -> Body:
        request = Request("POST", f"{_SCHEDULES}/{quote(name, safe='')}/{verb}")
        return await self._line.ask(request, Body)

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running ones go on.

        After `duration` the pause ends by itself; without one it lasts until `resume`.
        """
        params = None if duration is None else {"duration": duration.total_seconds()}
        request = Request("POST", _of_queue(queue, "/pause"), params=params)
        return shapes.queue(await self._line.ask(request, Body))

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        request = Request("POST", _of_queue(queue, "/resume"))
        return shapes.queue(await self._line.ask(request, Body))

    async def remove_queue(self, queue: str) -> bool:
        """Lift all limits of a queue, and its pause; it goes with its last job.

        False if there is no such queue; raises `QueueInUse` while it has unfinished jobs.
        """

        def in_use(detail: str) -> QueueInUse:
            found = re.search(r"has (\d+) unfinished", detail)
            return QueueInUse(queue, int(found[1]) if found else 1)

        request = Request("DELETE", _of_queue(queue, ""), conflict=in_use)
        try:
            await self._line.ask(request, Body)
        except JobNotFound:
            return False
        return True

    async def limit(
        self,
        queue: str,
        max_pending: int | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET,
        promote_after: Ages | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Queue:
        """Set a queue's limits, for every process; None lifts one, what is not given stays."""
        limits = {
            "max_pending": max_pending,
            "concurrency": concurrency,
            "rate": {"count": rate[0], "seconds": rate[1].total_seconds()}
            if isinstance(rate, tuple)
            else rate,
            "promote_after": shapes.seconds(promote_after),
        }
        body = {name: value for name, value in limits.items() if value is not msgspec.UNSET}
        request = Request("PATCH", _of_queue(queue), body=body)
        return shapes.queue(await self._line.ask(request, Body))

    async def history(
        self,
        since: datetime,
        until: datetime,
        queue: str | QueueQuery | None = None,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """What has happened from `since` to `until`, by minute and queue; of the last 8 days.

        Of one queue, of those that a query finds, or of all; with `together`, all are one sum.
        """
        since = since.replace(second=0, microsecond=0)  # or pages would have a minute in common
        found: list[Interval] = []
        while since < until:
            end = min(since + _STEPS * MINUTE, until)
            asked = {"since": since.isoformat(), "until": end.isoformat()}
            found += await self._intervals(asked, queue, together=together)
            since = end
        return found

    async def _intervals(
        self, asked: Body, queue: str | QueueQuery | None, *, together: bool
    ) -> list[Interval]:
        if isinstance(queue, str) or together:
            given = asked | ({"together": "true"} if together else {"queue": queue})
            answer = await self._ask(_HISTORY, given)
            return [_interval(one) for one in shapes.several(answer, "intervals")]
        query = queue or ALL_QUEUES
        names = None if query == ALL_QUEUES else {one.name for one in await self.queues(query)}
        found: list[Interval] = []
        after = query.after
        while names is None or (names and (after or "") < max(names)):
            chosen = {"name": query.contains, "after": after, "limit": _PAGE}
            given = asked | {name: value for name, value in chosen.items() if value is not None}
            answer = await self._ask(_HISTORY, given)
            page = [_interval(one) for one in shapes.several(answer, "intervals")]
            found += [one for one in page if names is None or one.queue in names]
            after = answer.get("after")
            if after is None:
                break
        return found

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later ones do not count."""
        if queue is None:
            raise ConfigurationError("a server drains one queue: name it")
        time = timeout.total_seconds()
        request = Request(
            "POST", _of_queue(queue, "/drain"), params={"timeout": time}, patience=time
        )
        return shapes.read(await self._line.ask(request, Body), Drained)

    async def _listed(self, path: str, name: str) -> list[Body]:
        """What is on all pages of a list by name."""
        answer = await self._ask(path)
        found = shapes.several(answer, name)
        while (after := answer.get("after")) is not None:
            answer = await self._ask(path, {"after": after})
            found += shapes.several(answer, name)
        return found

    async def _ask(self, path: str, params: Mapping[str, Any] | None = None) -> Body:
        return await self._line.ask(Request("GET", path, params=params), Body)


def _of_queue(name: str, verb: str = "") -> str:
    return f"{_QUEUES}/{quote(name, safe='')}{verb}"


def _named(queues: Collection[str] | None) -> QueueQuery:
    return QueueQuery(names=None if queues is None else tuple(queues))


def _interval(said: Body) -> Interval:
    return shapes.read({**said, "queue": said.get("queue") or TOGETHER}, Interval)

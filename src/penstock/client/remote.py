"""The queue behind a server: the protocol in `penstock.engine.protocol`, over HTTP."""

import builtins
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from penstock.client import shapes
from penstock.client.connection import Connection, connect
from penstock.client.shapes import Body
from penstock.client.stream import endless_frames, frames
from penstock.client.sync_calls import (
    SyncRemoteLimits,
    SyncRemotePenstock,
    SyncRemoteQueues,
    SyncRemoteSchedules,
    SyncRemoteSelection,
    SyncRemoteStatistics,
    SyncRemoteTokens,
    SyncRemoteWorkers,
)
from penstock.client.wire import Request
from penstock.core import jsontext
from penstock.core import progress as reports
from penstock.core.errors import ConfigurationError, InvalidJob, JobNotFound, NotOffered
from penstock.core.explanation import Explanation
from penstock.core.job import Job, JobId, LogEntry, NewJob
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.queue import (
    ALL_QUEUES,
    Ages,
    Counts,
    Queue,
    QueueQuery,
    QueueStatus,
    QueueSummary,
)
from penstock.core.schedule import Schedule
from penstock.core.secrets import Secrets
from penstock.core.statistics import MINUTE, TOGETHER, Interval
from penstock.core.tokens import Access
from penstock.core.workers import WorkerInfo
from penstock.engine.batch import Batch
from penstock.engine.bulk import Bulk, BulkProgress, Portion
from penstock.engine.protocol import (
    ArchivePart,
    BulkPart,
    Jobs,
    LeasePart,
    LimitPart,
    PathLike,
    QueuePart,
    SchedulePart,
    StatisticsPart,
    TablePart,
    TokenPart,
    WorkerPart,
    not_offered,
)
from penstock.engine.queues import Drained
from penstock.engine.validation import check_jobs

_JOBS, _QUEUES, _WORKERS = "/api/v1/jobs", "/api/v1/queues", "/api/v1/workers"
_HISTORY, _SCHEDULES = "/api/v1/history", "/api/v1/schedules"
_PAGE = 1_000
_STEPS = 1_440
# A call for many jobs works as long as it takes, in portions.
_BULK_TIME = 3_600.0


class _Calls:
    """Requests to one server, as its parts make them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def check_blocking(self) -> None:
        """Raise `ConfigurationError` if the calls of this connection need an event loop."""
        if not self.connection.blocking:
            raise ConfigurationError(
                "this RemotePenstock is for an event loop; for synchronous code, create it with "
                "blocking=True"
            )

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Body:
        """Read a resource."""
        return await self.connection.ask(Request("GET", path, params=params), Body)

    async def send(self, request: Request) -> Body:
        """Make any other request."""
        return await self.connection.ask(request, Body)

    async def listed(self, path: str, name: str) -> list[Body]:
        """Read all pages of a list by name."""
        answer = await self.get(path)
        found = shapes.several(answer, name)
        while (after := answer.get("after")) is not None:
            answer = await self.get(path, {"after": after})
            found += shapes.several(answer, name)
        return found


class RemoteQueues(QueuePart):
    """The queues behind a server."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    @property
    def sync(self) -> SyncRemoteQueues:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteQueues(self)

    async def list(self, query: QueueQuery = ALL_QUEUES) -> builtins.list[Queue]:
        """Return the queues with their limits, by name: all, or those that match a query."""
        return [shapes.queue(one) for one in await self._counted(query)]

    async def statuses(self, query: QueueQuery = ALL_QUEUES) -> builtins.list[QueueStatus]:
        """Return the queues with their jobs by state and their oldest ready job."""
        now = datetime.now(UTC)
        return [shapes.queue_status(one, now) for one in await self._counted(query)]

    async def summary(self, without: Collection[str] = ()) -> QueueSummary:
        """Return the number of queues and all their jobs by state; a server leaves out none."""
        if without:
            not_offered("queues.summary(without=…)")
        said = await self._calls.get("/api/v1/summary")
        return QueueSummary(
            queues=shapes.read(said.get("queues"), int),
            paused=shapes.read(said.get("paused"), int),
            counts=dict(shapes.counts(said)),
            oldest_ready=shapes.since(said, datetime.now(UTC)),
        )

    async def oldest_ready(self, queues: Collection[str] | None = None) -> Mapping[str, datetime]:
        """Return when the oldest ready job of each of these queues, or of all, became due."""
        found = {
            status.queue.name: status.oldest_ready for status in await self.statuses(_named(queues))
        }
        return {name: since for name, since in found.items() if since is not None}

    async def pause(self, queue: str, *, duration: timedelta | None = None) -> Queue:
        """Start no more jobs of this queue, in any process; running jobs continue.

        After `duration` the pause ends by itself; without one it lasts until `resume`.
        """
        params = None if duration is None else {"duration": duration.total_seconds()}
        request = Request("POST", _of_queue(queue, "/pause"), params=params)
        return shapes.queue(await self._calls.send(request))

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        request = Request("POST", _of_queue(queue, "/resume"))
        return shapes.queue(await self._calls.send(request))

    async def remove(self, queue: str) -> bool:
        """Remove all limits of a queue, and its pause; it disappears with its last job.

        False if there is no such queue; raises `QueueInUse` while it has unfinished jobs.
        """
        try:
            await self._calls.send(Request("DELETE", _of_queue(queue, "")))
        except JobNotFound:
            return False
        return True

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later jobs do not count."""
        if queue is None:
            raise NotOffered(
                "a server drains one queue: name it; to drain all of them, use the store itself: "
                "penstock drain, or Penstock(url).queues.drain(…)"
            )
        time = timeout.total_seconds()
        request = Request(
            "POST", _of_queue(queue, "/drain"), params={"timeout": time}, patience=time
        )
        return shapes.read(await self._calls.send(request), Drained)

    async def _counted(self, query: QueueQuery) -> builtins.list[Body]:
        if query.names is not None:
            wanted = sorted(name for name in {*query.names} if query.wants(name))
            found = [one for name in wanted if (one := await self._queue(name)) is not None]
            return found[: query.limit]
        found, after = [], query.after
        while True:
            left = _PAGE if query.limit is None else query.limit - len(found)
            asked = {"name": query.contains, "after": after, "limit": min(left, _PAGE)}
            given = {name: value for name, value in asked.items() if value is not None}
            answer = await self._calls.get(_QUEUES, given)
            found += shapes.several(answer, "queues")
            after = answer.get("after")
            if after is None or len(found) == query.limit:
                return found

    async def _queue(self, name: str) -> Body | None:
        """Return one queue; None if there is none of this name."""
        try:
            return await self._calls.get(_of_queue(name))
        except JobNotFound:  # as every 404 is called
            return None


class RemoteLimits(LimitPart):
    """The limits behind a server: those of queues."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    @property
    def sync(self) -> SyncRemoteLimits:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteLimits(self)

    async def queue(
        self,
        queue: str,
        max_pending: int | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET,
        promote_after: Ages | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Queue:
        """Set limits of a queue; None removes one, and what is not given stays."""
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
        return shapes.queue(await self._calls.send(request))


class RemoteSchedules(SchedulePart):
    """The schedules behind a server."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    @property
    def sync(self) -> SyncRemoteSchedules:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteSchedules(self)

    async def list(self) -> builtins.list[Schedule]:
        """Return every schedule, by name; of its job, the task and the queue."""
        return [shapes.schedule(one) for one in await self._calls.listed(_SCHEDULES, "schedules")]

    async def run_now(self, name: str) -> Job:
        """Enqueue the job of a schedule now; its rhythm does not change."""
        said = await self._act(name, "run")
        return replace(shapes.job(said), duplicate=bool(said.get("duplicate")))

    async def pause(self, name: str) -> Schedule:
        """Stop firing a schedule, in all processes, until it is resumed."""
        return shapes.schedule(await self._act(name, "pause"))

    async def resume(self, name: str) -> Schedule:
        """Fire a schedule again from its next run on; runs during the pause are skipped."""
        return shapes.schedule(await self._act(name, "resume"))

    async def _act(self, name: str, verb: str) -> Body:
        request = Request("POST", f"{_SCHEDULES}/{quote(name, safe='')}/{verb}")
        return await self._calls.send(request)


class RemoteSelection(BulkPart):
    """The jobs behind a server that match a query."""

    def __init__(self, calls: _Calls, query: JobQuery) -> None:
        self._calls = calls
        self._query = query

    @property
    def sync(self) -> SyncRemoteSelection:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteSelection(self)

    async def cancel(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """End the pending jobs that match, and ask the running ones to stop."""
        return await self._change("cancel", progress, portion, dry_run=dry_run, reason=reason)

    async def retry(
        self,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Run the failed jobs that match again; others only if the query's `states` name them."""
        return await self._change("retry", progress, portion, dry_run=dry_run, reason=reason)

    async def reprioritise(
        self,
        priority: int,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Give the pending jobs that match another priority."""
        return await self._change(
            "reprioritise", progress, portion, dry_run=dry_run, reason=reason, priority=priority
        )

    async def delete(
        self,
        *,
        archive: PathLike | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        portion: Portion | None = None,
    ) -> Bulk:
        """Remove the finished jobs that match, with their log. A server writes no archive."""
        if archive is not None:
            not_offered("bulk(…).delete(archive=…)", "delete --archive")
        return await self._change("delete", progress, portion, dry_run=dry_run)

    async def _change(
        self,
        verb: str,
        progress: BulkProgress | None,
        portion: Portion | None,
        **said: Any,
    ) -> Bulk:
        if portion is not None:
            not_offered(f"bulk(…).{verb}(portion=…)")
        chosen = shapes.filtering(self._query)
        body = {"filter": chosen, "all": not chosen, **said}
        request = Request(
            "POST",
            f"{_JOBS}/bulk/{verb}",
            body={name: value for name, value in body.items() if value is not None},
            repeats=False,
            patience=_BULK_TIME,
        )
        bulk = shapes.read(await self._calls.send(request), Bulk)
        if progress is not None:
            progress(bulk)
        return bulk


class RemoteWorkers(WorkerPart):
    """The workers behind a server."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    @property
    def sync(self) -> SyncRemoteWorkers:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteWorkers(self)

    async def list(self) -> builtins.list[WorkerInfo]:
        """Return every worker, by name, busy or idle."""
        return [
            shapes.read(one, WorkerInfo) for one in await self._calls.listed(_WORKERS, "workers")
        ]


class RemoteStatistics(StatisticsPart):
    """The statistics behind a server, by the minute."""

    def __init__(self, calls: _Calls, queues: RemoteQueues) -> None:
        self._calls = calls
        self._queues = queues

    @property
    def sync(self) -> SyncRemoteStatistics:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteStatistics(self)

    async def intervals(
        self,
        since: datetime,
        until: datetime | None = None,
        queue: str | QueueQuery | Collection[str] | None = None,
        step: timedelta = MINUTE,
        *,
        together: bool = False,
    ) -> list[Interval]:
        """Return what has happened since then, by minute and queue; of the last 8 days.

        For one queue, several, those that match a query, or all; with `together`, as one sum.
        """
        if step != MINUTE:
            not_offered("statistics.intervals(step=…)")
        until = until or datetime.now(UTC)
        if not isinstance(queue, str | QueueQuery | None):
            queue = QueueQuery(names=tuple(queue))
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
            answer = await self._calls.get(_HISTORY, given)
            return [_interval(one) for one in shapes.several(answer, "intervals")]
        query = queue or ALL_QUEUES
        names = (
            None if query == ALL_QUEUES else {one.name for one in await self._queues.list(query)}
        )
        found: list[Interval] = []
        after = query.after
        while names is None or (names and (after or "") < max(names)):
            chosen = {"name": query.contains, "after": after, "limit": _PAGE}
            given = asked | {name: value for name, value in chosen.items() if value is not None}
            answer = await self._calls.get(_HISTORY, given)
            page = [_interval(one) for one in shapes.several(answer, "intervals")]
            found += [one for one in page if names is None or one.queue in names]
            after = answer.get("after")
            if after is None:
                break
        return found


class RemoteArchive(ArchivePart):
    """Not offered: files are written and read on the machine of the store."""


class RemoteTokens(TokenPart):
    """The scopes of the token in use; tokens are created on the store itself."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    @property
    def sync(self) -> SyncRemoteTokens:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemoteTokens(self)

    async def scopes(self) -> frozenset[Access]:
        """Return the scopes of the token; all of them if the server requires none."""
        found = await self._calls.get("/api/v1/session")
        return shapes.read(found.get("scopes"), frozenset[Access])


class RemoteTables(TablePart):
    """Not offered: the tables of an application are in the database of the store."""


class RemoteLeases(LeasePart):
    """Not offered: workers in other programs use the events application."""


class RemotePenstock(Jobs):
    """The queue behind a server, with the calls of `Penstock` that have routes.

    All are coroutines. With `blocking`, it is for synchronous code: put `sync` in front of a call,
    as in `remote.sync.find()`. A call without a route raises `NotOffered`, which says how to make
    it on the store itself.
    """

    secrets = Secrets()
    """Empty: the server hides what is secret."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retries: int = 3,
        timeout: timedelta = timedelta(seconds=30),
        blocking: bool = False,
    ) -> None:
        self._use(
            connect(url, token, retries=retries, timeout=timeout.total_seconds(), blocking=blocking)
        )

    @classmethod
    def on(cls, connection: Connection) -> Self:
        """Return the queue over a connection that others use as well."""
        remote = cls.__new__(cls)
        remote._use(connection)  # noqa: SLF001 - its own
        return remote

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._calls = _Calls(connection)
        self.url = connection.url
        self.queues = RemoteQueues(self._calls)
        self.limits = RemoteLimits(self._calls)
        self.schedules = RemoteSchedules(self._calls)
        self.workers = RemoteWorkers(self._calls)
        self.statistics = RemoteStatistics(self._calls, self.queues)
        self.archive = RemoteArchive()
        self.tokens = RemoteTokens(self._calls)
        self.tables = RemoteTables()
        self.leases = RemoteLeases()

    @property
    def sync(self) -> SyncRemotePenstock:
        """The same calls from synchronous code, without `await`."""
        self._calls.check_blocking()
        return SyncRemotePenstock(self)

    def bulk(self, query: JobQuery) -> RemoteSelection:
        """Return the jobs that match a query, to change all of them. Not a coroutine."""
        return RemoteSelection(self._calls, query)

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        """Store a job for a task by its name; the options are the fields of a `NewJob`.

        A call without an answer is repeated under a dedupe key of its own.
        """
        payload = jsontext.encode({} if args is None else args, "args", jsontext.DEPTH_LIMIT + 1)
        (job,) = await self.enqueue_many([NewJob(task=task, payload=payload, **options)])
        return job

    async def enqueue_many(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[Job]:
        """Store up to 1,000 jobs in one transaction, all or none, and return them in this order.

        The transaction is always the server's own.
        """
        if connection is not None:
            not_offered("enqueue_many(connection=…)")
        check_jobs(jobs)
        once = self._connection.dedupe_key()
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
        answer = await self._calls.send(request)
        return [shapes.job(one) for one in shapes.several(answer, "jobs")]

    async def get(self, job_id: int) -> Job:
        """Return the job as it is now. Raises `JobNotFound`."""
        return shapes.job(await self._calls.get(f"{_JOBS}/{job_id}"))

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """Return the jobs that match, newest first unless the query says otherwise."""
        query = query or JobQuery()
        found: list[Job] = []
        while True:
            page = replace(query, limit=min(query.limit - len(found), _PAGE))
            answer = await self._calls.get(_JOBS, shapes.parameters(page))
            found += map(shapes.job, shapes.several(answer, "jobs"))
            after = answer.get("after")
            if after is None or len(found) >= query.limit:
                return found
            query = replace(query, after=JobId(after))

    async def count(self, queues: Collection[str] | None = None) -> Counts:
        """Count jobs by queue, state and what they wait for."""
        return {
            (status.queue.name, *stage): n
            for status in await self.queues.statuses(_named(queues))
            for stage, n in status.counts.items()
        }

    async def log(
        self, job_id: int | None = None, *, after: int | None = None, limit: int = 1000
    ) -> list[LogEntry]:
        """Return the log of one job, or of all, after an entry's id, oldest first."""
        if job_id is None:
            return await self._log_of_all(after or 0, limit)
        found: list[LogEntry] = []
        while True:
            asked = {"after": after or 0, "limit": min(limit - len(found), _PAGE)}
            answer = await self._calls.get(f"{_JOBS}/{job_id}/log", asked)
            found += map(shapes.entry, shapes.several(answer, "log"))
            after = answer.get("after")
            if after is None or len(found) >= limit:
                return found

    async def _log_of_all(self, after: int, limit: int) -> list[LogEntry]:
        """Read the stream of the log up to the entry that is the newest now."""
        newest = await self.newest_log()
        found: list[LogEntry] = []
        if after < newest:
            async with aclosing(endless_frames(self._connection, after)) as stream:
                async for place, entry in stream:
                    if entry is not None:
                        found.append(entry)
                    if place >= newest or len(found) >= limit:
                        break
        return found

    async def newest_log(self) -> int:
        """Return the id of the newest log entry: where to begin to follow the log from now on."""
        async with aclosing(endless_frames(self._connection)) as stream:
            return (await anext(stream)).place

    async def tail(
        self, after: int | None = None, job_id: int | None = None
    ) -> AsyncIterator[LogEntry]:
        """Yield the log entries of all jobs, or of one, as they are added; never ends.

        Begins after an entry's id, or now. Reconnects where it was when the connection breaks.
        """
        async with aclosing(endless_frames(self._connection, after, job_id)) as stream:
            async for _, entry in stream:
                if entry is not None:
                    yield entry

    async def wait(self, seen: int, timeout: float) -> int:
        """Return when the log has grown, or after about `timeout` seconds.

        Begin with 0, and pass what a call returns to the next.
        """
        monotonic = self._connection.runtime.monotonic
        deadline = monotonic() + timeout
        found = frames(self._connection, seen or None, silence=timeout)
        async with aclosing(found) as stream:
            async for place, _ in stream:
                if place > seen or monotonic() >= deadline:
                    return max(place, seen)
        return seen

    async def explain(self, job_id: int) -> Explanation:
        """Say why this job is not running, or how it ended."""
        return shapes.read(await self._calls.get(f"{_JOBS}/{job_id}/explain"), Explanation)

    async def progress(self, job_id: int) -> reports.Progress | None:
        """Return the progress of a job; None if it reported none."""
        said = (await self._calls.get(f"{_JOBS}/{job_id}")).get("progress")
        return None if said is None else shapes.read(said, reports.Progress)

    async def lines(
        self, job_id: int, after: int | None = None, limit: int = 1000
    ) -> list[reports.Line]:
        """Return what a job has logged after a line's id, oldest first."""
        asked = {"after": after or 0, "limit": min(limit, _PAGE)}
        answer = await self._calls.get(f"{_JOBS}/{job_id}/lines", asked)
        return [shapes.read(one, reports.Line) for one in shapes.several(answer, "lines")]

    async def batch(self, correlation: str) -> Batch:
        """Count the jobs of a batch by state."""
        answer = await self._calls.get(f"/api/v1/batches/{quote(correlation, safe='')}")
        states = shapes.read(answer.get("states"), dict[State, int])
        return Batch(correlation, {state: n for state, n in states.items() if n})

    async def cancel(self, job_id: int, reason: str | None = None) -> Job:
        """End a pending job, or ask a running one to stop."""
        return await self._steer(job_id, "cancel", reason)

    async def retry(self, job_id: int, reason: str | None = None) -> Job:
        """Run a failed, cancelled or waiting job now, with all its attempts again."""
        return await self._steer(job_id, "retry", reason)

    async def reset(self, job_id: int, reason: str | None = None) -> Job:
        """Do the same as `retry`, and take a running job from its worker."""
        return await self._steer(job_id, "reset", reason)

    async def set_priority(self, job_id: int, priority: int, reason: str | None = None) -> Job:
        """Give a pending job another priority; claims follow it at once."""
        return await self._steer(job_id, "reprioritise", reason, priority=priority)

    async def delete(self, job_id: int) -> Job:
        """Remove a finished job with its log, and return it as it was."""
        request = Request("DELETE", f"{_JOBS}/{job_id}", repeats=False)
        return shapes.job(await self._calls.send(request))

    async def _steer(self, job_id: int, verb: str, reason: str | None, **said: Any) -> Job:
        params = {**said} if reason is None else {**said, "reason": reason}
        request = Request("POST", f"{_JOBS}/{job_id}/{verb}", params=params, repeats=False)
        return shapes.job(await self._calls.send(request))


def _of_queue(name: str, verb: str = "") -> str:
    return f"{_QUEUES}/{quote(name, safe='')}{verb}"


def _named(queues: Collection[str] | None) -> QueueQuery:
    return QueueQuery(names=None if queues is None else tuple(queues))


def _interval(said: Body) -> Interval:
    return shapes.read({**said, "queue": said.get("queue") or TOGETHER}, Interval)

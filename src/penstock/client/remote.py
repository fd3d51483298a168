"""The jobs of a server: as `Penstock` answers for a store, as far as the server offers it."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from penstock.admin import Bulk, Progress
from penstock.checks import check_jobs
from penstock.client.line import Line, line_to
from penstock.client.wire import Request
from penstock.core import note
from penstock.core.errors import ConfigurationError, InvalidJob, StoreError
from penstock.core.job import Counts, Job, JobId, JobQuery, LogEntry, NewJob, Queue
from penstock.core.lifecycle import State, Waiting
from penstock.engine import Batch, Drained, Explanation

T = TypeVar("T")

_JOBS, _QUEUES = "/api/v1/jobs", "/api/v1/queues"
_PAGE = 1_000
# A call for many jobs works as long as it takes, in portions.
_BULK_TIME = 3_600.0
_FILTERS = ("queue", "task", "key", "correlation", "tenant", "parent", "error")

Body = dict[str, Any]


class RemotePenstock:
    """The queue behind a server, with those methods of `Penstock` that it offers over HTTP.

    All are coroutines. One that is `blocking` is for synchronous code: wrap calls in `run_sync`.
    """

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
        payload = msgspec.json.encode({} if args is None else args).decode()
        (job,) = await self.enqueue_many([NewJob(task=task, payload=payload, **options)])
        return job

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store up to 1,000 jobs in one transaction, all or none; the answer has their order."""
        check_jobs(jobs)
        once = f"client/{uuid.uuid4().hex}" if self._line.retries else None
        # A superseding job that arrives twice would supersede itself.
        repeats = not any(job.supersede for job in jobs)
        body = [
            _asked(job, f"{once}/{n}" if once and repeats else None) for n, job in enumerate(jobs)
        ]
        request = Request(
            "POST",
            f"{_JOBS}/batch",
            body={"jobs": body},
            repeats=repeats,
            invalid=InvalidJob,
        )
        answer = await self._line.ask(request, Body)
        return [_job(one) for one in _list(answer, "jobs")]

    # Looking

    async def get(self, job_id: int) -> Job:
        """The job as it is now. Raises `JobNotFound`."""
        return _job(await self._ask(f"{_JOBS}/{job_id}"))

    async def find(self, query: JobQuery | None = None) -> list[Job]:
        """The jobs that fit, newest first unless asked otherwise."""
        query = query or JobQuery()
        found: list[Job] = []
        while True:
            page = replace(query, limit=min(query.limit - len(found), _PAGE))
            answer = await self._ask(_JOBS, _parameters(page))
            found += map(_job, _list(answer, "jobs"))
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
            found += map(_entry, _list(answer, "log"))
            after = answer.get("after")
            if after is None or len(found) >= limit:
                return found

    async def explain(self, job_id: int) -> Explanation:
        """Why this job is not running, or what else became of it."""
        return _read(await self._ask(f"{_JOBS}/{job_id}/explain"), Explanation)

    async def progress(self, job_id: int) -> note.Progress | None:
        """How far a job is; None if it never said so."""
        said = (await self._ask(f"{_JOBS}/{job_id}")).get("progress")
        return None if said is None else _read(said, note.Progress)

    async def lines(
        self, job_id: int, after: int | None = None, limit: int = 1000
    ) -> list[note.Line]:
        """What a job has logged, oldest first, behind a line's id."""
        asked = {"after": after or 0, "limit": min(limit, _PAGE)}
        answer = await self._ask(f"{_JOBS}/{job_id}/lines", asked)
        return [_read(one, note.Line) for one in _list(answer, "lines")]

    async def batch(self, correlation: str) -> Batch:
        """How the jobs of a batch fare."""
        answer = await self._ask(f"/api/v1/batches/{quote(correlation, safe='')}")
        states = _read(answer.get("states"), dict[State, int])
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

    async def _steer(self, job_id: int, verb: str, reason: str | None) -> Job:
        params = None if reason is None else {"reason": reason}
        request = Request("POST", f"{_JOBS}/{job_id}/{verb}", params=params, repeats=False)
        return _job(await self._line.ask(request, Body))

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
        chosen = _filter(query)
        body = {"filter": chosen, "all": not chosen, **said}
        request = Request(
            "POST",
            f"{_JOBS}/bulk/{verb}",
            body={name: value for name, value in body.items() if value is not None},
            repeats=False,
            patience=_BULK_TIME,
        )
        bulk = _read(await self._line.ask(request, Body), Bulk)
        if progress is not None:
            progress(bulk)
        return bulk

    # Queues

    async def queues(self) -> list[Queue]:
        """Every queue with its limits, by name."""
        return [_queue(one) for one in await self._counted()]

    async def count(self) -> Counts:
        """How many jobs there are by queue, state and what they wait for."""
        return {key: n for one in await self._counted() for key, n in _counts(one) if n}

    async def _counted(self) -> list[Body]:
        return _list(await self._ask(_QUEUES), "queues")

    async def pause(self, queue: str) -> Queue:
        """Start no more jobs of this queue, in any process; running ones go on."""
        request = Request("POST", _of_queue(queue, "/pause"))
        return _queue(await self._line.ask(request, Body))

    async def resume(self, queue: str) -> Queue:
        """Start jobs of this queue again."""
        request = Request("POST", _of_queue(queue, "/resume"))
        return _queue(await self._line.ask(request, Body))

    async def limit(
        self,
        queue: str,
        max_pending: int | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate: tuple[int, timedelta] | msgspec.UnsetType | None = msgspec.UNSET,
        promote_after: timedelta | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Queue:
        """Set a queue's limits, for every process; None lifts one, what is not given stays."""
        limits = {
            "max_pending": max_pending,
            "concurrency": concurrency,
            "rate": {"count": rate[0], "seconds": rate[1].total_seconds()}
            if isinstance(rate, tuple)
            else rate,
            "promote_after": _seconds(promote_after),
        }
        body = {name: value for name, value in limits.items() if value is not msgspec.UNSET}
        request = Request("PATCH", _of_queue(queue), body=body)
        return _queue(await self._line.ask(request, Body))

    async def drain(self, queue: str | None = None, *, timeout: timedelta) -> Drained:
        """Wait until the jobs that are unfinished now have finished; later ones do not count."""
        if queue is None:
            raise ConfigurationError("a server drains one queue: name it")
        seconds = timeout.total_seconds()
        request = Request(
            "POST", _of_queue(queue, "/drain"), params={"timeout": seconds}, patience=seconds
        )
        return _read(await self._line.ask(request, Body), Drained)

    async def _ask(self, path: str, params: Mapping[str, Any] | None = None) -> Body:
        return await self._line.ask(Request("GET", path, params=params), Body)


def _of_queue(name: str, verb: str = "") -> str:
    return f"{_QUEUES}/{quote(name, safe='')}{verb}"


# What is sent


def _asked(job: NewJob, once: str | None) -> Body:
    given = {
        name: value
        for name, value in msgspec.structs.asdict(job).items()
        if value not in (None, ()) and name != "payload"
    }
    retry = {name: _seconds(value) for name, value in msgspec.structs.asdict(job.retry).items()}
    plain = {name: _seconds(value) for name, value in given.items()}
    return {
        **({} if once is None else {"dedupe": once}),
        **plain,
        "retry": retry,
        "args": msgspec.Raw(job.payload.encode()),
    }


def _seconds(value: Any) -> Any:
    """A duration as it is sent; all else as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def _filter(query: JobQuery) -> Body:
    """A query for many jobs, in which pages do not count."""
    chosen: Body = {name: getattr(query, name) for name in _FILTERS}
    chosen["state"] = None if query.states is None else sorted(query.states)
    chosen["tags"] = query.tags or None
    chosen["before"] = query.before
    return {name: value for name, value in chosen.items() if value is not None}


def _parameters(query: JobQuery) -> Body:
    """A query for a page of jobs."""
    asked = _filter(query)
    asked |= {"after": query.after, "cancel_requested": query.cancel_requested}
    asked |= {"newest_first": query.newest_first, "limit": query.limit}
    return {name: _parameter(value) for name, value in asked.items() if value is not None}


def _parameter(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ",".join(value)
        case datetime():
            return value.isoformat()
    return str(value)


# What is answered


def _read(said: object, kind: type[T]) -> T:
    """A value from its JSON, in which durations are seconds."""
    try:
        return msgspec.convert(said, kind, strict=False)
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise StoreError(f"the server does not speak of jobs as known here: {error}") from error


def _list(answer: Body, name: str) -> list[Body]:
    return _read(answer.get(name), list[Body])


def _job(said: Body) -> Job:
    result = said.get("result")
    texts = {
        "payload": msgspec.json.encode(said.get("args")).decode(),
        "result_json": None if result is None else msgspec.json.encode(result).decode(),
    }
    return _read({**said, **texts}, Job)


def _entry(said: Body) -> LogEntry:
    detail = said.get("detail")
    text = None if detail is None else msgspec.json.encode(detail).decode()
    return _read({**said, "detail": text}, LogEntry)


def _queue(said: Body) -> Queue:
    rate = said.get("rate")
    pair = None if rate is None else (rate.get("count"), rate.get("seconds"))
    return _read({**said, "rate": pair}, Queue)


def _counts(said: Body) -> Iterator[tuple[tuple[str, State, Waiting | None], int]]:
    name = str(said.get("name"))
    for state, n in _read(said.get("states"), dict[State, int]).items():
        if state is not State.PENDING:
            yield (name, state, None), n
    for waiting, n in _read(said.get("waiting"), dict[Waiting, int]).items():
        yield (name, State.PENDING, waiting), n

"""Routes for jobs: enqueue, list, get, cancel, retry, reprioritise and delete."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from penstock.core.errors import JobNotFound, Unreadable
from penstock.core.job import JobId, NewJob
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.core.secrets import Secrets
from penstock.core.tasks import AnnouncedTask
from penstock.core.times import from_micros
from penstock.core.tokens import Access
from penstock.engine.batch import chain
from penstock.engine.penstock import Penstock
from penstock.engine.results import job_not_found
from penstock.server.queues import CachedSummary
from penstock.server.requests import (
    AnyText,
    BatchRequest,
    Before,
    ErrorText,
    Id,
    JobRequest,
    Key,
    Name,
    Priority,
    Since,
    Text,
    last_id,
    new_job,
)
from penstock.server.search import Search
from penstock.web.jobs import (
    ExplanationShape,
    JobDetail,
    JobShape,
    LineShape,
    LogShape,
    attempts_of,
    enqueued_shape,
    explanation_shape,
    job_fields,
    job_shape,
    line_shape,
    log_shape,
    progress_shape,
)
from penstock.web.problems import Problem, naming_element_of
from penstock.web.routes import Answer, route

_NEWEST = 1_000
_NEWEST_LINES = 100

EXAMPLE = {
    "id": 1,
    "version": 2,
    "task": "mail.send",
    "args": {"to": "ada@example.org"},
    "queue": "mail",
    "priority": 5,
    "state": "running",
    "waiting": None,
    "attempt": 1,
    "enqueued_at": "2030-01-01T12:00:00Z",
    "run_at": "2030-01-01T12:00:00Z",
    "key": None,
    "dedupe": None,
    "scope": "unfinished",
    "tags": ["urgent"],
    "retry": {"attempts": 3, "delay": 5.0, "factor": 2.0, "max_delay": 3600.0, "jitter": 0.2},
    "timeout": None,
    "lease_time": 30.0,
    "correlation": None,
    "tenant": None,
    "parent": None,
    "needs": 0,
    "throttle": None,
    "trace": None,
    "task_version": 1,
    "token": 2,
    "worker": "host:42",
    "started_at": "2030-01-01T12:00:01Z",
    "expires_at": "2030-01-01T12:00:31Z",
    "cancel_requested": False,
    "finished_at": None,
    "error": None,
    "result": None,
}
_NEW = {
    "task": "mail.send",
    "args": {"to": "ada@example.org"},
    "queue": "mail",
    "tags": ["urgent"],
}


_MOST_WARNED = 3
_WORKERS_CACHED_FOR = 2.0


def _warning(tasks: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the header that says that no live worker has announced these tasks."""
    shown = ", ".join(map(ascii, tasks[:_MOST_WARNED]))
    more = len(tasks) - _MOST_WARNED
    noun = "the task" if len(tasks) == 1 else "the tasks"
    text = f"no live worker has announced {noun} {shown}{f' and {more} more' if more > 0 else ''}"
    return b"warning", b'199 - "%s"' % text.replace('"', "'").encode()


class JobListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects jobs, and a page of them."""

    state: (
        Annotated[str, Meta(max_length=100, description="States, separated by commas.")] | None
    ) = None
    queue: Name | None = None
    task: Name | None = None
    key: Key | None = None
    tags: (
        Annotated[
            str, Meta(max_length=10_100, description="Tags, separated by commas; one is enough.")
        ]
        | None
    ) = None
    correlation: Key | None = None
    tenant: Key | None = None
    parent: Id | None = None
    cancel_requested: bool | None = None
    error: ErrorText | None = None
    text: AnyText | None = None
    since: Since | None = None
    before: Before | None = None
    after: Annotated[Id, Meta(description="The last id of the previous page.")] | None = None
    newest_first: bool = True
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    timeout: Annotated[
        float, Meta(ge=0, le=30, description="Seconds to search for a first match.")
    ] = 10


class LogListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of a log, or of lines."""

    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason for an action; the log keeps it."""

    reason: Text | None = None


class Reprioritising(Reason, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new priority of a job, and the reason for it."""

    priority: Priority


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs. `after` requests the next page; it is null on the last, and only there."""

    jobs: list[JobShape]
    after: int | None


class BatchAnswer(msgspec.Struct, frozen=True):
    """The jobs in the order of the request."""

    correlation: str | None
    jobs: list[JobShape]


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of jobs of a batch, by state."""

    correlation: str
    status: str
    total: int
    states: dict[str, int]


class LogPage(msgspec.Struct, frozen=True):
    """A page of a log, oldest first. `after` requests the next page; null on the last."""

    log: list[LogShape]
    after: int | None


class LinePage(msgspec.Struct, frozen=True):
    """A page of the lines of a job, oldest first. `after` requests the next; null on the last."""

    lines: list[LineShape]
    after: int | None


class JobRoutes:
    """Jobs: enqueue, read, and act on one of them."""

    def __init__(self, penstock: Penstock, secrets: Secrets) -> None:
        self._penstock = penstock
        self._secrets = secrets
        self._any_task_taken = False
        self._read_workers_at = -math.inf
        self._summary = CachedSummary(penstock)

    @route(
        "POST",
        "/api/v1/jobs",
        Access.PUBLISH,
        status=201,
        also={200: JobShape},
        examples={"body": _NEW, "201": {**EXAMPLE, "duplicate": False}},
    )
    async def enqueue(self, body: JobRequest) -> Answer[JobShape]:
        """Enqueue a job.

        The job is durable when this is answered.

        What is left out is as the task declares it, if a live worker has announced the task;
        otherwise the answer has a header `Warning`, unless a live worker announces no tasks and may
        run any. Names that belong to an application are refused
        with 403, which names the route to use.
        The status 200, with `duplicate` set, means that nothing was stored: the answer is the job
        that holds the dedupe key.
        """
        with _naming_after():
            task = await self._penstock.workers.announced(body.task)
            (job,) = await self._penstock.enqueue_many([new_job(body, task)])
        shape = enqueued_shape(job, self._secrets)
        warnings = await self._warnings({body.task: task})
        return Answer(200 if job.duplicate else 201, shape, warnings)

    @route(
        "POST",
        "/api/v1/jobs/batch",
        Access.PUBLISH,
        status=201,
        body_limit=20_000_000,
        examples={"body": {"jobs": [_NEW, {"task": "report"}], "ordered": True}},
    )
    async def enqueue_many(self, body: BatchRequest) -> Answer[BatchAnswer]:
        """Enqueue many jobs.

        Stores up to 1,000 jobs in one transaction: all of them, or none.

        With a `correlation` they form a batch, whose status can be requested.
        """
        announced = self._penstock.workers.announced
        tasks = {name: await announced(name) for name in {job.task for job in body.jobs}}
        new = [new_job(job, tasks[job.task]) for job in body.jobs]
        if body.correlation is not None and any(job.correlation is not None for job in new):
            raise Problem(
                422,
                "correlation: set it for the batch or for its jobs, not for both",
                field="correlation",
            )
        with _naming_after(), naming_element_of("jobs"), self._naming_place(new):
            if body.correlation is not None:
                jobs = await self._penstock.enqueue_batch(
                    new, correlation=body.correlation, ordered=body.ordered
                )
            else:
                jobs = await self._penstock.enqueue_many(chain(*new) if body.ordered else new)
        shape = BatchAnswer(body.correlation, [enqueued_shape(job, self._secrets) for job in jobs])
        return Answer(201, shape, await self._warnings(tasks))

    async def _warnings(
        self, tasks: Mapping[str, AnnouncedTask | None]
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers that warn of tasks that nobody has announced, and nobody may take."""
        unknown = sorted(name for name, task in tasks.items() if task is None)
        if not unknown or await self._is_any_task_taken():
            return ()
        return (_warning(unknown),)

    async def _is_any_task_taken(self) -> bool:
        """Return whether a live worker does not say which tasks it runs, as of two seconds ago."""
        connection = self._penstock.connection
        time = connection.runtime.monotonic()
        if time >= self._read_workers_at + _WORKERS_CACHED_FOR:
            workers, now = await self._penstock.workers.list(), from_micros(connection.clock())
            self._any_task_taken = any(
                worker.tasks is None and not worker.is_silent(now) for worker in workers
            )
            self._read_workers_at = time
        return self._any_task_taken

    @contextmanager
    def _naming_place(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        """Name the job of several whose arguments cannot be read back."""
        try:
            yield
        except Unreadable:
            for n, job in enumerate(jobs):
                try:
                    self._penstock.connection.check(job)
                except Unreadable as error:
                    raise Unreadable(f"jobs[{n}].{error.field}", error.reason) from error
            raise

    @route("GET", "/api/v1/jobs", Access.READ, examples={"200": {"jobs": [EXAMPLE], "after": None}})
    async def page(self, query: JobListing) -> JobPage:
        """List jobs.

        Lists matching jobs in pages, by default newest first.

        No job appears twice and none that exists throughout is missing, whatever changes between
        two pages. A page may be shorter than its limit and still have an `after`: if its jobs are
        very large, or if 100,000 jobs were examined and few match. It is empty only if none was
        found within `timeout` seconds.
        """
        wanted = _query(query)
        matches = partial(self._secrets.lets_find, query=wanted)
        search = Search(self._summary, wanted, query.limit, matches, query.timeout)
        after = await search.run()
        return JobPage([job_shape(one, self._secrets) for one in search.found], after)

    @route("GET", "/api/v1/jobs/{job_id}", Access.READ)
    async def get(self, job_id: Id) -> JobDetail:
        """Get a job.

        Answers with the job, its log, attempts, progress and lines, and why it is not running.

        The log is limited to its newest 1,000 entries, the lines to the newest 100.
        """
        records = await self._penstock.archive.records([job_id])
        if not records:
            raise job_not_found(job_id)
        (record,) = records
        progress = await self._penstock.progress(job_id)
        lines = await self._penstock.lines(job_id)
        return JobDetail(
            **job_fields(record.job, self._secrets),
            explanation=explanation_shape(await self._penstock.explain(job_id)),
            progress=None if progress is None else progress_shape(progress),
            attempts=attempts_of(record.log)[-_NEWEST:],
            log=[log_shape(entry) for entry in record.log[-_NEWEST:]],
            lines=list(map(line_shape, lines[-_NEWEST_LINES:])),
            children=_by_state(await self._penstock.bulk(JobQuery(parent=JobId(job_id))).tally()),
            waits_for=[edge.needed for edge in record.edges if not edge.resolved],
        )

    @route("GET", "/api/v1/jobs/{job_id}/log", Access.READ)
    async def log(self, job_id: Id, query: LogListing) -> LogPage:
        """List the log of a job.

        Lists what happened to the job, oldest first, in pages.
        """
        found = await self._penstock.log(job_id, after=query.after, limit=query.limit + 1)
        page, more = found[: query.limit], len(found) > query.limit
        return LogPage(list(map(log_shape, page)), last_id(page, more=more))

    @route("GET", "/api/v1/jobs/{job_id}/lines", Access.READ)
    async def lines(self, job_id: Id, query: LogListing) -> LinePage:
        """List the lines that a job logged.

        A job keeps its newest 1,000 lines. They are listed oldest first, in pages.
        """
        await self._penstock.get(job_id)
        found = await self._penstock.lines(job_id, after=query.after, limit=query.limit + 1)
        page, more = found[: query.limit], len(found) > query.limit
        return LinePage(list(map(line_shape, page)), last_id(page, more=more))

    @route(
        "GET",
        "/api/v1/jobs/{job_id}/explain",
        Access.READ,
        examples={
            "200": {
                "job_id": 1,
                "reason": "blocked",
                "text": "job 7, which is running, holds its key 'ada'",
                "blocked_by": 7,
            }
        },
    )
    async def explain(self, job_id: Id) -> ExplanationShape:
        """Explain why a job is not running.

        Answers with the reason, or with the outcome of a finished job.
        """
        return explanation_shape(await self._penstock.explain(job_id))

    @route("GET", "/api/v1/batches/{correlation}", Access.READ)
    async def batch(self, correlation: Key) -> BatchStatus:
        """Get the status of a batch.

        Counts the jobs of one correlation by state.
        """
        found = await self._penstock.batch(correlation)
        return BatchStatus(
            correlation=correlation,
            status=found.status,
            total=found.total,
            states=_by_state(found.tally),
        )

    @route("POST", "/api/v1/jobs/{job_id}/cancel", Access.ADMIN)
    async def cancel(self, job_id: Id, query: Reason) -> JobShape:
        """Cancel a job.

        A pending job ends at once; a running one is asked to stop.
        """
        return job_shape(await self._penstock.cancel(job_id, query.reason), self._secrets)

    @route("POST", "/api/v1/jobs/{job_id}/retry", Access.ADMIN)
    async def retry(self, job_id: Id, query: Reason) -> JobShape:
        """Retry a job.

        Runs a failed, cancelled or waiting job now, with all its attempts.
        """
        return job_shape(await self._penstock.retry(job_id, query.reason), self._secrets)

    @route("POST", "/api/v1/jobs/{job_id}/reset", Access.ADMIN)
    async def reset(self, job_id: Id, query: Reason) -> JobShape:
        """Reset a job.

        Does the same as retry, and takes a running job from its worker, whose later reports are
        refused.
        """
        return job_shape(await self._penstock.reset(job_id, query.reason), self._secrets)

    @route("POST", "/api/v1/jobs/{job_id}/reprioritise", Access.ADMIN)
    async def reprioritise(self, job_id: Id, query: Reprioritising) -> JobShape:
        """Change the priority of a job.

        The job must be pending; the next claim takes the new priority into account.
        """
        return job_shape(
            await self._penstock.set_priority(job_id, query.priority, query.reason), self._secrets
        )

    @route("DELETE", "/api/v1/jobs/{job_id}", Access.ADMIN)
    async def delete(self, job_id: Id) -> JobShape:
        """Delete a finished job.

        Deletes the job with its log, and answers with the job as it was.
        """
        return job_shape(await self._penstock.delete(job_id), self._secrets)


@contextmanager
def _naming_after() -> Iterator[None]:
    """Blame `after` for a missing job: no other field of a new job names one."""
    try:
        yield
    except JobNotFound as error:
        raise Problem(422, f"after: {error}", field="after") from error


def _query(listing: JobListing) -> JobQuery:
    fields = asdict(listing)
    state, tags = fields.pop("state"), fields.pop("tags")
    for name in ("limit", "timeout"):  # those of the search, not of one query
        del fields[name]
    return JobQuery(
        states=None if state is None else _states(state),
        tags=() if tags is None else _names(tags, "tags"),
        **fields,
    )


def _names(text: str, field: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise Problem(422, f"{field}: must name at least one", field=field)
    return names


def _states(text: str) -> frozenset[State]:
    names = _names(text, "state")
    if unknown := [name for name in names if name not in list(State)]:
        raise Problem(422, f"state: {unknown[0]!r} is not one of {', '.join(State)}", field="state")
    return frozenset(map(State, names))


def _by_state(tally: Mapping[State, int]) -> dict[str, int]:
    return {state.value: tally.get(state, 0) for state in State}

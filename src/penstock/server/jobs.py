"""Routes for jobs: enqueue them, look at them, steer one of them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.compose import chain
from penstock.core.errors import JobNotFound, Unreadable
from penstock.core.job import JobId, JobQuery, NewJob
from penstock.core.lifecycle import State
from penstock.core.secrets import Secrets
from penstock.core.token import Access
from penstock.engine import Penstock
from penstock.explaining import Explanation
from penstock.http.problems import Problem, naming_element_of
from penstock.http.routes import Answer, route
from penstock.server import shapes
from penstock.server.searching import Search
from penstock.server.shapes import Id, Key, Name, Priority, Text
from penstock.server.survey import Survey

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


class JobListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to list, and which page of them."""

    state: (
        Annotated[str, Meta(max_length=100, description="States, separated by commas.")] | None
    ) = None
    queue: Name | None = None
    task: Name | None = None
    key: Key | None = None
    tags: (
        Annotated[str, Meta(max_length=10_100, description="Any of these, separated by commas.")]
        | None
    ) = None
    correlation: Key | None = None
    tenant: Key | None = None
    parent: Id | None = None
    cancel_requested: bool | None = None
    error: Annotated[Text, Meta(description="A text in the error.")] | None = None
    text: Annotated[Text, Meta(description=shapes.TEXT)] | None = None
    since: Annotated[shapes.Instant, Meta(description=shapes.SINCE)] | None = None
    before: Annotated[shapes.Instant, Meta(description=shapes.BEFORE)] | None = None
    after: Annotated[Id, Meta(description="The last id of the page before.")] | None = None
    newest_first: bool = True
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    timeout: Annotated[float, Meta(ge=0, le=30, description="Seconds to search for a match.")] = 10


class LogListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries of a log, or lines, to list."""

    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something is done; the log keeps it."""

    reason: Text | None = None


class Reprioritising(Reason, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How soon a job is claimed from now on, and why."""

    priority: Priority


class JobRoutes:
    """What the server serves of jobs."""

    def __init__(self, penstock: Penstock, secrets: Secrets) -> None:
        self._penstock = penstock
        self._secrets = secrets
        self._survey = Survey(penstock)

    @route(
        "POST",
        "/api/v1/jobs",
        Access.PUBLISH,
        "Enqueue a job",
        answers={201: shapes.JobShape, 200: shapes.JobShape},
        examples={"body": _NEW, "201": {**EXAMPLE, "duplicate": False}},
    )
    async def enqueue(self, body: shapes.JobRequest) -> Answer:
        """Store a job. It is durable when this is answered.

        Names that belong to an application are refused with 403, which says what to use instead.
        With 200, and `duplicate` set, nothing was stored: the answer is the job that holds the
        dedupe key.
        """
        with _naming_after():
            (job,) = await self._penstock.enqueue_many([shapes.new_job(body)])
        return Answer(200 if job.duplicate else 201, shapes.enqueued(job, self._secrets))

    @route(
        "POST",
        "/api/v1/jobs/batch",
        Access.PUBLISH,
        "Enqueue many jobs",
        answers={201: shapes.BatchAnswer},
        body_limit=20_000_000,
        examples={"body": {"jobs": [_NEW, {"task": "report"}], "ordered": True}},
    )
    async def enqueue_many(self, body: shapes.BatchRequest) -> Answer:
        """Store up to 1,000 jobs in one transaction: all of them, or none.

        With a `correlation` they form a batch, whose status can be asked for.
        """
        new = [shapes.new_job(job) for job in body.jobs]
        if body.correlation is not None and any(job.correlation is not None for job in new):
            raise Problem(422, "correlation: give it once, or to the jobs", field="correlation")
        with _naming_after(), naming_element_of("jobs"), self._naming_place(new):
            if body.correlation is not None:
                jobs = await self._penstock.enqueue_batch(
                    new, correlation=body.correlation, ordered=body.ordered
                )
            else:
                jobs = await self._penstock.enqueue_many(chain(*new) if body.ordered else new)
        return Answer(
            201,
            shapes.BatchAnswer(
                body.correlation, [shapes.enqueued(job, self._secrets) for job in jobs]
            ),
        )

    @contextmanager
    def _naming_place(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        """Say which of several jobs has arguments that cannot be read back."""
        try:
            yield
        except Unreadable:
            for n, job in enumerate(jobs):
                try:
                    self._penstock.check(job)
                except Unreadable as error:
                    raise Unreadable(f"jobs[{n}].{error.field}", error.reason) from error
            raise

    @route(
        "GET",
        "/api/v1/jobs",
        Access.READ,
        "List jobs",
        answers={200: shapes.JobPage},
        examples={"200": {"jobs": [EXAMPLE], "after": None}},
    )
    async def page(self, query: JobListing) -> shapes.JobPage:
        """Jobs that fit, newest first unless asked otherwise, in pages.

        No job comes twice and none that was there throughout is left out, whatever changes
        between two pages. A page may be shorter than its limit and still have an `after`: where
        its jobs are very large, or where 100,000 were looked at and few fit. It is empty only
        where none was found within `timeout` seconds.
        """
        wanted = _query(query)
        finds = partial(self._secrets.lets_find, query=wanted)
        search = Search(self._survey, wanted, query.limit, finds, query.timeout)
        after = await search.run()
        return shapes.JobPage([shapes.job_shape(one, self._secrets) for one in search.found], after)

    @route(
        "GET",
        "/api/v1/jobs/{job_id}",
        Access.READ,
        "Look at a job",
        answers={200: shapes.JobDetail},
    )
    async def get(self, job_id: Id) -> shapes.JobDetail:
        """A job with its log and attempts, why it is not running, how far it is, what it logged.

        Of the log its newest 1,000 entries, of the lines the newest 100.
        """
        records = await self._penstock.records([job_id])
        if not records:
            raise JobNotFound(f"there is no job {job_id}; retention may have removed it")
        (record,) = records
        progress = await self._penstock.progress(job_id)
        lines = await self._penstock.lines(job_id)
        return shapes.JobDetail(
            **shapes.job_fields(record.job, self._secrets),
            explanation=_explained(await self._penstock.explain(job_id)),
            progress=None if progress is None else shapes.progress_shape(progress),
            attempts=shapes.attempts_of(record.log)[-_NEWEST:],
            log=[shapes.log_shape(entry) for entry in record.log[-_NEWEST:]],
            lines=list(_lines(lines[-_NEWEST_LINES:])),
            children=shapes.states(await self._penstock.children(job_id)),
            waits_for=[edge.needed for edge in record.edges if not edge.resolved],
        )

    @route(
        "GET",
        "/api/v1/jobs/{job_id}/log",
        Access.READ,
        "Read the log of a job",
        answers={200: shapes.LogPage},
    )
    async def log(self, job_id: Id, query: LogListing) -> shapes.LogPage:
        """What has happened to a job, oldest first, in pages."""
        found = await self._penstock.log(job_id, after=query.after, limit=query.limit + 1)
        page, more = found[: query.limit], len(found) > query.limit
        return shapes.LogPage(list(map(shapes.log_shape, page)), shapes.last_id(page, more=more))

    @route(
        "GET",
        "/api/v1/jobs/{job_id}/lines",
        Access.READ,
        "Read what a job has logged",
        answers={200: shapes.LinePage},
    )
    async def lines(self, job_id: Id, query: LogListing) -> shapes.LinePage:
        """The lines that a job has logged and still keeps, oldest first, in pages."""
        await self._penstock.get(job_id)
        found = await self._penstock.lines(job_id, after=query.after, limit=query.limit + 1)
        page, more = found[: query.limit], len(found) > query.limit
        return shapes.LinePage(list(_lines(page)), shapes.last_id(page, more=more))

    @route(
        "GET",
        "/api/v1/jobs/{job_id}/explain",
        Access.READ,
        "Ask why a job is not running",
        answers={200: shapes.ExplanationShape},
        examples={
            "200": {
                "job_id": 1,
                "reason": "blocked",
                "text": "job 7, which is running, holds its key 'ada'",
                "blocked_by": 7,
            }
        },
    )
    async def explain(self, job_id: Id) -> shapes.ExplanationShape:
        """Why a job is not running, or what became of it."""
        return _explained(await self._penstock.explain(job_id))

    @route(
        "GET",
        "/api/v1/batches/{correlation}",
        Access.READ,
        "Look at a batch",
        answers={200: shapes.BatchStatus},
    )
    async def batch(self, correlation: Key) -> shapes.BatchStatus:
        """How the jobs of one correlation fare."""
        found = await self._penstock.batch(correlation)
        return shapes.BatchStatus(
            correlation=correlation,
            status=found.status,
            total=found.total,
            states=shapes.states(found.tally),
        )

    @route(
        "POST",
        "/api/v1/jobs/{job_id}/cancel",
        Access.ADMIN,
        "Cancel a job",
        answers={200: shapes.JobShape},
    )
    async def cancel(self, job_id: Id, query: Reason) -> shapes.JobShape:
        """End a pending job, or ask a running one to stop."""
        return shapes.job_shape(await self._penstock.cancel(job_id, query.reason), self._secrets)

    @route(
        "POST",
        "/api/v1/jobs/{job_id}/retry",
        Access.ADMIN,
        "Run a job again",
        answers={200: shapes.JobShape},
    )
    async def retry(self, job_id: Id, query: Reason) -> shapes.JobShape:
        """Run a failed, cancelled or waiting job now, with all its attempts."""
        return shapes.job_shape(await self._penstock.retry(job_id, query.reason), self._secrets)

    @route(
        "POST",
        "/api/v1/jobs/{job_id}/reset",
        Access.ADMIN,
        "Take a job from its worker",
        answers={200: shapes.JobShape},
    )
    async def reset(self, job_id: Id, query: Reason) -> shapes.JobShape:
        """As retry; a running job is taken from its worker, which is refused from then on."""
        return shapes.job_shape(await self._penstock.reset(job_id, query.reason), self._secrets)

    @route(
        "POST",
        "/api/v1/jobs/{job_id}/reprioritise",
        Access.ADMIN,
        "Change the priority of a job",
        answers={200: shapes.JobShape},
    )
    async def reprioritise(self, job_id: Id, query: Reprioritising) -> shapes.JobShape:
        """Give a pending job another priority; claims follow it at once."""
        return shapes.job_shape(
            await self._penstock.set_priority(job_id, query.priority, query.reason), self._secrets
        )

    @route(
        "DELETE",
        "/api/v1/jobs/{job_id}",
        Access.ADMIN,
        "Remove a finished job",
        answers={200: shapes.JobShape},
    )
    async def delete(self, job_id: Id) -> shapes.JobShape:
        """Remove a finished job with its log; the answer is the job as it was."""
        return shapes.job_shape(await self._penstock.delete(job_id), self._secrets)


@contextmanager
def _naming_after() -> Iterator[None]:
    """Of what is enqueued, only `after` can name a job that is not there."""
    try:
        yield
    except JobNotFound as error:
        raise Problem(422, f"after: {error}", field="after") from error


def _query(asked: JobListing) -> JobQuery:
    return JobQuery(
        states=None if asked.state is None else _states(asked.state),
        queue=asked.queue,
        task=asked.task,
        key=asked.key,
        tags=() if asked.tags is None else _names(asked.tags, "tags"),
        correlation=asked.correlation,
        tenant=asked.tenant,
        parent=None if asked.parent is None else JobId(asked.parent),
        cancel_requested=asked.cancel_requested,
        error=asked.error,
        text=asked.text,
        since=asked.since,
        before=asked.before,
        after=None if asked.after is None else JobId(asked.after),
        newest_first=asked.newest_first,
    )


def _names(text: str, field: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise Problem(422, f"{field}: name at least one", field=field)
    return names


def _states(text: str) -> frozenset[State]:
    names = _names(text, "state")
    if unknown := [name for name in names if name not in list(State)]:
        raise Problem(422, f"state: {unknown[0]!r} is none of {', '.join(State)}", field="state")
    return frozenset(map(State, names))


def _explained(found: Explanation) -> shapes.ExplanationShape:
    return shapes.ExplanationShape(**msgspec.structs.asdict(found))


def _lines(lines: Iterable[Any]) -> Iterable[shapes.LineShape]:
    return (shapes.LineShape(**msgspec.structs.asdict(line)) for line in lines)

"""Requests and answers of the HTTP API, in the terms that its clients use."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import Job, State
from penstock.apps.entries.entries import Entry, EntryMatch
from penstock.apps.entries.rows import Tally
from penstock.apps.kit import Name as LongName
from penstock.apps.kit import Position, sentence
from penstock.jobs import Progress
from penstock.leases import WorkerInfo

Name = Annotated[str, Meta(min_length=1, max_length=64)]
EntryId = LongName
Ids = Annotated[list[EntryId], Meta(min_length=1, max_length=1_000)]
Status = Literal["pending", "processing", "embedded", "failed"]
FileFormat = Literal["csv", "jsonl", "xlsx"]

FINAL = {State.DONE: "succeeded", State.FAILED: "failed", State.CANCELLED: "cancelled"}
OPERATION_STATUSES = {**FINAL, State.PENDING: "queued", State.RUNNING: "running"}


# Requests


class EntryWrite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry to store; it gets an id if it has none."""

    entity_type: Name
    category_code: Name
    data: dict[str, Any]
    entry_id: EntryId | None = None


class EntryUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to an entry: new values of fields; null removes a field.

    A `category_code` among the updates moves the entry; next to them it names the category that the
    entry must be in. A `version` is the one that the entry must be at. `force_contextual` is
    accepted because clients always send it, but has no effect: every section may be set.
    """

    entry_id: EntryId
    updates: Annotated[dict[str, Any], Meta(min_length=1)]
    entity_type: Name | None = None
    category_code: Name | None = None
    version: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    force_contextual: bool | None = None


class EntryRead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries by id, those most similar to a `query`, or the newest of a category.

    `limit` applies to a query or a list. `fields`, `snippet_len` and `session_id` are accepted
    because clients send them, but have no effect: entries are always returned in full.
    """

    ids: Ids | None = None
    entity_type: Name | None = None
    category_code: Name | None = None
    query: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    fields: list[str] | None = None
    snippet_len: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    session_id: str | None = None


class EntryDelete(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries to remove: one or several."""

    entry_id: EntryId | None = None
    ids: Ids | None = None
    entity_type: Name | None = None
    category_code: Name | None = None


class EntryListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries to list; `after` is the `next` of the previous page."""

    entity_type: Name | None = None
    category_code: Name | None = None
    embedding_status: Status | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: Position | None = None
    order: Literal["newest", "oldest"] = "newest"


class EntryQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to search for, and among which entries.

    `mode` is `vector` for similar meaning, `bm25` for words, `hybrid` for both.
    """

    query: Annotated[str, Meta(min_length=1, max_length=100_000)]
    entity_type: Name | None = None
    category_code: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 10
    min_score: float | None = None
    mode: Literal["vector", "bm25", "hybrid"] = "vector"


class EntriesDraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait, in seconds, and whether to leave the queue paused."""

    timeout: Annotated[float, Meta(ge=1, le=3_600)] = 300
    hold: bool = False


class EntriesPausing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait for rows in flight, in seconds."""

    timeout: Annotated[float, Meta(ge=0, le=3_600)] = 300


class EntriesStaleness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a worker may hold a row before it is requeued."""

    threshold_minutes: Annotated[float, Meta(ge=0, le=525_600)] = 30


class OperationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The payload of an operation; each type has its own."""

    payload: dict[str, Any] = {}


class ImportQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of the file, and how to import it."""

    format: FileFormat
    entity_type: LongName | None = None
    category_code: LongName | None = None
    mode: Literal["merge", "replace"] = "merge"
    dry_run: bool = False
    skip_bad: bool = False


class ExportQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries to export, and in which format."""

    format: FileFormat = "jsonl"
    entity_type: LongName | None = None
    category_code: LongName | None = None


# Answers


class EntryShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry."""

    id: str
    entity_type: str
    category_code: str
    data: dict[str, Any]
    version: int
    embedding_status: Status
    embedding_error: str | None
    embedding_attempts: int
    created_at: datetime
    updated_at: datetime


class EntryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One entry."""

    success: bool
    entry_id: str
    embedding_status: Status
    entry: EntryShape


class EntriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The first of several entries, all of them, and the ids that do not exist.

    A query or a list that finds nothing has no first entry.
    """

    success: bool
    entry_id: str | None
    embedding_status: Status | None
    entry: EntryShape | None
    entries: list[EntryShape]
    count: int
    missing: list[str]


class EntriesDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that were removed."""

    success: bool
    ids: list[str]
    count: int


class EntryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of entries; `next` is null on the last."""

    entries: list[EntryShape]
    count: int
    next: int | None


class EntryHit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that a search found, and its similarity."""

    entry_id: str
    score: float
    entry: EntryShape


class EntryHits(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that a search found, best first."""

    results: list[EntryHit]
    count: int


class EntriesPaused(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the queue is paused, and how many jobs still run."""

    status: Literal["paused", "resumed"]
    in_flight: int


class EntriesDrained(msgspec.Struct, frozen=True, kw_only=True):
    """How a drain ended: the seconds it took, and the rows of the backlog that remain."""

    status: Literal["drained", "timeout", "paused"]
    elapsed: float
    remaining: int
    paused: bool


class EntriesQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows of each status, by type and in `total`."""

    pending: dict[str, int]
    processing: dict[str, int]
    embedded: dict[str, int]
    failed: dict[str, int]
    paused: bool


class EntriesWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that embeds; `running` unless it has been silent for 30 seconds.

    `jobs_processed`, `jobs_succeeded` and `jobs_failed` count jobs since it started.
    """

    worker_id: str
    host: str | None
    pid: int | None
    running: bool
    paused: bool
    in_flight: int
    jobs_processed: int
    jobs_succeeded: int
    jobs_failed: int
    started_at: datetime | None
    last_run: datetime


class EntriesWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that embed, and the jobs that ended within the retention time.

    `status` is `running` if a process runs, `paused`, `idle` before there is anything to embed, or
    `off` on a server that starts none.
    """

    status: Literal["running", "paused", "idle", "off"]
    num_workers: int
    running: int
    workers: list[EntriesWorker]
    total_jobs_processed: int
    total_jobs_succeeded: int
    total_jobs_failed: int


class EntriesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the queue and its workers."""

    queue: EntriesQueue
    workers: EntriesWorkers


class EntriesRetried(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows to be embedded again, by type and in `total`."""

    retried: dict[str, int]


class EntriesRequeued(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows taken from their workers, by type and in `total`."""

    requeued: dict[str, int]


class OperationStarted(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that was accepted."""

    job_id: str
    operation: str
    status: str


class OperationShape(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: `queued`, `running`, `succeeded`, `failed` or `cancelled`."""

    job_id: str
    operation: str
    status: str
    progress: float | None
    total: float | None
    note: str | None
    result: Any
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def entry(one: Entry) -> EntryShape:
    """Convert an entry."""
    return EntryShape(
        id=one.id,
        entity_type=one.type,
        category_code=one.category,
        data=one.data,
        version=one.version,
        embedding_status=one.embedding_status,  # type: ignore[arg-type] # one of four
        embedding_error=None if one.embedding_error is None else sentence(one.embedding_error),
        embedding_attempts=one.embedding_attempts,
        created_at=one.created_at,
        updated_at=one.updated_at,
    )


def answer(one: Entry) -> EntryAnswer:
    """Return the answer to a request about one entry."""
    shown = entry(one)
    return EntryAnswer(
        success=True, entry_id=one.id, embedding_status=shown.embedding_status, entry=shown
    )


def answers(found: Sequence[Entry], missing: list[str]) -> EntriesAnswer:
    """Return the answer to a request for several entries."""
    shown = [entry(one) for one in found]
    first = shown[0] if shown else None
    return EntriesAnswer(
        success=True,
        entry_id=None if first is None else first.id,
        embedding_status=None if first is None else first.embedding_status,
        entry=first,
        entries=shown,
        count=len(shown),
        missing=missing,
    )


def hit(one: EntryMatch) -> EntryHit:
    """Convert a search result."""
    return EntryHit(entry_id=one.entry.id, score=one.score, entry=entry(one.entry))


def worker(one: WorkerInfo, tally: Tally, now: datetime, *, paused: bool) -> EntriesWorker:
    """Convert a worker."""
    return EntriesWorker(
        worker_id=one.name,
        host=one.host,
        pid=one.pid,
        running=not one.is_silent(now),
        paused=paused,
        in_flight=one.running,
        jobs_processed=tally.succeeded + tally.failed,
        jobs_succeeded=tally.succeeded,
        jobs_failed=tally.failed,
        started_at=one.started_at,
        last_run=one.seen_at,
    )


def workers(
    configured: int, shown: list[EntriesWorker], jobs: Mapping[State, int], *, paused: bool
) -> EntriesWorkers:
    """Summarise the workers of a server that is configured to start this many."""
    running = sum(one.running for one in shown)
    done, failed = jobs[State.DONE], jobs[State.FAILED]
    return EntriesWorkers(
        status="paused" if paused else "running" if running else "idle" if configured else "off",
        num_workers=configured,
        running=running,
        workers=shown,
        total_jobs_processed=done + failed,
        total_jobs_succeeded=done,
        total_jobs_failed=failed,
    )


def started(name: str, job: Job) -> OperationStarted:
    """Convert the job of an operation that was accepted."""
    return OperationStarted(
        job_id=str(job.id), operation=name, status=OPERATION_STATUSES[job.state]
    )


def operation(job: Job, progress: Progress | None, left: Any) -> OperationShape:
    """Convert the job of an operation; `left` is its checkpoint, the result of one that failed."""
    return OperationShape(
        job_id=str(job.id),
        operation=job.task.removeprefix("entries."),
        status=OPERATION_STATUSES.get(job.state, "cancelled"),
        progress=None if progress is None else progress.done,
        total=None if progress is None else progress.total,
        note=None if progress is None else progress.note,
        result=left if job.state is State.FAILED else job.returned,
        error=None if job.error is None else sentence(job.error),
        created_at=job.enqueued_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )

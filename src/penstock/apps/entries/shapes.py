"""What goes over the wire, in the words of the contract: entities, categories and their codes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import Job, Progress, State, WorkerInfo
from penstock.apps.entries.entries import Entry, Found
from penstock.apps.entries.rows import Tally
from penstock.apps.sentences import sentence

Name = Annotated[str, Meta(min_length=1, max_length=64)]
EntryId = Annotated[str, Meta(min_length=1, max_length=200)]
Ids = Annotated[list[EntryId], Meta(min_length=1, max_length=1_000)]
Status = Literal["pending", "processing", "embedded", "failed"]

FINAL = {State.DONE: "succeeded", State.FAILED: "failed", State.CANCELLED: "cancelled"}
OPERATION_STATUSES = {**FINAL, State.PENDING: "queued", State.RUNNING: "running"}


# Requests


class EntryWrite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry to be stored; without an id it gets one."""

    entity_type: Name
    category_code: Name
    data: dict[str, Any]
    entry_id: EntryId | None = None


class EntryUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of an entry: fields with their new values, null removes one.

    `category_code` among the updates moves the entry; beside them it says where the entry is. With
    a `version`, the entry has to be at that one. `force_contextual` is accepted because clients
    always send it, and has no effect: every section may be set here.
    """

    entry_id: EntryId
    updates: Annotated[dict[str, Any], Meta(min_length=1)]
    entity_type: Name | None = None
    category_code: Name | None = None
    version: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    force_contextual: bool | None = None


class EntryRead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries by their ids, those nearest to a `query`, or the newest of a category.

    `limit` bounds a query or a list. `fields`, `snippet_len` and `session_id` are accepted because
    clients send them, and have no effect: entries are always shown whole.
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
    """Entries to be removed: one, or several."""

    entry_id: EntryId | None = None
    ids: Ids | None = None
    entity_type: Name | None = None
    category_code: Name | None = None


class EntryListing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries to list; `after` is the `next` of the page before."""

    entity_type: Name | None = None
    category_code: Name | None = None
    embedding_status: Status | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    order: Literal["newest", "oldest"] = "newest"


class EntryQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to search for, and among which entries.

    `mode` is `vector` for what is alike, `bm25` for words, `hybrid` for both.
    """

    query: Annotated[str, Meta(min_length=1, max_length=100_000)]
    entity_type: Name | None = None
    category_code: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 10
    min_score: float | None = None
    mode: Literal["vector", "bm25", "hybrid"] = "vector"


class EntriesDraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait, in seconds, and whether the queue is paused then."""

    timeout: Annotated[float, Meta(ge=1, le=3_600)] = 300
    hold: bool = False


class EntriesPausing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait for rows in flight, in seconds."""

    timeout: Annotated[float, Meta(ge=0, le=3_600)] = 300


class EntriesStaleness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a row may be in flight before it is taken from its worker."""

    threshold_minutes: Annotated[float, Meta(ge=0, le=525_600)] = 30


class OperationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operation is to do; each type has its own payload."""

    payload: dict[str, Any] = {}


# Answers


class EntryShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as it is shown."""

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
    """The first of several entries, all of them, and the ids that there are not.

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
    """Which entries were removed."""

    success: bool
    ids: list[str]
    count: int


class EntryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of entries; `next` is null on the last."""

    entries: list[EntryShape]
    count: int
    next: int | None


class EntryHit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was found, and how near it is."""

    entry_id: str
    score: float
    entry: EntryShape


class EntryHits(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that were found, best first."""

    results: list[EntryHit]
    count: int


class EntriesPaused(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the queue is paused, and how many jobs are still in flight."""

    status: Literal["paused", "resumed"]
    in_flight: int


class EntriesDrained(msgspec.Struct, frozen=True, kw_only=True):
    """How a drain ended: seconds that it took, and rows that remain of what there was."""

    status: Literal["drained", "timeout", "paused"]
    elapsed: float
    remaining: int
    paused: bool


class EntriesQueue(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows have each status, by type and in `total`."""

    pending: dict[str, int]
    processing: dict[str, int]
    embedded: dict[str, int]
    failed: dict[str, int]
    paused: bool


class EntriesWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that embeds: `running` says whether it was heard of within the last 30 seconds.

    `jobs_processed`, `jobs_succeeded` and `jobs_failed` count runs since it was started.
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
    """The pool; of the jobs of the last days, how many have come to which end.

    `status` is `running` if any embeds, `paused`, `idle` before there is anything to embed, or
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
    """How the queue and its workers stand."""

    queue: EntriesQueue
    workers: EntriesWorkers


class EntriesRetried(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows are tried again, by type and in `total`."""

    retried: dict[str, int]


class EntriesRequeued(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows were taken from their workers, by type and in `total`."""

    requeued: dict[str, int]


class OperationStarted(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that was stored."""

    job_id: str
    operation: str
    status: str


class OperationShape(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation stands: `queued`, `running`, `succeeded`, `failed` or `cancelled`."""

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
    """An entry as it is shown."""
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
    """The answer to what was done with one entry."""
    shown = entry(one)
    return EntryAnswer(
        success=True, entry_id=one.id, embedding_status=shown.embedding_status, entry=shown
    )


def answers(found: Sequence[Entry], missing: list[str]) -> EntriesAnswer:
    """The answer to a request for several entries."""
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


def result(one: Found) -> EntryHit:
    """A hit as it is shown."""
    return EntryHit(entry_id=one.entry.id, score=one.score, entry=entry(one.entry))


def worker(one: WorkerInfo, tally: Tally, now: datetime, *, paused: bool) -> EntriesWorker:
    """A worker as it is shown."""
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


def operation(job: Job, progress: Progress | None, left: Any) -> OperationShape:
    """An operation as it is shown; `left` is what it left behind when it failed."""
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

"""Bodies of requests and answers, as the clients of this API know them."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import Job, State
from penstock.apps.indexing.job import COLLECTION, Collection, Parameters, Strategy
from penstock.apps.kit import Offset, sentence
from penstock.apps.kit import PathText as Text
from penstock.jobs import Progress

Pattern = Annotated[str, Meta(max_length=1_000)]
Patterns = Annotated[list[Pattern], Meta(max_length=1_000)]
Names = Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)]

PREFIX = "job_"
STATUSES = {
    State.PENDING: "pending",
    State.RUNNING: "running",
    State.DONE: "done",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.SUPERSEDED: "cancelled",
}


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to index, for folders and single files alike."""

    collection: Collection = COLLECTION
    chunk_size: Annotated[int, Meta(ge=16, le=8_192)] = 512
    chunk_overlap: Annotated[int, Meta(ge=0, le=4_096)] = 50
    recursive: bool = True
    include_code: bool = False
    supported_languages: Names | None = None
    code_chunk_strategy: Strategy = "ast_aware"
    include_patterns: Patterns | None = None
    exclude_patterns: Patterns | None = None
    include_types: Names | None = None
    folder_metadata_file: Text | None = None
    generate_summaries: bool = False
    injector_script: str | None = None
    force: bool = False


class IndexRequest(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder to index."""

    folder_path: Text
    dry_run: bool = False
    watch_mode: Literal["auto", "off"] | None = None
    watch_debounce_seconds: Annotated[float, Meta(ge=0.1, le=3_600)] | None = None


class AddRequest(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files and folders to index in addition to the others."""

    paths: Annotated[list[Text], Meta(max_length=1_000)] = []
    folder_path: Text | None = None


class HowAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a request to index.

    `force` stores a new job even if an identical one is pending. `allow_external` has no effect and
    is accepted because older clients send it: only the setting of the server decides which folders
    may be indexed.
    """

    force: bool = False
    allow_external: bool = False


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to index."""

    job_id: str
    status: str
    message: str
    queue_position: int = 0
    queue_length: int = 0
    dedupe_hit: bool = False


class JobPaging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs to list."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    offset: Offset = 0


class IndexProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a job.

    `chunks_created` counts chunks that are durable in the collection. `rate` is in files per
    second, and `seconds_left` the time that the rest takes at this rate.
    """

    percent_complete: float
    files_processed: int
    files_total: int
    chunks_created: int
    current_file: str
    rate: float | None
    seconds_left: float | None
    updated_at: datetime


class IndexJobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list."""

    id: str
    job_id: str
    status: str
    folder_path: str
    operation: str
    collection: str
    source: str
    include_code: bool
    progress_percent: float
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    cancel_requested: bool
    retry_count: int


class IndexJob(IndexJobSummary, frozen=True, kw_only=True):
    """A job in full. `result` has the numbers of files and chunks, and why files were skipped."""

    completed_at: datetime | None
    message: str
    progress: IndexProgress | None
    execution_time_ms: int | None
    total_chunks: int | None
    result: dict[str, Any] | None
    chunk_size: int
    chunk_overlap: int


class IndexJobs(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs, newest first, and the number of jobs in each state."""

    jobs: list[IndexJobSummary]
    total: int
    pending: int
    running: int
    completed: int
    failed: int
    cancelled: int


class Cancelling(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a cancel."""

    job_id: str
    status: Literal["cancelled", "cancellation_requested", "already_cancelled"]
    message: str


class OfCollection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collection; without a name, all of them."""

    collection: Collection | None = None


class FolderShape(msgspec.Struct, frozen=True, kw_only=True):
    """An indexed folder."""

    folder_path: str
    collection: str
    chunk_count: int
    file_count: int
    last_indexed: datetime
    watch_mode: Literal["auto", "off"]
    watch_debounce_seconds: float | None


class FolderList(msgspec.Struct, frozen=True, kw_only=True):
    """Every indexed folder."""

    folders: list[FolderShape]
    total: int


class FolderRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder to remove."""

    folder_path: Text
    collection: Collection = COLLECTION


class FolderRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the removal of a folder."""

    folder_path: str
    chunks_deleted: int
    message: str


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a reset."""

    status: Literal["completed"]
    message: str
    job_id: str = "reset"


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search query."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    top_k: Annotated[int, Meta(ge=1, le=1_000)] = 5
    mode: str = "hybrid"
    similarity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0
    alpha: Annotated[float, Meta(ge=0, le=1)] = 0.5
    source_types: Names | None = None
    languages: Names | None = None
    file_paths: Annotated[list[Text], Meta(max_length=100)] | None = None
    collection: Collection = COLLECTION
    explain: bool = False


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Why a result has its rank."""

    reason: str
    matched_terms: list[str]
    fusion: dict[str, float]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that was found. `score` is between 0 and 1."""

    text: str
    source: str
    score: float
    chunk_id: str
    vector_score: float | None
    bm25_score: float | None
    source_type: str
    language: str | None
    metadata: dict[str, Any]
    explanation: Ranking | UnsetType = UNSET


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a search, best first."""

    results: list[Result]
    query_time_ms: float
    total_results: int


class FileWatcher(msgspec.Struct, frozen=True, kw_only=True):
    """Whether folders are watched, and how many."""

    running: bool = False
    watched_folders: int = 0


class IndexStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of indexing, at most about a second old."""

    total_documents: int = 0
    total_chunks: int = 0
    indexing_in_progress: bool = False
    current_job_id: str | None = None
    running_time_ms: int | None = None
    progress_percent: float = 0.0
    last_indexed_at: datetime | None = None
    indexed_folders: list[str] = []
    queue_length: int = 0
    running_jobs: int = 0
    file_watcher: FileWatcher = FileWatcher()


def id_of(job: Job) -> str:
    """Return the ID of a job as this API shows it."""
    return f"{PREFIX}{job.id}"


def parameters_of(job: Job) -> Parameters:
    """Return the arguments of a job; empty ones if a route would not have stored them."""
    try:
        return msgspec.convert(job.args["parameters"], Parameters)
    except (KeyError, msgspec.ValidationError):
        return Parameters(folder="")


def percent(job: Job, progress: Progress | None) -> float:
    """Return the progress of a job, from 0 to 100."""
    if job.state is State.DONE:
        return 100.0
    fraction = None if progress is None else progress.fraction
    return round(100 * (fraction or 0.0), 1)


def summary(job: Job, progress: Progress | None) -> dict[str, Any]:
    """Return the fields of a job in a list."""
    asked = parameters_of(job)
    return {
        "id": id_of(job),
        "job_id": id_of(job),
        "status": STATUSES[job.state],
        "folder_path": asked.folder,
        "operation": asked.operation,
        "collection": asked.collection,
        "source": asked.source,
        "include_code": asked.choice.include_code,
        "progress_percent": percent(job, progress),
        "enqueued_at": job.enqueued_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "error": error_of(job),
        "cancel_requested": job.cancel_requested,
        "retry_count": job.failed_attempts,
    }


def detail(
    job: Job, progress: Progress | None, message: str, kept: dict[str, Any] | None = None
) -> IndexJob:
    """Return a job in full; `kept` is the checkpoint of one that is not done."""
    asked = parameters_of(job)
    result: dict[str, Any] | None = job.returned
    took = None
    if job.started_at is not None and job.finished_at is not None:
        took = round((job.finished_at - job.started_at).total_seconds() * 1_000)
    report = result or (kept or {}).get("report", {})
    return IndexJob(
        **summary(job, progress),
        completed_at=job.finished_at,
        message=message,
        progress=None
        if progress is None
        else _progress(job, progress, report.get("chunks_created", 0)),
        execution_time_ms=took,
        total_chunks=None if result is None else result["total_chunks"],
        result=result,
        chunk_size=asked.cutting.size,
        chunk_overlap=asked.cutting.overlap,
    )


_TIMEOUT = re.compile(r"TimeoutError: it ran longer than (\S+) s")
_KILLED = re.compile(r"the lease of worker .* ran out|the child process (?:was killed|exited)")
_PERMANENT = re.compile(r"(?:[\w.]+\.)?(?:ConfigurationError|FolderMissing|NothingIndexed): ")


def error_of(job: Job) -> str | None:
    """Return why a job failed, in one sentence for users."""
    if job.state is State.CANCELLED:
        return "Cancelled by user"
    if job.error is None:
        return None
    if timeout := _TIMEOUT.match(job.error):
        return f"Timeout after {timeout[1]}s"
    is_last = job.state is State.FAILED and job.attempt >= job.retry.attempts
    if not is_last or _PERMANENT.match(job.error):
        return sentence(job.error)
    exceeded = f"Max retries ({job.retry.attempts - 1}) exceeded"
    if _KILLED.match(job.error):
        return f"{exceeded} after restart"
    return f"{exceeded}: {sentence(job.error)}"


def _progress(job: Job, progress: Progress, chunks: int) -> IndexProgress:
    return IndexProgress(
        percent_complete=percent(job, progress),
        files_processed=int(progress.done),
        files_total=int(progress.total or 0),
        chunks_created=chunks,
        current_file=progress.note or "",
        rate=progress.rate,
        seconds_left=None if progress.left is None else progress.left.total_seconds(),
        updated_at=progress.at,
    )

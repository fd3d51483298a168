"""Response bodies."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock import Job, State
from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.operations.operation import Operation, batch_of
from penstock.apps.notebooks.operations.publisher import Published
from penstock.apps.notebooks.requests import NotebookSettings
from penstock.apps.notebooks.settings import Settings, is_watched
from penstock.apps.notebooks.tables import File, Notebook

STATUSES: dict[State, str] = {
    State.PENDING: "pending",
    State.RUNNING: "processing",
    State.DONE: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.SUPERSEDED: "superseded",
}


class RepositoryShape(msgspec.Struct, frozen=True, kw_only=True):
    """The repository with the history of a notebook."""

    kind: Literal["own", "joined"]
    """`own` was created for the notebook, `joined` is the user's and the notebook commits into
    it."""
    path: str
    """Its work tree: the folder of the notebook or one above it."""
    directory: str


class HeldPath(msgspec.Struct, frozen=True, kw_only=True):
    """A path that is not committed, and why."""

    path: str
    reason: str


class NotebookShape(msgspec.Struct, frozen=True, kw_only=True):
    """A notebook."""

    id: int
    name: str
    path: str
    git: bool
    """Whether its history is kept in a repository that exists."""
    git_problem: str | None
    """Why its repository does not exist, or why commits fail."""
    repository: RepositoryShape | None
    """The repository for its history; null without git."""
    held_count: int
    """How many paths are not committed because git cannot store them."""
    held: list[HeldPath]
    """The first of them. They are tried again when something changes."""
    settings: NotebookSettings
    watched: bool
    """Whether changes that others make are detected, by its own setting or the server's."""
    watch_problem: str | None
    """Why it is not being watched at the moment."""
    created_at: datetime


class NotebookList(msgspec.Struct, frozen=True):
    """Every notebook."""

    notebooks: list[NotebookShape]


class FileShape(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file."""

    id: int
    notebook_id: int
    path: str
    size: int
    hash: str
    content_type: str
    title: str | None
    description: str | None
    properties: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    version: int


class FileList(msgspec.Struct, frozen=True):
    """A page of files, ordered by path; `next` is the `after` of the next page."""

    files: list[FileShape]
    next: str | None


class OperationAccepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation that was stored."""

    event_id: int
    status: str
    path: str
    file_id: int | None = None
    correlation_id: str | None = None
    file_count: int | None = None


class BatchAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was stored."""

    correlation_id: str
    status: str
    total: int
    events: list[OperationAccepted]


class EventShape(msgspec.Struct, frozen=True, kw_only=True):
    """An operation and its status."""

    id: int
    event_id: int
    notebook_id: int
    type: str
    status: str
    path: str
    dest_path: str | None
    file_id: int | None
    correlation_id: str | None
    sequence: int
    retry_count: int
    created_at: datetime
    processed_at: datetime | None
    next_retry_at: datetime | None
    error_message: str | None
    result: Any


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of a batch, in order."""

    correlation_id: str
    status: str
    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    cancelled: int
    superseded: int
    events: list[EventShape]


class OperationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The number of operations by status, and of paths that wait for a commit."""

    pending: int
    processing: int
    completed: int
    failed: int
    failed_24h: int
    cancelled: int
    superseded: int
    uncommitted: dict[str, int]


class Conflicting(msgspec.Struct, frozen=True, kw_only=True):
    """A change is based on another version than that of the file."""

    detail: str
    expected_version: int
    version: int


class StillWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """The operation has not ended in time; its status."""

    detail: str
    event: EventShape


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A commit; `path` is that of the file in it, null in the history of a notebook."""

    commit: str
    at: datetime
    author: str
    email: str
    message: str
    path: str | None


class FileHistory(msgspec.Struct, frozen=True):
    """The commits of a file, newest first, including those before a move; or of a notebook."""

    commits: list[HistoryEntry]


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two commits; `whole` is false if it was truncated.

    `since` is null if `until` is the first commit of the file.
    """

    since: str | None
    until: str
    diff: str
    whole: bool


class CommitsAccepted(msgspec.Struct, frozen=True):
    """Commits that were requested."""

    events: list[OperationAccepted]


def notebook_shape(
    notebook: Notebook,
    server: Settings,
    *,
    watch_problem: str | None,
    repository_problem: str | None,
    held_count: int,
    held: Sequence[tuple[str, str]],
) -> NotebookShape:
    """Return a notebook as a server with these settings shows it."""
    location = notebook.location
    repository = None
    if notebook.git and location is not None:
        repository = RepositoryShape(
            kind="joined" if location.is_joined else "own",
            path=str(location.top),
            directory=str(location.directory),
        )
    own = msgspec.convert(notebook.settings, NotebookSettings)
    return NotebookShape(
        id=notebook.id,
        name=notebook.name,
        path=notebook.path,
        git=notebook.git and repository_problem is None,
        git_problem=repository_problem or notebook.problem,
        repository=repository,
        held_count=held_count,
        held=[HeldPath(path=path, reason=why) for path, why in held],
        settings=own,
        watched=is_watched(server, own=own.watch),
        watch_problem=watch_problem,
        created_at=notebook.created,
    )


def file_shape(file: File) -> FileShape:
    """Return a file as it is shown."""
    return FileShape(
        id=file.id,
        notebook_id=file.notebook,
        path=file.path,
        size=file.size,
        hash=file.hash,
        content_type=file.mime,
        title=file.title,
        description=file.description,
        properties=file.properties,
        created_at=file.created,
        updated_at=file.updated,
        version=file.version,
    )


def accepted(published: Published) -> OperationAccepted:
    """Return an operation that was just stored, as it is shown."""
    operation, job = published.operation, published.job
    return OperationAccepted(
        event_id=job.id,
        status=STATUSES[job.state],
        path=operation.path,
        file_id=operation.file,
        correlation_id=batch_of(job.correlation),
        file_count=published.file_count if operation.folder else None,
    )


def event_shape(job: Job) -> EventShape:
    """Return an operation as it is shown."""
    operation = operation_of(job)
    retries = job.state is State.PENDING and job.attempt > 0
    return EventShape(
        id=job.id,
        event_id=job.id,
        notebook_id=operation.notebook,
        type=operation.kind,
        status=STATUSES[job.state],
        path=operation.path,
        dest_path=operation.to,
        file_id=operation.file,
        correlation_id=batch_of(job.correlation),
        sequence=operation.member or 0,
        retry_count=job.failed_attempts,
        created_at=job.enqueued_at,
        processed_at=job.finished_at,
        next_retry_at=job.run_at if retries else None,
        error_message=None if job.error is None else headline(job.error),
        result=job.returned,
    )


def operation_of(job: Job) -> Operation:
    """Return the operation of a job; raises `Missing` if it has none."""
    try:
        return msgspec.convert(job.args["operation"], Operation)
    except (KeyError, msgspec.ValidationError) as error:
        raise Missing(f"job {job.id} is not an operation on a notebook: {error}") from error


def headline(error: str) -> str:
    """Return the message of an error without its class and traceback."""
    line = error.strip().splitlines()[0]
    kind, found, text = line.partition(": ")
    return text if found and "." in kind else line


def as_result(file: File) -> dict[str, Any]:
    """Return a file as the result of a job."""
    return msgspec.to_builtins(file_shape(file))  # type: ignore[no-any-return] # a Struct is a dict then

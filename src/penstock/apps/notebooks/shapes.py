"""What goes over the wire."""

import base64
import binascii
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import Job, State
from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.operations import Operation
from penstock.apps.notebooks.publishing import Published
from penstock.apps.notebooks.settings import Author, Settings, is_watched
from penstock.apps.notebooks.tables import File, Notebook

STATUSES: dict[State, str] = {
    State.PENDING: "pending",
    State.RUNNING: "processing",
    State.DONE: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    State.SUPERSEDED: "superseded",
}
Name = Annotated[str, Meta(min_length=1, max_length=100)]
Path = Annotated[str, Meta(min_length=1, max_length=4_096)]
Title = Annotated[str, Meta(max_length=1_000)]
Description = Annotated[str, Meta(max_length=100_000)]
Version = Annotated[int, Meta(ge=0, le=2**62)]
Correlation = Annotated[str, Meta(min_length=1, max_length=200)]


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes in: unknown fields are refused."""


class NotebookSettings(Struct, frozen=True, kw_only=True):
    """What a notebook has of its own; None for what the server has set."""

    author: Author | None = None
    """Whom git names for its commits."""
    commit_interval: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """How long after the first change it is committed, in seconds."""
    watch: bool | None = None
    """Whether changes that others make are followed."""


# Requests


class NewNotebook(Struct, frozen=True, kw_only=True):
    """A notebook to be registered: a new folder, or one that is there."""

    name: Name
    path: Path | None = None
    """An absolute path under an allowed folder; by default a new folder of the name."""
    git: bool = True
    """Whether its history is kept in git."""


class NotebookChange(Struct, frozen=True, kw_only=True):
    """What to change about a notebook."""

    name: Name | UnsetType = UNSET
    settings: NotebookSettings | UnsetType = UNSET


class Metadata(Struct, frozen=True, kw_only=True):
    """What is said about a file besides its content."""

    title: Title | UnsetType | None = UNSET
    description: Description | UnsetType | None = UNSET
    properties: dict[str, Any] | UnsetType = UNSET

    @property
    def fields(self) -> dict[str, Any]:
        """Those that are given."""
        names = ("title", "description", "properties")
        return {name: value for name in names if (value := getattr(self, name)) is not UNSET}


class Content(Metadata, frozen=True, kw_only=True):
    """A content as text, or as base64."""

    content: str | None = None
    content_base64: str | None = None

    @property
    def data(self) -> bytes | None:
        """The content; raises `Permanent` for what is none."""
        if self.content is not None and self.content_base64 is not None:
            raise Permanent("send content or content_base64, not both")
        if self.content_base64 is None:
            return None if self.content is None else _encoded(self.content)
        try:
            return base64.b64decode(self.content_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Permanent(f"content_base64 is not base64: {error}") from error


class NewFile(Content, frozen=True, kw_only=True):
    """A file to be made."""

    path: Path


class FileChange(Content, frozen=True, kw_only=True):
    """What to change of a file; what is not given stays."""

    version: Version | None = None
    """The version that the change is based on; `If-Match` says the same."""


class Move(Struct, frozen=True, kw_only=True):
    """Where to move a file or a folder."""

    path: Path


class NewFolder(Struct, frozen=True, kw_only=True):
    """A folder to be made."""

    path: Path


class BatchOperation(Content, frozen=True, kw_only=True):
    """One operation of a batch. A move has its target in `to`."""

    op: Literal["create", "update", "move", "delete"]
    path: Path
    to: Path | None = None
    folder: bool = False
    version: Version | None = None


class NewBatch(Struct, frozen=True, kw_only=True):
    """Operations that run one after the other, until one fails."""

    operations: Annotated[list[BatchOperation], Meta(min_length=1, max_length=1_000)]
    correlation_id: Correlation | None = None


class CommitRequest(Struct, frozen=True, kw_only=True):
    """Which notebook to commit; all by default."""

    notebook: str | None = None


# Parameters


class How(Struct, frozen=True, kw_only=True):
    """Whether to wait until it is done."""

    sync: bool = False
    timeout: Annotated[float, Meta(ge=0, le=600)] = 30


class HowDeleted(How, frozen=True, kw_only=True):
    """The same, for a file of a certain version."""

    version: Version | None = None


class At(How, frozen=True, kw_only=True):
    """The path that a content is for."""

    path: Path
    version: Version | None = None


class FileListing(Struct, frozen=True, kw_only=True):
    """Which files to list: those whose paths begin so, behind one of them."""

    prefix: Annotated[str, Meta(max_length=4_096)] = ""
    after: Annotated[str, Meta(max_length=4_096)] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class AtCommit(Struct, frozen=True, kw_only=True):
    """The commit whose content is wanted; the newest file by default."""

    commit: Annotated[str, Meta(min_length=4, max_length=64)] | None = None


class Span(Struct, frozen=True, kw_only=True):
    """Two commits; by default the file as it is now, and its last commit."""

    since: Annotated[str, Meta(min_length=4, max_length=64)] | None = None
    until: Annotated[str, Meta(min_length=4, max_length=64)] | None = None


class HistoryPaging(Struct, frozen=True, kw_only=True):
    """How much of a history to show; `after` goes on behind a commit."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    after: Annotated[str, Meta(min_length=4, max_length=64)] | None = None


class EventWaiting(Struct, frozen=True, kw_only=True):
    """How long to wait, in seconds."""

    timeout: Annotated[float, Meta(ge=0, le=600)] = 30


# Answers


class NotebookShape(msgspec.Struct, frozen=True, kw_only=True):
    """A notebook."""

    id: int
    name: str
    path: str
    git: bool
    settings: NotebookSettings
    watched: bool
    """Whether changes that others make are followed, by its own setting or the server's."""
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
    """A page of files, in the order of their paths; `next` is the `after` of the page behind it."""

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
    """An operation as it stands."""

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
    """The operations of a batch, in their order."""

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
    """How many operations there are, and how many paths wait for a commit."""

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
    """The operation has not ended in time; how it stands."""

    detail: str
    event: EventShape


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A commit; `path` is where the file was then, null in the history of a notebook."""

    commit: str
    at: datetime
    author: str
    email: str
    message: str
    path: str | None


class FileHistory(msgspec.Struct, frozen=True):
    """The commits of a file, newest first, also from before it was moved; or of a notebook."""

    commits: list[HistoryEntry]


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two commits; `whole` is false where it is too long to show.

    `since` is null where `until` is the first commit of the file.
    """

    since: str | None
    until: str
    diff: str
    whole: bool


class CommitsAccepted(msgspec.Struct, frozen=True):
    """Commits that were asked for."""

    events: list[OperationAccepted]


def notebook_shape(notebook: Notebook, server: Settings) -> NotebookShape:
    """A notebook as it is shown by a server with these settings."""
    own = msgspec.convert(notebook.settings, NotebookSettings)
    return NotebookShape(
        id=notebook.id,
        name=notebook.name,
        path=notebook.path,
        git=notebook.git,
        settings=own,
        watched=is_watched(server, own=own.watch),
        created_at=notebook.created,
    )


def file_shape(file: File) -> FileShape:
    """A file as it is shown."""
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
    """An operation that was just stored, as it is shown."""
    operation, job = published.operation, published.job
    return OperationAccepted(
        event_id=job.id,
        status=STATUSES[job.state],
        path=operation.path,
        file_id=operation.file,
        correlation_id=job.correlation,
        file_count=published.file_count if operation.folder else None,
    )


def event_shape(job: Job) -> EventShape:
    """An operation as it is shown."""
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
        correlation_id=job.correlation,
        sequence=operation.member or 0,
        retry_count=max(job.attempt - 1, 0) if not retries else job.attempt,
        created_at=job.enqueued_at,
        processed_at=job.finished_at,
        next_retry_at=job.run_at if retries else None,
        error_message=None if job.error is None else headline(job.error),
        result=job.returned,
    )


def operation_of(job: Job) -> Operation:
    """What a job does."""
    return msgspec.convert(job.args["operation"], Operation)


def headline(error: str) -> str:
    """What went wrong, without where."""
    line = error.strip().splitlines()[0]
    kind, found, text = line.partition(": ")
    return text if found and "." in kind else line


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Permanent("content is not Unicode text; send content_base64") from error


def as_result(file: File) -> dict[str, Any]:
    """A file as the result of a job."""
    return msgspec.to_builtins(file_shape(file))  # type: ignore[no-any-return] # a Struct is a dict then

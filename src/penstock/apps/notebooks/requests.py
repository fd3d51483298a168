"""Request bodies and queries."""

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.apps.kit import Problem
from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.settings import AuthorText

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Path = Annotated[str, Meta(min_length=1, max_length=4_096)]
Title = Annotated[str, Meta(max_length=1_000)]
Description = Annotated[str, Meta(max_length=100_000)]
Version = Annotated[int, Meta(ge=0, le=2**62)]
Correlation = Annotated[str, Meta(min_length=1, max_length=200)]


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request; unknown fields are refused."""


class NotebookSettings(Struct, frozen=True, kw_only=True):
    """The settings of a notebook; None where those of the server apply."""

    author: AuthorText | None = None
    """The author of its commits."""
    commit_interval: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """How long after the first change it is committed, in seconds."""
    watch: bool | None = None
    """Whether changes that others make are detected."""


class NewNotebook(Struct, frozen=True, kw_only=True):
    """A notebook to register: a new folder or an existing one."""

    name: Name
    path: Path | None = None
    """An absolute path in an allowed folder; by default a new folder with the name."""
    git: bool = True
    """Whether its history is kept in git."""
    repository: Literal["own", "join"] = "own"
    """`own` creates a repository for it; `join` uses the one that contains its folder."""


class NotebookChange(Struct, frozen=True, kw_only=True):
    """The changes to a notebook."""

    name: Name | UnsetType = UNSET
    settings: NotebookSettings | UnsetType = UNSET


class Metadata(Struct, frozen=True, kw_only=True):
    """The metadata of a file."""

    title: Title | UnsetType | None = UNSET
    description: Description | UnsetType | None = UNSET
    properties: dict[str, Any] | UnsetType = UNSET

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are given."""
        names = ("title", "description", "properties")
        return {name: value for name in names if (value := getattr(self, name)) is not UNSET}


class Content(Metadata, frozen=True, kw_only=True):
    """A content as text or as base64."""

    content: str | None = None
    content_base64: str | None = None

    @property
    def data(self) -> bytes | None:
        """The content; raises `Permanent` if it is invalid."""
        if self.content is not None and self.content_base64 is not None:
            raise Permanent("send content or content_base64, not both")
        if self.content_base64 is None:
            return None if self.content is None else _encoded(self.content)
        try:
            return base64.b64decode(self.content_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Permanent(f"content_base64 is not base64: {error}") from error


class NewFile(Content, frozen=True, kw_only=True):
    """A file to create."""

    path: Path


class FileChange(Content, frozen=True, kw_only=True):
    """Changes to a file; omitted fields stay."""

    version: Version | None = None
    """The version that the change is based on; equivalent to `If-Match`."""


class Move(Struct, frozen=True, kw_only=True):
    """The new path of a file or a folder."""

    path: Path


class NewFolder(Struct, frozen=True, kw_only=True):
    """A folder to create."""

    path: Path


class CreateOperation(Content, frozen=True, kw_only=True, tag_field="op", tag="create"):
    """A file or folder that a batch creates."""

    path: Path
    folder: bool = False
    to: None = None
    version: None = None


class UpdateOperation(Content, frozen=True, kw_only=True, tag_field="op", tag="update"):
    """Changes that a batch makes to a file."""

    path: Path
    version: Version | None = None
    folder: bool = False
    to: None = None


class MoveOperation(Struct, frozen=True, kw_only=True, tag_field="op", tag="move"):
    """A file or folder that a batch moves."""

    path: Path
    to: Path
    folder: bool = False
    content: None = None
    content_base64: None = None
    title: None = None
    description: None = None
    version: None = None


class DeleteOperation(Struct, frozen=True, kw_only=True, tag_field="op", tag="delete"):
    """A file or folder that a batch deletes."""

    path: Path
    folder: bool = False
    version: Version | None = None
    to: None = None
    content: None = None
    content_base64: None = None
    title: None = None
    description: None = None


BatchOperation = CreateOperation | UpdateOperation | MoveOperation | DeleteOperation
"""One operation of a batch. Fields that do not apply to it are null or omitted."""

_OF_FILES = ("content", "content_base64", "title", "description", "properties", "version")


class NewBatch(Struct, frozen=True, kw_only=True):
    """Operations that run in order until one fails."""

    operations: Annotated[list[BatchOperation], Meta(min_length=1, max_length=1_000)]
    correlation_id: Correlation | None = None

    def __post_init__(self) -> None:
        """Refuse fields that only files have for a folder."""
        for n, one in enumerate(self.operations):
            if one.folder:
                _check_folder(one, f"operations[{n}]")


def _check_folder(one: BatchOperation, where: str) -> None:
    if isinstance(one, UpdateOperation):
        field = f"{where}.folder"
        raise Problem(422, f"{field}: a folder cannot be updated, only a file", field=field)
    for name in _OF_FILES:
        if getattr(one, name, None) not in (None, UNSET):
            field = f"{where}.{name}"
            raise Problem(422, f"{field}: a folder has no {name}", field=field)


class CommitRequest(Struct, frozen=True, kw_only=True):
    """The notebook to commit; all by default."""

    notebook: str | None = None


class How(Struct, frozen=True, kw_only=True):
    """Whether to wait for the result."""

    sync: bool = False
    timeout: Annotated[float, Meta(ge=0, le=600)] = 30


class HowDeleted(How, frozen=True, kw_only=True):
    """Whether to wait for the result, and the version that the change is based on."""

    version: Version | None = None


class At(How, frozen=True, kw_only=True):
    """The path for a content."""

    path: Path
    version: Version | None = None


class FileListing(Struct, frozen=True, kw_only=True):
    """The files to list: those whose paths start with `prefix`, after the path `after`."""

    prefix: Annotated[str, Meta(max_length=4_096)] = ""
    after: Annotated[str, Meta(max_length=4_096)] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class AtCommit(Struct, frozen=True, kw_only=True):
    """The commit to read from; by default the current file."""

    commit: Annotated[str, Meta(min_length=4, max_length=64)] | None = None


class Span(Struct, frozen=True, kw_only=True):
    """Two commits; by default the last commit of the file and the one before it."""

    since: Annotated[str, Meta(min_length=4, max_length=64)] | None = None
    until: Annotated[str, Meta(min_length=4, max_length=64)] | None = None


class HistoryPaging(Struct, frozen=True, kw_only=True):
    """A page of the history; `after` continues after a commit."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    after: Annotated[str, Meta(min_length=4, max_length=64)] | None = None


class EventWaiting(Struct, frozen=True, kw_only=True):
    """How long to wait, in seconds."""

    timeout: Annotated[float, Meta(ge=0, le=600)] = 30


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Permanent("content is not Unicode text; send content_base64") from error

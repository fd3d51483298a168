"""Operations on a notebook, as jobs carry them, and how two of them on one path are merged.

An operation validates what it contains, just like the routes do: a job may have been inserted into
the database by other means.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from penstock.apps.notebooks.disk.tree import Staged
from penstock.apps.notebooks.errors import PathRefused, Permanent
from penstock.apps.notebooks.paths import check
from penstock.apps.notebooks.requests import Metadata

PathChange = tuple[str, str | None]
"""A path to compare with the disk, and where it may have been moved from."""
Kind = Literal["create", "update", "move", "delete", "sync", "commit"]
KINDS: tuple[Kind, ...] = ("create", "update", "move", "delete", "sync", "commit")

QUEUE = "notebooks"
_OWN = f"{QUEUE}:"
_Number = Annotated[int, Meta(ge=0, le=2**62)]
_ON_FILES = ("create", "update", "move", "delete")


def correlation_of(batch: str) -> str:
    """Return the correlation of the jobs of a batch, with a prefix that nobody else may use."""
    return _OWN + batch


def batch_of(correlation: str | None) -> str | None:
    """Return the batch that a job belongs to; jobs of earlier versions have no prefix."""
    return None if correlation is None else correlation.removeprefix(_OWN)


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a notebook.

    `exists` says whether something has to be at the path; None means it makes no difference. The
    content waits in the state folder or in a table. `fields` are changes of the metadata; where a
    file is created, they override `initial`. With `reset`, the metadata of an existing file is
    discarded. `version` is the version that the change is based on.
    """

    notebook: _Number
    kind: Kind
    path: str = ""
    to: str | None = None
    folder: bool = False
    file: _Number | None = None
    exists: bool | None = None
    content: Staged | None = None
    fields: dict[str, Any] = {}
    initial: dict[str, Any] = {}
    reset: bool = False
    version: _Number | None = None
    member: _Number | None = None
    """Its position in a batch."""
    changes: tuple[PathChange, ...] = ()
    """For a sync: paths to compare with the disk, each with where it may have been moved from.

    Others may have created them, so paths that are not allowed in a notebook are skipped.
    """

    def __post_init__(self) -> None:
        """Refuse paths that leave the notebook or belong to git or the server."""
        try:
            for path in (self.path, self.to):
                if path:
                    check(path)
        except PathRefused as error:
            raise ValueError(str(error)) from error
        for fields in (self.fields, self.initial):
            if fields:
                msgspec.convert(fields, Metadata)

    def check_kind(self, kind: Kind) -> None:
        """Raise `Permanent` unless it is complete and of the kind that its task is for."""
        if self.kind != kind:
            raise Permanent(f"a {self.kind} operation cannot run as task {QUEUE}.{kind}")
        if kind in _ON_FILES and not self.path:
            raise Permanent(f"a {kind} operation needs a path")
        if kind == "move" and not self.to:
            raise Permanent("a move operation needs `to`")
        writes = kind in ("create", "update") and not self.folder
        for field, is_given in (
            ("to", self.to is not None and kind != "move"),
            ("content", self.content is not None and not writes),
            ("changes", self.changes and kind != "sync"),
        ):
            if is_given:
                raise Permanent(f"a {kind} operation has no `{field}`")

    @property
    def touched(self) -> tuple[str, ...]:
        """The paths that it reads or changes; for a folder, everything below as well."""
        if self.kind == "sync":
            return tuple({one for pair in self.changes for one in pair if one is not None})
        return tuple(one for one in (self.path, self.to) if one)


def merged(old: Operation, new: Operation) -> Operation | None:
    """Return one operation that has the effect of two in a row on a path; None if both must run.

    Operations that are based on a version, and members of a batch, always run: whether they succeed
    may depend on the one before.
    """
    if old.path != new.path or not (_is_free(old) and _is_free(new)):
        return None
    match old.kind, new.kind:
        case "create" | "update", "update":
            return _updated(old, new)
        case "create", "delete":  # no file; one that would have made the create fail is deleted too
            return replace(new, exists=None, file=old.file)
        case "delete", "create":
            return replace(new, kind="update", exists=None, reset=True, file=old.file or new.file)
        case _:
            return None


def _updated(old: Operation, new: Operation) -> Operation | None:
    if old.exists is False:
        if new.content is None:  # if the create fails, its content must not be written
            return None
        return replace(new, kind="create", exists=None, file=old.file, initial=old.fields)
    if (
        old.exists and new.exists is None and old.fields
    ):  # if the file is gone, they must not be set
        return None
    return replace(
        new,
        kind=old.kind,
        exists=old.exists and new.exists,
        file=old.file,
        content=new.content or old.content,
        fields={**old.fields, **new.fields},
        initial=old.initial,
        reset=old.reset,
    )


def _is_free(one: Operation) -> bool:
    return not one.folder and one.version is None and one.member is None

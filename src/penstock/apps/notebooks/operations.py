"""Operations on a notebook, as jobs carry them, and what becomes of two in a row on one path.

An operation holds nothing that the routes would refuse, wherever it comes from: a job may have been
put into the database by other means.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from penstock.apps.notebooks.errors import PathRefused, Permanent
from penstock.apps.notebooks.files import Staged
from penstock.apps.notebooks.paths import check
from penstock.apps.notebooks.requests import Metadata

Kind = Literal["create", "update", "move", "delete", "sync", "commit"]
KINDS: tuple[Kind, ...] = ("create", "update", "move", "delete", "sync", "commit")

QUEUE = "notebooks"
_OWN = f"{QUEUE}:"
_Number = Annotated[int, Meta(ge=0, le=2**62)]
_ON_FILES = ("create", "update", "move", "delete")


def correlation_of(batch: str) -> str:
    """What the jobs of a batch are correlated by: a name that nobody else may use."""
    return _OWN + batch


def batch_of(correlation: str | None) -> str | None:
    """The batch that a job belongs to; jobs of earlier versions have its bare name."""
    return None if correlation is None else correlation.removeprefix(_OWN)


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a notebook.

    `exists` says what has to be at the path: something, nothing, or None for whatever is there. The
    content waits in the state folder, or in a table. `fields` are what is to change of the
    metadata; where a file is made, `initial` stands below them. With `reset`, metadata of a file
    that was there is forgotten. `version` is the one that the change is based on.
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
    """Its place in a batch."""
    changes: tuple[tuple[str, str | None], ...] = ()
    """Of a sync: paths to look at, each with where it may have been moved from.

    They may be what others have put on the disk. What is no path of a notebook is passed by.
    """

    def __post_init__(self) -> None:
        """Refuse paths that leave the notebook, or lead to what is git's or the server's own."""
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
        """Raise `Permanent` unless it is whole, and of the kind that its task is for."""
        if self.kind != kind:
            raise Permanent(f"an operation to {self.kind} is not for the task {QUEUE}.{kind}")
        if kind in _ON_FILES and not self.path:
            raise Permanent(f"an operation to {kind} needs a path")
        if kind == "move" and not self.to:
            raise Permanent("an operation to move needs `to`")
        writes = kind in ("create", "update") and not self.folder
        for field, is_given in (
            ("to", self.to is not None and kind != "move"),
            ("content", self.content is not None and not writes),
            ("changes", self.changes and kind != "sync"),
        ):
            if is_given:
                raise Permanent(f"an operation to {kind} has no `{field}`")

    @property
    def touched(self) -> tuple[str, ...]:
        """The paths that it reads or changes; with a folder, all below it."""
        if self.kind == "sync":
            return tuple({one for pair in self.changes for one in pair if one is not None})
        return tuple(one for one in (self.path, self.to) if one)


def merged(old: Operation, new: Operation) -> Operation | None:
    """The one operation that does what two in a row on one path do; None where both have to run.

    What the later of them needs in order to succeed may depend on whether the earlier does: those
    that are based on a version, and members of a batch, always run.
    """
    if old.path != new.path or not (_is_free(old) and _is_free(new)):
        return None
    match old.kind, new.kind:
        case "create" | "update", "update":
            return _updated(old, new)
        case "create", "delete":  # nothing; but a file that kept the create from succeeding goes
            return replace(new, exists=None, file=old.file)
        case "delete", "create":
            return replace(new, kind="update", exists=None, reset=True, file=old.file or new.file)
        case _:
            return None


def _updated(old: Operation, new: Operation) -> Operation | None:
    if old.exists is False:
        if new.content is None:  # where the create fails, its content must not be written
            return None
        return replace(new, kind="create", exists=None, file=old.file, initial=old.fields)
    if old.exists and new.exists is None and old.fields:  # if the file is gone, these are not set
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

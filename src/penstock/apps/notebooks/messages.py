"""The message of a commit: what changed, so that a history reads well."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

_LISTED = 20
_SUBJECT = 100


class Kind(StrEnum):
    """What a commit does to a file."""

    ADDED = "added"
    UPDATED = "updated"
    MOVED = "moved"
    DELETED = "deleted"


class Change(NamedTuple):
    """One file in a commit; `source` is where a moved one came from."""

    kind: Kind
    path: str
    source: str | None = None


_VERBS = {
    Kind.ADDED: "Add",
    Kind.UPDATED: "Update",
    Kind.MOVED: "Move",
    Kind.DELETED: "Delete",
}


def message(changes: Sequence[Change]) -> str:
    """One file by its name, many by their number and kinds, with a list of the first."""
    if len(changes) == 1:
        subject = _one(changes[0])
        if len(subject) <= _SUBJECT:
            return f"{subject}\n"
        return f"{_VERBS[changes[0].kind]} a file\n\n{subject}\n"
    counts = [(kind, sum(one.kind is kind for one in changes)) for kind in Kind]
    kinds = [f"{count:,} {kind}" for kind, count in counts if count]
    verb = "Change"
    if len(kinds) == 1:
        verb, kinds = _VERBS[changes[0].kind], []
    subject = f"{verb} {len(changes):,} files" + (f": {', '.join(kinds)}" if kinds else "")
    lines = [f"- {_one(change)}" for change in changes[:_LISTED]]
    if len(changes) > _LISTED:
        lines.append(f"- and {len(changes) - _LISTED:,} more")
    return "\n".join([subject, "", *lines, ""])


def _one(change: Change) -> str:
    if change.source is not None:
        return f"Move {change.source} to {change.path}"
    return f"{_VERBS[change.kind]} {change.path}"


def parsed(names: bytes) -> list[Change]:
    """The changes in the answer of `git diff-tree -z --name-status`."""
    fields = iter(names.split(b"\0")[:-1])
    changes = []
    for status in fields:
        path = _text(next(fields))
        match status[:1]:
            case b"A":
                changes.append(Change(Kind.ADDED, path))
            case b"D":
                changes.append(Change(Kind.DELETED, path))
            case b"R":
                changes.append(Change(Kind.MOVED, _text(next(fields)), path))
            case b"C":
                changes.append(Change(Kind.ADDED, _text(next(fields))))
            case _:
                changes.append(Change(Kind.UPDATED, path))
    return changes


def _text(path: bytes) -> str:
    """A path for reading: a message is UTF-8 in one line, and old paths may be neither."""
    text = path.decode(errors="replace")
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )

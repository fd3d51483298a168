"""Updates what is known of files after others have changed them on disk.

A scan has found the changes, moves among them: see `penstock.apps.notebooks.disk.scan`.
A sync operation compares paths with the disk after all earlier operations on them, so that nothing
the server did is mistaken for somebody else's change. The disk decides.
"""

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from penstock import Penstock, run_sync
from penstock.apps.notebooks import tables
from penstock.apps.notebooks.disk.scan import ChangeKind, Difference, KnownFile
from penstock.apps.notebooks.disk.tree import Facts, Tree
from penstock.apps.notebooks.errors import Missing, NotebookError, Permanent
from penstock.apps.notebooks.operations.operation import PathChange
from penstock.apps.notebooks.paths import is_valid
from penstock.apps.notebooks.tables import File
from penstock.tables import Transaction


class Seen(NamedTuple):
    """A path as it is on disk; without facts if it has no file."""

    path: str
    moved_from: str | None
    facts: Facts | None
    mime: str


class StoredFiles:
    """The known files of a notebook, read from the tables; for a scan in a thread."""

    def __init__(self, penstock: Penstock, notebook_id: int) -> None:
        self._penstock = penstock
        self._id = notebook_id

    def below(self, paths: Collection[str], /) -> list[KnownFile]:
        """See `KnownFiles.below`."""
        found = run_sync(
            self._penstock.tables.read(lambda tx: tables.known_below(tx, self._id, paths))
        )
        return [_known(one) for one in found]

    def with_hashes(self, hashes: Collection[str], /) -> list[KnownFile]:
        """See `KnownFiles.with_hashes`."""
        found = run_sync(
            self._penstock.tables.read(lambda tx: tables.known_with_hashes(tx, self._id, hashes))
        )
        return [_known(one) for one in found]


def changes_in(found: Iterable[Difference]) -> list[PathChange]:
    """Return the paths to compare for the differences that a scan found."""
    return [
        (one.path, one.file.path if one.kind is ChangeKind.MOVED and one.file else None)
        for one in found
    ]


def look(tree: Tree, changes: Iterable[PathChange], known: Mapping[str, File]) -> list[Seen]:
    """Return what is on disk at these paths; raises `Transient` for a file being written to."""
    return [_seen(tree, path, origin, known.get(path)) for path, origin in changes]


def record(tx: Transaction, notebook_id: int, seen: Iterable[Seen]) -> list[str]:
    """Update the tables with what is on disk; return the paths whose content has changed."""
    now = datetime.now(UTC)
    seen = list(seen)
    known = tables.files_at(
        tx, notebook_id, [one for each in seen for one in each[:2] if one is not None]
    )
    new = [one for one in seen if one.facts and one.path not in known]
    number = tables.number(tx, "file", len(new)) if new else 0
    changed: list[str] = []
    moved: set[str] = set()
    for one in new:
        origin = known.get(one.moved_from or "")
        if origin is not None and origin.path not in moved:
            file = origin._replace(path=one.path, version=origin.version + 1, updated=now)
            moved.add(origin.path)
            changed.append(origin.path)
        else:
            file = tables.new_file(notebook_id, one.path, number, now)
            number += 1
        tables.put_file(tx, _with_seen(file, one))
        changed.append(one.path)
    for one in seen:
        if (before := known.get(one.path)) is None or one.path in moved:
            continue
        if one.facts is None:
            tables.remove_file(tx, before.id)
            changed.append(one.path)
        elif one.facts.hash != before.hash:
            file = before._replace(version=before.version + 1, updated=now)
            tables.put_file(tx, _with_seen(file, one))
            changed.append(one.path)
        elif one.facts != (before.size, before.mtime_ns, before.inode, before.hash):
            tables.put_file(tx, _with_seen(before, one))
    return changed


def _known(row: tables.Row) -> KnownFile:
    *facts, updated = row
    return KnownFile._make((*facts, updated / 1_000_000))


def _may_differ(file: File, found: os.stat_result) -> bool:
    """Whether a content may differ from the known one although size and time are the same."""
    known = (file.size, file.mtime_ns, file.inode)
    differs = (found.st_size, found.st_mtime_ns, found.st_ino) != known
    return differs or found.st_ctime > file.updated.timestamp()


def _is_file(tree: Tree, path: str) -> bool:
    """Whether a path is a regular file and no part of it is a link."""
    try:
        found = tree.look(path)
    except Permanent:
        return False
    return found is not None and stat.S_ISREG(found.st_mode)


def _seen(tree: Tree, path: str, origin: str | None, known: File | None) -> Seen:
    if origin is not None and not is_valid(origin):
        origin = None
    nothing = Seen(path, origin, None, "")
    if not is_valid(path):
        return nothing
    try:
        found = tree.look(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return nothing
        if known is not None and not _may_differ(known, found):
            facts = Facts(known.size, known.mtime_ns, known.inode, known.hash)
            return Seen(path, origin, facts, known.mime)
        facts = tree.facts(path)
        if origin is not None and _is_file(tree, origin):
            origin = None  # it is a copy: the original still exists
        return Seen(path, origin, facts, tree.mime_type(path))
    except (Missing, Permanent):
        return nothing
    except OSError as error:
        raise NotebookError(f"{path!r} cannot be read: {error}") from error


def _with_seen(file: File, seen: Seen) -> File:
    assert seen.facts is not None  # noqa: S101 - only called for files
    return tables.with_facts(file, seen.facts)._replace(mime=seen.mime)

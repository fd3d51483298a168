"""Brings what is known of files in line with what is on the disk, after others have changed it.

A path is looked at again by an operation that waits for all earlier ones on it, so that nothing is
mistaken for somebody else's change. What is on the disk has the last word.
"""

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from penstock import Penstock, Transaction, run_sync
from penstock.apps.notebooks import tables
from penstock.apps.notebooks.errors import Missing, NotebookError, Permanent
from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.mime import HEAD, mime_type
from penstock.apps.notebooks.paths import is_path
from penstock.apps.notebooks.reconciling import Found, Happened, Known
from penstock.apps.notebooks.tables import File

Change = tuple[str, str | None]
"""A path to look at, and where it may have been moved from."""


class Seen(NamedTuple):
    """What is at a path now; no facts if there is no file."""

    path: str
    moved_from: str | None
    facts: Facts | None
    mime: str


class KnownInTables:
    """What is known of the files of a notebook, for who compares it with the disk in a thread."""

    def __init__(self, penstock: Penstock, notebook_id: int) -> None:
        self._penstock = penstock
        self._id = notebook_id

    def below(self, paths: Collection[str], /) -> list[Known]:
        """See `KnownFiles.below`."""
        found = run_sync(self._penstock.read(lambda tx: tables.known_below(tx, self._id, paths)))
        return [_known(one) for one in found]

    def with_hashes(self, hashes: Collection[str], /) -> list[Known]:
        """See `KnownFiles.with_hashes`."""
        found = run_sync(
            self._penstock.read(lambda tx: tables.known_with_hashes(tx, self._id, hashes))
        )
        return [_known(one) for one in found]


def changes_in(found: Iterable[Found]) -> list[Change]:
    """What is to be looked at again, of what differs from what is known."""
    return [
        (one.path, one.file.path if one.what is Happened.MOVED and one.file else None)
        for one in found
    ]


def look(tree: Tree, changes: Iterable[Change], known: Mapping[str, File]) -> list[Seen]:
    """What is on the disk at these paths; raises `Passing` for one that is being written to."""
    return [_seen(tree, path, origin, known.get(path)) for path, origin in changes]


def note(tx: Transaction, notebook_id: int, seen: Iterable[Seen]) -> list[str]:
    """Let the tables say what was seen; the paths whose content has changed."""
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
        tables.put_file(tx, _with(file, one))
        changed.append(one.path)
    for one in seen:
        if (before := known.get(one.path)) is None or one.path in moved:
            continue
        if one.facts is None:
            tables.remove_file(tx, before.id)
            changed.append(one.path)
        elif one.facts.hash != before.hash:
            file = before._replace(version=before.version + 1, updated=now)
            tables.put_file(tx, _with(file, one))
            changed.append(one.path)
        elif one.facts != (before.size, before.mtime_ns, before.inode, before.hash):
            tables.put_file(tx, _with(before, one))
    return changed


def _known(row: tables.Row) -> Known:
    *facts, updated = row
    return Known._make((*facts, updated / 1_000_000))


def _may_be_other(file: File, found: os.stat_result) -> bool:
    """Whether a content may not be the known one: sizes and times can be as they were."""
    known = (file.size, file.mtime_ns, file.inode)
    is_other = (found.st_size, found.st_mtime_ns, found.st_ino) != known
    return is_other or found.st_ctime > file.updated.timestamp()


def _is_file(tree: Tree, path: str) -> bool:
    """Whether a file is at a path; a link there, or in the place of its folder, is none."""
    try:
        found = tree.look(path)
    except Permanent:
        return False
    return found is not None and stat.S_ISREG(found.st_mode)


def _seen(tree: Tree, path: str, origin: str | None, known: File | None) -> Seen:
    if origin is not None and not is_path(origin):
        origin = None
    nothing = Seen(path, origin, None, "")
    if not is_path(path):
        return nothing
    try:
        found = tree.look(path)
        if found is None or not stat.S_ISREG(found.st_mode):
            return nothing
        if known is not None and not _may_be_other(known, found):
            facts = Facts(known.size, known.mtime_ns, known.inode, known.hash)
            return Seen(path, origin, facts, known.mime)
        facts = tree.facts(path)
        if origin is not None and _is_file(tree, origin):
            origin = None  # it is a copy: the other is still there
        with tree.open(path) as file:
            return Seen(path, origin, facts, mime_type(path, file.read(HEAD)))
    except (Missing, Permanent):
        return nothing
    except OSError as error:
        raise NotebookError(f"{path!r} cannot be looked at: {error}") from error


def _with(file: File, seen: Seen) -> File:
    assert seen.facts is not None  # noqa: S101 - there is a file
    return tables.with_facts(file, seen.facts)._replace(mime=seen.mime)

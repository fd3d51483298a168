"""Compares the disk with what is known of it, to find what others have done to a notebook.

Files that the server itself wrote are recognised by their content and not reported. A moved file is
recognised by its hash; if it was edited as well, by its inode, its name, or because it is the only
candidate. It keeps its id.
"""

import errno
import math
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.apps.notebooks.disk.files import creation_time
from penstock.apps.notebooks.disk.tree import Facts, Tree
from penstock.apps.notebooks.errors import NotebookError, Transient
from penstock.apps.notebooks.paths import STATE, is_within, parents, why_not

SETTLE = 0.2
"""Seconds without a change after which a file counts as complete, and a missing one as deleted."""

_NEAR = 2.0
"""Seconds between the disappearance of a file and the appearance of one that may be the same."""

_TICK = 0.01
"""Seconds by which the clock of a file system may lag."""

_DRAFT = re.compile(r".*~|\.#.*|#.*#|\..*\.sw.|4913|\.DS_Store")
"""Names of temporary files that editors create."""


class KnownFile(NamedTuple):
    """A file as it is known."""

    id: int
    path: str
    size: int
    mtime_ns: int
    inode: int
    hash: str
    at: float = math.inf
    """When this became known, in seconds since 1970."""


class KnownFiles(Protocol):
    """The known files of a notebook. Called in a thread."""

    def below(self, paths: Collection[str], /) -> Iterable[KnownFile]:
        """Return the files at and below these paths; an empty path is the whole notebook."""

    def with_hashes(self, hashes: Collection[str], /) -> Iterable[KnownFile]:
        """Return the files that have one of these hashes."""


class ChangeKind(StrEnum):
    """What was done to a file."""

    CREATED = "created"
    MODIFIED = "modified"
    MOVED = "moved"
    DELETED = "deleted"
    TOUCHED = "touched"
    """Its content is unchanged, but its modification time or inode is not."""


class Difference(NamedTuple):
    """A difference between the disk and what is known."""

    kind: ChangeKind
    path: str
    file: KnownFile | None = None
    """The file as it was known; for a moved one, with its old path."""
    facts: Facts | None = None
    """The file as it is now; None if it is gone."""


@dataclass
class ScanResult:
    """The result of a scan."""

    found: list[Difference] = field(default_factory=list)
    unsettled: set[str] = field(default_factory=set)
    """Paths that were changing and have to be scanned again."""
    refused: dict[str, str] = field(default_factory=dict)
    """Paths that are not allowed in a notebook, with the reason."""


def scan(
    tree: Tree,
    known: KnownFiles,
    paths: Collection[str] = ("",),
    *,
    patient: bool = True,
    now: float | None = None,
    since: float = 0,
) -> ScanResult:
    """Find what was done to files at and below these paths; an empty path is the whole notebook.

    The content of a path that is named is compared in any case. So is that of a file whose status
    changed after it became known and after `since`, the time of the previous scan. With `patient`,
    files that changed within the last moment are left for another scan. Raises `Transient` if the
    notebook is gone, so that its files do not count as deleted.
    """
    if not (tree.root / STATE).is_dir():
        raise Transient(f"the folder of the notebook, {str(tree.root)!r}, is gone")
    now = time.time() if now is None else now
    return _Scan(tree, known, paths, patient=patient, now=now, since=since).run()


class _Scan:
    """One scan."""

    def __init__(
        self,
        tree: Tree,
        known: KnownFiles,
        paths: Collection[str],
        *,
        patient: bool,
        now: float,
        since: float,
    ) -> None:
        self._tree = tree
        self._source = known
        self._named = set(paths)
        self._paths = _outermost(paths)
        self._patient = patient
        self._now = now
        self._since = since
        self._result = ScanResult()
        self._there: dict[str, os.stat_result] = {}
        self._arriving: dict[str, os.stat_result] = {}
        """New files that are still changing."""

    def run(self) -> ScanResult:
        known = {one.path: one for one in self._source.below(self._paths)}
        there = self._there = dict(self._walk())
        new: dict[str, Facts] = {}
        for path, about in there.items():
            if path in known or self._is_path(path):
                self._compare(path, about, known.get(path), new)
        missing = {path: one for path, one in known.items() if path not in there}
        self._report_moves(new, missing)
        self._report_edited_moves(new, missing)
        for path, facts in new.items():
            self._report(ChangeKind.CREATED, path, None, facts)
        is_only = len(missing) == len(self._arriving) == 1 and not new
        for path, one in missing.items():
            if self._is_gone_for_good(path) and not self._may_arrive(one, is_only=is_only):
                self._report(ChangeKind.DELETED, path, one)
            else:
                self._result.unsettled.add(path)
        return self._result

    def _report(
        self, kind: ChangeKind, path: str, file: KnownFile | None, facts: Facts | None = None
    ) -> None:
        self._result.found.append(Difference(kind, path, file, facts))

    # What is on the disk

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all regular files at and below the paths, without following links."""
        for path in self._paths:
            about = None if path and is_ignored(path) else self._look(path)
            if about is None:
                continue
            if stat.S_ISDIR(about.st_mode):
                yield from self._below(path)
            elif stat.S_ISREG(about.st_mode):
                yield path, about

    def _look(self, path: str) -> os.stat_result | None:
        try:
            return self._tree.look(path) if path else self._tree.root.stat()
        except (NotebookError, OSError):
            return None  # its folder is now a link or a file

    def _is_file(self, path: str) -> bool:
        about = self._look(path)
        return about is not None and stat.S_ISREG(about.st_mode)

    def _below(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            prefix = f"{folder}/" if folder else ""
            try:
                with os.scandir(self._tree.root / folder) as found:
                    entries = list(found)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    self._result.refused[folder] = "is too deep for the system"
                continue  # or it vanished, or is not readable
            for entry in entries:
                path = prefix + entry.name
                if is_ignored(path):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif entry.is_file(follow_symlinks=False):
                    try:
                        yield path, entry.stat(follow_symlinks=False)
                    except OSError:
                        continue

    def _is_path(self, path: str) -> bool:
        if why := why_not(path):
            self._result.refused[path] = why
        return not why

    # What was done

    def _compare(
        self, path: str, about: os.stat_result, known: KnownFile | None, new: dict[str, Facts]
    ) -> None:
        is_same = known is not None and (about.st_size, about.st_mtime_ns, about.st_ino) == (
            known.size,
            known.mtime_ns,
            known.inode,
        )
        if is_same and path not in self._named and not self._is_doubtful(about, known):
            return
        if not is_same and self._is_recent(about.st_ctime):
            self._scan_again(path, about, known)
            return
        try:
            facts = self._tree.facts(path)
        except NotebookError:
            self._scan_again(path, about, known)  # it is being written to, or vanished
            return
        if known is None:
            new[path] = facts
        elif facts.hash != known.hash:
            self._report(ChangeKind.MODIFIED, path, known, facts)
        elif not is_same:
            self._report(ChangeKind.TOUCHED, path, known, facts)

    def _scan_again(self, path: str, about: os.stat_result, known: KnownFile | None) -> None:
        self._result.unsettled.add(path)
        if known is None:
            self._arriving[path] = about

    def _report_moves(self, new: dict[str, Facts], missing: dict[str, KnownFile]) -> None:
        """Pair new files with missing ones that have the same content."""
        gone = self._gone_with({facts.hash for facts in new.values()}, missing)
        for path in sorted(new):
            facts = new[path]
            candidates = gone.get(facts.hash, [])
            source = _most_alike(path, facts, candidates)
            if source is not None and self._report_move(path, source, new, missing):
                candidates.remove(source)

    def _report_move(
        self, path: str, source: KnownFile, new: dict[str, Facts], missing: dict[str, KnownFile]
    ) -> bool:
        """Report a new file as a known one that was moved; return whether that is final."""
        facts = new.pop(path)
        if not self._is_gone_for_good(source.path):
            self._result.unsettled.add(path)
            return False
        missing.pop(source.path, None)
        self._report(ChangeKind.MOVED, path, source, facts)
        return True

    def _report_edited_moves(self, new: dict[str, Facts], missing: dict[str, KnownFile]) -> None:
        """Pair new files with missing ones that were edited and moved between two scans.

        An editor that writes in place keeps the inode. For one that replaces the file, the name
        decides, or that exactly one file vanished and one appeared.
        """
        inodes = {one.inode: one for one in missing.values()}
        for path, facts in sorted(new.items()):
            source = inodes.get(facts.inode)
            if source is not None and self._is_older(path, source):
                self._report_move(path, source, new, missing)
        coming, going = _by_name(path for path in new if new[path].size), _by_name(missing)
        for name in sorted(coming.keys() & going.keys()):
            if len(coming[name]) == len(going[name]) == 1:
                self._report_if_near(coming[name][0], going[name][0], new, missing)
        written = [path for path, facts in new.items() if facts.size]
        if len(written) == len(missing) == 1 and not self._arriving:
            (path,), (origin,) = written, missing
            if _suffix(path) == _suffix(origin):
                self._report_if_near(path, origin, new, missing)

    def _report_if_near(
        self, path: str, origin: str, new: dict[str, Facts], missing: dict[str, KnownFile]
    ) -> None:
        if self._is_near(path, origin):
            self._report_move(path, missing[origin], new, missing)

    def _is_older(self, path: str, known: KnownFile) -> bool:
        """Whether a file existed when another became known; the system reuses inodes."""
        created = creation_time(f"{self._tree.root}/{path}")
        if created is None:
            return self._is_near(path, known.path)
        return created + _TICK <= max(known.at, known.mtime_ns / 1e9)

    def _is_near(self, path: str, origin: str) -> bool:
        """Whether one file appeared about when the other vanished."""
        changed = self._last_change(origin)
        return changed is not None and abs(self._there[path].st_ctime - changed) <= _NEAR

    def _may_arrive(self, gone: KnownFile, *, is_only: bool) -> bool:
        """Whether one of the new files that are still changing may be this one."""
        return self._patient and any(
            about.st_ino == gone.inode
            or _name(path) == _name(gone.path)
            or (is_only and _suffix(path) == _suffix(gone.path))
            for path, about in self._arriving.items()
        )

    def _gone_with(
        self, hashes: set[str], missing: Mapping[str, KnownFile]
    ) -> dict[str, list[KnownFile]]:
        """Return known files that are gone, by the hashes of the new files."""
        gone: dict[str, list[KnownFile]] = defaultdict(list)
        if hashes:
            for one in self._source.with_hashes(hashes):
                if one.path in missing or not self._is_file(one.path):
                    gone[one.hash].append(one)
        return gone

    def _is_doubtful(self, about: os.stat_result, known: KnownFile | None) -> bool:
        """Whether a file with the known size and time may have been changed all the same."""
        return known is not None and about.st_ctime > max(known.at, self._since)

    # Whether it has settled

    def _is_recent(self, changed: float) -> bool:
        return self._patient and 0 <= self._now - changed < SETTLE

    def _is_gone_for_good(self, path: str) -> bool:
        """Whether nothing happened lately in the folder of a missing file.

        Editors remove a file for a moment and put another in its place.
        """
        changed = self._last_change(path)
        return (
            path not in self._result.unsettled
            and changed is not None
            and not self._is_recent(changed)
        )

    def _last_change(self, path: str) -> float | None:
        """Return when a name last appeared or vanished in the folder of a file."""
        for folder in (*parents(path), ""):
            about = self._look(folder)
            if about is not None:
                return about.st_mtime
        return None


def is_ignored(path: str) -> bool:
    """Whether a path belongs to git or to the server, or is a temporary file of an editor."""
    names = path.split("/")
    return names[0] == STATE or ".git" in names or _DRAFT.fullmatch(names[-1]) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _suffix(path: str) -> str:
    return Path(path).suffix


def _by_name(paths: Iterable[str]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        named[_name(path)].append(path)
    return named


def _most_alike(path: str, facts: Facts, candidates: Sequence[KnownFile]) -> KnownFile | None:
    """Return which of several files with the same content was most likely moved here."""

    def likeness(one: KnownFile) -> tuple[bool, bool]:
        return one.inode == facts.inode, _name(one.path) == _name(path)

    best = max(candidates, key=likeness, default=None)
    # All empty files are alike.
    if best is None or (facts.size == 0 and not any(likeness(best))):
        return None
    return best


def _outermost(paths: Collection[str]) -> list[str]:
    """Return the paths without those below another one."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda one: one.split("/")):
        if not kept or not (kept[-1] == "" or is_within(path, kept[-1])):
            kept.append(path)
    return kept

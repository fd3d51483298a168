"""Compares what is on the disk with what is known of it: what others have done to a notebook.

What was written by the server itself is recognised by its content, so that nothing is told twice. A
file that was moved is found again by its hash; one that was edited as well by its inode, its name,
or because no other can be meant. It keeps its id.
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

from penstock.apps.notebooks.births import birth_of
from penstock.apps.notebooks.errors import NotebookError, Passing
from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.paths import STATE, is_within, parents, why_not

SETTLE = 0.2
"""Seconds without a change after which a file counts as written, and a missing one as gone."""

_NEAR = 2.0
"""Seconds between the end of a file and the arrival of another that may be the same one."""

_TICK = 0.01
"""Seconds by which the clock of a file system may be behind."""

_DRAFT = re.compile(r".*~|\.#.*|#.*#|\..*\.sw.|4913|\.DS_Store")
"""Names of what editors leave for a moment."""


class Known(NamedTuple):
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
    """What is known of the files of a notebook. Called in a thread."""

    def below(self, paths: Collection[str], /) -> Iterable[Known]:
        """The files at these paths and below them; an empty path is the whole notebook."""

    def with_hashes(self, hashes: Collection[str], /) -> Iterable[Known]:
        """The files that have one of these hashes."""


class Happened(StrEnum):
    """What was done to a file."""

    CREATED = "created"
    MODIFIED = "modified"
    MOVED = "moved"
    DELETED = "deleted"
    TOUCHED = "touched"
    """Its content is the same, but not its time or its inode."""


class Found(NamedTuple):
    """A difference between the disk and what is known."""

    what: Happened
    path: str
    file: Known | None = None
    """The file as it was known; for a moved one, with the path that it came from."""
    facts: Facts | None = None
    """As it is now; None if it is gone."""


@dataclass
class Reconciled:
    """What a look has shown."""

    found: list[Found] = field(default_factory=list)
    unsettled: set[str] = field(default_factory=set)
    """Paths to be looked at again: they were changing."""
    refused: dict[str, str] = field(default_factory=dict)
    """Paths that a notebook cannot have, and why."""


def reconcile(
    tree: Tree,
    known: KnownFiles,
    paths: Collection[str] = ("",),
    *,
    patient: bool = True,
    now: float | None = None,
    since: float = 0,
) -> Reconciled:
    """What was done to files at these paths and below them; an empty path is the whole notebook.

    A path that is named has its content compared, whatever its time says; so has a file that the
    system has noted a change of after it became known, and after `since`, the look before this one.
    If `patient`, what has changed within the last moment is left for another look. Raises `Passing`
    if the notebook is gone, so that its files do not count as deleted.
    """
    if not (tree.root / STATE).is_dir():
        raise Passing(f"the notebook's folder {str(tree.root)!r} is gone")
    now = time.time() if now is None else now
    return _Look(tree, known, paths, patient=patient, now=now, since=since).run()


class _Look:
    """One look at the disk."""

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
        self._result = Reconciled()
        self._there: dict[str, os.stat_result] = {}
        self._arriving: dict[str, os.stat_result] = {}
        """New files that are still changing."""

    def run(self) -> Reconciled:
        known = {one.path: one for one in self._source.below(self._paths)}
        there = self._there = dict(self._walk())
        new: dict[str, Facts] = {}
        for path, about in there.items():
            if path in known or self._is_path(path):
                self._compare(path, about, known.get(path), new)
        missing = {path: one for path, one in known.items() if path not in there}
        self._tell_moves(new, missing)
        self._tell_edited_moves(new, missing)
        for path, facts in new.items():
            self._tell(Happened.CREATED, path, None, facts)
        is_only = len(missing) == len(self._arriving) == 1 and not new
        for path, one in missing.items():
            if self._is_gone_for_good(path) and not self._may_arrive(one, is_only=is_only):
                self._tell(Happened.DELETED, path, one)
            else:
                self._result.unsettled.add(path)
        return self._result

    def _tell(
        self, what: Happened, path: str, file: Known | None, facts: Facts | None = None
    ) -> None:
        self._result.found.append(Found(what, path, file, facts))

    # What is there

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """All regular files at and below the paths; links are not followed, and no files."""
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
            return None  # a link or a file stands where its folder was

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
                continue  # or it has gone, or may not be read
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
        self, path: str, about: os.stat_result, known: Known | None, new: dict[str, Facts]
    ) -> None:
        is_same = known is not None and (about.st_size, about.st_mtime_ns, about.st_ino) == (
            known.size,
            known.mtime_ns,
            known.inode,
        )
        if is_same and path not in self._named and not self._is_doubtful(about, known):
            return
        if not is_same and self._is_recent(about.st_ctime):
            self._look_again(path, about, known)
            return
        try:
            facts = self._tree.facts(path)
        except NotebookError:
            self._look_again(path, about, known)  # it is written to, or has gone meanwhile
            return
        if known is None:
            new[path] = facts
        elif facts.hash != known.hash:
            self._tell(Happened.MODIFIED, path, known, facts)
        elif not is_same:
            self._tell(Happened.TOUCHED, path, known, facts)

    def _look_again(self, path: str, about: os.stat_result, known: Known | None) -> None:
        self._result.unsettled.add(path)
        if known is None:
            self._arriving[path] = about

    def _tell_moves(self, new: dict[str, Facts], missing: dict[str, Known]) -> None:
        """Take out of the new and the missing those that are the same file."""
        gone = self._gone_with({facts.hash for facts in new.values()}, missing)
        for path in sorted(new):
            facts = new[path]
            candidates = gone.get(facts.hash, [])
            source = _most_alike(path, facts, candidates)
            if source is not None and self._tell_move(path, source, new, missing):
                candidates.remove(source)

    def _tell_move(
        self, path: str, source: Known, new: dict[str, Facts], missing: dict[str, Known]
    ) -> bool:
        """Take a new file for one that is known; whether that is for good."""
        facts = new.pop(path)
        if not self._is_gone_for_good(source.path):
            self._result.unsettled.add(path)
            return False
        missing.pop(source.path, None)
        self._tell(Happened.MOVED, path, source, facts)
        return True

    def _tell_edited_moves(self, new: dict[str, Facts], missing: dict[str, Known]) -> None:
        """The same for files that were edited and moved before anybody looked.

        An editor that writes in place keeps the inode. One that puts another file in the place of
        the old does not: then the name tells, or that one file has gone and one has come.
        """
        inodes = {one.inode: one for one in missing.values()}
        for path, facts in sorted(new.items()):
            source = inodes.get(facts.inode)
            if source is not None and self._is_older(path, source):
                self._tell_move(path, source, new, missing)
        coming, going = _by_name(path for path in new if new[path].size), _by_name(missing)
        for name in sorted(coming.keys() & going.keys()):
            if len(coming[name]) == len(going[name]) == 1:
                self._tell_if_near(coming[name][0], going[name][0], new, missing)
        written = [path for path, facts in new.items() if facts.size]
        if len(written) == len(missing) == 1 and not self._arriving:
            (path,), (origin,) = written, missing
            if _suffix(path) == _suffix(origin):
                self._tell_if_near(path, origin, new, missing)

    def _tell_if_near(
        self, path: str, origin: str, new: dict[str, Facts], missing: dict[str, Known]
    ) -> None:
        if self._is_near(path, origin):
            self._tell_move(path, missing[origin], new, missing)

    def _is_older(self, path: str, known: Known) -> bool:
        """Whether a file was there when another became known; inodes are given away again."""
        born = birth_of(f"{self._tree.root}/{path}")
        if born is None:
            return self._is_near(path, known.path)
        return born + _TICK <= max(known.at, known.mtime_ns / 1e9)

    def _is_near(self, path: str, origin: str) -> bool:
        """Whether one file has come at about the time when the other went."""
        changed = self._last_change(origin)
        return changed is not None and abs(self._there[path].st_ctime - changed) <= _NEAR

    def _may_arrive(self, gone: Known, *, is_only: bool) -> bool:
        """Whether one of the new files that are still changing may be this one."""
        return self._patient and any(
            about.st_ino == gone.inode
            or _name(path) == _name(gone.path)
            or (is_only and _suffix(path) == _suffix(gone.path))
            for path, about in self._arriving.items()
        )

    def _gone_with(self, hashes: set[str], missing: Mapping[str, Known]) -> dict[str, list[Known]]:
        """Files that are known and not there any more, by the hashes of those that are new."""
        gone: dict[str, list[Known]] = defaultdict(list)
        if hashes:
            for one in self._source.with_hashes(hashes):
                if one.path in missing or not self._is_file(one.path):
                    gone[one.hash].append(one)
        return gone

    def _is_doubtful(self, about: os.stat_result, known: Known | None) -> bool:
        """Whether something was done to a file that has the size and the time that are known."""
        return known is not None and about.st_ctime > max(known.at, self._since)

    # Whether it is over

    def _is_recent(self, changed: float) -> bool:
        return self._patient and 0 <= self._now - changed < SETTLE

    def _is_gone_for_good(self, path: str) -> bool:
        """Whether nothing has happened lately in the folder where the file was.

        Editors remove a file for a moment and put another in its place.
        """
        changed = self._last_change(path)
        return (
            path not in self._result.unsettled
            and changed is not None
            and not self._is_recent(changed)
        )

    def _last_change(self, path: str) -> float | None:
        """When a name has come or gone for the last time in the folder where a file was."""
        for folder in (*parents(path), ""):
            about = self._look(folder)
            if about is not None:
                return about.st_mtime
        return None


def is_ignored(path: str) -> bool:
    """Whether a path is git's, the server's own, or a draft of an editor."""
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


def _most_alike(path: str, facts: Facts, candidates: Sequence[Known]) -> Known | None:
    """Of files with the same content, the one that was moved here."""

    def likeness(one: Known) -> tuple[bool, bool]:
        return one.inode == facts.inode, _name(one.path) == _name(path)

    best = max(candidates, key=likeness, default=None)
    # Empty files are all alike.
    if best is None or (facts.size == 0 and not any(likeness(best))):
        return None
    return best


def _outermost(paths: Collection[str]) -> list[str]:
    """The paths without those that are below another one."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda one: one.split("/")):
        if not kept or not (kept[-1] == "" or is_within(path, kept[-1])):
            kept.append(path)
    return kept

"""Compares what is on the disk with what is known of it: what others have done to a notebook.

What was written by the server itself is recognised by its content, so that nothing is told twice. A
file that was moved is found again by its inode and its hash, and keeps its id.
"""

import math
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from penstock.apps.notebooks.errors import NotebookError, Passing
from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.paths import STATE, is_within, parents, why_not

SETTLE = 0.2
"""Seconds without a change after which a file counts as written, and a missing one as gone."""

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

    def run(self) -> Reconciled:
        known = {one.path: one for one in self._source.below(self._paths)}
        there = dict(self._walk())
        new: dict[str, Facts] = {}
        for path, about in there.items():
            if path in known or self._is_path(path):
                self._compare(path, about, known.get(path), new)
        missing = {path: one for path, one in known.items() if path not in there}
        self._tell_moves(new, missing)
        for path, facts in new.items():
            self._tell(Happened.CREATED, path, None, facts)
        for path, one in missing.items():
            if self._is_gone_for_good(path):
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

    def _below(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        prefix = f"{folder}/" if folder else ""
        try:
            with os.scandir(self._tree.root / folder) as found:
                entries = list(found)
        except OSError:
            return  # it has gone, or may not be read
        for entry in entries:
            path = prefix + entry.name
            if is_ignored(path):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(path)
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
            self._result.unsettled.add(path)
            return
        try:
            facts = self._tree.facts(path)
        except NotebookError:
            self._result.unsettled.add(path)  # it is written to, or has gone meanwhile
            return
        if known is None:
            new[path] = facts
        elif facts.hash != known.hash:
            self._tell(Happened.MODIFIED, path, known, facts)
        elif not is_same:
            self._tell(Happened.TOUCHED, path, known, facts)

    def _tell_moves(self, new: dict[str, Facts], missing: dict[str, Known]) -> None:
        """Take out of the new and the missing those that are the same file."""
        gone = self._gone_with({facts.hash for facts in new.values()}, missing)
        for path in sorted(new):
            facts = new[path]
            candidates = gone.get(facts.hash, [])
            source = _most_alike(path, facts, candidates)
            if source is None:
                continue
            del new[path]
            if self._is_gone_for_good(source.path):
                candidates.remove(source)
                missing.pop(source.path, None)
                self._tell(Happened.MOVED, path, source, facts)
            else:
                self._result.unsettled.add(path)

    def _gone_with(self, hashes: set[str], missing: Mapping[str, Known]) -> dict[str, list[Known]]:
        """Files that are known and not there any more, by the hashes of those that are new."""
        gone: dict[str, list[Known]] = defaultdict(list)
        if hashes:
            for one in self._source.with_hashes(hashes):
                if one.path in missing or self._look(one.path) is None:
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
        if path in self._result.unsettled:
            return False
        for folder in (*parents(path), ""):
            about = self._look(folder)
            if about is not None:
                return not self._is_recent(about.st_mtime)
        return False


def is_ignored(path: str) -> bool:
    """Whether a path is git's, the server's own, or a draft of an editor."""
    names = path.split("/")
    return names[0] == STATE or ".git" in names or _DRAFT.fullmatch(names[-1]) is not None


def _most_alike(path: str, facts: Facts, candidates: Sequence[Known]) -> Known | None:
    """Of files with the same content, the one that was moved here."""
    name = path.rpartition("/")[2]

    def likeness(one: Known) -> tuple[bool, bool]:
        return one.inode == facts.inode, one.path.rpartition("/")[2] == name

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

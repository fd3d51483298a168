"""Commits changed paths of one notebook together.

Paths are forgotten only when their commit is there; what was noted while
it was made stays for the next one, and so do earlier contents of paths that git cannot have.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from penstock.apps.notebooks.committing import Commit, Committer
from penstock.apps.notebooks.errors import NotebookError
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.keeping import Kept


class Pending(NamedTuple):
    """A path that changed since the last commit. A folder stands for all that is below it."""

    path: str
    since: datetime
    """When it changed first since its last commit."""
    mark: int
    """Grows with every change of the path, so that a later one is not forgotten with this one."""


class PendingPaths(Protocol):
    """Where changed paths are noted, durably."""

    def all(self) -> Sequence[Pending]:
        """Every path that is noted."""

    def forget(self, committed: Collection[Pending]) -> None:
        """Forget paths whose mark is still the same."""


class Batcher:
    """Commits what is pending in one notebook; one call at a time."""

    def __init__(
        self,
        tree: Tree,
        committer: Committer,
        pending: PendingPaths,
        own_hash: Callable[[str], str | None] = lambda _: None,
        unfinished: Collection[str] = (),
    ) -> None:
        """`own_hash` knows the hash of a file that is as the server wrote it, without reading.

        Copies of `unfinished` contents are left: they tell whether those were put in place.
        """
        self._tree = tree
        self._committer = committer
        self._pending = pending
        self._own_hash = own_hash
        self._unfinished = frozenset(unfinished)

    def flush(self, text: str | None = None) -> Commit | None:
        """Commit all that is pending; None if it came to nothing.

        If it fails, everything stays pending. Doing it again after a crash commits nothing twice:
        what HEAD has already makes no commit.
        """
        pending = list(self._pending.all())
        keeper = self._tree.keeper
        kept = {one.path: keeper.of(one.path) for one in pending}
        kept |= {path: found for path, found in keeper.displaced().items() if path not in kept}
        kept = {
            path: [one for one in found if one.staged not in self._unfinished]
            for path, found in kept.items()
        }
        if not kept:
            return None
        paths = list(kept)
        made = self._committer.commit(paths, self._needed(kept, paths), text)
        # What git cannot have for the moment waits with its earlier contents.
        held = self._committer.held.lasting()
        keeper.drop([one for path, found in kept.items() if path not in held for one in found])
        self._pending.forget(pending)
        return made

    def _needed(
        self, kept: Mapping[str, Sequence[Kept]], paths: Sequence[str]
    ) -> list[dict[str, Kept]]:
        """Contents that will not be in history unless they get commits of their own, by rounds."""
        lost: dict[str, list[Kept]] = {}
        for path, found in kept.items():
            digest = self._digest(path) if found else None
            if others := [one for one in found if one.hash != digest]:
                lost[path] = others
        if lost:
            elsewhere = {self._digest(path) for path in paths}
            lost = {
                path: [one for one in found if one.hash not in elsewhere]
                for path, found in lost.items()
            }
        rounds: list[dict[str, Kept]] = []
        for path, found in lost.items():
            for n, one in enumerate(found):
                if n == len(rounds):
                    rounds.append({})
                rounds[n][path] = one
        return rounds

    def _digest(self, path: str) -> str | None:
        if own := self._own_hash(path):
            return own
        try:
            with self._tree.open(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (NotebookError, OSError):
            return None

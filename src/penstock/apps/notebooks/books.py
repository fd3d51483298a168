"""Notebooks that this process works on: one process has a notebook at a time."""

import asyncio
import fcntl
import logging
import os
import socket
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from penstock.apps.notebooks.batcher import Batcher, Pending
from penstock.apps.notebooks.committing import Author, Commit, Committer
from penstock.apps.notebooks.configuration import Protection
from penstock.apps.notebooks.errors import NotebookError, Passing, Permanent, sorting
from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.plain import open_plain
from penstock.apps.notebooks.repository import Location, Repository
from penstock.apps.notebooks.state import note_as_own
from penstock.apps.notebooks.tables import Notebook
from penstock.apps.notebooks.watching import Watcher

_log = logging.getLogger(__name__)

_REMEMBERED = 10_000


class Taken(Permanent):
    """Another process works on the notebook."""


class Book:
    """A notebook that this process has for itself."""

    def __init__(self, notebook: Notebook, protection: Protection) -> None:
        """Take it; raises `Taken`. A repository that cannot be worked with is tried again later."""
        self.id = notebook.id
        self.name = notebook.name
        self.git = notebook.git
        self.settings = notebook.settings
        self.tree = Tree(Path(notebook.path)).prepare()
        self._lock = lock(self.tree.root, notebook.name)
        try:
            note_as_own(self.tree.root, protection)
        except BaseException:
            self._lock.close()
            raise
        self.committing = asyncio.Lock()
        self.steady = asyncio.Lock()
        """Held while the disk is compared with what is known, and while a folder's files change
        on both: they would look as if others had moved or removed them."""
        self._written: dict[str, tuple[tuple[int, int, int, int], str]] = {}
        self.watcher: Watcher | None = None
        self.watching: asyncio.Task[None] | None = None
        self.taken = 0
        """The last change that is committed, or being committed just now."""
        self.location = notebook.location
        self.problem = notebook.problem
        """Why commits fail, as it is stored."""
        self.retried_at = float("-inf")
        """When paths that git could not have were tried again."""
        self._protection = protection
        self._repository: Repository | None = None
        if self.git:
            try:
                self.repository()
            except NotebookError as error:
                _log.warning("notebook %s cannot be committed: %s", self.name, error)
            except BaseException:
                self._lock.close()
                raise

    def repository(self) -> Repository:
        """Its repository as it is configured now; in a thread. Raises `NotebookError`."""
        known = self._repository
        if self.location is None:
            raise Passing("it is not known yet which repository its history is in")
        if known is not None and known.is_current and self.location.problem is None:
            return known
        self._repository = repository(self.tree.root, self.location, self._protection)
        return self._repository

    def commit(
        self, paths: Sequence[str], author: str | None, unfinished: Collection[str]
    ) -> tuple[Commit | None, dict[str, str]]:
        """Commit what is on the disk at these paths, and what was there before; in a thread.

        `unfinished` are the names of contents that operations have still to do with. Also answers
        with the paths that git could not have, each with the reason.
        """
        if not self.git:
            return None, {}
        committer = Committer(self.repository(), self.tree.root, author=author_of(author))
        now = datetime.now(UTC)
        pending = _Noted([Pending(one, now, 0) for one in paths])
        batcher = Batcher(self.tree, committer, pending, self.own_hash, unfinished)
        return batcher.flush(), committer.held.reasons()

    def wrote(self, path: str, facts: Facts) -> None:
        """Remember what the server itself has put at a path."""
        found = self._look(path)
        if found is None or found[:3] != facts[:3]:
            return
        self._written[path] = found, facts.hash
        if len(self._written) > _REMEMBERED:
            self._written.pop(next(iter(self._written)))

    def is_own(self, path: str) -> bool:
        """Whether at a path is still what the server has put there."""
        return self.own_hash(path) is not None

    def own_hash(self, path: str) -> str | None:
        """The hash of what the server has put at a path, if that is still there."""
        written = self._written.get(path)
        return written[1] if written is not None and self._look(path) == written[0] else None

    def _look(self, path: str) -> tuple[int, int, int, int] | None:
        """Size, time and inode; and when any of it was changed, which nobody can set back."""
        try:
            found = os.lstat(f"{self.tree.root}/{path}")
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns

    def stop_watching(self) -> None:
        """Follow what others do no longer."""
        if self.watching is not None:
            self.watching.cancel()
            self.watching = self.watcher = None

    def close(self) -> None:
        """Let others have it; what git is doing for it ends."""
        self.stop_watching()
        if self._repository is not None:
            self._repository.git.end()
        self._lock.close()


class _Noted:
    """Paths to be committed; whoever asked for it forgets them."""

    def __init__(self, paths: list[Pending]) -> None:
        self._paths = paths

    def all(self) -> list[Pending]:
        return self._paths

    def forget(self, committed: Collection[Pending]) -> None:
        pass


def repository(root: Path, location: Location, protection: Protection) -> Repository:
    """The repository of the notebook in a folder; its own is made if it is not there."""
    if not location.is_joined and not os.path.lexists(location.directory):
        return Repository.make(root, protection)
    return Repository.open(root, location, protection)


def author_of(text: str | None) -> Author | None:
    """The author that is written as `NAME <ADDRESS>`."""
    if text is None:
        return None
    name, _, address = text.partition("<")
    return Author(name.strip(), address.strip("> "))


def lock(root: Path, name: str) -> IO[str]:
    """A lock on a notebook, held until it is closed or the process ends; raises `Taken`."""
    with sorting(f"{STATE}/lock"):
        handle = open_plain(f"{root}/{STATE}/lock", os.O_RDWR | os.O_CREAT)
    file = os.fdopen(handle, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip() or "an unknown process"
        file.close()
        raise Taken(
            f"another server works on notebook {name!r} in {root}: {holder}; stop it, or serve the "
            "notebook there"
        ) from None
    except BaseException:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file

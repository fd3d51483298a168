"""Notebooks that this process works on: one process has a notebook at a time."""

import asyncio
import fcntl
import os
import socket
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from penstock.apps.notebooks.batcher import Batcher, Pending
from penstock.apps.notebooks.committing import Author, Commit, Committer
from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.files import Facts, Tree
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.repository import Repository
from penstock.apps.notebooks.tables import Notebook
from penstock.apps.notebooks.watching import Watcher

_REMEMBERED = 10_000


class Taken(Permanent):
    """Another process works on the notebook."""


class Book:
    """A notebook that this process has for itself."""

    def __init__(self, notebook: Notebook) -> None:
        """Take it; raises `Taken`."""
        self.id = notebook.id
        self.name = notebook.name
        self.git = notebook.git
        self.settings = notebook.settings
        self.tree = Tree(Path(notebook.path)).prepare()
        self._lock = lock(self.tree.root, notebook.name)
        self.committing = asyncio.Lock()
        self.steady = asyncio.Lock()
        """Held while the disk is compared with what is known, and while a folder's files change
        on both: they would look as if others had moved or removed them."""
        self._written: dict[str, tuple[tuple[int, int, int, int], str]] = {}
        self.watcher: Watcher | None = None
        self.watching: asyncio.Task[None] | None = None
        self.taken = 0
        """The last change that is committed, or being committed just now."""
        try:
            self.repository = repository(self.tree.root) if self.git else None
        except BaseException:
            self._lock.close()
            raise

    def commit(
        self, paths: Sequence[str], author: str | None, unfinished: Collection[str]
    ) -> Commit | None:
        """Commit what is on the disk at these paths, and what was there before; in a thread.

        `unfinished` are the names of contents that operations have still to do with.
        """
        if self.repository is None:
            return None
        committer = Committer(self.repository, self.tree.root, author=author_of(author))
        now = datetime.now(UTC)
        pending = _Noted([Pending(one, now, 0) for one in paths])
        batcher = Batcher(self.tree, committer, pending, self.own_hash, unfinished)
        return batcher.flush()

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
        """Let others have it."""
        self.stop_watching()
        self._lock.close()


class _Noted:
    """Paths to be committed; whoever asked for it forgets them."""

    def __init__(self, paths: list[Pending]) -> None:
        self._paths = paths

    def all(self) -> list[Pending]:
        return self._paths

    def forget(self, committed: Collection[Pending]) -> None:
        pass


def repository(root: Path) -> Repository:
    """The repository that a folder stands in; a new one in it if there is none."""
    return Repository.find(root) or Repository.make(root)


def author_of(text: str | None) -> Author | None:
    """The author that is written as `NAME <ADDRESS>`."""
    if text is None:
        return None
    name, _, address = text.partition("<")
    return Author(name.strip(), address.strip("> "))


def lock(root: Path, name: str) -> IO[str]:
    """A lock on a notebook, held until it is closed or the process ends; raises `Taken`."""
    file = (root / STATE / "lock").open("a+", encoding="utf-8")
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

"""The registry of a server's notebooks, and those that this process has open.

One process at a time has a notebook open. It runs the operations on it and watches its files.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import ConfigurationError, Penstock
from penstock.apps.kit import needs_tables
from penstock.apps.notebooks import tables
from penstock.apps.notebooks.disk.state import lock, record_as_own, set_aside_if_foreign
from penstock.apps.notebooks.disk.tree import Facts, Tree
from penstock.apps.notebooks.disk.watcher import Watcher
from penstock.apps.notebooks.errors import (
    Exists,
    Locked,
    Missing,
    NotebookError,
    PathRefused,
    Permanent,
    Transient,
    Unavailable,
)
from penstock.apps.notebooks.repository.commits import Commit, Committer, Identity, commit_changes
from penstock.apps.notebooks.repository.configuration import Protection
from penstock.apps.notebooks.repository.location import Location
from penstock.apps.notebooks.repository.repository import (
    Repository,
    former_location,
    join_location,
    own_location,
)
from penstock.apps.notebooks.settings import (
    Settings,
    allowed_roots,
    folder_for_new,
    trusted_filters,
)
from penstock.apps.notebooks.tables import TABLES, File, Notebook
from penstock.tables import Transaction

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAMES = "letters, digits, '_', '-' and '.', at most 100, the first not '-' or '.'"
_REMEMBERED = 10_000


class OpenNotebook:
    """A notebook that this process has open, and no other."""

    def __init__(self, notebook: Notebook, protection: Protection) -> None:
        """Lock it; raises `Locked`. A repository that cannot be used is tried again later."""
        self.id = notebook.id
        self.name = notebook.name
        self.git = notebook.git
        self.settings = notebook.settings
        self.location = notebook.location
        self.problem = notebook.problem
        """Why commits fail, as it is stored."""
        self.tree = Tree(Path(notebook.path)).prepare()
        self.commit_lock = asyncio.Lock()
        self.scan_lock = asyncio.Lock()
        """Held during a scan, and while the files of a folder change on disk and in the tables: a
        scan would report them as moved or removed by others."""
        self.watcher: Watcher | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self.last_change = 0
        """The number of the last change that is committed or being committed."""
        self.retried_at = float("-inf")
        """When held paths were last tried again."""
        self._written: dict[str, tuple[tuple[int, int, int, int], str]] = {}
        self._protection = protection
        self._repository: Repository | None = None
        self._lock = lock(self.tree.root, notebook.name)
        try:
            record_as_own(self.tree.root, protection)
            if self.git:
                self._try_repository()
        except BaseException:
            self._lock.close()
            raise

    def _try_repository(self) -> None:
        try:
            self.repository()
        except NotebookError as error:
            _log.warning("notebook %s cannot be committed: %s", self.name, error)

    def repository(self) -> Repository:
        """Return its repository as it is configured now; raises `NotebookError`. Blocks."""
        known = self._repository
        if self.location is None:
            raise Transient("its repository is not known yet")
        if known is not None and known.is_current and self.location.problem is None:
            return known
        self._repository = Repository.open_or_make(self.tree.root, self.location, self._protection)
        return self._repository

    def commit(
        self, paths: Sequence[str], author: str | None, unfinished: Collection[str]
    ) -> tuple[Commit | None, dict[str, str]]:
        """Commit these paths and the backups of what was at them; blocks.

        `unfinished` are the staging names of contents that operations still need. Returns the
        commit and the paths that git cannot commit, with the reason.
        """
        if not self.git:
            return None, {}
        committer = Committer(self.repository(), self.tree.root, author=_identity(author))
        commit = commit_changes(
            self.tree, committer, paths, own_hash=self.own_hash, unfinished=unfinished
        )
        return commit, committer.held.reasons()

    def pack(self) -> None:
        """Pack the objects of its own repository if there are many; blocks.

        A joined repository is left to the person who has it.
        """
        if self.git and self.location is not None and not self.location.is_joined:
            self.repository().pack()

    def remember_write(self, path: str, facts: Facts) -> None:
        """Remember what the server wrote at a path."""
        found = self._status(path)
        if found is None or found[:3] != facts[:3]:
            return
        self._written[path] = found, facts.hash
        if len(self._written) > _REMEMBERED:
            self._written.pop(next(iter(self._written)))

    def is_own(self, path: str) -> bool:
        """Whether a path still has what the server wrote there."""
        return self.own_hash(path) is not None

    def own_hash(self, path: str) -> str | None:
        """Return the hash of what the server wrote at a path, if it is unchanged."""
        written = self._written.get(path)
        return written[1] if written is not None and self._status(path) == written[0] else None

    def _status(self, path: str) -> tuple[int, int, int, int] | None:
        """Return size, time, inode, and the time of the last change, which nobody can set."""
        try:
            found = os.lstat(f"{self.tree.root}/{path}")
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns

    def start_watching(self, watcher: Watcher) -> None:
        """Watch for changes that others make, unless it is watched already."""
        if self._watch_task is None:
            self.watcher = watcher
            self._watch_task = asyncio.create_task(watcher.run())

    def stop_watching(self) -> None:
        """Stop watching."""
        if self._watch_task is not None:
            self._watch_task.cancel()
            self._watch_task = self.watcher = None

    def close(self) -> None:
        """Release the notebook for other processes, and end its git processes."""
        self.stop_watching()
        if self._repository is not None:
            self._repository.git.end()
        self._lock.close()


def _identity(author: str | None) -> Identity | None:
    """Parse `NAME <ADDRESS>`."""
    if author is None:
        return None
    name, _, address = author.partition("<")
    return Identity(name.strip(), address.strip("> "))


class Registry:
    """The notebooks of a server, and those that this process has open."""

    def __init__(self, penstock: Penstock, settings: Settings, data: Path) -> None:
        self._penstock = penstock
        self._new = folder_for_new(settings, data)
        self._roots = allowed_roots(settings, data)
        self._data = data.resolve()
        self.protection = Protection(self._data / "notebooks-git", trusted_filters(settings))
        self._open: dict[int, OpenNotebook] = {}
        self._opening = asyncio.Lock()
        self.on_change: list[Callable[[OpenNotebook], None]] = []
        """Called with each notebook that this process opens, or whose settings change."""
        self._unavailable: str | None = "notebooks have not been opened yet"

    async def prepare(self) -> None:
        """Create the tables; notebooks stay unavailable if the store cannot have any."""
        try:
            await self._penstock.tables.prepare("notebooks", TABLES)
        except ConfigurationError as error:
            self._unavailable = needs_tables("notebooks", error)
            return
        self._unavailable = None
        for notebook in await self.all():
            await self._record_location(notebook)

    @property
    def is_available(self) -> bool:
        """Whether the store can hold notebooks."""
        return self._unavailable is None

    def check_available(self) -> None:
        """Raise `Unavailable` if the store cannot hold notebooks."""
        if self._unavailable:
            raise Unavailable(self._unavailable)

    async def _record_location(self, notebook: Notebook) -> None:
        """Record which repository a notebook of an earlier version commits into."""
        if not notebook.git or notebook.location is not None:
            return
        folder = Path(notebook.path)
        try:
            location, text = await asyncio.to_thread(former_location, folder, self.protection)
        except OSError as error:  # its disk may be mounted again
            _log.warning("the repository of notebook %s cannot be determined: %s", folder, error)
            return
        if await self._penstock.transaction(
            lambda tx: tables.record_location(tx, notebook.id, location)
        ):
            log = _log.warning if text else _log.info
            log("notebook %s %s", notebook.name, text or "has its own repository")

    # Registered notebooks

    async def all(self) -> list[Notebook]:
        """Return every notebook, by name."""
        self.check_available()
        return await self._penstock.tables.read(tables.notebooks)

    async def find(self, name: str | int) -> Notebook:
        """Return the notebook with this id or name; raises `Missing`."""
        self.check_available()
        found = await self._penstock.tables.read(lambda tx: tables.notebook(tx, name))
        if found is None:
            raise Missing(f"there is no notebook {name!r}")
        return found

    async def file(self, notebook: Notebook, file_id: int) -> File:
        """Return what is known of a file; raises `Missing`."""
        found = await self._penstock.tables.read(
            lambda tx: tables.file_by_id(tx, notebook.id, file_id)
        )
        if found is None:
            raise Missing(f"there is no file {file_id} in notebook {notebook.name!r}")
        return found

    async def add(self, name: str, path: str | None, *, git: bool, joins: bool = False) -> Notebook:
        """Register a folder, which is created unless it exists; raises `NotebookError`.

        With `joins`, its history goes to the repository that contains the folder.
        """
        self.check_available()
        _check_name(name)
        if joins and not git:
            raise Permanent("a notebook without git has no repository to join")
        place = self._place(name, path)
        await self._penstock.tables.read(
            lambda tx: _refuse_overlap(tables.notebooks(tx), name, place)
        )
        location = await asyncio.to_thread(self._prepare, name, place, git=git, joins=joins)

        def work(tx: Transaction) -> Notebook:
            _refuse_overlap(tables.notebooks(tx), name, place)
            return tables.add_notebook(tx, name, str(place), location, datetime.now(UTC))

        return await self._penstock.transaction(work)

    async def change(self, notebook: Notebook, name: str, settings: dict[str, Any]) -> Notebook:
        """Store a new name or new settings."""
        _check_name(name)
        changed = notebook._replace(name=name, settings=settings)

        def work(tx: Transaction) -> None:
            other = tables.notebook(tx, name)
            if other is not None and other.id != notebook.id:
                raise Exists(f"there is already a notebook {name!r}")
            tables.change_notebook(tx, changed)

        await self._penstock.transaction(work)
        return changed

    async def remove(self, notebook: Notebook) -> None:
        """Forget a notebook; its files stay. Operations that wait for it fail."""
        await self._penstock.transaction(lambda tx: tables.remove_notebook(tx, notebook.id))

    def _place(self, name: str, path: str | None) -> Path:
        """Return the folder for a new notebook, with all links resolved."""
        folder = Path(path) if path is not None else self._new / name
        if "\0" in str(folder) or not folder.is_absolute():
            raise PathRefused(f"{path!r} is not an absolute path")
        try:
            resolved = folder.resolve()
        except (OSError, RuntimeError) as error:
            raise Permanent(f"{str(folder)!r} cannot be a notebook: {error}") from error
        if not any(root in resolved.parents for root in self._roots):
            shown = ", ".join(map(str, self._roots))
            raise PathRefused(
                f"{resolved} is not in an allowed folder ({shown}); "
                "the setting `notebooks.allowed` adds others"
            )
        if resolved == self._data or resolved in self._data.parents:
            raise PathRefused(f"{resolved} contains the data of the server")
        return resolved

    def _prepare(self, name: str, folder: Path, *, git: bool, joins: bool) -> Location | None:
        """Prepare the folder of a new notebook; return where its repository is. Blocks."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Permanent(f"{str(folder)!r} cannot be a notebook: {error}") from error
        location = None
        if git:
            locate = join_location if joins else own_location
            location = locate(folder, self.protection)
        aside = set_aside_if_foreign(folder, name, self.protection)
        if aside is not None:
            _log.warning(
                "notebook %s: %s contained a state folder, which is now %s", name, folder, aside
            )
        Tree(folder).prepare()
        with contextlib.closing(lock(folder, name)):
            record_as_own(folder, self.protection)
            if location is not None:
                Repository.open_or_make(folder, location, self.protection)
        return location

    # Open notebooks

    async def open(self, notebook_id: int) -> OpenNotebook:
        """Return a notebook, opened unless it is open; raises `Locked` and `Missing`."""
        opened = self._open.get(notebook_id)
        if opened is None:
            async with self._opening:
                opened = self._open.get(notebook_id)
                if opened is None:
                    await self._record_location(await self.find(notebook_id))
                    notebook = await self.find(notebook_id)
                    opened = await asyncio.to_thread(OpenNotebook, notebook, self.protection)
                    self._open[notebook_id] = opened
                    self._changed(opened)
        return opened

    async def refresh(self, notebook_id: int) -> OpenNotebook:
        """Return a notebook as `open` does, with its current name and settings."""
        notebook = await self.find(notebook_id)
        opened = await self.open(notebook_id)
        if (opened.name, opened.settings) != (notebook.name, notebook.settings):
            opened.name, opened.settings = notebook.name, notebook.settings
            self._changed(opened)
        return opened

    def _changed(self, opened: OpenNotebook) -> None:
        for handle in self.on_change:
            handle(opened)

    def watch_problem(self, notebook_id: int) -> str | None:
        """Return why a notebook is not being watched at the moment."""
        opened = self._open.get(notebook_id)
        return None if opened is None or opened.watcher is None else opened.watcher.problem

    @property
    def open_notebooks(self) -> list[OpenNotebook]:
        """The notebooks that this process has open."""
        return list(self._open.values())

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Keep all notebooks open inside the block.

        Raises `ConfigurationError` if another process has one of them open.
        """
        try:
            for notebook in await self.all():
                try:
                    await self.open(notebook.id)
                except Locked as error:
                    refused = ConfigurationError(str(error))
                    refused.add_note("or serve without notebooks here: --apps events,indexing")
                    raise refused from error
            yield
        finally:
            for opened in self.open_notebooks:
                self.close(opened.id)

    def close(self, notebook_id: int) -> None:
        """Close a notebook if it is open."""
        opened = self._open.pop(notebook_id, None)
        if opened is not None:
            opened.close()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Permanent(f"{name!r} is not a name for a notebook: {_NAMES}")


def _refuse_overlap(known: Sequence[Notebook], name: str, folder: Path) -> None:
    for one in known:
        other = Path(one.path)
        if one.name == name:
            raise Exists(f"there is already a notebook {name!r}, in {other}")
        if other == folder:
            raise Exists(f"{folder} is already notebook {one.name!r}")
        if other in folder.parents:
            raise Exists(f"{folder} is inside notebook {one.name!r} in {other}")
        if folder in other.parents:
            raise Exists(f"{folder} contains notebook {one.name!r}, in {other}")

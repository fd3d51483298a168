"""The notebooks of a server: registered, found, and worked on by one of its processes."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import ConfigurationError, Penstock
from penstock.apps.notebooks import joining, tables
from penstock.apps.notebooks.books import Book, Taken, lock, repository
from penstock.apps.notebooks.configuration import Protection
from penstock.apps.notebooks.errors import Exists, Missing, PathRefused, Permanent
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.repository import Location
from penstock.apps.notebooks.schema import TABLES
from penstock.apps.notebooks.settings import (
    Settings,
    allowed_roots,
    folder_for_new,
    trusted_filters,
)
from penstock.apps.notebooks.state import note_as_own, set_aside_if_foreign
from penstock.apps.notebooks.tables import Notebook

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAMES = "letters, digits, '_', '-' and '.', at most 100, the first no '-' or '.'"


class Library:
    """Which notebooks there are, and those that this process has open."""

    def __init__(self, penstock: Penstock, settings: Settings, data: Path) -> None:
        self._penstock = penstock
        self._new = folder_for_new(settings, data)
        self._roots = allowed_roots(settings, data)
        self._data = data.resolve()
        self.protection = Protection(self._data / "notebooks-git", trusted_filters(settings))
        self._books: dict[int, Book] = {}
        self._opening = asyncio.Lock()
        self.on_change: list[Callable[[Book], None]] = []
        """Called with each notebook that this process has taken, or whose settings have changed."""
        self.unavailable: str | None = "notebooks have not been opened yet"

    async def prepare(self) -> None:
        """Make the tables; where the store cannot have any, remember why."""
        try:
            await self._penstock.tables("notebooks", TABLES)
            self.unavailable = None
        except ConfigurationError as error:
            self.unavailable = f"notebooks need a SQLite or PostgreSQL store: {error}"
            return
        for notebook in await self.all():
            await self._record(notebook)

    async def _record(self, notebook: Notebook) -> None:
        """Record which repository a notebook of an earlier version commits into."""
        if not notebook.git or notebook.location is not None:
            return
        folder = Path(notebook.path)
        try:
            location, said = await asyncio.to_thread(joining.former, folder, self.protection)
        except OSError as error:  # its disk may come back
            _log.warning("notebook %s: its repository cannot be looked for: %s", folder, error)
            return
        if await self._penstock.transact(
            lambda tx: tables.record_location(tx, notebook.id, location)
        ):
            log = _log.warning if said else _log.info
            log("notebook %s %s", notebook.name, said or "has a repository of its own")

    # The registry

    async def all(self) -> list[Notebook]:
        """Every notebook, by name."""
        return await self._penstock.read(tables.notebooks)

    async def find(self, name: str | int) -> Notebook:
        """The notebook with this id or name; raises `Missing`."""
        found = await self._penstock.read(lambda tx: tables.notebook(tx, name))
        if found is None:
            raise Missing(f"there is no notebook {name!r}")
        return found

    async def add(self, name: str, path: str | None, *, git: bool, joins: bool = False) -> Notebook:
        """Register a folder, which is made unless it is there; raises `NotebookError`.

        With `joins` its history is in the repository that the folder is, or lies in.
        """
        _check_name(name)
        if joins and not git:
            raise Permanent("a notebook without git has no repository to join")
        place = self._place(name, path)
        await self._penstock.read(lambda tx: _refuse_twice(tables.notebooks(tx), name, place))
        location = await asyncio.to_thread(self._prepare, name, place, git=git, joins=joins)

        def work(tx: Any) -> Notebook:
            _refuse_twice(tables.notebooks(tx), name, place)
            return tables.add_notebook(tx, name, str(place), location, datetime.now(UTC))

        return await self._penstock.transact(work)

    async def change(self, notebook: Notebook, name: str, settings: dict[str, Any]) -> Notebook:
        """Store another name or other settings."""
        _check_name(name)
        changed = notebook._replace(name=name, settings=settings)

        def work(tx: Any) -> None:
            other = tables.notebook(tx, name)
            if other is not None and other.id != notebook.id:
                raise Exists(f"there is a notebook {name!r} already")
            tables.change_notebook(tx, changed)

        await self._penstock.transact(work)
        return changed

    async def remove(self, notebook: Notebook) -> None:
        """Forget a notebook; its files stay."""
        await self._penstock.transact(lambda tx: tables.remove_notebook(tx, notebook.id))

    def _place(self, name: str, path: str | None) -> Path:
        """Where a new notebook is to be, without links."""
        folder = Path(path) if path is not None else self._new / name
        if "\0" in str(folder) or not folder.is_absolute():
            raise PathRefused(f"{path!r} is not an absolute path")
        try:
            resolved = folder.resolve()
        except (OSError, RuntimeError) as error:
            raise Permanent(f"{str(folder)!r} cannot be a notebook: {error}") from error
        self._check_place(resolved)
        return resolved

    def _prepare(self, name: str, folder: Path, *, git: bool, joins: bool) -> Location | None:
        """Have the folder of a new notebook ready for work and not taken; where its history is."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Permanent(f"{str(folder)!r} cannot be a notebook: {error}") from error
        location = None
        if git:
            joined = joining.joined(folder, self.protection) if joins else None
            location = joined or joining.own(folder, self.protection)
        aside = set_aside_if_foreign(folder, self.protection, lambda: lock(folder, name))
        if aside is not None:
            _log.warning("notebook %s: %s came with a state folder, now in %s", name, folder, aside)
        Tree(folder).prepare()
        with contextlib.closing(lock(folder, name)):
            note_as_own(folder, self.protection)
            if location is not None:
                repository(folder, location, self.protection)
        return location

    def _check_place(self, folder: Path) -> None:
        if not any(root in folder.parents for root in self._roots):
            shown = ", ".join(map(str, self._roots))
            raise PathRefused(
                f"{folder} is not in an allowed folder ({shown}); "
                "the setting `allowed` of notebooks names more"
            )
        if folder == self._data or folder in self._data.parents:
            raise PathRefused(f"{folder} contains the data of the server")

    # What this process works on

    async def book(self, notebook_id: int) -> Book:
        """The notebook, taken by this process if it is not yet; raises `Taken` and `Missing`."""
        book = self._books.get(notebook_id)
        if book is None:
            async with self._opening:
                book = self._books.get(notebook_id)
                if book is None:
                    await self._record(await self.find(notebook_id))
                    notebook = await self.find(notebook_id)
                    book = await asyncio.to_thread(Book, notebook, self.protection)
                    self._books[notebook_id] = book
                    self._tell(book)
        return book

    async def renewed(self, notebook_id: int) -> Book:
        """The notebook, with its name and settings as they are stored now; raises as `book`."""
        notebook = await self.find(notebook_id)
        book = await self.book(notebook_id)
        if (book.name, book.settings) != (notebook.name, notebook.settings):
            book.name, book.settings = notebook.name, notebook.settings
            self._tell(book)
        return book

    def _tell(self, book: Book) -> None:
        for changed in self.on_change:
            changed(book)

    def watch_problem(self, notebook_id: int) -> str | None:
        """Why what others do to a notebook is not followed for the moment."""
        book = self._books.get(notebook_id)
        return None if book is None or book.watcher is None else book.watcher.problem

    @property
    def open_books(self) -> list[Book]:
        """Those that this process has."""
        return list(self._books.values())

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Have all notebooks, inside the block; raises `ConfigurationError` if one is taken."""
        try:
            for notebook in await self.all():
                try:
                    await self.book(notebook.id)
                except Taken as error:
                    refused = ConfigurationError(str(error))
                    refused.add_note("or serve without notebooks here: --apps events,indexing")
                    raise refused from error
            yield
        finally:
            for book in self.open_books:
                self.close(book.id)

    def close(self, notebook_id: int) -> None:
        """Let others have a notebook."""
        book = self._books.pop(notebook_id, None)
        if book is not None:
            book.close()


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Permanent(f"{name!r} is no name of a notebook: {_NAMES}")


def _refuse_twice(known: Sequence[Notebook], name: str, folder: Path) -> None:
    for one in known:
        other = Path(one.path)
        if one.name == name:
            raise Exists(f"there is a notebook {name!r} already, in {other}")
        if other == folder:
            raise Exists(f"{folder} is notebook {one.name!r} already")
        if other in folder.parents:
            raise Exists(f"{folder} is inside of notebook {one.name!r} in {other}")
        if folder in other.parents:
            raise Exists(f"{folder} has notebook {one.name!r} inside, in {other}")

"""Routes for contents and history of files."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from penstock.apps.kit import Answer, Stream, file_stream, route
from penstock.apps.notebooks import requests, shapes
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.registry import Registry
from penstock.apps.notebooks.repository.history import History, LogEntry
from penstock.apps.notebooks.repository.repository import Repository
from penstock.apps.notebooks.routes.events import answering
from penstock.apps.notebooks.routes.files import FileId
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import File, Notebook
from penstock.tokens import Access

T = TypeVar("T")
_SAFE = (
    # The content of a notebook is not trusted: no browser may run it as a page of the server.
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
)


class ReadingRoutes:
    """The routes for contents and history."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._limit = settings.max_file_size

    async def _find(self, notebook: str, file_id: int) -> tuple[Notebook, File]:
        found = await self._registry.find(notebook)
        return found, await self._registry.file(found, file_id)

    async def _read(self, notebook: Notebook, read: Callable[[History], T]) -> T:
        """Read the history of a notebook in a thread; raises `Missing` if it has none."""

        def work() -> T:
            problem = notebook.repository_problem
            if notebook.location is None or problem:
                reason = problem or "it does not use git"
                raise Missing(f"notebook {notebook.name!r} has no history: {reason}")
            folder, protection = Path(notebook.path), self._registry.protection
            return read(History(Repository.open(folder, notebook.location, protection)))

        return await asyncio.to_thread(work)

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/files/{file_id}/content",
        Access.READ,
        produces="application/octet-stream",
    )
    @answering
    async def content(
        self, notebook: str, file_id: FileId, query: requests.AtCommit
    ) -> Answer[bytes] | Stream:
        """Read a file.

        Returns the content of a file as it is now, or as it was in a commit.
        """
        found, file = await self._find(notebook, file_id)
        kind = (b"content-type", file.mime.encode("latin-1", "replace"))
        commit = query.commit
        if commit is None:
            opened = await asyncio.to_thread(_open, found, file)
            tag = (b"etag", f'"{file.version}"'.encode())
            size = os.fstat(opened.fileno()).st_size
            return file_stream(opened, size, (kind, tag, *_SAFE))
        data = await self._read(
            found, lambda history: history.content_of(file.path, commit, limit=self._limit)
        )
        return Answer(200, data, (kind, *_SAFE))

    @route("GET", "/api/v1/notebooks/{notebook}/history", Access.READ)
    @answering
    async def log(self, notebook: str, query: requests.HistoryPaging) -> shapes.FileHistory:
        """List the commits of a notebook.

        Returns the commits that changed a notebook, newest first.
        """
        return await self._page(await self._registry.find(notebook), None, query)

    @route("GET", "/api/v1/notebooks/{notebook}/files/{file_id}/history", Access.READ)
    @answering
    async def history(
        self, notebook: str, file_id: FileId, query: requests.HistoryPaging
    ) -> shapes.FileHistory:
        """List the commits of a file.

        Returns the commits that changed a file, newest first, including those before a move.
        """
        found, file = await self._find(notebook, file_id)
        return await self._page(found, file.path, query)

    async def _page(
        self, notebook: Notebook, path: str | None, query: requests.HistoryPaging
    ) -> shapes.FileHistory:
        entries = await self._read(
            notebook, lambda history: history.page(path, limit=query.limit, after=query.after)
        )
        return shapes.FileHistory([_shape(one) for one in entries])

    @route("GET", "/api/v1/notebooks/{notebook}/files/{file_id}/diff", Access.READ)
    @answering
    async def diff(self, notebook: str, file_id: FileId, query: requests.Span) -> shapes.FileDiff:
        """Show what changed in a file.

        Returns the difference between two commits of a file, by default that of its last commit.
        """
        found, file = await self._find(notebook, file_id)
        since, until, diff = await self._read(
            found, lambda history: history.changes_of(file.path, query.since, query.until)
        )
        return shapes.FileDiff(since=since, until=until, diff=diff.text, whole=diff.is_whole)


def _open(notebook: Notebook, file: File) -> BinaryIO:
    return Tree(Path(notebook.path)).open(file.path)


def _shape(entry: LogEntry) -> shapes.HistoryEntry:
    return shapes.HistoryEntry(
        commit=entry.id,
        at=entry.at,
        author=entry.author,
        email=entry.email,
        message=entry.subject,
        path=entry.path,
    )

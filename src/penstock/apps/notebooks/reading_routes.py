"""The part of the notebook API that shows contents and history."""

import asyncio
import os

from penstock import Access
from penstock.apps.notebooks import reading, requests, shapes
from penstock.apps.notebooks.answers import SAFE, answering, streamed
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.routes import FileId, check_available
from penstock.apps.notebooks.service import Notebooks
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import File, Notebook
from penstock.http.routes import Answer, Stream, route


class ReadingRoutes:
    """What the server serves of contents and history."""

    def __init__(self, notebooks: Notebooks, library: Library, settings: Settings) -> None:
        self._notebooks = notebooks
        self._library = library
        self._limit = settings.max_file_size

    async def _find(self, notebook: str, file_id: int) -> tuple[Notebook, File]:
        check_available(self._library)
        found = await self._library.find(notebook)
        return found, await self._notebooks.file(found, file_id)

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/files/{file_id}/content",
        Access.READ,
        "Read a file",
        answers={200: "application/octet-stream"},
    )
    @answering
    async def content(
        self, notebook: str, file_id: FileId, query: requests.AtCommit
    ) -> Answer | Stream:
        """The content of a file, as it is or as it was in a commit."""
        found, file = await self._find(notebook, file_id)
        if query.commit is None:
            opened = await asyncio.to_thread(reading.content, found, file)
            size = os.fstat(opened.fileno()).st_size
            return streamed(opened, file.mime, file.version, size)
        data = await asyncio.to_thread(
            reading.content_at, found, self._library.protection, file, query.commit, self._limit
        )
        return Answer(200, data, ((b"content-type", file.mime.encode("latin-1")), *SAFE))

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/history",
        Access.READ,
        "The commits of a notebook",
        answers={200: shapes.FileHistory},
    )
    @answering
    async def log(self, notebook: str, query: requests.HistoryPaging) -> shapes.FileHistory:
        """The commits that changed a notebook, newest first."""
        check_available(self._library)
        found = await self._library.find(notebook)
        return shapes.FileHistory(
            await asyncio.to_thread(
                reading.commits, found, self._library.protection, None, query.limit, query.after
            )
        )

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/files/{file_id}/history",
        Access.READ,
        "The commits of a file",
        answers={200: shapes.FileHistory},
    )
    @answering
    async def history(
        self, notebook: str, file_id: FileId, query: requests.HistoryPaging
    ) -> shapes.FileHistory:
        """The commits that changed a file, newest first, also from before it was moved."""
        found, file = await self._find(notebook, file_id)
        return shapes.FileHistory(
            await asyncio.to_thread(
                reading.commits, found, self._library.protection, file, query.limit, query.after
            )
        )

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/files/{file_id}/diff",
        Access.READ,
        "What changed in a file",
        answers={200: shapes.FileDiff},
    )
    @answering
    async def diff(self, notebook: str, file_id: FileId, query: requests.Span) -> shapes.FileDiff:
        """What changed in a file between two commits; without them, in its last one."""
        found, file = await self._find(notebook, file_id)
        return await asyncio.to_thread(
            reading.diff, found, self._library.protection, file, query.since, query.until
        )

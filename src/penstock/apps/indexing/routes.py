"""Routes of the indexing API."""

import asyncio
import os

from penstock import ConfigurationError, State
from penstock.apps.indexing import shapes
from penstock.apps.indexing.files import Folder
from penstock.apps.indexing.places import PACKAGES, Places
from penstock.apps.indexing.requests import add_parameters, index_parameters
from penstock.apps.indexing.search import Searcher
from penstock.apps.indexing.service import Indexing, Status
from penstock.apps.kit import JobName, Problem, Statuses, route
from penstock.tokens import Access

_OTHER_EMBEDDER = Statuses({ConfigurationError: 409})
"""A collection that was created with another embedder cannot be searched."""


class IndexingRoutes:
    """The routes of indexing."""

    def __init__(
        self, indexing: Indexing, places: Places, searcher: Searcher, status: Status
    ) -> None:
        self._indexing = indexing
        self._places = places
        self._searcher = searcher
        self._status = status

    @route(
        "POST",
        "/index",
        Access.PUBLISH,
        status=202,
        examples={"body": {"folder_path": "docs", "include_code": True}},
    )
    async def index(self, body: shapes.IndexRequest, query: shapes.HowAsked) -> shapes.Accepted:
        """Index a folder.

        Store a job that brings the collection up to date with a folder.

        While the job is unfinished, the same request returns the same job.
        """
        PACKAGES.check_served()
        parameters = await asyncio.to_thread(index_parameters, body, query, self._places)
        if body.dry_run:
            return await self._indexing.dry_run(parameters)
        job = await self._indexing.enqueue(parameters)
        return await self._indexing.accepted(job)

    @route(
        "POST",
        "/index/add",
        Access.PUBLISH,
        status=202,
        examples={"body": {"paths": ["docs/guide.md", "notes"]}},
    )
    async def add(self, body: shapes.AddRequest, query: shapes.HowAsked) -> shapes.Accepted:
        """Index more files.

        Store a job that indexes files and folders, and removes nothing.
        """
        PACKAGES.check_served()
        parameters = await asyncio.to_thread(add_parameters, body, query, self._places)
        job = await self._indexing.enqueue(parameters)
        return await self._indexing.accepted(job)

    @route("DELETE", "/index", Access.ADMIN)
    async def reset(self, query: shapes.OfCollection) -> shapes.Reset:
        """Empty the collections.

        Remove everything from one collection or from all.

        Refused with 409 while a job runs. Files are not touched.
        """
        PACKAGES.check_served()
        counts = await self._indexing.counts()
        if query.collection is None and counts[State.RUNNING]:
            raise Problem(409, "a job is running; wait for it, or cancel it")
        names = await asyncio.to_thread(self._indexing.reset, query.collection)
        listed = ", ".join(names) or "it was empty already"
        return shapes.Reset(status="completed", message=f"The index was emptied: {listed}")

    @route("GET", "/index/jobs", Access.READ)
    async def jobs(self, query: shapes.JobPaging) -> shapes.IndexJobs:
        """List indexing jobs.

        Return indexing jobs, newest first, and the number of jobs in each state.
        """
        return await self._indexing.page(query.limit, query.offset)

    @route("GET", "/index/jobs/{job_id}", Access.READ)
    async def job(self, job_id: JobName) -> shapes.IndexJob:
        """Get an indexing job.

        Return a job with its progress and result. A unique prefix of its ID is enough.
        """
        return await self._indexing.detail(job_id)

    @route("DELETE", "/index/jobs/{job_id}", Access.PUBLISH)
    async def cancel(self, job_id: JobName) -> shapes.Cancelling:
        """Cancel an indexing job.

        Cancel a pending job at once; a running one stops at its next file.

        The call is idempotent. For a job that is done or has failed, the answer is 409.
        """
        return await self._indexing.cancel(job_id)

    @route("GET", "/index/folders", Access.READ)
    async def folders(self, query: shapes.OfCollection) -> shapes.FolderList:
        """List indexed folders.

        Return every indexed folder with the number of its chunks.
        """
        found = await asyncio.to_thread(self._indexing.folders, query.collection)
        shown = [shape for name, one in found if (shape := _folder(name, one)) is not None]
        return shapes.FolderList(folders=shown, total=len(shown))

    @route("DELETE", "/index/folders", Access.ADMIN, examples={"body": {"folder_path": "docs"}})
    async def remove_folder(self, body: shapes.FolderRequest) -> shapes.FolderRemoved:
        """Remove a folder.

        Remove a folder from its collection and stop watching it. Its files are not touched.

        Refused with 409 while a job runs on its collection.
        """
        PACKAGES.check_served()
        if "\0" in body.folder_path:
            raise Problem(400, "a path must not contain NUL", field="folder_path")
        # Unlike `Path.resolve`, this does not raise for a folder that has become a loop of links.
        wanted = self._places.root / body.folder_path
        folder = await asyncio.to_thread(os.path.realpath, wanted)
        removed = await asyncio.to_thread(self._indexing.remove_folder, folder, body.collection)
        message = f"Removed {removed} chunks of {folder}"
        return shapes.FolderRemoved(folder_path=folder, chunks_deleted=removed, message=message)

    @route(
        "POST",
        "/query",
        Access.READ,
        examples={"body": {"query": "how are jobs retried?", "top_k": 5, "mode": "hybrid"}},
    )
    async def query(self, body: shapes.Question) -> shapes.Results:
        """Search.

        Return the chunks that match a query best: by meaning, by words, or by both.
        """
        PACKAGES.check_served()
        with _OTHER_EMBEDDER.answering():
            return await asyncio.to_thread(self._searcher.search, body)

    @route("GET", "/health/status", Access.READ)
    async def status(self) -> shapes.IndexStatus:
        """Get the state of indexing.

        The answer comes from memory, whatever runs, and is at most about a second old.
        """
        return self._status.now()


def _folder(collection: str, folder: Folder) -> shapes.FolderShape | None:
    """Return a folder as it is shown; None until a job on it is done."""
    if folder.indexed_at is None:
        return None
    return shapes.FolderShape(
        folder_path=folder.path,
        collection=collection,
        chunk_count=folder.chunks,
        file_count=folder.files,
        last_indexed=folder.indexed_at,
        watch_mode="auto" if folder.watched else "off",
        watch_debounce_seconds=folder.debounce,
    )

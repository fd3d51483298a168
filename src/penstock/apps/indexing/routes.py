"""The indexing API: thin routes over `Indexing`."""

import asyncio
import os
from typing import Annotated

from msgspec import Meta

from penstock import Access, ConfigurationError, State
from penstock.apps.indexing import shapes
from penstock.apps.indexing.files import Folder
from penstock.apps.indexing.places import INSTALL, Places, missing_packages
from penstock.apps.indexing.requests import add_parameters, index_parameters
from penstock.apps.indexing.searching import Searcher
from penstock.apps.indexing.service import Indexing
from penstock.apps.indexing.status import Status
from penstock.http.problems import Problem
from penstock.http.routes import Answer, route

JobName = Annotated[str, Meta(min_length=1, max_length=64)]


class IndexingRoutes:
    """What the server serves of indexing."""

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
        "Index a folder",
        answers={202: shapes.Accepted},
        examples={"body": {"folder_path": "docs", "include_code": True}},
    )
    async def index(self, body: shapes.IndexRequest, query: shapes.HowAsked) -> Answer:
        """Store a job that brings the collection up to date with a folder.

        The same request, while it waits or runs, gets the same job.
        """
        _check_installed()
        parameters = await asyncio.to_thread(index_parameters, body, query, self._places)
        if body.dry_run:
            return Answer(202, await self._indexing.dry_run(parameters))
        job = await self._indexing.enqueue(parameters)
        return Answer(202, await self._indexing.accepted(job))

    @route(
        "POST",
        "/index/add",
        Access.PUBLISH,
        "Index more files",
        answers={202: shapes.Accepted},
        examples={"body": {"paths": ["docs/guide.md", "notes"]}},
    )
    async def add(self, body: shapes.AddRequest, query: shapes.HowAsked) -> Answer:
        """Store a job that indexes files and folders, and removes nothing."""
        _check_installed()
        parameters = await asyncio.to_thread(add_parameters, body, query, self._places)
        job = await self._indexing.enqueue(parameters)
        return Answer(202, await self._indexing.accepted(job))

    @route(
        "DELETE",
        "/index",
        Access.ADMIN,
        "Empty the collections",
        answers={200: shapes.Reset},
    )
    async def reset(self, query: shapes.OfCollection) -> shapes.Reset:
        """Remove everything that was indexed, from one collection or from all.

        Refused with 409 while a job runs. Files are not touched.
        """
        _check_installed()
        counts = await self._indexing.counts()
        if query.collection is None and counts[State.RUNNING]:
            raise Problem(409, "a job is running; wait, or cancel it")
        names = await asyncio.to_thread(self._indexing.reset, query.collection)
        listed = ", ".join(names) or "there was nothing"
        return shapes.Reset(status="completed", message=f"The index was emptied: {listed}")

    @route("GET", "/index/jobs", Access.READ, "List indexing jobs", answers={200: shapes.IndexJobs})
    async def jobs(self, query: shapes.JobPaging) -> shapes.IndexJobs:
        """Indexing jobs, newest first, and how many there are in each state."""
        return await self._indexing.page(query.limit, query.offset)

    @route(
        "GET",
        "/index/jobs/{job_id}",
        Access.READ,
        "Look at an indexing job",
        answers={200: shapes.IndexJob},
    )
    async def job(self, job_id: JobName) -> shapes.IndexJob:
        """A job with its progress and what it came to; the beginning of its id is enough."""
        return await self._indexing.detail(job_id)

    @route(
        "DELETE",
        "/index/jobs/{job_id}",
        Access.PUBLISH,
        "Cancel an indexing job",
        answers={200: shapes.Cancelling},
    )
    async def cancel(self, job_id: JobName) -> shapes.Cancelling:
        """End a waiting job at once; a running one stops at its next file.

        Repeating the call does no harm. A job that is done or has failed is answered with 409.
        """
        return await self._indexing.cancel(job_id)

    @route(
        "GET",
        "/index/folders",
        Access.READ,
        "List indexed folders",
        answers={200: shapes.FolderList},
    )
    async def folders(self, query: shapes.OfCollection) -> shapes.FolderList:
        """Every folder that was indexed, with how many chunks it has."""
        found = await asyncio.to_thread(self._indexing.folders, query.collection)
        shown = [shape for name, one in found if (shape := _folder(name, one)) is not None]
        return shapes.FolderList(folders=shown, total=len(shown))

    @route(
        "DELETE",
        "/index/folders",
        Access.ADMIN,
        "Remove a folder",
        answers={200: shapes.FolderRemoved},
        examples={"body": {"folder_path": "docs"}},
    )
    async def remove_folder(self, body: shapes.FolderRequest) -> shapes.FolderRemoved:
        """Remove what was indexed of a folder, and watch it no more. Its files are not touched.

        Refused with 409 while a job runs on its collection.
        """
        _check_installed()
        if "\0" in body.folder_path:
            raise Problem(400, "a path has no NUL in it", field="folder_path")
        # Unlike `Path.resolve`, this raises nothing for a folder that is a loop of links by now.
        wanted = self._places.root / body.folder_path
        folder = await asyncio.to_thread(os.path.realpath, wanted)
        removed = await asyncio.to_thread(self._indexing.remove_folder, folder, body.collection)
        message = f"Removed {removed} chunks of {folder}"
        return shapes.FolderRemoved(folder_path=folder, chunks_deleted=removed, message=message)

    @route(
        "POST",
        "/query",
        Access.READ,
        "Search",
        answers={200: shapes.Results},
        examples={"body": {"query": "how are jobs retried?", "top_k": 5, "mode": "hybrid"}},
    )
    async def query(self, body: shapes.Question) -> shapes.Results:
        """The chunks that fit a question best: by meaning, by words, or by both."""
        _check_installed()
        try:
            return await asyncio.to_thread(self._searcher.search, body)
        except ConfigurationError as error:  # the collection was made with another embedder
            raise Problem(409, str(error)) from error

    @route(
        "GET",
        "/health/status",
        Access.READ,
        "How it stands with indexing",
        answers={200: shapes.IndexStatus},
    )
    async def status(self) -> shapes.IndexStatus:
        """Answered from memory, whatever runs; about a second old at most."""
        return self._status.now()


def _folder(collection: str, folder: Folder) -> shapes.FolderShape | None:
    """A folder as it is shown; None while no job on it was done."""
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


def _check_installed() -> None:
    if missing := missing_packages():
        raise Problem(501, f"indexing needs {', '.join(missing)} on the server: {INSTALL}")

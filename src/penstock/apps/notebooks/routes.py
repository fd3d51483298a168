"""The part of the notebook API that changes files and folders: thin routes over `Notebooks`."""

from typing import Annotated, Any

from msgspec import Meta

from penstock import Access, State
from penstock.apps.notebooks import requests, shapes
from penstock.apps.notebooks.answers import (
    answering,
    conflict,
    error_name,
    failure,
    late,
    pieces_of,
    version_of,
)
from penstock.apps.notebooks.library import Library
from penstock.apps.notebooks.operations import Operation, batch_of
from penstock.apps.notebooks.paths import parse
from penstock.apps.notebooks.publishing import Published
from penstock.apps.notebooks.service import Notebooks
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import Notebook
from penstock.http.problems import Problem
from penstock.http.routes import Answer, Call, route

FileId = Annotated[int, Meta(ge=1, le=2**62)]
FolderPath = Annotated[str, Meta(min_length=1, max_length=4_096)]
_JSON_LIMIT = 80_000_000
"""Bytes of a body: a content of 50 MB as base64, and what else there is."""
_CHANGED: dict[int, Any] = {
    200: shapes.FileShape,
    202: shapes.OperationAccepted,
    408: shapes.StillWaiting,
    409: shapes.Conflicting,
}


class FileRoutes:
    """What the server serves of changes to files and folders."""

    def __init__(self, notebooks: Notebooks, library: Library, settings: Settings) -> None:
        self._notebooks = notebooks
        self._library = library
        self._limit = settings.max_file_size

    async def _find(self, name: str) -> Notebook:
        check_available(self._library)
        return await self._library.find(name)

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/files",
        Access.READ,
        "List files",
        answers={200: shapes.FileList},
    )
    @answering
    async def files(self, notebook: str, query: requests.FileListing) -> shapes.FileList:
        """Files in the order of their paths, a page at a time."""
        found = await self._notebooks.files(await self._find(notebook), query)
        following = found[-1].path if len(found) == query.limit else None
        return shapes.FileList([shapes.file_shape(one) for one in found], following)

    @route(
        "POST",
        "/api/v1/notebooks/{notebook}/files",
        Access.PUBLISH,
        "Create a file",
        answers=_CHANGED,
        body_limit=_JSON_LIMIT,
        examples={"body": {"path": "notes/tea.md", "content": "# Tea", "title": "Tea"}},
    )
    @answering
    async def create(self, notebook: str, body: requests.NewFile, query: requests.How) -> Answer:
        """Store that a file is to be made. Its id is reserved already."""
        found = await self._find(notebook)
        path = parse(body.path)
        data = body.data or b""
        content = await self._notebooks.stage(found, data)
        operation = Operation(
            notebook=found.id,
            kind="create",
            path=path,
            exists=False,
            content=content,
            fields=body.fields,
        )
        return await self._published(operation, query, data)

    @route(
        "GET",
        "/api/v1/notebooks/{notebook}/files/{file_id}",
        Access.READ,
        "Look at a file",
        answers={200: shapes.FileShape},
    )
    @answering
    async def file(self, notebook: str, file_id: FileId) -> Answer:
        """What is known of a file; its version is the `ETag`."""
        found = await self._notebooks.file(await self._find(notebook), file_id)
        tag = (b"etag", f'"{found.version}"'.encode())
        return Answer(200, shapes.file_shape(found), (tag,))

    @route(
        "PUT",
        "/api/v1/notebooks/{notebook}/files/{file_id}",
        Access.PUBLISH,
        "Update a file",
        answers=_CHANGED,
        body_limit=_JSON_LIMIT,
        examples={"body": {"content": "# Green tea", "version": 1}},
    )
    @answering
    async def update(
        self,
        notebook: str,
        file_id: FileId,
        body: requests.FileChange,
        query: requests.How,
        call: Call,
    ) -> Answer:
        """Store that a file's content or metadata is to change; what is not given stays.

        With `version` or `If-Match`, a change that is based on an old version gets 409 with both.
        """
        found = await self._find(notebook)
        version = version_of(call, body.version)
        data = body.data
        if data is None and not body.fields:
            raise Problem(422, "there is nothing to change: send content or metadata")
        operation = Operation(
            notebook=found.id,
            kind="update",
            file=file_id,
            exists=True,
            content=None if data is None else await self._notebooks.stage(found, data),
            fields=body.fields,
            version=version,
        )
        return await self._published(operation, query, data)

    @route(
        "DELETE",
        "/api/v1/notebooks/{notebook}/files/{file_id}",
        Access.PUBLISH,
        "Delete a file",
        answers={**_CHANGED, 200: shapes.EventShape},
    )
    @answering
    async def delete(
        self, notebook: str, file_id: FileId, query: requests.HowDeleted, call: Call
    ) -> Answer:
        """Store that a file is to be deleted; it stays in the history."""
        found = await self._find(notebook)
        operation = Operation(
            notebook=found.id,
            kind="delete",
            file=file_id,
            exists=True,
            version=version_of(call, query.version),
        )
        return await self._published(operation, query)

    @route(
        "PATCH",
        "/api/v1/notebooks/{notebook}/files/{file_id}/move",
        Access.PUBLISH,
        "Move a file",
        answers=_CHANGED,
        examples={"body": {"path": "archive/tea.md"}},
    )
    @answering
    async def move(
        self, notebook: str, file_id: FileId, body: requests.Move, query: requests.How
    ) -> Answer:
        """Store that a file is to be moved; it keeps its id and its metadata."""
        found = await self._find(notebook)
        operation = Operation(
            notebook=found.id, kind="move", file=file_id, exists=True, to=parse(body.path)
        )
        return await self._published(operation, query)

    # Folders

    @route(
        "POST",
        "/api/v1/notebooks/{notebook}/folders",
        Access.PUBLISH,
        "Create a folder",
        answers={**_CHANGED, 200: shapes.EventShape},
        examples={"body": {"path": "archive"}},
    )
    @answering
    async def create_folder(
        self, notebook: str, body: requests.NewFolder, query: requests.How
    ) -> Answer:
        """Store that a folder is to be made. Folders without files are not in git."""
        return await self._folder(await self._find(notebook), "create", body.path, query)

    @route(
        "PATCH",
        "/api/v1/notebooks/{notebook}/folders/{path}",
        Access.PUBLISH,
        "Move a folder",
        answers={**_CHANGED, 200: shapes.EventShape},
        examples={"body": {"path": "archive/notes"}},
    )
    @answering
    async def move_folder(
        self, notebook: str, path: FolderPath, body: requests.Move, query: requests.How
    ) -> Answer:
        """Store that a folder is to be moved with all that is in it: wholly, or not at all."""
        found = await self._find(notebook)
        return await self._folder(found, "move", path, query, to=parse(body.path))

    @route(
        "DELETE",
        "/api/v1/notebooks/{notebook}/folders/{path}",
        Access.PUBLISH,
        "Delete a folder",
        answers={**_CHANGED, 200: shapes.EventShape},
    )
    @answering
    async def delete_folder(self, notebook: str, path: FolderPath, query: requests.How) -> Answer:
        """Store that a folder is to be deleted with all that is in it."""
        return await self._folder(await self._find(notebook), "delete", path, query)

    async def _folder(
        self, notebook: Notebook, kind: Any, path: str, query: requests.How, to: str | None = None
    ) -> Answer:
        operation = Operation(
            notebook=notebook.id, kind=kind, path=parse(path), folder=True, exists=True, to=to
        )
        return await self._published(operation, query, together=True)

    # Batches

    @route(
        "POST",
        "/api/v1/notebooks/{notebook}/batch",
        Access.PUBLISH,
        "Publish a batch of operations",
        answers={202: shapes.BatchAccepted},
        body_limit=_JSON_LIMIT,
        examples={
            "body": {
                "operations": [
                    {"op": "create", "path": "a.md", "content": "one"},
                    {"op": "move", "path": "a.md", "to": "b.md"},
                ]
            }
        },
    )
    @answering
    async def batch(self, notebook: str, body: requests.NewBatch) -> Answer:
        """Store operations that run one after the other, all or none of them.

        When one fails, those after it are cancelled.
        """
        found = await self._find(notebook)
        stored = await self._notebooks.publish_batch(found, body.operations, body.correlation_id)
        answer = shapes.BatchAccepted(
            correlation_id=batch_of(stored[0].job.correlation) or "",
            status="pending",
            total=len(stored),
            events=[shapes.accepted(one) for one in stored],
        )
        return Answer(202, answer)

    # Contents

    @route(
        "PUT",
        "/api/v1/notebooks/{notebook}/content",
        Access.PUBLISH,
        "Write a file",
        answers=_CHANGED,
    )
    @answering
    async def write(self, notebook: str, query: requests.At, call: Call) -> Answer:
        """Store that the body, whatever it is, is to be the content of the file at a path.

        The file is made if it is not there. The body is not held in memory.
        """
        found = await self._find(notebook)
        path, version = parse(query.path), version_of(call, query.version)
        pieces = pieces_of(call, self._limit)
        operation = Operation(
            notebook=found.id,
            kind="update",
            path=path,
            content=await self._notebooks.stage_stream(found, pieces),
            version=version,
        )
        return await self._published(operation, query)

    @route(
        "PUT",
        "/api/v1/notebooks/{notebook}/files/{file_id}/content",
        Access.PUBLISH,
        "Replace the content of a file",
        answers=_CHANGED,
    )
    @answering
    async def replace(
        self, notebook: str, file_id: FileId, query: requests.HowDeleted, call: Call
    ) -> Answer:
        """Store that the body, whatever it is, is to be the content of a file."""
        found = await self._find(notebook)
        version = version_of(call, query.version)
        pieces = pieces_of(call, self._limit)
        operation = Operation(
            notebook=found.id,
            kind="update",
            file=file_id,
            exists=True,
            content=await self._notebooks.stage_stream(found, pieces),
            version=version,
        )
        return await self._published(operation, query)

    async def _published(
        self,
        operation: Operation,
        query: requests.How,
        content: bytes | None = None,
        *,
        together: bool = False,
    ) -> Answer:
        published = await self._notebooks.publish(operation, content, together=together)
        if not query.sync:
            return Answer(202, shapes.accepted(published))
        return await self._done(published, query.timeout)

    async def _done(self, published: Published, timeout: float) -> Answer:
        """The answer to a request that waits for its operation."""
        job = await self._notebooks.ended(published.job.id, timeout)
        if not job.state.final:
            return late(job)
        if job.state is State.SUPERSEDED:
            return Answer(202, shapes.accepted(published._replace(job=job)))
        if error_name(job) == "Conflict":
            actual = await self._notebooks.actual_version(job)
            return conflict(
                shapes.headline(job.error or ""), published.operation.version or 0, actual
            )
        if job.state is not State.DONE:
            raise failure(job)
        if isinstance(job.returned, dict) and "hash" in job.returned:
            return Answer(200, job.returned)
        return Answer(200, shapes.event_shape(job))


def check_available(library: Library) -> None:
    """Raise a `Problem` where the store cannot have notebooks."""
    if library.unavailable:
        raise Problem(503, library.unavailable)

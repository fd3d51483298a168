"""Routes that change files and folders."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from msgspec import Meta

from penstock import Penstock, State
from penstock.apps.kit import (
    BODY_TIME,
    PIECE,
    Answer,
    Call,
    Disconnected,
    PathText,
    Problem,
    announces_more,
    header,
    route,
)
from penstock.apps.notebooks import requests, shapes, tables
from penstock.apps.notebooks.disk.tree import TooLarge
from penstock.apps.notebooks.operations.operation import Kind, Operation, batch_of
from penstock.apps.notebooks.operations.publisher import Published, Publisher
from penstock.apps.notebooks.paths import parse
from penstock.apps.notebooks.registry import Registry
from penstock.apps.notebooks.routes.events import (
    Events,
    answering,
    conflict,
    error_name,
    failure,
    late,
)
from penstock.apps.notebooks.settings import Settings
from penstock.apps.notebooks.tables import Notebook
from penstock.tokens import Access

FileId = Annotated[int, Meta(ge=1, le=2**62)]
_VERSION_DIGITS = 18
_JSON_LIMIT = 80_000_000
"""Bytes of a body: a content of 50 MB as base64, and the other fields."""
_CHANGED: dict[int, Any] = {
    202: shapes.OperationAccepted,
    408: shapes.StillWaiting,
    409: shapes.Conflicting,
}


class FileRoutes:
    """The routes for changes of files and folders."""

    def __init__(
        self,
        penstock: Penstock,
        registry: Registry,
        publisher: Publisher,
        events: Events,
        settings: Settings,
    ) -> None:
        self._penstock = penstock
        self._registry = registry
        self._publisher = publisher
        self._events = events
        self._limit = settings.max_file_size

    @route("GET", "/api/v1/notebooks/{notebook}/files", Access.READ)
    @answering
    async def files(self, notebook: str, query: requests.FileListing) -> shapes.FileList:
        """List files.

        Returns files ordered by path, one page at a time.
        """
        found = await self._registry.find(notebook)
        files = await self._penstock.tables.read(
            lambda tx: tables.files(tx, found.id, query.prefix, query.after, query.limit)
        )
        following = files[-1].path if len(files) == query.limit else None
        return shapes.FileList([shapes.file_shape(one) for one in files], following)

    @route(
        "POST",
        "/api/v1/notebooks/{notebook}/files",
        Access.PUBLISH,
        also=_CHANGED,
        body_limit=_JSON_LIMIT,
        examples={"body": {"path": "notes/tea.md", "content": "# Tea", "title": "Tea"}},
    )
    @answering
    async def create(
        self, notebook: str, body: requests.NewFile, query: requests.How
    ) -> Answer[shapes.FileShape]:
        """Create a file.

        Stores an operation that creates a file. The id of the file is already reserved.
        """
        found = await self._registry.find(notebook)
        operation = Operation(
            notebook=found.id,
            kind="create",
            path=parse(body.path),
            exists=False,
            fields=body.fields,
        )
        return await self._publish(found, operation, query, body.data or b"")

    @route("GET", "/api/v1/notebooks/{notebook}/files/{file_id}", Access.READ)
    @answering
    async def file(self, notebook: str, file_id: FileId) -> Answer[shapes.FileShape]:
        """Show a file.

        Returns what is known of a file; its version is the `ETag`.
        """
        found = await self._registry.file(await self._registry.find(notebook), file_id)
        tag = (b"etag", f'"{found.version}"'.encode())
        return Answer(200, shapes.file_shape(found), (tag,))

    @route(
        "PUT",
        "/api/v1/notebooks/{notebook}/files/{file_id}",
        Access.PUBLISH,
        also=_CHANGED,
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
    ) -> Answer[shapes.FileShape]:
        """Update a file.

        Stores an operation that changes the content or the metadata of a file; omitted fields stay.

        With `version` or `If-Match`, a change based on an old version is answered with 409 and both
        versions.
        """
        found = await self._registry.find(notebook)
        version = _version(call, body.version)
        data = body.data
        if data is None and not body.fields:
            raise Problem(422, "there is nothing to change: send content or metadata")
        operation = Operation(
            notebook=found.id,
            kind="update",
            file=file_id,
            exists=True,
            fields=body.fields,
            version=version,
        )
        return await self._publish(found, operation, query, data)

    @route("DELETE", "/api/v1/notebooks/{notebook}/files/{file_id}", Access.PUBLISH, also=_CHANGED)
    @answering
    async def delete(
        self, notebook: str, file_id: FileId, query: requests.HowDeleted, call: Call
    ) -> Answer[shapes.EventShape]:
        """Delete a file.

        Stores an operation that deletes a file; it stays in the history.
        """
        found = await self._registry.find(notebook)
        operation = Operation(
            notebook=found.id,
            kind="delete",
            file=file_id,
            exists=True,
            version=_version(call, query.version),
        )
        return await self._publish(found, operation, query)

    @route(
        "PATCH",
        "/api/v1/notebooks/{notebook}/files/{file_id}/move",
        Access.PUBLISH,
        also=_CHANGED,
        examples={"body": {"path": "archive/tea.md"}},
    )
    @answering
    async def move(
        self, notebook: str, file_id: FileId, body: requests.Move, query: requests.How
    ) -> Answer[shapes.FileShape]:
        """Move a file.

        Stores an operation that moves a file, which keeps its id and metadata.
        """
        found = await self._registry.find(notebook)
        operation = Operation(
            notebook=found.id, kind="move", file=file_id, exists=True, to=parse(body.path)
        )
        return await self._publish(found, operation, query)

    # Folders

    @route(
        "POST",
        "/api/v1/notebooks/{notebook}/folders",
        Access.PUBLISH,
        also=_CHANGED,
        examples={"body": {"path": "archive"}},
    )
    @answering
    async def create_folder(
        self, notebook: str, body: requests.NewFolder, query: requests.How
    ) -> Answer[shapes.EventShape]:
        """Create a folder.

        Stores an operation that creates a folder. Git does not store empty folders.
        """
        return await self._folder(await self._registry.find(notebook), "create", body.path, query)

    @route(
        "PATCH",
        "/api/v1/notebooks/{notebook}/folders/{path}",
        Access.PUBLISH,
        also=_CHANGED,
        examples={"body": {"path": "archive/notes"}},
    )
    @answering
    async def move_folder(
        self, notebook: str, path: PathText, body: requests.Move, query: requests.How
    ) -> Answer[shapes.EventShape]:
        """Move a folder.

        Stores an operation that moves a folder with everything in it, atomically.
        """
        found = await self._registry.find(notebook)
        return await self._folder(found, "move", path, query, to=parse(body.path))

    @route("DELETE", "/api/v1/notebooks/{notebook}/folders/{path}", Access.PUBLISH, also=_CHANGED)
    @answering
    async def delete_folder(
        self, notebook: str, path: PathText, query: requests.How
    ) -> Answer[shapes.EventShape]:
        """Delete a folder.

        Stores an operation that deletes a folder with everything in it.
        """
        return await self._folder(await self._registry.find(notebook), "delete", path, query)

    async def _folder(
        self, notebook: Notebook, kind: Kind, path: str, query: requests.How, to: str | None = None
    ) -> Answer[Any]:
        operation = Operation(
            notebook=notebook.id, kind=kind, path=parse(path), folder=True, exists=True, to=to
        )
        return await self._publish(notebook, operation, query, correlated=True)

    # Batches

    @route(
        "POST",
        "/api/v1/notebooks/{notebook}/batch",
        Access.PUBLISH,
        status=202,
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
    async def batch(self, notebook: str, body: requests.NewBatch) -> shapes.BatchAccepted:
        """Publish a batch of operations.

        Stores operations that run in order; stores all of them or none.

        When one fails, those after it are cancelled.
        """
        found = await self._registry.find(notebook)
        stored = await self._publisher.publish_batch(found, body.operations, body.correlation_id)
        return shapes.BatchAccepted(
            correlation_id=batch_of(stored[0].job.correlation) or "",
            status="pending",
            total=len(stored),
            events=[shapes.accepted(one) for one in stored],
        )

    # Contents

    @route(
        "PUT",
        "/api/v1/notebooks/{notebook}/content",
        Access.PUBLISH,
        also=_CHANGED,
        reads_body=True,
    )
    @answering
    async def write(
        self, notebook: str, query: requests.At, call: Call
    ) -> Answer[shapes.FileShape]:
        """Write a file.

        Stores an operation that writes the request body, of any type, to the file at a path.

        The file is created if it does not exist. The body is not held in memory.
        """
        found = await self._registry.find(notebook)
        path, version = parse(query.path), _version(call, query.version)
        pieces = _pieces(call, self._limit)
        operation = Operation(
            notebook=found.id,
            kind="update",
            path=path,
            content=await self._publisher.upload(found, pieces),
            version=version,
        )
        return await self._publish(found, operation, query)

    @route(
        "PUT",
        "/api/v1/notebooks/{notebook}/files/{file_id}/content",
        Access.PUBLISH,
        also=_CHANGED,
        reads_body=True,
    )
    @answering
    async def replace(
        self, notebook: str, file_id: FileId, query: requests.HowDeleted, call: Call
    ) -> Answer[shapes.FileShape]:
        """Replace the content of a file.

        Stores an operation that replaces the content of a file with the request body, of any type.
        """
        found = await self._registry.find(notebook)
        version = _version(call, query.version)
        pieces = _pieces(call, self._limit)
        operation = Operation(
            notebook=found.id,
            kind="update",
            file=file_id,
            exists=True,
            content=await self._publisher.upload(found, pieces),
            version=version,
        )
        return await self._publish(found, operation, query)

    async def _publish(
        self,
        notebook: Notebook,
        operation: Operation,
        query: requests.How,
        content: bytes | None = None,
        *,
        correlated: bool = False,
    ) -> Answer[Any]:
        published = await self._publisher.publish(
            notebook, operation, content, correlated=correlated
        )
        if not query.sync:
            return Answer(202, shapes.accepted(published))
        return await self._wait(published, query.timeout)

    async def _wait(self, published: Published, timeout: float) -> Answer[Any]:
        """Answer a request that waits for its operation."""
        job = await self._events.ended(published.job.id, timeout)
        if not job.state.final:
            return late(job)
        if job.state is State.SUPERSEDED:
            return Answer(202, shapes.accepted(published._replace(job=job)))
        if error_name(job) == "Conflict":
            actual = await self._events.current_version(job)
            return conflict(
                shapes.headline(job.error or ""), published.operation.version or 0, actual
            )
        if job.state is not State.DONE:
            raise failure(job)
        if isinstance(job.returned, dict) and "hash" in job.returned:
            return Answer(200, job.returned)
        return Answer(200, shapes.event_shape(job))


def _version(call: Call, given: int | None) -> int | None:
    """Return the version that a change is based on, from its argument or `If-Match`."""
    sent = header(call.scope, b"if-match")
    if sent is None or sent.strip() == b"*":
        return given
    text = sent.decode("latin-1").strip().removeprefix("W/").strip('"')
    if not text.isdecimal() or len(text) > _VERSION_DIGITS:
        raise Problem(422, f"If-Match must be a version in quotes, not {text[:80]!r}")
    if given not in (None, int(text)):
        raise Problem(422, "If-Match and version contradict each other")
    return int(text)


async def _pieces(call: Call, limit: int) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives, in pieces large enough to be worth a thread."""
    if announces_more(call.scope, limit):
        raise TooLarge(f"the content is larger than {limit:,} bytes")
    gathered, size, more = [], 0, True
    while more:
        try:
            message = await asyncio.wait_for(call.receive(), BODY_TIME)
        except TimeoutError:
            raise Problem(408, f"nothing arrived for {BODY_TIME:g} seconds") from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        gathered.append(message.get("body", b""))
        size += len(gathered[-1])
        more = message.get("more_body", False)
        if size >= PIECE or not more:
            yield b"".join(gathered)
            gathered, size = [], 0

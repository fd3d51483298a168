"""The routes for files: entries that are sent to be imported, and those that are exported."""

import asyncio
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock import Access
from penstock.apps.entries import shapes
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.exporting import export_entries
from penstock.apps.entries.files import new_file
from penstock.apps.entries.formats import Unwritable
from penstock.apps.entries.importing import Options
from penstock.apps.entries.operations import OPERATIONS, start
from penstock.apps.entries.routes import EntriesRoutes
from penstock.apps.entries.rows import Chosen
from penstock.http.bodies import Disconnected, Receive, Send, announces_more
from penstock.http.problems import Problem
from penstock.http.routes import Answer, Call, Stream, route

FILE_LIMIT = 256_000_000
"""Bytes that a file may have that is sent to be imported."""
_BODY_TIME = 30.0
_PIECE = 256_000
_KINDS = {
    "csv": b"text/csv; charset=utf-8",
    "jsonl": b"application/x-ndjson",
    "xlsx": b"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
Format = Literal["csv", "jsonl", "xlsx"]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class ImportQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of the file, and how it is imported."""

    format: Format
    entity_type: Name | None = None
    category_code: Name | None = None
    mode: Literal["merge", "replace"] = "merge"
    dry_run: bool = False
    skip_bad: bool = False


class ExportQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entries are exported, and as what."""

    format: Format = "jsonl"
    entity_type: Name | None = None
    category_code: Name | None = None


class FileRoutes:
    """What the server serves of files with entries."""

    def __init__(self, entries: Entries, others: EntriesRoutes) -> None:
        self._entries = entries
        self._others = others

    @route(
        "POST",
        "/api/v1/entries/import",
        Access.ADMIN,
        "Import a file with entries",
        answers={202: shapes.OperationStarted},
    )
    async def import_(self, query: ImportQuery, call: Call) -> Answer:
        """Take the body as a file and start the operation `import` with it; 409 while one runs.

        Nothing is stored before all of it was read and checked, and then all in one transaction.
        """
        with self._answering():
            path = await asyncio.to_thread(new_file, self._entries, query.format)
            options = msgspec.structs.asdict(query)
            kept = {name: options[name] for name in Options.__struct_fields__}
            try:
                await save_body(path, call)
                payload = {**kept, "file": path.name}
                job = await start(self._entries, OPERATIONS["import"], payload)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        status = shapes.OPERATION_STATUSES[job.state]
        return Answer(
            202, shapes.OperationStarted(job_id=str(job.id), operation="import", status=status)
        )

    @route(
        "GET",
        "/api/v1/entries/export",
        Access.READ,
        "Export entries to a file",
        answers={200: "application/x-ndjson"},
        streams=True,
    )
    async def export(self, query: ExportQuery) -> Stream:
        """The entries that fit, oldest first, all as they were at one moment."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was sent
        try:
            with self._answering():
                name = query.entity_type
                chosen = Chosen(
                    None if name is None else self._entries.types.get(name).name,
                    query.category_code,
                )
                await export_entries(self._entries, file, query.format, chosen)
        except Unwritable as error:
            file.close()
            raise Problem(422, str(error)) from error
        except BaseException:
            file.close()
            raise

        async def send_all(send: Send, _receive: Receive) -> None:
            with file:
                await _send(send, file, query.format)

        return Stream(send_all)

    def _answering(self) -> AbstractContextManager[None]:
        return self._others.answering()


async def save_body(path: Path, call: Call) -> None:
    """Write the body to a file; one that is too large or too slow is a `Problem`."""
    too_large = Problem(413, f"the file is larger than {FILE_LIMIT:,} bytes")
    if announces_more(call.scope, FILE_LIMIT):
        raise too_large
    size, more = 0, True
    try:
        async with asyncio.timeout(_BODY_TIME):
            with path.open("wb") as file:
                while more:
                    message = await call.receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    size += len(part := message.get("body", b""))
                    if size > FILE_LIMIT:
                        raise too_large
                    file.write(part)
                    more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(408, f"the file did not arrive within {_BODY_TIME:g} seconds") from None
    if not size:
        raise Problem(400, "send the file as the body")


async def _send(send: Send, file: IO[bytes], kind: str) -> None:
    size = file.seek(0, 2)
    file.seek(0)
    headers: list[Any] = [
        (b"content-type", _KINDS[kind]),
        (b"content-length", str(size).encode()),
        (b"content-disposition", f'attachment; filename="entries.{kind}"'.encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while piece := await asyncio.to_thread(file.read, _PIECE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})

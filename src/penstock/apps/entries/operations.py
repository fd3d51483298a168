"""Operations: long jobs on all entries, one of each type at a time."""

import io
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock import ConfigurationError, Context, InvalidJob, Job, NewJob, RetryPolicy, context
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.formats import format_of
from penstock.apps.entries.formats import read as read_records
from penstock.apps.entries.reconciliation import Reconciler, Repaired
from penstock.apps.entries.reconciliation import rebuild as rebuild_index
from penstock.apps.entries.records import UnreadableFile
from penstock.apps.entries.rows import QUEUE, EntryQuery
from penstock.apps.entries.transfers import (
    ImportRefused,
    Options,
    Report,
    find_upload,
    import_records,
)
from penstock.apps.entries.types import InvalidEntry

OPERATIONS_QUEUE = f"{QUEUE}-operations"
BUILT_IN = ("wordllama", "minilm")
"""Embedders that come with this package and call no service."""
_PRIORITY = 10
"""Above that of rows, which the same workers embed: an operation starts soon however many wait."""


class Sync(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to embed failed entries again as well.

    `max_count` is accepted because clients send it, but has no effect: all entries are compared.
    """

    retry_failed: bool = False
    max_count: int | None = None


class Operation(NamedTuple):
    """A type of operation: its payload and the function that runs it."""

    name: str
    payload: type[msgspec.Struct]
    run: Callable[[Entries, Any, Context], Awaitable[Mapping[str, Any]]]
    attempts: int = 1
    permanent: tuple[type[Exception], ...] = ()

    @property
    def task(self) -> str:
        """The name of its task."""
        return f"entries.{self.name}"


class OperationRunning(Exception):
    """An operation of this type is already pending or running."""

    def __init__(self, name: str, job: Job) -> None:
        super().__init__(f"operation {name} is already {job.state} as job {job.id}")


async def sync(entries: Entries, payload: Sync, run: Context) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Compare the index with the rows and repair what differs; safe to run twice."""
    repaired = await Reconciler(entries).repair() or Repaired()
    retried = sum((await entries.retry_failed()).values()) if payload.retry_failed else 0
    return {"vectors_removed": repaired.removed, "entries_requeued": repaired.requeued + retried}


class Reembed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries to embed again: all, or those of a type or category."""

    entity_type: str | None = None
    category_code: str | None = None


async def reembed(entries: Entries, payload: Reembed, run: Context) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Queue entries that are embedded or failed to be embedded again; safe to run twice."""
    name = entries.types.name_of(payload.entity_type)
    counted = 0
    for status in ("failed", "embedded"):
        query = EntryQuery(name, payload.category_code, status)
        counted += sum((await entries.requeue_all(query)).values())
    return {"entries_requeued": counted}


class Import(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to import, either `rows` or an uploaded `file`, and how."""

    rows: list[dict[str, Any]] | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` unless there is exactly one of them."""
        if (self.rows is None) == (self.file is None):
            raise ValueError("give either rows or a file")


async def import_(entries: Entries, payload: Import, run: Context) -> Mapping[str, Any]:
    """Store the records of a file in one transaction.

    Safe to run twice: the job id names the import, and a second run after a crash returns the
    counts of the first.
    """
    path = None if payload.file is None else find_upload(entries, payload.file)
    try:
        report = await _imported(entries, payload, path, run)
    except _PERMANENT as error:
        if isinstance(error, ImportRefused):
            await run.checkpoint(msgspec.to_builtins(error.report))
        _delete(path)
        raise
    _delete(path)
    return msgspec.to_builtins(report)  # type: ignore[no-any-return] # a Struct is a dict then


async def _imported(entries: Entries, payload: Import, path: Path | None, run: Context) -> Report:
    lines = b"\n".join(map(msgspec.json.encode, payload.rows or ()))
    with io.BytesIO(lines) if path is None else path.open("rb") as file:
        kind = "jsonl" if path is None else format_of(path.name)
        records = read_records(file, kind, entries.types, entity_type=payload.entity_type)
        return await import_records(
            entries, records, payload, name=str(run.job.id), progress=run.progress
        )


def _delete(path: Path | None) -> None:
    """Delete an upload that no further attempt reads."""
    if path is not None:
        path.unlink(missing_ok=True)


class Rebuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedder to switch to."""

    embedder: str


async def check_rebuild(entries: Entries, payload: Rebuild) -> None:
    """Raise `ConfigurationError` for an embedder that the settings do not allow."""
    in_use = await entries.penstock.tables.read(entries.embedder)
    known = dict.fromkeys((*BUILT_IN, entries.settings.embedder, *entries.settings.embedders))
    if payload.embedder not in (in_use, *known):
        raise ConfigurationError(
            f"a rebuild cannot use the embedder {payload.embedder!r:.200}, only "
            f"{', '.join(known)}; add it to the server's setting entries.embedders to allow it"
        )


async def rebuild(entries: Entries, payload: Rebuild, run: Context) -> Mapping[str, Any]:
    """Embed all entries with another embedder; a second run keeps what is already embedded."""
    await check_rebuild(entries, payload)
    rebuilt = await rebuild_index(entries, payload.embedder, progress=run.progress)
    return rebuilt._asdict()


_PERMANENT = (ImportRefused, UnreadableFile, InvalidEntry, ConfigurationError)
"""Errors that another attempt would repeat."""

OPERATIONS = {
    one.name: one
    for one in (
        Operation("sync", Sync, sync),
        Operation("reembed", Reembed, reembed, permanent=_PERMANENT),
        Operation("import", Import, import_, attempts=5, permanent=_PERMANENT),
        Operation("rebuild", Rebuild, rebuild, attempts=5, permanent=_PERMANENT),
    )
}


ALSO_CALLED = {"sync-embeddings": "sync", "rebuild-index": "reembed"}
"""Names that clients use for some operations."""


async def start(entries: Entries, operation: Operation, payload: Mapping[str, Any]) -> Job:
    """Enqueue the job of an operation.

    Raises `OperationRunning`, msgspec's `ValidationError` for a malformed payload, and
    `InvalidEntry` for a payload that the settings of this server do not allow.
    """
    converted = msgspec.convert(payload, operation.payload)
    if isinstance(converted, Rebuild):
        try:
            await check_rebuild(entries, converted)
        except ConfigurationError as error:
            raise InvalidEntry("payload.embedder", str(error)) from error
    new = NewJob(
        task=operation.task,
        payload=msgspec.json.encode({"payload": payload}).decode(),
        queue=OPERATIONS_QUEUE,
        priority=_PRIORITY,
        dedupe=operation.task,
        lease=timedelta(seconds=entries.settings.lease),
        retry=RetryPolicy(attempts=operation.attempts),
    )
    (job,) = await entries.penstock.enqueue_many([new])
    if job.duplicate:
        raise OperationRunning(operation.name, job)
    return job


def register(entries: Entries) -> None:
    """Register the tasks of all operations, so that workers run them."""
    for operation in OPERATIONS.values():
        entries.penstock.task(
            operation.task,
            _handler(entries, operation),
            queue=OPERATIONS_QUEUE,
            permanent=operation.permanent,
        )


def _handler(entries: Entries, operation: Operation) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def run(payload: dict[str, Any]) -> dict[str, Any]:
        """Run the operation from the beginning; each says why running it twice is safe."""
        try:
            converted = msgspec.convert(payload, operation.payload)
        except msgspec.ValidationError as error:
            raise InvalidJob(f"arguments of task {operation.task}: {error}") from error
        return dict(await operation.run(entries, converted, context()))

    return run

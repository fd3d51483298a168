"""Operations: long work on all entries at once, as jobs; one of a type at a time."""

import io
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock import (
    ConfigurationError,
    Context,
    InvalidJob,
    Job,
    NewJob,
    RetryPolicy,
    context,
)
from penstock.apps.entries.checking import Checked, Checker
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.entrytypes import InvalidEntry
from penstock.apps.entries.files import sent_file
from penstock.apps.entries.formats import UnreadableFile, format_of
from penstock.apps.entries.formats import read as read_records
from penstock.apps.entries.importing import ImportRefused, Options, Report, import_records
from penstock.apps.entries.rows import QUEUE, Chosen

OPERATIONS_QUEUE = f"{QUEUE}-operations"
BUILT_IN = ("wordllama", "minilm")
"""Embedders that are part of this package, and ask nobody else."""
_BEFORE_ROWS = 10
"""The same workers embed rows: however many wait, an operation begins soon."""


class Sync(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether entries that failed are embedded again, too.

    `max_count` is accepted because clients send it, and has no effect: all entries are compared.
    """

    retry_failed: bool = False
    max_count: int | None = None


class Operation(NamedTuple):
    """A type of operation: its payload, and what runs it."""

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
    """An operation of this type waits or runs already."""

    def __init__(self, name: str, job: Job) -> None:
        super().__init__(f"operation {name} is {job.state} as job {job.id}")


async def sync(entries: Entries, payload: Sync, run: Context) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Compare the index with the rows, and repair what differs."""
    checked = await Checker(entries).check() or Checked()
    retried = sum((await entries.retry_failed()).values()) if payload.retry_failed else 0
    return {"vectors_removed": checked.forgotten, "entries_requeued": checked.requeued + retried}


class Reembed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries are embedded again: all, or those of a type or category."""

    entity_type: str | None = None
    category_code: str | None = None


async def reembed(entries: Entries, payload: Reembed, run: Context) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Embed entries again that are embedded or have failed."""
    name = None if payload.entity_type is None else entries.types.get(payload.entity_type).name
    counted = 0
    for status in ("failed", "embedded"):
        chosen = Chosen(name, payload.category_code, status)
        counted += sum((await entries.requeue_all(chosen)).values())
    return {"entries_requeued": counted}


class Import(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is imported: `rows`, or a `file` that was sent; and how."""

    rows: list[dict[str, Any]] | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        """One of them, not both."""
        if (self.rows is None) == (self.file is None):
            raise ValueError("give rows or a file")


async def import_(entries: Entries, payload: Import, run: Context) -> Mapping[str, Any]:
    """Store the records of a file in one transaction, or none of them.

    A run after a crash finds by the job's number what that transaction came to.
    """
    path = None if payload.file is None else sent_file(entries, payload.file)
    try:
        report = await _imported(entries, payload, path, run)
    except _WRONG as error:
        if isinstance(error, ImportRefused):
            await run.checkpoint(msgspec.to_builtins(error.report))
        _forget(path)
        raise
    _forget(path)
    return msgspec.to_builtins(report)  # type: ignore[no-any-return] # a Struct is a dict then


async def _imported(entries: Entries, payload: Import, path: Path | None, run: Context) -> Report:
    lines = b"\n".join(map(msgspec.json.encode, payload.rows or ()))
    with io.BytesIO(lines) if path is None else path.open("rb") as file:
        kind = "jsonl" if path is None else format_of(path.name)
        records = read_records(file, kind, entries.types, entity_type=payload.entity_type)
        return await import_records(
            entries, records, payload, name=str(run.job.id), progress=run.progress
        )


def _forget(path: Path | None) -> None:
    """Remove a file that no further run of its import will read."""
    if path is not None:
        path.unlink(missing_ok=True)


class Rebuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedder that is used from then on."""

    embedder: str


async def check_rebuild(entries: Entries, payload: Rebuild) -> None:
    """Raise `ConfigurationError` for an embedder that the settings do not name."""
    in_use = await entries.penstock.read(entries.embedder)
    known = dict.fromkeys((*BUILT_IN, entries.settings.embedder, *entries.settings.embedders))
    if payload.embedder not in (in_use, *known):
        raise ConfigurationError(
            f"there is no embedder {payload.embedder!r:.200} among those that a rebuild may go "
            f"over to: {', '.join(known)}; the server's setting entries.embedders names more"
        )


async def rebuild(entries: Entries, payload: Rebuild, run: Context) -> Mapping[str, Any]:
    """Embed all entries with another embedder; a run after a crash keeps what is embedded."""
    await check_rebuild(entries, payload)
    # It needs what a server that only serves has no use for.
    from penstock.apps.entries.rebuilding import rebuild as rebuild_index

    rebuilt = await rebuild_index(entries, payload.embedder, progress=run.progress)
    return rebuilt._asdict()


_WRONG = (ImportRefused, UnreadableFile, InvalidEntry, ConfigurationError)

OPERATIONS = {
    one.name: one
    for one in (
        Operation("sync", Sync, sync),
        Operation("reembed", Reembed, reembed, permanent=_WRONG),
        Operation("import", Import, import_, attempts=5, permanent=_WRONG),
        Operation("rebuild", Rebuild, rebuild, attempts=5, permanent=_WRONG),
    )
}


ALSO_CALLED = {"sync-embeddings": "sync", "rebuild-index": "reembed"}
"""What clients call some of them."""


async def start(entries: Entries, operation: Operation, payload: Mapping[str, Any]) -> Job:
    """Store the job of an operation; raises `OperationRunning`, and msgspec's `ValidationError`.

    Raises `InvalidEntry` for what the settings of this server do not allow.
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
        priority=_BEFORE_ROWS,
        dedupe=operation.task,
        lease=timedelta(seconds=entries.settings.lease),
        retry=RetryPolicy(attempts=operation.attempts),
    )
    (job,) = await entries.penstock.enqueue_many([new])
    if job.duplicate:
        raise OperationRunning(operation.name, job)
    return job


def register(entries: Entries) -> None:
    """Make the tasks of all operations known, so that workers run them."""
    for operation in OPERATIONS.values():
        entries.penstock.task(
            operation.task,
            _handler(entries, operation),
            queue=OPERATIONS_QUEUE,
            permanent=operation.permanent,
        )


def _handler(entries: Entries, operation: Operation) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def run(payload: dict[str, Any]) -> dict[str, Any]:
        """Do it again from the beginning: each operation says why that does no harm."""
        try:
            converted = msgspec.convert(payload, operation.payload)
        except msgspec.ValidationError as error:
            raise InvalidJob(f"arguments of task {operation.task}: {error}") from error
        return dict(await operation.run(entries, converted, context()))

    return run

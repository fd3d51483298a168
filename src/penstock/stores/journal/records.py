"""Transactions as lines: what a batch changes, in as few words as it takes."""

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, fields, replace

from penstock.core.job import Job, LogEntry
from penstock.stores.journal.lines import line_of
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.content import Content


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction; when it was written, all up to the one numbered `durable` were on disk.

    New jobs are in `do`, whole; `changes` say what has changed in those that were there.
    """

    n: int
    durable: int
    at: datetime
    do: Batch
    changes: list[msgspec.Raw] = []


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """What tells which records have to be there."""

    n: int
    durable: int


_JOB, _ENTRY = Job.__struct_fields__, LogEntry.__struct_fields__
_job_values, _entry_values = attrgetter(*_JOB), attrgetter(*_ENTRY)
_NEW_JOB = tuple(field.default for field in fields(Job))
_NEW_ENTRY = tuple(field.default for field in fields(LogEntry))
_Change = msgspec.defstruct(
    "_Change", [(field.name, field.type | UnsetType, UNSET) for field in fields(Job)]
)

decode_record = msgspec.json.Decoder(Record).decode
decode_number = msgspec.json.Decoder(Number).decode
_decode_change = msgspec.json.Decoder(_Change).decode


def record_line(batch: Batch, content: Content, *, n: int, durable: int) -> bytes:
    """The line that says what a batch is about to change."""
    new, changes = [], []
    for job in batch.jobs:
        old = content.jobs.get(job.id)
        if old is None:
            new.append(job)
        else:
            values = _changed(_JOB, _job_values(old), _job_values(job))
            changes.append({"id": job.id, **values})
    record = {
        "n": n,
        "durable": durable,
        "at": content.now,
        "do": compact(replace(batch, jobs=new)),
    }
    return line_of({**record, "changes": changes} if changes else record)


def compact(batch: Batch) -> Batch:
    """The same batch to be encoded: of jobs and entries, without what they have by default."""
    jobs: list[Any] = [_changed(_JOB, _NEW_JOB, _job_values(job)) for job in batch.jobs]
    return replace(batch, jobs=jobs, entries=list(compact_entries(batch.entries)))


def compact_entries(entries: Iterable[LogEntry]) -> Iterable[Any]:
    """Entries to be encoded, without what they have by default."""
    return (_changed(_ENTRY, _NEW_ENTRY, _entry_values(entry)) for entry in entries)


def batch_of(record: Record, content: Content) -> Batch:
    """What a record changes in the content that the records before it came to."""
    if not record.changes:
        return record.do
    changed = [_applied(_decode_change(raw), content) for raw in record.changes]
    return replace(record.do, jobs=[*record.do.jobs, *changed])


def _applied(change: Any, content: Content) -> Job:
    values = {name: value for name, value in asdict(change).items() if value is not UNSET}
    return replace(content.jobs[change.id], **values)


def _changed(
    names: tuple[str, ...], before: tuple[Any, ...], after: tuple[Any, ...]
) -> dict[str, Any]:
    return {
        name: new for name, old, new in zip(names, before, after, strict=True) if old is not new
    }

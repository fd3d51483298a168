"""Records: transactions as lines of JSON, without what can be left out."""

from collections.abc import Iterable
from datetime import datetime
from itertools import compress
from operator import attrgetter, is_not
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, astuple, fields, replace

from penstock.core.job import Job, LogEntry, NewJob
from penstock.stores.journal.lines import line_of
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.content import Content


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction; when it was written, all up to the one numbered `durable` were on disk.

    `do` has new jobs as a whole; `changes` has only the changed fields of existing ones.
    """

    n: int
    durable: int
    at: datetime
    do: WriteBatch
    changes: list[msgspec.Raw] = []


class RecordNumber(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a record that says which records must exist."""

    n: int
    durable: int


def _without_defaults(kind: type[msgspec.Struct]) -> Any:
    """Return a copy of a struct type that leaves out default values when encoded."""
    named = [
        (field.name, field.type)
        if field.default is msgspec.NODEFAULT
        else (field.name, field.type, field.default)
        for field in fields(kind)
    ]
    return msgspec.defstruct(f"_{kind.__name__}", named, omit_defaults=True, gc=False)


_Job, _Entry = _without_defaults(Job), _without_defaults(LogEntry)
_Change = msgspec.defstruct(
    "_Change", [(field.name, field.type | UnsetType, UNSET) for field in fields(Job)]
)
# What was requested never changes: not comparing it saves two thirds of the time.
_CONSTANT = {*NewJob.__struct_fields__, "id", "enqueued_at", "lease_time", "duplicate"}
_CHANGING = tuple(
    name
    for name in Job.__struct_fields__
    if name not in _CONSTANT or name in {"run_at", "priority"}
)
_values = attrgetter(*_CHANGING)

decode_record = msgspec.json.Decoder(JournalRecord).decode
decode_number = msgspec.json.Decoder(RecordNumber).decode
_decode_change = msgspec.json.Decoder(_Change).decode


def record_line(batch: WriteBatch, content: Content, *, n: int, durable: int) -> bytes:
    """Return the line for a batch that is about to change the content."""
    new: list[Job] = []
    changes = []
    for job in batch.jobs:
        old = content.jobs.get(job.id)
        if old is None:
            new.append(job)
        else:
            changes.append(_change(old, job))
    do = compact(batch, new)
    record: dict[str, Any] = {"n": n, "durable": durable, "at": content.now, "do": do}
    if changes:
        record["changes"] = changes
    return line_of(record)


def compact(batch: WriteBatch, new: Iterable[Job]) -> WriteBatch:
    """Return a batch to encode, with these jobs, and without default values."""
    jobs: list[Any] = [_Job(*astuple(job)) for job in new]
    return replace(batch, jobs=jobs, entries=compact_entries(batch.entries))


def compact_entries(entries: Iterable[LogEntry]) -> list[Any]:
    """Return entries to encode, without default values."""
    return [_Entry(*astuple(entry)) for entry in entries]


def batch_of(record: JournalRecord, content: Content) -> WriteBatch:
    """Return what a record changes in the content that the records before it resulted in."""
    if not record.changes:
        return record.do
    changed = [_applied(_decode_change(raw), content) for raw in record.changes]
    return replace(record.do, jobs=[*record.do.jobs, *changed])


def _change(old: Job, job: Job) -> dict[str, Any]:
    before, after = _values(old), _values(job)
    changed = map(is_not, before, after)
    return {"id": job.id, **dict(compress(zip(_CHANGING, after, strict=True), changed))}


def _applied(change: Any, content: Content) -> Job:
    values = {name: value for name, value in asdict(change).items() if value is not UNSET}
    return replace(content.jobs[change.id], **values)

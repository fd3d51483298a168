"""Transactions as lines: what a batch changes, in as few words as it takes."""

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


def _sparing(kind: type[msgspec.Struct]) -> Any:
    """The same values, encoded without those that are the default."""
    named = [
        (field.name, field.type)
        if field.default is msgspec.NODEFAULT
        else (field.name, field.type, field.default)
        for field in fields(kind)
    ]
    return msgspec.defstruct(f"_{kind.__name__}", named, omit_defaults=True, gc=False)


_Job, _Entry = _sparing(Job), _sparing(LogEntry)
_Change = msgspec.defstruct(
    "_Change", [(field.name, field.type | UnsetType, UNSET) for field in fields(Job)]
)
# What a job was asked for stays as it was: not to compare it takes a third of the time.
_CONSTANT = {*NewJob.__struct_fields__, "id", "enqueued_at", "lease_time", "duplicate"}
_CHANGING = tuple(
    name
    for name in Job.__struct_fields__
    if name not in _CONSTANT or name in {"run_at", "priority"}
)
_values = attrgetter(*_CHANGING)

decode_record = msgspec.json.Decoder(Record).decode
decode_number = msgspec.json.Decoder(Number).decode
_decode_change = msgspec.json.Decoder(_Change).decode


def record_line(batch: Batch, content: Content, *, n: int, durable: int) -> bytes:
    """The line that says what a batch is about to change."""
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


def compact(batch: Batch, new: Iterable[Job]) -> Batch:
    """A batch to be encoded, with these jobs: without what they and entries have by default."""
    jobs: list[Any] = [_Job(*astuple(job)) for job in new]
    return replace(batch, jobs=jobs, entries=compact_entries(batch.entries))


def compact_entries(entries: Iterable[LogEntry]) -> list[Any]:
    """Entries to be encoded, without what they have by default."""
    return [_Entry(*astuple(entry)) for entry in entries]


def batch_of(record: Record, content: Content) -> Batch:
    """What a record changes in the content that the records before it came to."""
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

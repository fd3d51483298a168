"""Snapshots: everything that a store keeps, in a file that replaces the journals before it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.stores.journal.folder import Folder, draft_of
from penstock.stores.journal.lines import Head, damaged, line_of, opened, read_head
from penstock.stores.journal.records import compact
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.content import Content

V = TypeVar("V")

# How many jobs or entries a line has: no other Python thread runs while one is encoded.
_PORTION = 100
_BUFFER = 64 * 1024


class _Portion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a snapshot; the last one has the number of lines before it."""

    do: WriteBatch = WriteBatch()
    end: int | None = None


_decode = msgspec.json.Decoder(_Portion).decode


def portions(content: Content) -> Iterator[WriteBatch]:
    """Return the batches that create this content again, as it is at this call."""
    edges = [edge for edges in content.dependents.values() for edge in edges.values()]
    origins = [(*place, here) for place, here in content.origins.items()]
    reported = list(content.reports.all().items())
    return chain(
        [_settings(content)],
        (WriteBatch(jobs=part) for part in _parts(content.jobs.values())),
        (WriteBatch(entries=part) for part in _parts(content.log.values())),
        (WriteBatch(edges=part) for part in _parts(edges)),
        (WriteBatch(origins=part) for part in _parts(origins)),
        # After the entries: a reset among them would clear reports.
        (WriteBatch(reported=dict(part)) for part in _parts(reported)),
    )


def _settings(content: Content) -> WriteBatch:
    """Return everything of which there is little."""
    minutes, totals = content.statistics.all()
    return WriteBatch(
        queues=[content.queues[name] for name in sorted(content.queues)],
        last_job=content.last_job,
        last_log=content.last_log,
        schedules=content.schedules.find(None),
        last_schedule=content.schedules.last_version,
        limits=content.limits.all(),
        starts=dict(content.limits.starts),
        turns={queue: dict(turns) for queue, turns in content.tenants.turns.items()},
        tokens=list(content.tokens.values()),
        migration_lock=content.migration_lock,
        workers=content.workers.all(),
        minutes=minutes,
        totals=totals,
        rolled_up_to=content.statistics.rolled_up_to,
        series_limit=content.statistics.limit,
        series=sorted(content.statistics.series),
    )


def write_snapshot(folder: Folder, path: Path, head: Head, batches: Iterable[WriteBatch]) -> int:
    """Write a snapshot; on return it exists and is durable. Returns its size."""
    draft = draft_of(path)
    try:
        with folder.writing(draft) as fd:
            size = 0
            for data in _buffered(_lines(head, batches)):
                view = memoryview(data)
                while view:
                    view = view[folder.files.write(fd, view) :]
                size += len(data)
            folder.files.sync(fd)
        folder.publish(draft, path)
    except BaseException:
        folder.discard(draft)
        raise
    return size


def _lines(head: Head, batches: Iterable[WriteBatch]) -> Iterator[bytes]:
    yield line_of(head)
    lines = 1
    for batch in batches:
        yield line_of(_Portion(compact(batch, batch.jobs)))
        lines += 1
    yield line_of(_Portion(end=lines))


def _buffered(lines: Iterable[bytes]) -> Iterator[bytes]:
    buffer: list[bytes] = []
    size = 0
    for line in lines:
        buffer.append(line)
        size += len(line)
        if size >= _BUFFER:
            yield b"".join(buffer)
            buffer, size = [], 0
    yield b"".join(buffer)


def read_snapshot(folder: Folder, path: Path) -> tuple[Head, Content]:
    """Read a snapshot; raises `StoreError` unless it is complete."""
    lines = folder.lines(path)
    head = read_head(next(lines, b""), "snapshot", path)
    content = Content(head.store)
    content.now = head.at
    number, end = 1, None
    for number, line in enumerate(lines, start=2):
        text = opened(line[:-1]) if line.endswith(b"\n") else None
        if text is None or end is not None:
            raise damaged(path, number, "it was altered")
        portion = _decode(text)
        content.apply(portion.do)
        end = portion.end
    if end != number - 1:
        raise damaged(path, number, "the end is missing")
    return head, content


def _parts(values: Sequence[V]) -> Iterator[list[V]]:
    return (list(values[start : start + _PORTION]) for start in range(0, len(values), _PORTION))

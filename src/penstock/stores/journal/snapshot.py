"""All that a store keeps, as a file that takes the place of the journals before it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.stores.journal.folder import draft_of, publish
from penstock.stores.journal.lines import Head, damaged, line_of, opened, read_head
from penstock.stores.journal.records import compact
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.content import Content

V = TypeVar("V")

# How many jobs or entries a line has: while one is encoded, no other thread of Python runs.
_PORTION = 100


class _Portion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a snapshot; the last one says how many there are before it."""

    do: Batch = Batch()
    end: int | None = None


_decode = msgspec.json.Decoder(_Portion).decode


def portions(content: Content) -> Iterator[Batch]:
    """The batches that make this content again, as it is at this call."""
    edges = [edge for edges in content.dependents.values() for edge in edges.values()]
    origins = [(*place, here) for place, here in content.origins.items()]
    notes = list(content.notes.all().items())
    return chain(
        [_settings(content)],
        (Batch(jobs=part) for part in _parts(content.jobs.values())),
        (Batch(entries=part) for part in _parts(content.log.values())),
        (Batch(edges=part) for part in _parts(edges)),
        (Batch(origins=part) for part in _parts(origins)),
        # Behind the entries: a reset among them would take notes away.
        (Batch(kept=dict(part)) for part in _parts(notes)),
    )


def _settings(content: Content) -> Batch:
    """All that there is not much of."""
    minutes, ever = content.sums.all()
    return Batch(
        queues=[content.queues[name] for name in sorted(content.queues)],
        last_job=content.last_job,
        last_log=content.last_log,
        schedules=content.timetable.find(None),
        last_version=content.timetable.last_version,
        limits=content.claiming.limits(),
        starts=dict(content.claiming.starts),
        turns={queue: dict(turns) for queue, turns in content.claiming.turns.items()},
        tokens=list(content.tokens.values()),
        seal=content.seal,
        greeted=content.attendance.all(),
        minutes=minutes,
        ever=ever,
        counted=content.sums.digested,
        series=content.sums.limit,
        named=sorted(content.sums.named),
    )


def write_snapshot(path: Path, head: Head, batches: Iterable[Batch]) -> int:
    """Write a snapshot; it is there and durable on return, or not at all. Returns its size."""
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            file.write(line_of(head))
            lines = 1
            for batch in batches:
                file.write(line_of(_Portion(compact(batch, batch.jobs))))
                lines += 1
            file.write(line_of(_Portion(end=lines)))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        publish(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return size


def read_snapshot(path: Path) -> tuple[Head, Content]:
    """What a snapshot says; raises `StoreError` unless it is whole."""
    with path.open("rb") as file:
        head = read_head(file.readline(), "snapshot", path)
        content = Content(head.store)
        content.now = head.at
        number, end = 1, None
        for number, line in enumerate(file, start=2):
            text = opened(line[:-1]) if line.endswith(b"\n") else None
            if text is None or end is not None:
                raise damaged(path, number, "it is not as it was written")
            portion = _decode(text)
            content.apply(portion.do)
            end = portion.end
        if end != number - 1:
            raise damaged(path, number, "the end is missing")
    return head, content


def _parts(values: Sequence[V]) -> Iterator[list[V]]:
    return (list(values[start : start + _PORTION]) for start in range(0, len(values), _PORTION))

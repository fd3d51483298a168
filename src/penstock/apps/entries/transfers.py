"""Imports and exports: whole files of entries, each in one transaction.

An import reads and checks the file before anything else. Then it pauses the queue, waits for rows
in flight, stores all rows with the jobs that embed them in one transaction, and resumes the queue.
"""

import asyncio
import hashlib
import re
import struct
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, Self

import msgspec

from penstock.apps.entries import rows
from penstock.apps.entries.entries import ROWS_PER_JOB, Entries, Entry, Progress, entry_of
from penstock.apps.entries.formats import FORMATS, check_format, writer_to
from penstock.apps.entries.queue import paused_queue
from penstock.apps.entries.records import BadRecord, Exported, Record, UnreadableFile
from penstock.apps.entries.rows import Content, EntryQuery
from penstock.apps.entries.types import InvalidEntry
from penstock.tables import Statements, Transaction

ERRORS_REPORTED = 100
"""How many invalid records a report lists; further ones are only counted."""
_LAST = "import"
"""The named value that holds the name of the last import and its counts."""
_PROGRESS_INTERVAL = 1_000
_PAGE = 1_000


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to import.

    `entity_type` and `category_code` apply to records that name none. The mode `replace` also
    removes entries that are not in the file: those of the given type and category, or all.
    """

    entity_type: str | None = None
    category_code: str | None = None
    mode: Literal["merge", "replace"] = "merge"
    dry_run: bool = False
    skip_bad: bool = False


class BadLine(msgspec.Struct, frozen=True):
    """A record that was not stored, and why."""

    line: int
    error: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import, or what it would be.

    Of the records `read`, some were `bad`; `errors` has the first of them. The others were `added`
    or have `replaced` an entry. Entries that were not in the file were `removed`.
    """

    stored: bool
    read: int
    bad: int
    added: int = 0
    replaced: int = 0
    removed: int = 0
    errors: list[BadLine] = []


class ImportRefused(Exception):
    """The file has invalid records, and nothing was stored."""

    def __init__(self, report: Report) -> None:
        first = report.errors[0]
        super().__init__(
            f"nothing was stored: {report.bad:,} of {report.read:,} records are invalid, "
            f"the first in line {first.line}: {first.error}"
        )
        self.report = report


class _Counts(msgspec.Struct, frozen=True):
    added: int
    replaced: int
    removed: int


# Imports


async def import_records(
    entries: Entries,
    records: Iterable[Record | BadRecord],
    options: Options,
    *,
    name: str | None = None,
    progress: Progress = lambda *_: None,
) -> Report:
    """Store the records of a file.

    An import with a `name` is stored once: called again with the name of the last import, this
    stores nothing and returns the same counts.

    Raises `ImportRefused` for invalid records, unless they are skipped, and `UnreadableFile` for a
    file that cannot be read, or that would replace all entries by none.
    """
    with ContentBuffer(entries.indexes.folder, ROWS_PER_JOB) as buffer:
        checked = await asyncio.to_thread(_check, entries, records, options, buffer, progress)
        if checked.bad and not options.skip_bad and not options.dry_run:
            raise ImportRefused(checked)
        if options.mode == "replace" and not buffer.ids:
            raise UnreadableFile("has no entries; replacing others by none would remove them all")
        if options.dry_run:
            counts = await entries.penstock.tables.read(
                lambda tx: _foreseen(tx, entries, options, buffer)
            )
        else:
            progress(0, len(buffer.ids), "waiting for rows in flight")
            async with paused_queue(entries.penstock):
                progress(0, len(buffer.ids), "storing")
                counts = await entries.penstock.transaction(
                    lambda tx: _store(tx, entries, options, buffer, name)
                )
        progress(len(buffer.ids), len(buffer.ids), "checked" if options.dry_run else "stored")
    return msgspec.structs.replace(
        checked, stored=not options.dry_run, **msgspec.structs.asdict(counts)
    )


def _check(
    entries: Entries,
    records: Iterable[Record | BadRecord],
    options: Options,
    buffer: "ContentBuffer",
    progress: Progress,
) -> Report:
    """Put the valid records into the buffer; report the others."""
    errors: list[BadLine] = []
    read = bad = 0
    for read, record in enumerate(records, 1):
        error = _add(entries, record, options, buffer)
        if error is not None:
            bad += 1
            if len(errors) < ERRORS_REPORTED:
                errors.append(BadLine(record.line, error))
        if read % _PROGRESS_INTERVAL == 0:
            progress(read, None, "reading")
    return Report(stored=False, read=read, bad=bad, errors=errors)


def _add(
    entries: Entries, record: Record | BadRecord, options: Options, buffer: "ContentBuffer"
) -> str | None:
    """Add a record to the buffer; return what is wrong with it, if anything."""
    if isinstance(record, BadRecord):
        return record.error
    name = record.entity_type or options.entity_type
    category = record.category_code or options.category_code
    if name is None or category is None:
        return f"{'entity_type' if name is None else 'category_code'}: is required"
    try:
        content = entries.content(name, category, record.data, record.id)
    except InvalidEntry as error:
        return str(error)
    if record.id is None:
        content = content._replace(id=_id_of(content, buffer))
    if content.id in buffer.ids:
        return f"id: {content.id:.200} is also the id of line {buffer.ids[content.id]}"
    buffer.add(content, record.line)
    return None


def _id_of(content: Content, buffer: "ContentBuffer") -> str:
    """Derive the id of a record without one from its content.

    Importing a file again then replaces its entries instead of duplicating them. A record that
    occurs several times in a file becomes several entries.
    """
    data = msgspec.json.encode(msgspec.json.decode(content.data), order="sorted")
    what = msgspec.json.encode([content.type, content.category]) + data
    derived = f"{content.type}-{hashlib.blake2b(what, digest_size=16).hexdigest()}"
    number = buffer.derived[derived] + 1
    while (one := derived if number == 1 else f"{derived}-{number}") in buffer.ids:
        number += 1
    buffer.derived[derived] = number
    return one


def _store(
    tx: Transaction, entries: Entries, options: Options, buffer: "ContentBuffer", name: str | None
) -> _Counts:
    """Store everything; if this import was committed before a crash, return its counts."""
    done = msgspec.json.decode(rows.value(tx, _LAST) or "[null, null]", type=tuple[Any, Any])
    if name is not None and done[0] == name:
        return msgspec.convert(done[1], _Counts)
    now = int(entries.penstock.clock())
    before = sum(rows.counts(tx).values())
    gone = _not_in_file(tx, entries, options, buffer)
    # Jobs before rows, as workers lock them: the other order deadlocks.
    groups = [*_groups(list(buffer.ids)), *_groups(gone)]
    jobs = tx.enqueue([entries.job(ids) for ids in groups])
    for ids in _groups(gone):
        rows.remove(tx, ids)
    for job, contents in zip(jobs, buffer.batches(), strict=False):
        rows.insert(tx, contents, job.id, now)
    added = sum(rows.counts(tx).values()) - before + len(gone)
    counts = _Counts(added, len(buffer.ids) - added, len(gone))
    if name is not None:
        rows.set_value(tx, _LAST, msgspec.json.encode([name, counts]).decode())
    return counts


def _foreseen(
    tx: Statements, entries: Entries, options: Options, buffer: "ContentBuffer"
) -> _Counts:
    replaced = sum(len(rows.digests(tx, ids)) for ids in _groups(list(buffer.ids)))
    removed = len(_not_in_file(tx, entries, options, buffer))
    return _Counts(len(buffer.ids) - replaced, replaced, removed)


def _not_in_file(
    tx: Statements, entries: Entries, options: Options, buffer: "ContentBuffer"
) -> list[str]:
    """Return the ids of the entries to remove."""
    if options.mode == "merge":
        return []
    query = EntryQuery(entries.types.name_of(options.entity_type), options.category_code)
    gone: list[str] = []
    after = ""
    while page := rows.ids_after(tx, query, after, _PAGE):
        gone += [one for one, _ in page if one not in buffer.ids]
        after = page[-1][0]
    return gone


def _groups(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[start : start + ROWS_PER_JOB] for start in range(0, len(ids), ROWS_PER_JOB)]


class ContentBuffer:
    """The contents of an import in a temporary file, read as often as needed; ids are in memory.

    They are written and read in batches of `size`, each preceded by its number of bytes.
    """

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `__exit__`
        self._size = size
        self._batch: list[Content] = []
        self.ids: dict[str, int] = {}
        """The line of each id."""
        self.derived: Counter[str] = Counter()
        """The last number given to each derived id, so that repeated records are numbered fast."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, content: Content, line: int) -> None:
        """Add a row."""
        self.ids[content.id] = line
        self._batch.append(content)
        if len(self._batch) == self._size:
            self._write()

    def batches(self) -> Iterator[list[Content]]:
        """Yield all rows in order, in batches; none can be added afterwards."""
        self._write()
        self._file.seek(0)
        while head := self._file.read(_SIZE.size):
            yield _decode(self._file.read(*_SIZE.unpack(head)))

    def _write(self) -> None:
        if self._batch:
            encoded = _encode(self._batch)
            self._file.write(_SIZE.pack(len(encoded)) + encoded)
            self._batch = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Content]).decode
_SIZE = struct.Struct("<I")


# Uploads: files sent to a server, kept until their import ends

UPLOAD_LIFETIME = 86_400
"""Seconds after which an upload is deleted that no import has deleted."""
_UPLOAD = re.compile(rf"[0-9a-f]{{32}}\.({'|'.join(FORMATS)})")


def new_upload(entries: Entries, kind: str) -> Path:
    """Return a path for a new upload, and delete abandoned ones."""
    check_format(kind)
    folder = _uploads(entries)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        with suppress(OSError):
            if old.stat().st_mtime < time.time() - UPLOAD_LIFETIME:
                old.unlink()
    return folder / f"{uuid.uuid4().hex}.{kind}"


def find_upload(entries: Entries, name: str) -> Path:
    """Return the path of an upload; raise `UnreadableFile` if there is none of this name."""
    path = _uploads(entries) / name
    if not _UPLOAD.fullmatch(name) or not path.is_file():
        raise UnreadableFile(f"there is no uploaded file {name!r:.80}")
    return path


def _uploads(entries: Entries) -> Path:
    return entries.indexes.folder / "imports"


# Exports


async def export_entries(
    entries: Entries,
    file: IO[bytes],
    kind: str,
    query: EntryQuery,
    *,
    progress: Progress = lambda *_: None,
) -> int:
    """Write the entries that match, oldest first, from one snapshot; return how many.

    Raises `Unwritable` for an entry that the format cannot hold.
    """
    types = [one for one in entries.types if query.type in (None, one.name)]

    def work(tx: Statements) -> int:
        # A transaction may be retried.
        file.seek(0)
        file.truncate()
        n, after = 0, 0
        with writer_to(file, kind, types) as writer:
            while page := rows.page(tx, query, after, _PAGE, newest=False):
                for row in page:
                    writer.write(_exported(entry_of(row)))
                after = page[-1].number
                n += len(page)
                progress(n, None, "writing")
        return n

    return await entries.penstock.tables.read(work)


def _exported(entry: Entry) -> Exported:
    return Exported(
        entry.id,
        entry.type,
        entry.category,
        entry.data,
        entry.embedding_status,
        entry.version,
        entry.created_at.isoformat(),
        entry.updated_at.isoformat(),
    )

"""Imports: the records of a file become entries in one transaction, or not at all.

The file is read and checked before anything else happens. Then the queue is held, rows in flight
are waited for, all rows are stored with the jobs that embed them, and the queue goes on.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from penstock import Transaction
from penstock.apps.entries import rows
from penstock.apps.entries.entries import TOGETHER, Entries
from penstock.apps.entries.entrytypes import InvalidEntry
from penstock.apps.entries.formats import BadRecord, Record, UnreadableFile
from penstock.apps.entries.holding import held
from penstock.apps.entries.rows import Chosen, Content
from penstock.apps.entries.spool import Spool

ERRORS_TOLD = 100
"""So many records that are wrong are told one by one; the others are counted."""
_LAST = "import"
"""The fact that keeps the name of an import and what it came to."""
_TOLD_EVERY = 1_000
_AT_ONCE = 1_000

Progress = Callable[[int, int | None, str], None]
"""Is told how many records are done, of how many if that is known, and what is done with them."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to import.

    `entity_type` and `category_code` are for records that name none. With `replace`, what is not
    in the file is removed: of that type and category, or of all where none is given.
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
    """What an import came to, or would come to.

    Of the records `read`, some were `bad`: the first of them are in `errors`. The others were
    `added`, or have `replaced` an entry; `removed` entries were not in the file.
    """

    stored: bool
    read: int
    bad: int
    added: int = 0
    replaced: int = 0
    removed: int = 0
    errors: list[BadLine] = []


class ImportRefused(Exception):
    """Records are wrong, and nothing was stored."""

    def __init__(self, report: Report) -> None:
        first = report.errors[0]
        super().__init__(
            f"nothing was stored: {report.bad:,} of {report.read:,} records are wrong, "
            f"the first in line {first.line}: {first.error}"
        )
        self.report = report


class _Counts(msgspec.Struct, frozen=True):
    added: int
    replaced: int
    removed: int


async def import_records(
    entries: Entries,
    records: Iterable[Record | BadRecord],
    options: Options,
    *,
    name: str | None = None,
    progress: Progress = lambda *_: None,
) -> Report:
    """Store the records of a file; the same `name` again stores nothing a second time.

    Of an import with a name the result is kept, until the next one.

    Raises `ImportRefused` if a record is wrong, unless those are to be skipped, and
    `UnreadableFile` for a file that cannot be read, or has nothing to replace others by.
    """
    with Spool(entries.shelves.folder, TOGETHER) as spool:
        checked = await asyncio.to_thread(_check, entries, records, options, spool, progress)
        if checked.bad and not options.skip_bad and not options.dry_run:
            raise ImportRefused(checked)
        if options.mode == "replace" and not spool.ids:
            raise UnreadableFile("has no entries; in the place of others, it would remove all")
        if options.dry_run:
            counts = await entries.penstock.read(lambda tx: _foreseen(tx, entries, options, spool))
        else:
            progress(0, len(spool.ids), "waiting for rows in flight")
            async with held(entries.penstock):
                progress(0, len(spool.ids), "storing")
                counts = await entries.penstock.transact(
                    lambda tx: _store(tx, entries, options, spool, name)
                )
        progress(len(spool.ids), len(spool.ids), "checked" if options.dry_run else "stored")
    return msgspec.structs.replace(
        checked, stored=not options.dry_run, **msgspec.structs.asdict(counts)
    )


def _check(
    entries: Entries,
    records: Iterable[Record | BadRecord],
    options: Options,
    spool: Spool,
    progress: Progress,
) -> Report:
    """Take what can be stored into the spool; what cannot be, is told."""
    errors: list[BadLine] = []
    read = bad = 0
    for read, record in enumerate(records, 1):
        error = _take(entries, record, options, spool)
        if error is not None:
            bad += 1
            if len(errors) < ERRORS_TOLD:
                errors.append(BadLine(record.line, error))
        if read % _TOLD_EVERY == 0:
            progress(read, None, "reading")
    return Report(stored=False, read=read, bad=bad, errors=errors)


def _take(
    entries: Entries, record: Record | BadRecord, options: Options, spool: Spool
) -> str | None:
    """Take one record; returns what is wrong with it."""
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
        content = content._replace(id=_id_of(content, spool))
    if content.id in spool.ids:
        return f"id: {content.id:.200} is that of line {spool.ids[content.id]}, too"
    spool.add(content, record.line)
    return None


def _id_of(content: Content, spool: Spool) -> str:
    """The id of a record that has none: the same for the same record in the same file again.

    So a file that is imported twice replaces its entries, and does not double them. A record that
    is in a file several times is several entries.
    """
    data = msgspec.json.encode(msgspec.json.decode(content.data), order="sorted")
    what = msgspec.json.encode([content.type, content.category]) + data
    made = f"{content.type}-{hashlib.blake2b(what, digest_size=16).hexdigest()}"
    number = spool.made[made] + 1
    while (one := made if number == 1 else f"{made}-{number}") in spool.ids:
        number += 1
    spool.made[made] = number
    return one


def _store(
    tx: Transaction, entries: Entries, options: Options, spool: Spool, name: str | None
) -> _Counts:
    """All of it in one transaction; after a crash behind its commit, what it came to."""
    done = msgspec.json.decode(rows.fact(tx, _LAST) or "[null, null]", type=tuple[Any, Any])
    if name is not None and done[0] == name:
        return msgspec.convert(done[1], _Counts)
    now = int(entries.penstock.clock())
    before = sum(rows.counts(tx).values())
    gone = _not_in_file(tx, entries, options, spool)
    # Jobs first: workers lock a job and then its rows.
    groups = [*_groups(list(spool.ids)), *_groups(gone)]
    jobs = tx.enqueue([entries.job(ids) for ids in groups])
    for ids in _groups(gone):
        rows.remove(tx, ids)
    for job, contents in zip(jobs, spool.batches(), strict=False):
        rows.insert(tx, contents, job.id, now)
    added = sum(rows.counts(tx).values()) - before + len(gone)
    counts = _Counts(added, len(spool.ids) - added, len(gone))
    if name is not None:
        rows.keep(tx, _LAST, msgspec.json.encode([name, counts]).decode())
    return counts


def _foreseen(tx: Any, entries: Entries, options: Options, spool: Spool) -> _Counts:
    replaced = sum(len(rows.digests(tx, ids)) for ids in _groups(list(spool.ids)))
    removed = len(_not_in_file(tx, entries, options, spool))
    return _Counts(len(spool.ids) - replaced, replaced, removed)


def _not_in_file(tx: Any, entries: Entries, options: Options, spool: Spool) -> list[str]:
    """What is to be removed."""
    if options.mode == "merge":
        return []
    name = options.entity_type
    chosen = Chosen(None if name is None else entries.types.get(name).name, options.category_code)
    gone: list[str] = []
    after = ""
    while page := rows.ids_after(tx, chosen, after, _AT_ONCE):
        gone += [one for one, _ in page if one not in spool.ids]
        after = page[-1][0]
    return gone


def _groups(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[start : start + TOGETHER] for start in range(0, len(ids), TOGETHER)]

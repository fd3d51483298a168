"""Exports: entries as they were at one moment, in a file."""

from datetime import UTC, datetime
from typing import IO

import msgspec

from penstock import Statements
from penstock.apps.entries import rows
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.formats import Exported, writing
from penstock.apps.entries.importing import Progress
from penstock.apps.entries.rows import Chosen, Row

_PAGE = 1_000


async def export_entries(
    entries: Entries,
    file: IO[bytes],
    kind: str,
    chosen: Chosen,
    *,
    progress: Progress = lambda *_: None,
) -> int:
    """Write the entries that fit, oldest first, all of one moment; how many.

    Raises `Unwritable` for what the format has no place for.
    """
    types = [one for one in entries.types if chosen.type in (None, one.name)]

    def work(tx: Statements) -> int:
        # From the beginning, should it be run again.
        file.seek(0)
        file.truncate()
        n, after = 0, 0
        with writing(file, kind, types) as to:
            while page := rows.page(tx, chosen, after, _PAGE, newest=False):
                for row in page:
                    to.write(exported(row))
                after = page[-1].number
                n += len(page)
                progress(n, None, "writing")
        return n

    return await entries.penstock.read(work)


def exported(row: Row) -> Exported:
    """A row as it goes into a file."""
    return Exported(
        row.id,
        row.type,
        row.category,
        msgspec.json.decode(row.data),
        row.embedding_status,
        row.version,
        _instant(row.created_at),
        _instant(row.updated_at),
    )


def _instant(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat()

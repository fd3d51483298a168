"""Which paths operations touch that have not ended, what they write, and all SQL on that."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from penstock.apps.notebooks.operations import Operation
from penstock.apps.notebooks.paths import fold, parents
from penstock.apps.notebooks.tables import (
    Statements,
    Writing,
    file_by_id,
    marks,
    micros,
    portions,
    span,
)


def overlapping(tx: Statements, notebook_id: int, paths: Sequence[str], *, below: bool) -> set[int]:
    """The newest unfinished operation on each of these paths, above and, if asked for, below.

    Earlier ones on the same path need not be waited for: that one does. Paths that some systems
    take for the same one are the same here.
    """
    folded = [fold(path) for path in paths]
    wanted = sorted({one for path in folded for one in (path, *parents(path))})
    found: set[int] = set()
    for some in portions(wanted):
        sql = (
            "SELECT MAX(job) FROM notebooks_touch WHERE notebook = ? "  # noqa: S608 - marks
            f"AND folded IN ({marks(some)}) GROUP BY folded"
        )
        found.update(row[0] for row in tx.execute(sql, (notebook_id, *some)).fetchall())
    for path in folded if below else ():
        sql = (
            "SELECT MAX(job) FROM notebooks_touch WHERE notebook = ? AND folded > ? "
            "AND folded < ? GROUP BY folded"
        )
        found.update(row[0] for row in tx.execute(sql, (notebook_id, *span(path))).fetchall())
    return found


def newest_on(tx: Statements, notebook_id: int, path: str) -> tuple[int, Operation] | None:
    """The newest unfinished operation on exactly this path, if it is one that can be merged.

    None if there is a newer one above or below.
    """
    sql = (
        "SELECT job, operation FROM notebooks_touch WHERE notebook = ? AND folded = ? "
        "ORDER BY job DESC LIMIT 1"
    )
    row = tx.execute(sql, (notebook_id, fold(path))).fetchone()
    if row is None or row[1] is None:
        return None
    if max(overlapping(tx, notebook_id, [path], below=True)) > row[0]:
        return None
    return row[0], _operation(row[1])


def add_touches(tx: Writing, job: int, operation: Operation) -> None:
    """Note what an operation has to do with until it ends."""
    is_single = operation.kind in ("create", "update", "delete") and not operation.folder
    text = _encoded(operation) if is_single else None
    staged = operation.content.name if operation.content else None
    rows = []
    for path in operation.touched:
        is_source = operation.kind == "move" and path == operation.path
        rows.append(
            (
                *(job, operation.notebook, fold(path), path),
                None if is_source or operation.folder else operation.file,
                operation.to if is_source else None,
                *(staged, text),
            )
        )
    tx.executemany("INSERT INTO notebooks_touch VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def end_touches(tx: Writing, jobs: Sequence[int]) -> None:
    """Nothing has to wait for these operations any more."""
    tx.executemany("DELETE FROM notebooks_touch WHERE job = ?", [(job,) for job in jobs])


def touching_jobs(tx: Statements) -> set[int]:
    """The jobs of all operations that are noted as unfinished."""
    return {row[0] for row in tx.execute("SELECT DISTINCT job FROM notebooks_touch").fetchall()}


def give_up(tx: Writing, jobs: Sequence[int], now: datetime) -> None:
    """The same for operations that have not written; they may be run again, for a while."""
    sql = (
        "UPDATE notebooks_content SET stored = ? WHERE name IN "
        "(SELECT staged FROM notebooks_touch WHERE job = ?)"
    )
    tx.executemany(sql, [(micros(now), job) for job in jobs])
    end_touches(tx, jobs)


def put_contents(tx: Writing, contents: Mapping[str, bytes], now: datetime) -> None:
    """Store contents with the operations that write them."""
    rows = [(name, content, micros(now)) for name, content in contents.items()]
    tx.executemany("INSERT INTO notebooks_content VALUES (?, ?, ?)", rows)


def contents(tx: Statements, names: Sequence[str]) -> dict[str, bytes]:
    """The contents that are stored under these names."""
    found: dict[str, bytes] = {}
    for some in portions(names):
        sql = f"SELECT name, content FROM notebooks_content WHERE name IN ({marks(some)})"  # noqa: S608 - marks
        found.update((row[0], bytes(row[1])) for row in tx.execute(sql, some).fetchall())
    return found


def drop_contents(tx: Writing, names: Sequence[str]) -> None:
    """Nobody writes these contents any more."""
    tx.executemany("DELETE FROM notebooks_content WHERE name = ?", [(name,) for name in names])


def forgotten(tx: Statements, before: datetime) -> list[str]:
    """Some contents, stored before then, of operations that have ended without writing them."""
    sql = (
        "SELECT name FROM notebooks_content WHERE stored < ? AND name NOT IN "
        "(SELECT staged FROM notebooks_touch WHERE staged IS NOT NULL) LIMIT 1000"
    )
    return [row[0] for row in tx.execute(sql, (micros(before),)).fetchall()]


def staged_names(tx: Statements, notebook_id: int) -> set[str]:
    """The contents that operations wait to put in place."""
    sql = "SELECT staged FROM notebooks_touch WHERE notebook = ? AND staged IS NOT NULL"
    return {row[0] for row in tx.execute(sql, (notebook_id,)).fetchall()}


def expected_path(tx: Statements, notebook_id: int, file_id: int) -> str | None:
    """Where a file will be when all operations before now have ended; None if it is not known."""
    sql = (
        "SELECT job, path FROM notebooks_touch WHERE notebook = ? AND file = ? "
        "ORDER BY job DESC LIMIT 1"
    )
    row = tx.execute(sql, (notebook_id, file_id)).fetchone()
    if row is None:
        known = file_by_id(tx, notebook_id, file_id)
        row = None if known is None else (0, known.path)
    if row is None:
        return None
    job, path = row
    while (moved := _moved_on(tx, notebook_id, path, job)) is not None:
        job, path = moved
    return str(path)


def _moved_on(tx: Statements, notebook_id: int, path: str, after: int) -> tuple[int, str] | None:
    """The first move after a job that takes a path along, and where to."""
    above = [(folded := fold(path)), *parents(folded)]
    sql = (
        "SELECT job, path, moves_to FROM notebooks_touch WHERE notebook = ? "  # noqa: S608 - marks
        f"AND folded IN ({marks(above)}) AND moves_to IS NOT NULL AND job > ? ORDER BY job"
    )
    for job, source, target in tx.execute(sql, (notebook_id, *above, after)).fetchall():
        if path == source or path.startswith(f"{source}/"):
            return job, target + path[len(source) :]
    return None


def _encoded(operation: Operation) -> str:
    return msgspec.json.encode(operation).decode()


def _operation(text: str) -> Operation:
    return msgspec.json.decode(text, type=Operation)

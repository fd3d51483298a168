"""The SQL on pending operations: the paths they touch and the contents they write."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from penstock.apps.notebooks.operations.operation import Operation
from penstock.apps.notebooks.paths import fold, parents
from penstock.apps.notebooks.tables import chunks, file_by_id, path_range, placeholders, to_micros
from penstock.tables import Statements, Transaction


def overlapping(tx: Statements, notebook_id: int, paths: Sequence[str], *, below: bool) -> set[int]:
    """Return the newest pending operation on each of these paths, above and, with `below`, below.

    Earlier ones on the same path need no waiting for: the newest waits for them. Paths that some
    file systems treat as the same are the same here.
    """
    folded = [fold(path) for path in paths]
    wanted = sorted({one for path in folded for one in (path, *parents(path))})
    found: set[int] = set()
    for some in chunks(wanted):
        sql = (
            "SELECT MAX(job) FROM notebooks_touch WHERE notebook = ? "  # noqa: S608 - placeholders
            f"AND folded IN ({placeholders(some)}) GROUP BY folded"
        )
        found.update(row[0] for row in tx.execute(sql, (notebook_id, *some)).fetchall())
    for path in folded if below else ():
        sql = (
            "SELECT MAX(job) FROM notebooks_touch WHERE notebook = ? AND folded > ? "
            "AND folded < ? GROUP BY folded"
        )
        found.update(row[0] for row in tx.execute(sql, (notebook_id, *path_range(path))).fetchall())
    return found


def newest_on(tx: Statements, notebook_id: int, path: str) -> tuple[int, Operation] | None:
    """Return the newest pending operation on exactly this path, if it can be merged.

    None if a newer one is pending above or below.
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


def add(tx: Transaction, job: int, operation: Operation) -> None:
    """Record the paths of an operation until it ends."""
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


def remove(tx: Transaction, jobs: Sequence[int]) -> None:
    """Forget operations that have ended: nothing waits for them any longer."""
    tx.executemany("DELETE FROM notebooks_touch WHERE job = ?", [(job,) for job in jobs])


def jobs(tx: Statements) -> set[int]:
    """Return the jobs of all pending operations."""
    return {row[0] for row in tx.execute("SELECT DISTINCT job FROM notebooks_touch").fetchall()}


def abandon(tx: Transaction, jobs: Sequence[int], now: datetime) -> None:
    """Forget operations that failed; their contents stay for a while, in case they are retried."""
    sql = (
        "UPDATE notebooks_content SET stored = ? WHERE name IN "
        "(SELECT staged FROM notebooks_touch WHERE job = ?)"
    )
    tx.executemany(sql, [(to_micros(now), job) for job in jobs])
    remove(tx, jobs)


def store_contents(tx: Transaction, contents: Mapping[str, bytes], now: datetime) -> None:
    """Store contents with the operations that write them."""
    rows = [(name, content, to_micros(now)) for name, content in contents.items()]
    tx.executemany("INSERT INTO notebooks_content VALUES (?, ?, ?)", rows)


def contents(tx: Statements, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents that are stored under these names."""
    found: dict[str, bytes] = {}
    for some in chunks(names):
        sql = f"SELECT name, content FROM notebooks_content WHERE name IN ({placeholders(some)})"  # noqa: S608 - placeholders
        found.update((row[0], bytes(row[1])) for row in tx.execute(sql, some).fetchall())
    return found


def delete_contents(tx: Transaction, names: Sequence[str]) -> None:
    """Delete contents that no operation needs."""
    tx.executemany("DELETE FROM notebooks_content WHERE name = ?", [(name,) for name in names])


def abandoned_contents(tx: Statements, before: datetime) -> list[str]:
    """Return names of contents, stored before an instant, that no pending operation writes."""
    sql = (
        "SELECT name FROM notebooks_content WHERE stored < ? AND name NOT IN "
        "(SELECT staged FROM notebooks_touch WHERE staged IS NOT NULL) LIMIT 1000"
    )
    return [row[0] for row in tx.execute(sql, (to_micros(before),)).fetchall()]


def staged_names(tx: Statements, notebook_id: int) -> set[str]:
    """Return the names of contents that pending operations put in place."""
    sql = "SELECT staged FROM notebooks_touch WHERE notebook = ? AND staged IS NOT NULL"
    return {row[0] for row in tx.execute(sql, (notebook_id,)).fetchall()}


def expected_path(tx: Statements, notebook_id: int, file_id: int) -> str | None:
    """Return where a file will be after all pending operations; None if it is not known."""
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
    """Return the first move after a job that affects a path, and the new path."""
    above = [(folded := fold(path)), *parents(folded)]
    sql = (
        "SELECT job, path, moves_to FROM notebooks_touch WHERE notebook = ? "  # noqa: S608 - placeholders
        f"AND folded IN ({placeholders(above)}) AND moves_to IS NOT NULL AND job > ? ORDER BY job"
    )
    for job, source, target in tx.execute(sql, (notebook_id, *above, after)).fetchall():
        if path == source or path.startswith(f"{source}/"):
            return job, target + path[len(source) :]
    return None


def _encoded(operation: Operation) -> str:
    return msgspec.json.encode(operation).decode()


def _operation(text: str) -> Operation:
    return msgspec.json.decode(text, type=Operation)

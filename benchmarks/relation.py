"""What `unified_queue` costs programs that have SQL alone: inserts beside a bare table; stats."""

import asyncio
import json
import sqlite3
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from penstock import Penstock
from penstock.apps.ingest import relation

_INSERT = (
    "INSERT INTO unified_queue (queue_id, item_type, op, tenant_id, collection, priority, status, "
    "created_at, updated_at, idempotency_key, payload_json) "
    "VALUES (?, 'file', 'ingest', ?, 'code', 5, 'pending', ?, ?, ?, ?)"
)
_AT = "2026-01-01T00:00:00.000Z"


class Inserts(NamedTuple):
    """How many rows a second went into the bare table and into ours, by transactions of a size."""

    batch: int
    bare: float
    ours: float

    @property
    def share(self) -> float:
        """The part of the bare table's rate that is left."""
        return self.ours / self.bare


def inserts(n: int, batch: int) -> Inserts:
    """Insert the same rows into both; durable with every commit."""
    with tempfile.TemporaryDirectory() as folder:
        bare, ours = Path(folder) / "bare.db", Path(folder) / "ours.db"
        with closing(sqlite3.connect(bare)) as connection:
            connection.executescript(_bare())
        asyncio.run(_prepare(ours))
        return Inserts(batch, _rate(bare, n, batch), _rate(ours, n, batch))


def stats(n: int) -> float:
    """The seconds that the totals of so many items take."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.db"
        asyncio.run(_prepare(path))
        _rate(path, n, 1_000)
        app = Penstock(f"sqlite:///{path}")

        async def ask() -> float:
            async with app:
                await app.read(relation.stats)
                began = time.perf_counter()
                found = await app.read(relation.stats)
                took = time.perf_counter() - began
            if sum(total.n for total in found) != n:
                raise AssertionError(found)
            return took

        return asyncio.run(ask())


async def _prepare(path: Path) -> None:
    async with Penstock(f"sqlite:///{path}") as app:
        await relation.prepare(app)


def _bare() -> str:
    """The table and its indexes, and nothing that follows it."""
    (text,) = relation.TABLES.sqlite
    return text[text.index("CREATE TABLE unified_queue (") : text.index("-- Which job a row has")]


def _rate(path: Path, n: int, batch: int) -> float:
    rows = [
        (str(uuid.uuid4()), f"tenant {i % 10}", _AT, _AT, f"file:code:{i}", _payload(i))
        for i in range(n)
    ]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        began = time.perf_counter()
        for start in range(0, n, batch):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, rows[start : start + batch])
            connection.execute("COMMIT")
        return n / (time.perf_counter() - began)


def _payload(number: int) -> str:
    path = f"/src/project/module_{number}.py"
    return json.dumps({"file_path": path, "file_type": "code", "size_bytes": number})


def main() -> None:
    """Measure all of it, and say it in a table."""
    for n, batch in ((2_000, 1), (20_000, 100), (20_000, 1_000)):
        found = inserts(n, batch)
        print(f"{batch:>6} a commit: bare {found.bare:,.0f}/s, ours {found.ours:,.0f}/s,", end=" ")
        print(f"{found.share:.0%}")
    for n in (5_000, 50_000):
        print(f"stats of {n:,} items: {stats(n) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()

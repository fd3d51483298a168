import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.query import JobQuery
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.connection import connect
from tests.contract.support import ManualClock, add, add_one, drive, new
from tests.environment import SOON

LIMIT = 64 * 1024 * 1024
BIG = '{"a":"' + "x" * 800_000 + '"}'


def size(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size  # noqa: PTH116 - within coroutines


async def test_log_stays_small_while_much_is_written(store: SqlStore, path: Path) -> None:
    largest = 0
    for _ in range(30):
        await add(store, *[new(payload=BIG)] * 5)
        largest = max(largest, size(path))
    assert largest < LIMIT


async def test_log_stays_small_while_readers_come_and_go(store: SqlStore, path: Path) -> None:
    over = asyncio.Event()

    async def read() -> None:
        while not over.is_set():
            await store.find(JobQuery(limit=5))

    readers = [asyncio.create_task(read()) for _ in range(3)]
    largest = 0
    for _ in range(30):
        await add(store, *[new(payload=BIG)] * 5)
        largest = max(largest, size(path))
    over.set()
    async with asyncio.timeout(SOON):
        await asyncio.gather(*readers)
    assert largest < LIMIT


async def test_reader_that_stays_keeps_no_writer_from_going_on(
    store: SqlStore, look: sqlite3.Connection
) -> None:
    await add_one(store)
    look.execute("BEGIN")
    look.execute("SELECT count(*) FROM penstock_job").fetchone()
    async with asyncio.timeout(3 * SOON):
        for _ in range(10):
            await add(store, *[new(payload=BIG)] * 5)
    assert look.execute("SELECT count(*) FROM penstock_job").fetchone() == (1,)
    look.execute("COMMIT")
    assert look.execute("SELECT count(*) FROM penstock_job").fetchone() == (51,)


async def test_failed_checkpoint_is_reported_and_retried(
    store: SqlStore,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = iter([sqlite3.OperationalError("too many files")])

    def failing(path: Path, **options: Any) -> sqlite3.Connection:
        for failure in failures:
            raise failure
        return connect(path, **options)

    monkeypatch.setattr("penstock.stores.sqlite.checkpoints.connect", failing)
    async with asyncio.timeout(SOON):
        while "too many files" not in caplog.text:
            await add_one(store)
    before = path.stat().st_size  # noqa: ASYNC240 - a moment
    async with asyncio.timeout(SOON):
        while path.stat().st_size == before:  # noqa: ASYNC240 - the file of a store in a temporary folder
            await add(store, *[new()] * 100)


def test_passive_checkpoints_make_nobody_wait(path: Path, clock: ManualClock) -> None:
    """Another program, such as Litestream, reads the log all the time, and restarts it."""
    store = open_store(f"sqlite:///{path}?checkpoints=passive", runtime=Runtime(clock))
    assert isinstance(store, SqlStore)
    drive(add_one(store))
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM penstock_job").fetchone()
        checkpointer = store.database._checkpointer  # type: ignore[attr-defined] # of SQLite
        for _ in range(15):
            drive(add(store, *[new(payload=BIG)] * 5))
            checkpointer._run()
            checkpointer.throttle()
        assert checkpointer._insist_from == 0.0
        assert size(path) > 2 * 20 * 1024 * 1024
    drive(store.close())

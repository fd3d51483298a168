"""One SQLite file: commits that fail, and writers that wait for other programs."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.query import JobQuery
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite import database
from tests.contract.support import add_one, drive, ids
from tests.stores.support import at_once, database_of, writing_connection


class Refusing:
    """A connection that fails to commit a number of times."""

    def __init__(self, connection: sqlite3.Connection, failures: Iterator[sqlite3.Error]) -> None:
        self._connection = connection
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        if sql == "COMMIT":
            for failure in self._failures:
                raise failure
        return self._connection.execute(sql, parameters)


def full_disk() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


async def test_commit_that_fails_changes_nothing_and_may_be_tried_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = Refusing(writing_connection(store), iter([full_disk()]))
    monkeypatch.setattr(database_of(store), "_connection", connection)
    with pytest.raises(StoreUnavailable, match="disk is full; nothing was changed"):
        await add_one(store)
    assert await store.find(JobQuery()) == []
    job = await add_one(store)
    assert await store.find(JobQuery()) == [job]
    assert dict(await store.count()) == {("default", job.state, job.waiting): 1}


async def test_group_whose_commit_fails_is_tried_one_by_one(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = Refusing(writing_connection(store), iter([full_disk()]))
    monkeypatch.setattr(database_of(store), "_connection", connection)
    answers = await asyncio.gather(*(add_one(store) for _ in range(10)), return_exceptions=True)
    stored = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert sorted(ids(stored)) == sorted(ids(await store.find(JobQuery())))
    assert len(stored) >= 9


async def test_locked_file_is_waited_for_once_for_all_callers(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def busy(_patience: float) -> None:
        tries.append(1)
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    monkeypatch.setattr(database_of(store), "_begin", busy)
    calls = [add_one(store) for _ in range(20)]
    answers = await at_once(store, *map(told, calls))
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert len(tries) == 1


async def told(call: Coroutine[Any, Any, Any]) -> Any:
    """Its answer, or the error that it raised."""
    try:
        return await call
    except StoreUnavailable as error:
        return error


class SteppedTime:
    """Time that sleeping moves, without waiting."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.slept: list[tuple[float, float]] = []
        self.on_sleep: Callable[[], object] = lambda: None

    def file_time(self) -> int:
        return round(self.now * 1e9)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append((self.now, seconds))
        self.now += seconds
        self.on_sleep()


CLEAR_EVERY, CLEAR_FOR = database._CLEAR_EVERY_NS / 1e9, database._CLEAR_FOR_NS / 1e9


@pytest.fixture
def stepped(store: SqlStore) -> SteppedTime:
    time = SteppedTime(1_000 * CLEAR_EVERY)  # a moment to keep clear begins
    runtime = database_of(store)._runtime
    runtime.file_time, runtime.monotonic, runtime.sleep = time.file_time, time.monotonic, time.sleep
    return time


def add_while_locked(store: SqlStore, path: Path, stepped: SteppedTime) -> None:
    """Another program has the file, until the writer tries for the second time."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        stepped.on_sleep = lambda: other.rollback() if other.in_transaction else None
        drive(add_one(store))
    stepped.on_sleep = lambda: None


def test_writer_that_seldom_waits_never_keeps_clear(
    store: SqlStore, path: Path, stepped: SteppedTime
) -> None:
    for _ in range(10):
        drive(add_one(store))
        add_while_locked(store, path, stepped)
    assert {seconds for _, seconds in stepped.slept} == {database._FIRST_PAUSE}


def test_writers_of_a_crowded_file_keep_clear_now_and_then(
    store: SqlStore, path: Path, stepped: SteppedTime
) -> None:
    """By the clock that all processes share, so that others find the file free for long enough."""
    begun = stepped.now
    for _ in range(10):
        add_while_locked(store, path, stepped)
    assert stepped.now >= begun + CLEAR_FOR
    stepped.slept.clear()
    drive(add_one(store))  # it is over for now
    assert stepped.slept == []
    stepped.now = begun + CLEAR_EVERY
    drive(add_one(store))
    assert stepped.now == pytest.approx(begun + CLEAR_EVERY + CLEAR_FOR)
    for _ in range(10):  # nobody is there any more
        drive(add_one(store))
    stepped.now = begun + 2 * CLEAR_EVERY
    drive(add_one(store))
    assert stepped.now == begun + 2 * CLEAR_EVERY

"""What tests of SQL stores share."""

import asyncio
import os
import sqlite3
from collections.abc import Coroutine
from typing import Any

from penstock.core.store import Clock
from penstock.runtime import SYSTEM, Runtime
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.database import SqliteDatabase
from tests.environment import SOON


def sqlite_store(
    path: str | os.PathLike[str], clock: Clock = SYSTEM.clock, *, create: bool = True
) -> SqlStore:
    """Open a SQLite store."""
    return SqlStore(SqliteDatabase(path, Runtime(clock), create=create))


def database_of(store: SqlStore) -> SqliteDatabase:
    """Return the SQLite database of a store."""
    assert isinstance(store.database, SqliteDatabase)
    return store.database


def writing_connection(store: SqlStore) -> sqlite3.Connection:
    """Return the connection that a SQLite store writes on."""
    return database_of(store)._connection


async def at_once(store: SqlStore, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """The answers to calls of which none was begun before all of them were made."""
    async with asyncio.timeout(SOON):
        with database_of(store)._group.lock:
            tasks = [asyncio.create_task(call) for call in calls]
            while len(database_of(store)._group._waiting) < len(tasks):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

"""Connections of callers, whose own transactions jobs are written in.

Neither SQLAlchemy nor aiosqlite is imported: a caller that passes such a connection has done so.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.errors import ConfigurationError

T = TypeVar("T")


async def run_within(connection: Any, work: Callable[[Any], T]) -> T:
    """Call `work` with a caller's connection, where it can be used without waiting for it."""
    if type(connection).__name__ == "async_scoped_session":
        connection = connection()  # the session of this task
    if _is_of_sqlalchemy(connection) and hasattr(connection, "run_sync"):
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        if bind.dialect.name != "sqlite":  # before it connects
            raise _refused(connection)
        answer: T = await connection.run_sync(work)
        return answer
    return work(connection)


@contextlib.contextmanager
def joined(connection: Any, path: Path) -> Iterator[sqlite3.Cursor]:
    """Yield a cursor in the transaction of a caller's connection to the store's file.

    Raises `ConfigurationError` for a connection to another file, or one without a transaction.
    """
    driver, cursor = _opened(connection)
    # Rows come in the driver's plain form, whatever the caller's connection makes of them.
    text_factory, driver.text_factory = driver.text_factory, str
    row_factory, driver.row_factory = driver.row_factory, None
    try:
        _enter_transaction(driver, cursor, path)
        yield cursor
    finally:
        driver.text_factory = text_factory
        driver.row_factory = row_factory


def _enter_transaction(driver: Any, cursor: sqlite3.Cursor, path: Path) -> None:
    file = cursor.execute("PRAGMA database_list").fetchone()[2]
    if not (file and path.samefile(file)):
        raise ConfigurationError(f"the connection is to {file!r}, not to {path}")
    if not driver.in_transaction:
        if driver.isolation_level is None:
            raise ConfigurationError(
                "the connection is in autocommit mode: begin a transaction first"
            )
        cursor.execute("BEGIN IMMEDIATE")


class _AdaptedCursor:
    """Executes statements on a connection of aiosqlite, as SQLAlchemy adapts it in `run_sync`."""

    def __init__(self, adapted: Any) -> None:
        self._cursor = adapted.cursor

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = self._cursor()
        cursor.execute(sql, parameters)
        return cursor

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> Any:
        cursor = self._cursor()
        cursor.executemany(sql, parameters)
        return cursor


def _opened(connection: Any) -> tuple[Any, Any]:
    """Return the driver's connection, and something like a cursor of it."""
    given = connection
    if _is_of_sqlalchemy(given):
        if hasattr(given, "get_bind"):  # a session
            given = given.connection()
        elif hasattr(given, "in_transaction") and not given.in_transaction():
            given.begin()  # otherwise its commit would do nothing: it has not seen our statements
        given = getattr(getattr(given, "connection", None), "dbapi_connection", None)
    if isinstance(given, sqlite3.Connection):
        cursor = given.cursor()
        cursor.row_factory = None
        return given, cursor
    driver = getattr(given, "driver_connection", None)
    if type(driver).__module__.partition(".")[0] == "aiosqlite":
        return driver, _AdaptedCursor(given)
    raise _refused(connection)


def _refused(connection: object) -> ConfigurationError:
    return ConfigurationError(
        "a SQLite store takes a sqlite3.Connection, a connection of Django, or a connection or "
        "session of SQLAlchemy on sqlite3 or aiosqlite, as connection, "
        f"not a {type(connection).__name__}"
    )


def _is_of_sqlalchemy(connection: object) -> bool:
    """Return whether this is a class of SQLAlchemy, or derived from one, as others offer."""
    return any(
        kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(connection).__mro__
    )

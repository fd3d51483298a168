"""Connections of callers, whichever library they come from.

None of the libraries is imported: a caller that passes such a connection has imported it.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from psycopg import AsyncCursor, Cursor
from psycopg.rows import tuple_row

from penstock.core.errors import ConfigurationError

Fetch = Callable[[str, str], Awaitable[Any]]
"""Runs a query with one text for `$1` and returns its only row."""

TAKEN = (
    "a PostgreSQL store takes a connection of psycopg 3, asyncpg or Django, or a connection or "
    "session of SQLAlchemy, as connection"
)


def joined(connection: Any) -> Fetch:
    """Return a function that runs statements inside the transaction of this connection."""
    for kind in type(connection).__mro__:
        make = _MAKERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if make is not None:
            return make(connection)
    raise ConfigurationError(f"{TAKEN}, not a {type(connection).__name__}")


def _psycopg(connection: Any) -> Fetch:
    async def fetch(query: str, text: str) -> Any:
        # Independent of the kind of cursor and rows that the caller's connection makes.
        with Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(query.replace("$1", "%s"), (text,)).fetchone()

    return fetch


def _psycopg_async(connection: Any) -> Fetch:
    async def fetch(query: str, text: str) -> Any:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(query.replace("$1", "%s"), (text,))
            return await cursor.fetchone()

    return fetch


def _asyncpg(connection: Any) -> Fetch:
    async def fetch(query: str, text: str) -> Any:
        return tuple(await connection.fetchrow(query, text))

    return fetch


def _sqlalchemy(connection: Any) -> Fetch:
    text_of = _of_postgres(connection)

    async def fetch(query: str, text: str) -> Any:
        statement = text_of(query.replace("$1", ":text"))
        return tuple(connection.execute(statement, {"text": text}).one())

    return fetch


def _sqlalchemy_async(connection: Any) -> Fetch:
    text_of = _of_postgres(connection)

    async def fetch(query: str, text: str) -> Any:
        statement = text_of(query.replace("$1", ":text"))
        return tuple((await connection.execute(statement, {"text": text})).one())

    return fetch


def _of_postgres(connection: Any) -> Callable[[str], Any]:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    if bind.dialect.name != "postgresql":
        raise ConfigurationError(f"{TAKEN}; this one is to {bind.dialect.name}")
    text_of: Callable[[str], Any] = sys.modules["sqlalchemy"].text
    return text_of


_MAKERS: dict[tuple[str, str], Callable[[Any], Fetch]] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async,
}

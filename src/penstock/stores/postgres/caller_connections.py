"""Connections of callers, whichever library they come from.

None of the libraries is imported: a caller that passes such a connection has imported it.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from psycopg import AsyncCursor, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from penstock.core.errors import ConfigurationError

Fetch = Callable[[str, str], Awaitable[Any]]
"""Runs a query with one text for `$1` and returns its only row."""


class Joined(NamedTuple):
    """A connection of a caller."""

    fetch: Fetch
    """Runs statements inside its transaction."""
    is_in_transaction: Callable[[], bool]
    """Returns whether the driver knows that they belong to a transaction; the database says it
    otherwise."""


TAKEN = (
    "a PostgreSQL store takes a connection of psycopg 3, asyncpg or Django, or a connection or "
    "session of SQLAlchemy, as connection"
)


def joined(connection: Any) -> Joined:
    """Return a way to run statements inside the transaction of this connection."""
    for kind in type(connection).__mro__:
        make = _MAKERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if make is not None:
            return make(connection)
    raise ConfigurationError(f"{TAKEN}, not a {type(connection).__name__}")


def _psycopg(connection: Any) -> Joined:
    async def fetch(query: str, text: str) -> Any:
        # Independent of the kind of cursor and rows that the caller's connection makes.
        with Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(query.replace("$1", "%s"), (text,)).fetchone()

    return Joined(fetch, lambda: _has_begun(connection))


def _has_begun(connection: Any) -> bool:
    """Return whether a connection of psycopg has begun a transaction, or will with a statement."""
    status = connection.info.transaction_status
    if status == TransactionStatus.IDLE:
        return not connection.autocommit
    return bool(status == TransactionStatus.INTRANS)


def _is_unknown() -> bool:
    return False


def _psycopg_async(connection: Any) -> Joined:
    async def fetch(query: str, text: str) -> Any:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(query.replace("$1", "%s"), (text,))
            return await cursor.fetchone()

    return Joined(fetch, lambda: _has_begun(connection))


def _asyncpg(connection: Any) -> Joined:
    async def fetch(query: str, text: str) -> Any:
        return tuple(await connection.fetchrow(query, text))

    return Joined(fetch, connection.is_in_transaction)


def _sqlalchemy(connection: Any) -> Joined:
    text_of = _of_postgres(connection)

    async def fetch(query: str, text: str) -> Any:
        statement = text_of(query.replace("$1", ":text"))
        return tuple(connection.execute(statement, {"text": text}).one())

    return Joined(fetch, _is_unknown)


def _sqlalchemy_async(connection: Any) -> Joined:
    text_of = _of_postgres(connection)

    async def fetch(query: str, text: str) -> Any:
        statement = text_of(query.replace("$1", ":text"))
        return tuple((await connection.execute(statement, {"text": text})).one())

    return Joined(fetch, _is_unknown)


def _of_postgres(connection: Any) -> Callable[[str], Any]:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    if bind.dialect.name != "postgresql":
        raise ConfigurationError(f"{TAKEN}; this one is to {bind.dialect.name}")
    text_of: Callable[[str], Any] = sys.modules["sqlalchemy"].text
    return text_of


_MAKERS: dict[tuple[str, str], Callable[[Any], Joined]] = {
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

"""Every kind of connection that a caller may have, in one shape, with an open transaction."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool


class Own(NamedTuple):
    """A caller's connection, and what the caller does with it."""

    connection: Any
    execute: Callable[[str], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]


Opening = Callable[[str], AbstractAsyncContextManager[Own]]


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncIterator[Own]:
    with psycopg.connect(url) as connection:
        yield _synchronous(connection, connection.execute)


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[Own]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Own(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Own]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Own(connection, connection.execute, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncIterator[Own]:
    with create_engine(dialect(url, "psycopg"), poolclass=NullPool).connect() as connection:
        yield _synchronous(connection, lambda sql: connection.execute(text(sql)))


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncIterator[Own]:
    with Session(create_engine(dialect(url, "psycopg"), poolclass=NullPool)) as session:
        yield _synchronous(session, lambda sql: session.execute(text(sql)))


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Own]:
    engine = create_async_engine(dialect(url, "asyncpg"), poolclass=NullPool)
    async with engine.connect() as connection:
        yield Own(
            connection,
            lambda sql: connection.execute(text(sql)),
            connection.commit,
            connection.rollback,
        )


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Own]:
    engine = create_async_engine(dialect(url, "psycopg"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield Own(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)


KINDS: dict[str, Opening] = {
    "psycopg": psycopg_connection,
    "psycopg-async": psycopg_async_connection,
    "asyncpg": asyncpg_connection,
    "sqlalchemy": sqlalchemy_connection,
    "sqlalchemy-session": sqlalchemy_session,
    "sqlalchemy-async": sqlalchemy_async_connection,
    "sqlalchemy-async-session": sqlalchemy_async_session,
}


def dialect(url: str, driver: str) -> Any:
    return make_url(url).set(drivername=f"postgresql+{driver}")


def _synchronous(connection: Any, execute: Callable[[str], object]) -> Own:
    async def run(sql: str) -> object:
        return execute(sql)

    async def commit() -> None:
        connection.commit()

    async def rollback() -> None:
        connection.rollback()

    return Own(connection, run, commit, rollback)

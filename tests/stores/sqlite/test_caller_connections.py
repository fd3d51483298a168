"""Sessions and connections of SQLAlchemy to the file of a store, synchronous and asynchronous."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from penstock import ConfigurationError, Job, Penstock, QueueFull, State
from penstock.leases import Done
from tests.contract.support import new


class Own(NamedTuple):
    """A caller's connection, and what the caller does with it."""

    connection: Any
    execute: Callable[[str], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]


class DerivedSession(Session):
    """As SQLModel and Flask-SQLAlchemy offer one."""


class DerivedAsyncSession(AsyncSession):
    """As SQLModel offers one."""


SYNCHRONOUS: dict[str, Callable[[Any], Any]] = {
    "connection": lambda engine: engine.connect(),
    "session": Session,
    "derived": DerivedSession,
    "scoped": lambda engine: scoped_session(sessionmaker(engine)),
}
ASYNCHRONOUS: dict[str, Callable[[Any], Any]] = {
    "async-connection": lambda engine: engine.connect(),
    "async-session": AsyncSession,
    "async-derived": DerivedAsyncSession,
    "async-scoped": lambda engine: async_scoped_session(
        async_sessionmaker(engine), asyncio.current_task
    ),
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Penstock]:
    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        await app.count()
        with sqlite3.connect(tmp_path / "jobs.db") as connection:
            connection.execute("CREATE TABLE orders (item TEXT)")
        connection.close()
        yield app


@pytest.fixture(params=[*SYNCHRONOUS, *ASYNCHRONOUS])
async def own(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Own]:
    """A connection of each kind in turn."""
    kind: str = request.param
    if kind in SYNCHRONOUS:
        engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
        yield synchronous(opened := SYNCHRONOUS[kind](engine))
        opened.close()
        engine.dispose()
        return
    a_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/jobs.db")
    made = ASYNCHRONOUS[kind](a_engine)
    if kind == "async-connection":
        await made.start()
    yield Own(made, lambda sql: made.execute(text(sql)), made.commit, made.rollback)
    await made.close()
    await a_engine.dispose()


def synchronous(connection: Any) -> Own:
    async def execute(sql: str) -> object:
        return connection.execute(text(sql))

    async def commit() -> None:
        connection.commit()

    async def rollback() -> None:
        connection.rollback()

    return Own(connection, execute, commit, rollback)


def orders(app: Penstock) -> int:
    connection = sqlite3.connect(app.url.removeprefix("sqlite:///"))
    try:
        return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
    finally:
        connection.close()


async def within(app: Penstock, own: Own, *jobs: Any) -> list[Job]:
    return await app.enqueue_many(list(jobs) or [new()], connection=own.connection)


@pytest.mark.parametrize("order", ["row first", "job first", "job only"])
async def test_job_is_stored_with_the_callers_commit(app: Penstock, own: Own, order: str) -> None:
    if order == "row first":
        await own.execute("INSERT INTO orders VALUES ('tea')")
    [job] = await within(app, own, new(tags=("x",), key="k", payload='{"n":"é"}'))
    if order == "job first":
        await own.execute("INSERT INTO orders VALUES ('tea')")
    assert await app.find() == []
    await own.commit()
    assert [one.id for one in await app.find()] == [job.id]
    assert (await app.get(job.id)).payload == '{"n":"é"}'
    assert orders(app) == (order != "job only")


async def test_job_goes_with_the_callers_rollback(app: Penstock, own: Own) -> None:
    await own.execute("INSERT INTO orders VALUES ('tea')")
    await within(app, own)
    await own.rollback()
    assert await app.find() == []
    assert orders(app) == 0
    await within(app, own)  # the connection is as good as before
    await own.commit()
    assert len(await app.find()) == 1


async def test_job_ends_with_the_callers_commit(app: Penstock, own: Own) -> None:
    await app.enqueue_many([new()])
    [job] = await app.leases.claim(worker="w", limit=1)
    await own.execute("INSERT INTO orders VALUES ('tea')")
    await app.leases.finish(job, Done(), connection=own.connection)
    await own.rollback()
    assert (await app.get(job.id)).state is State.RUNNING
    await own.execute("INSERT INTO orders VALUES ('tea')")
    await app.leases.finish(job, Done(), connection=own.connection)
    await own.commit()
    assert (await app.get(job.id)).state is State.DONE
    assert orders(app) == 1


async def test_refused_job_leaves_the_callers_transaction(app: Penstock, own: Own) -> None:
    await app.limits.queue("default", 1)
    await within(app, own)
    await own.execute("INSERT INTO orders VALUES ('tea')")
    with pytest.raises(QueueFull):
        await within(app, own)
    await own.commit()
    assert (len(await app.find()), orders(app)) == (1, 1)


@pytest.mark.parametrize("library", ["sqlite", "sqlite+aiosqlite"])
async def test_connection_to_another_file_is_refused(
    app: Penstock, tmp_path: Path, library: str
) -> None:
    url = f"{library}:///{tmp_path}/other.db"
    if library == "sqlite":
        with (
            Session(create_engine(url)) as session,
            pytest.raises(ConfigurationError, match=r"other\.db"),
        ):
            await app.enqueue_many([new()], connection=session)
        return
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigurationError, match=r"other\.db"):
            await app.enqueue_many([new()], connection=session)
    await engine.dispose()


async def test_rows_of_the_caller_stay_as_it_wants_them(app: Penstock, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/jobs.db")
    async with engine.connect() as connection:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        raw.row_factory, raw.text_factory = sqlite3.Row, bytes
        [job] = await app.enqueue_many([new(dedupe="d")], connection=connection)
        [twin] = await app.enqueue_many([new(dedupe="d")], connection=connection)
        assert (twin.id, twin.duplicate) == (job.id, True)
        assert (raw.row_factory, raw.text_factory) == (sqlite3.Row, bytes)
        await connection.commit()
    await engine.dispose()
    assert len(await app.find()) == 1

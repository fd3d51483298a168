"""Jobs in the session of a request: FastAPI on a real server, sync and async, on each database."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock import ConfigurationError, JobQuery, NewJob, Penstock, run_sync
from penstock.integrations.asgi import lifespan
from penstock.integrations.sqlalchemy import AsyncSessionJobs, SessionJobs
from tests.integrations.databases import Shared, shared
from tests.integrations.support import serving

__all__ = ["shared"]

pytestmark = pytest.mark.every_store
INSERT = text("INSERT INTO orders (item) VALUES ('tea')")


@pytest.fixture
def queue(shared: Shared) -> Iterator[Penstock]:
    engine = create_engine(shared.synchronous, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    app = Penstock(shared.queue)
    app.task("send", send)
    yield app
    run_sync(app.close())


async def send(n: int) -> None: ...


def stored(queue: Penstock, shared: Shared) -> tuple[list[int], int]:
    """Return the arguments of the jobs, and how many orders there are."""
    reader = Penstock(queue.url)
    jobs = run_sync(reader.find(JobQuery(newest_first=False)))
    run_sync(reader.close())
    with create_engine(shared.synchronous, poolclass=NullPool).connect() as connection:
        orders = connection.execute(text("SELECT count(*) FROM orders")).scalar_one()
    return [job.args["n"] for job in jobs], orders


@pytest.fixture(params=["commits itself", "commits in its dependency"])
def scope(request: pytest.FixtureRequest) -> str | None:
    """Where the session is committed: FastAPI ends such a dependency before the answer is sent."""
    return "function" if request.param == "commits in its dependency" else None


def asynchronous(queue: Penstock, shared: Shared, scope: Any) -> FastAPI:
    engine = create_async_engine(shared.asynchronous, poolclass=NullPool)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session:
            yield session
            if scope:
                await session.commit()

    Database = Annotated[AsyncSession, Depends(get_session, scope=scope)]  # noqa: N806 - a type
    Jobs = Annotated[  # noqa: N806 - a type
        AsyncSessionJobs, Depends(AsyncSessionJobs.dependency(queue, Database))
    ]
    app = FastAPI(lifespan=lifespan(queue))

    @app.post("/orders/{n}")
    async def order(n: int, session: Database, jobs: Jobs) -> int:
        assert jobs.session is session
        await session.execute(INSERT)
        job = await jobs.enqueue(queue.tasks["send"], n)
        await jobs.enqueue_many([NewJob(task="send", payload=f'{{"n":{n + 100}}}')])
        if n < 0:
            raise HTTPException(409)
        if not scope:
            await session.commit()
        return job.id

    return app


def synchronous(queue: Penstock, shared: Shared, scope: Any) -> FastAPI:
    engine = create_engine(shared.synchronous, poolclass=NullPool)

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            if scope:
                session.commit()

    Database = Annotated[Session, Depends(get_session, scope=scope)]  # noqa: N806 - a type
    Jobs = Annotated[  # noqa: N806 - a type
        SessionJobs, Depends(SessionJobs.dependency(queue, Database))
    ]
    app = FastAPI(lifespan=lifespan(queue))

    @app.post("/orders/{n}")
    def order(n: int, session: Database, jobs: Jobs) -> int:
        assert jobs.session is session
        session.execute(INSERT)
        job = jobs.enqueue(queue.tasks["send"], n)
        jobs.enqueue_many([NewJob(task="send", payload=f'{{"n":{n + 100}}}')])
        if n < 0:
            raise HTTPException(409)
        if not scope:
            session.commit()
        return job.id

    return app


@pytest.mark.parametrize("make", [synchronous, asynchronous])
def test_jobs_are_committed_and_rolled_back_with_the_request(
    make: Any, queue: Penstock, shared: Shared, scope: str | None
) -> None:
    with (
        serving(make(queue, shared, scope)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=60) as http,
    ):
        assert http.post("/orders/-1").status_code == 409
        assert stored(queue, shared) == ([], 0)
        assert http.post("/orders/1").status_code == 200
        assert stored(queue, shared) == ([1, 101], 1)
        assert http.post("/orders/-2").status_code == 409
        assert http.post("/orders/2").status_code == 200
    assert stored(queue, shared) == ([1, 101, 2, 102], 2)


def test_options_of_a_task_are_kept(queue: Penstock, shared: Shared) -> None:
    with Session(create_engine(shared.synchronous, poolclass=NullPool)) as session:
        jobs = SessionJobs(queue, session)
        job = jobs.enqueue(queue.tasks["send"].using(priority=9, queue="mail"), 1)
        session.commit()
    assert (job.priority, job.queue) == (9, "mail")
    assert stored(queue, shared) == ([1], 0)


async def test_synchronous_session_in_a_coroutine_is_refused(
    queue: Penstock, shared: Shared
) -> None:
    with Session(create_engine(shared.synchronous, poolclass=NullPool)) as session:
        jobs = SessionJobs(queue, session)
        with pytest.raises(ConfigurationError, match="inside one, await the call"):
            jobs.enqueue(queue.tasks["send"], 1)
    assert await asyncio.to_thread(stored, queue, shared) == ([], 0)


async def test_task_of_another_queue_is_refused(queue: Penstock, shared: Shared) -> None:
    other = Penstock("memory://").task("send", send)
    engine = create_engine(shared.synchronous, poolclass=NullPool)
    with Session(engine) as session, pytest.raises(ConfigurationError, match="another Penstock"):
        SessionJobs(queue, session).enqueue(other, 1)
    async with AsyncSession(
        create_async_engine(shared.asynchronous, poolclass=NullPool)
    ) as asynchronous_session:
        with pytest.raises(ConfigurationError, match="another Penstock"):
            await AsyncSessionJobs(queue, asynchronous_session).enqueue(other.using(priority=7), 1)

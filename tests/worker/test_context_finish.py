"""`Context.finish`: handlers that complete their job inside their own transaction."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import ConfigurationError, Job, Penstock, State, context, run_sync
from penstock.jobs import Event
from penstock.testing import inline
from tests.contract.support import SECOND, ManualClock, new
from tests.environment import SOON
from tests.worker import finish_program
from tests.worker.support import AT_ONCE, ONCE, eventually, work_off, working


class Home(NamedTuple):
    """A store, and a transaction of its database that commits unless the block raises."""

    app: Penstock
    transaction: Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=["sqlite", "postgres"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        opened = Home(Penstock(f"sqlite:///{path}"), lambda: _sqlite(path))
    else:
        import psycopg

        server = request.getfixturevalue("postgres_server")
        url = request.getfixturevalue("postgres_url")
        opened = Home(Penstock(url), lambda: psycopg.connect(server))
    yield opened
    run_sync(opened.app.close())


@contextmanager
def _sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


async def events_of(app: Penstock, job: Job) -> list[Event]:
    return [entry.event for entry in await app.log(job.id)]


async def test_run_is_done_with_the_handlers_commit(home: Home) -> None:
    app, transaction = home

    @app.task()
    async def send() -> str:
        with transaction() as connection:
            await context().finish("sent", connection=connection)
        return "what it returns does not count"

    job = await send.enqueue()
    await work_off(app)
    found = await app.get(job.id)
    assert (found.state, found.returned, found.attempt) == (State.DONE, "sent", 1)
    assert await events_of(app, job) == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]


async def test_plain_function_is_done_with_its_commit(home: Home) -> None:
    app, transaction = home

    @app.task()
    def send() -> None:
        with transaction() as connection:
            context().finish({"n": 1}, connection=connection)

    job = await send.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == {"n": 1}


async def test_error_after_the_commit_is_ignored(home: Home) -> None:
    app, transaction = home

    @app.task(retry=ONCE)
    async def send() -> None:
        with transaction() as connection:
            await context().finish(connection=connection)
        raise ValueError("too late")

    job = await send.enqueue()
    await work_off(app)
    assert await events_of(app, job) == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]


async def test_run_without_a_commit_has_failed_and_is_retried(home: Home) -> None:
    app, transaction = home

    @app.task(retry=AT_ONCE)
    async def send() -> str:
        with transaction() as connection:
            await context().finish("sent", connection=connection)
            if context().attempt < 3:
                connection.rollback()
        return "returned"

    job = await send.enqueue()
    await work_off(app)
    found = await app.get(job.id)
    assert (found.state, found.returned, found.attempt) == (State.DONE, "sent", 3)
    entries = await app.log(job.id)
    failed = [entry.error for entry in entries if entry.event is Event.FAILED]
    assert failed == ["it called context.finish, but that transaction was not committed"] * 2


async def test_error_that_rolls_back_is_the_outcome(home: Home) -> None:
    app, transaction = home

    @app.task(retry=ONCE)
    async def send() -> None:
        with transaction() as connection:
            await context().finish(connection=connection)
            raise ValueError("no such address")

    job = await send.enqueue()
    await work_off(app)
    found = await app.get(job.id)
    assert found.state is State.FAILED
    assert (found.error or "").startswith("ValueError: no such address")


async def test_next_of_the_key_follows(home: Home) -> None:
    app, transaction = home
    order: list[int] = []

    @app.task(key="k")
    async def send(n: int) -> None:
        order.append(n)
        with transaction() as connection:
            await context().finish(connection=connection)

    await app.enqueue_many([send.new(n) for n in range(3)])
    await work_off(app)
    assert order == [0, 1, 2]


async def test_idle_worker_notices_a_job_enqueued_in_a_transaction(home: Home) -> None:
    app, transaction = home
    ran = asyncio.Event()

    @app.task(key="k")
    async def send() -> None:
        ran.set()

    async with working(app):
        await send.enqueue()
        async with asyncio.timeout(SOON):
            await ran.wait()
        ran.clear()
        with transaction() as connection:
            await send.using(connection=connection).enqueue()
        async with asyncio.timeout(SOON):
            await ran.wait()


async def test_result_that_is_not_json_is_refused(home: Home) -> None:
    app, transaction = home

    @app.task(retry=AT_ONCE)
    async def send() -> None:
        with transaction() as connection:
            await context().finish(object(), connection=connection)

    job = await send.enqueue()
    await work_off(app)
    found = await app.get(job.id)
    assert (found.state, found.attempt) == (State.FAILED, 1)


async def test_run_is_not_stopped_before_its_transaction_commits(
    postgres_server: str, postgres_url: str, clock: ManualClock
) -> None:
    import psycopg

    app = Penstock(postgres_url, clock=clock)

    @app.task(lease=2 * SECOND, retry=ONCE)
    async def send() -> None:
        with psycopg.connect(postgres_server) as connection:
            await context().finish(connection=connection)
            clock.advance(3 * SECOND)

            async def lease_is_over() -> bool:
                return bool(await app.store.expired(1))

            await eventually(lease_is_over)

    job = await send.enqueue()
    await work_off(app)
    assert await events_of(app, job) == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]
    await app.close()


async def test_open_transaction_does_not_keep_other_runs_from_being_settled(
    postgres_server: str, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    app = Penstock(postgres_url)
    with psycopg.connect(postgres_server) as forgotten:

        @app.task()
        async def forget() -> None:
            await context().finish(connection=forgotten)

        @app.task()
        async def other() -> None:
            pass

        left = await forget.enqueue()
        jobs = await app.enqueue_many([other.new()] * 5)
        await work_off(app)
        for job in jobs:
            assert (await app.get(job.id)).state is State.DONE
        assert "its transaction is still open" in caplog.text
    assert (await app.get(left.id)).state is State.DONE
    await app.close()


def test_memory_store_cannot_join_a_transaction() -> None:
    app = Penstock("memory://")
    run_sync(app.enqueue_many([new()]))
    [job] = run_sync(app.leases.claim(worker="w", limit=1))
    with pytest.raises(ConfigurationError, match="has no database for tables or transactions"):
        run_sync(app.leases.finish(job, connection=object()))


def test_inline_jobs_finish_without_a_transaction() -> None:
    app = Penstock("memory://")

    @app.task()
    def send() -> None:
        context().finish("sent", connection=None)

    with inline(app):
        assert run_sync(send.enqueue()).returned == "sent"


def test_context_without_a_worker_cannot_finish() -> None:
    from penstock.worker.context import Context

    app = Penstock("memory://")
    run_sync(app.enqueue_many([new()]))
    [job] = run_sync(app.leases.claim(worker="w", limit=1))
    with pytest.raises(ConfigurationError, match="no worker runs this job"):
        Context(job).finish(connection=object())


async def test_child_process_is_done_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, path = finish_program.app, tmp_path / "jobs.db"
    monkeypatch.setenv(finish_program.FILE, str(path))
    monkeypatch.setattr(app.connection, "url", f"sqlite:///{path}")
    job = await finish_program.send.enqueue()
    await work_off(app, concurrency=1)
    found = await app.get(job.id)
    assert (found.state, found.returned, found.attempt) == (State.DONE, "sent", 2)
    await app.close()

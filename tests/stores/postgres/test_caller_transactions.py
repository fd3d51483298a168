"""Jobs that come and end inside the caller's own transaction."""

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from penstock import (
    ConfigurationError,
    Job,
    JobNotFound,
    JobQuery,
    LeaseLost,
    Penstock,
    QueueFull,
    Retention,
    State,
    run_sync,
)
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.errors import StoreMoved
from penstock.jobs import Event, OnFailure, Scope, Waiting
from penstock.leases import Done, Failed
from penstock.stores.postgres.connection import queries
from penstock.stores.sql.rows import BLOCKED
from tests.contract.support import HOUR, SECOND, new
from tests.environment import SOON
from tests.stores.postgres.support import KINDS, Own, dialect, psycopg_connection
from tests.worker.support import eventually


class Orders(NamedTuple):
    """How to write to the caller's own table, and to read it."""

    insert: str
    select: str


@pytest.fixture
def app(postgres_url: str) -> Iterator[Penstock]:
    opened = Penstock(postgres_url)
    run_sync(opened.count())
    yield opened
    run_sync(opened.close())


@pytest.fixture
def orders(postgres_server: str, postgres_url: str, app: Penstock) -> Orders:
    """A table of the caller's own, next to the store's."""
    name = f"{schema_of(postgres_url)}.orders"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (item text)")
    return Orders(f"INSERT INTO {name} VALUES ('tea')", f"SELECT item FROM {name}")  # noqa: S608 - names of our own


@pytest.fixture(params=KINDS)
async def own(request: pytest.FixtureRequest, postgres_server: str) -> AsyncIterator[Own]:
    """A connection of each kind in turn."""
    async with KINDS[request.param](postgres_server) as opened:
        yield opened


@pytest.fixture
async def one(postgres_server: str) -> AsyncIterator[Own]:
    """A connection of one kind, where the kind does not matter."""
    async with psycopg_connection(postgres_server) as opened:
        yield opened


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


def ask(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


async def within(app: Penstock, own: Own, **options: Any) -> Job:
    [job] = await app.enqueue_many([new(**options)], connection=own.connection)
    return job


async def add(app: Penstock, **options: Any) -> Job:
    [job] = await app.enqueue_many([new(**options)])
    return job


async def take(app: Penstock, limit: int = 100) -> list[Job]:
    return await app.leases.claim(worker="w", limit=limit)


async def taken(app: Penstock) -> list[int]:
    return [job.id for job in await take(app)]


async def events_of(app: Penstock, job: Job) -> list[Event]:
    return [entry.event for entry in await app.log(job.id)]


async def tally(app: Penstock) -> dict[Any, int]:
    return {place[1:]: n for place, n in (await app.count()).items() if n}


# Commit and rollback, on every kind of connection


async def test_job_becomes_visible_with_the_callers_commit(
    app: Penstock, own: Own, orders: Orders, postgres_server: str
) -> None:
    await own.execute(orders.insert)
    job = await within(app, own, tags=("x",), payload='{"n":"é\\u0000"}', delay=HOUR)
    assert await app.find() == []
    await own.commit()
    assert await app.get(job.id) == job
    assert await events_of(app, job) == [Event.ENQUEUED]
    assert await tally(app) == {(State.PENDING, Waiting.SCHEDULED): 1}
    assert ask(postgres_server, orders.select) == [("tea",)]


async def test_job_is_gone_with_the_callers_rollback(
    app: Penstock, own: Own, orders: Orders, postgres_server: str
) -> None:
    await own.execute(orders.insert)
    await within(app, own, key="k", dedupe="d")
    await own.rollback()
    assert await app.find() == []
    assert await app.log() == []
    assert await tally(app) == {}
    assert await take(app) == []
    assert ask(postgres_server, orders.select) == []


async def test_job_is_done_with_the_callers_commit(
    app: Penstock, own: Own, orders: Orders, postgres_server: str
) -> None:
    await add(app)
    [job] = await take(app)
    await own.execute(orders.insert)
    done = await app.leases.finish(job, Done('"ok"', '{"a":1}'), connection=own.connection)
    assert (await app.get(job.id)).state is State.RUNNING
    await own.commit()
    assert await app.get(job.id) == done
    assert (done.state, done.returned) == (State.DONE, "ok")
    entry = (await app.log(job.id))[-1]
    assert (entry.event, entry.token, entry.actor, entry.detail) == (
        Event.DONE, job.token, "w", '{"a":1}',
    )  # fmt: skip
    assert await tally(app) == {(State.DONE, None): 1}
    assert ask(postgres_server, orders.select) == [("tea",)]


async def test_job_still_runs_after_the_callers_rollback(app: Penstock, own: Own) -> None:
    await add(app)
    [job] = await take(app)
    await app.leases.finish(job, connection=own.connection)
    await own.rollback()
    assert await app.get(job.id) == job
    assert await tally(app) == {(State.RUNNING, None): 1}
    [settled] = await app.leases.settle([(job, Done())])
    assert settled.state is State.DONE


# What is refused


async def test_what_cannot_be_done_leaves_the_transaction_usable(
    app: Penstock, own: Own, orders: Orders, postgres_server: str
) -> None:
    await app.limits.queue("small", max_pending=1)
    await own.execute(orders.insert)
    with pytest.raises(QueueFull, match="its limit is 1"):
        await app.enqueue_many([new(queue="small")] * 2, connection=own.connection)
    with pytest.raises(JobNotFound, match="no job 777"):
        await within(app, own, after=(777,))
    [job] = await take_after(app, await add(app))
    await app.leases.settle([(job, Done())])
    with pytest.raises(LeaseLost):
        await app.leases.finish(job, connection=own.connection)
    kept = await within(app, own, queue="small")
    await own.commit()
    assert [found.id for found in await app.find(JobQuery(states=frozenset({State.PENDING})))] == [
        kept.id
    ]
    assert ask(postgres_server, orders.select) == [("tea",)]


async def take_after(app: Penstock, _job: Job) -> list[Job]:
    return await take(app)


def test_autocommit_is_refused(app: Penstock, postgres_server: str) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        with pytest.raises(ConfigurationError, match="begin a transaction"):
            run_sync(app.enqueue_many([new()], connection=connection))
        with connection.transaction():
            run_sync(app.enqueue_many([new()], connection=connection))
    assert len(run_sync(app.find())) == 1


def test_autocommit_is_refused_after_a_transaction_of_the_same_connection(
    app: Penstock, postgres_server: str
) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        with connection.transaction():
            run_sync(app.enqueue_many([new()], connection=connection))
        with pytest.raises(ConfigurationError, match="autocommit"):
            run_sync(app.enqueue_many([new()], connection=connection))
    assert len(run_sync(app.find())) == 1


def test_further_job_of_a_connection_takes_one_statement(
    app: Penstock, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[Any] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        statements.append(query)
        return execute(self, query, *args, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    with psycopg.connect(postgres_server) as connection:
        run_sync(app.enqueue_many([new()], connection=connection))
        statements.clear()
        run_sync(app.enqueue_many([new()], connection=connection))
        assert len(statements) == 1, statements


def test_rows_of_other_programs_are_not_imported_by_a_callers_transaction(
    app: Penstock, postgres_server: str
) -> None:
    """They would be locked until it ends."""
    schema = app.store.database._where.schema  # type: ignore[attr-defined]
    add = f"INSERT INTO {schema}.newcomer (source, row_id, at) VALUES ('page', '1', 1)"  # noqa: S608 - ours
    count = f"SELECT count(*) FROM {schema}.newcomer"  # noqa: S608 - ours
    with (
        psycopg.connect(postgres_server) as connection,
        psycopg.connect(postgres_server, autocommit=True) as other,
    ):
        run_sync(app.enqueue_many([new()], connection=connection))
        connection.commit()
        other.execute(add.encode())
        run_sync(app.enqueue_many([new()], connection=connection))
        assert other.execute(count.encode()).fetchone() == (0,)
    assert len(run_sync(app.find())) == 2


def test_autocommit_of_sqlalchemy_is_refused(app: Penstock, postgres_server: str) -> None:
    engine = create_engine(
        dialect(postgres_server, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    refused = pytest.raises(ConfigurationError, match="begin a transaction")
    with engine.connect() as connection, refused:
        run_sync(app.enqueue_many([new()], connection=connection))
    assert run_sync(app.find()) == []


async def test_asyncpg_without_a_transaction_is_refused(
    app: Penstock, postgres_server: str
) -> None:
    connection = await asyncpg.connect(postgres_server)
    with pytest.raises(ConfigurationError, match="begin a transaction"):
        await app.enqueue_many([new()], connection=connection)
    await connection.close()
    assert await app.find() == []


def test_other_kinds_of_connections_are_refused(app: Penstock) -> None:
    engine = create_engine("sqlite://")
    connection = sqlite3.connect(":memory:")
    for other in (connection, object(), engine, "postgresql://"):
        with pytest.raises(ConfigurationError, match="psycopg 3, asyncpg or Django"):
            run_sync(app.enqueue_many([new()], connection=other))
    with engine.connect() as bound, pytest.raises(ConfigurationError, match="to sqlite"):
        run_sync(app.enqueue_many([new()], connection=bound))
    connection.close()
    engine.dispose()


def test_connection_to_another_database_is_refused(
    app: Penstock, postgres_server: str, postgres_url: str
) -> None:
    name = f"other_{uuid.uuid4().hex[:12]}"
    other = postgres_server.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            with psycopg.connect(other) as connection:
                with pytest.raises(ConfigurationError, match="has no schema"):
                    run_sync(app.enqueue_many([new()], connection=connection))
                second = Penstock(f"{other}?schema={schema_of(postgres_url)}")
                run_sync(second.count())
                with pytest.raises(ConfigurationError, match="another database"):
                    run_sync(app.enqueue_many([new()], connection=connection))
                assert run_sync(second.find()) == []
                run_sync(second.close())
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


# What the jobs mean for others


async def test_jobs_of_a_key_run_in_their_order(app: Penstock, one: Own) -> None:
    first = await add(app, key="k")
    second = await within(app, one, key="k")
    third = await within(app, one, key="k")
    await one.commit()
    for job in (first, second, third):
        [running] = await take(app)
        assert running.id == job.id
        await app.leases.settle([(running, Done())])
    assert await take(app) == []


async def test_ready_job_of_a_key_is_given_at_the_next_claim(app: Penstock, one: Own) -> None:
    job = await within(app, one, key="k", tags=("x",), priority=7)
    assert job.waiting is Waiting.BLOCKED
    await one.commit()
    [running] = await app.leases.claim(worker="w", limit=5, tags=["x"])
    assert (running.id, running.priority) == (job.id, 7)
    assert await tally(app) == {(State.RUNNING, None): 1}


async def test_finishing_lets_the_next_of_the_key_go_on(app: Penstock, one: Own) -> None:
    await add(app, key="k")
    second = await add(app, key="k")
    [job] = await take(app)
    await app.leases.finish(job, connection=one.connection)
    assert await take(app) == []
    await one.commit()
    assert await taken(app) == [second.id]


async def test_finishing_frees_those_that_wait(app: Penstock, one: Own) -> None:
    first = await add(app)
    waiting = await add(app, after=(first.id,))
    [job] = await take(app)
    await app.leases.finish(job, connection=one.connection)
    await one.commit()
    assert await taken(app) == [waiting.id]


async def test_finishing_frees_those_that_begin_to_wait_meanwhile(app: Penstock, one: Own) -> None:
    first = await add(app)
    [job] = await take(app)
    await app.leases.finish(job, connection=one.connection)
    late = await add(app, after=(first.id,))  # finds the row locked
    await one.commit()
    assert await taken(app) == [late.id]


async def test_job_that_is_not_linked_yet_is_not_made_visible(
    app: Penstock, one: Own, postgres_url: str
) -> None:
    first = await add(app)
    await within(app, one, key="k", after=(first.id,))
    await one.commit()
    text = queries(schema_of(postgres_url))["key_lines"]
    [(key, *head)] = psycopg.RawCursor(one.connection).execute(text, ('["k"]',)).fetchall()
    assert key == "k"
    assert head[1:3] == [BLOCKED, 1]  # as if it needed another


async def test_commit_wakes_listeners(
    app: Penstock, own: Own, postgres_server: str, postgres_url: str
) -> None:
    await add(app)
    [job] = await take(app)
    with psycopg.connect(postgres_server, autocommit=True) as listener:
        listener.execute(f"LISTEN {schema_of(postgres_url)}")
        await within(app, own, key="k")
        await own.commit()
        assert list(listener.notifies(timeout=SOON, stop_after=1))
        with psycopg.connect(postgres_server) as other:
            await app.leases.finish(job, connection=other)
        assert list(listener.notifies(timeout=SOON, stop_after=1))


async def test_only_the_holder_of_the_job_finishes_it(app: Penstock, own: Own) -> None:
    await add(app)
    [job] = await take(app)
    for other in (replace(job, worker="other"), replace(job, token=job.token - 1)):
        with pytest.raises(LeaseLost):
            await app.leases.finish(other, connection=own.connection)
    await own.commit()
    assert await app.get(job.id) == job


async def test_job_waits_for_those_that_it_comes_after(app: Penstock, one: Own) -> None:
    first = await add(app)
    jobs = [new(after=(first.id,)), new(follows=(0,))]
    second, third = await app.enqueue_many(jobs, connection=one.connection)
    await one.commit()
    for job in (first, second, third):
        [running] = await take(app)
        assert running.id == job.id
        await app.leases.settle([(running, Done())])


async def test_needed_job_that_ends_before_the_commit_is_not_waited_for(
    app: Penstock, one: Own
) -> None:
    first = await add(app)
    second = await within(app, one, after=(first.id,))
    [running] = await take(app)
    await app.leases.settle([(running, Done())])
    await one.commit()
    assert await taken(app) == [second.id]


async def test_job_is_abandoned_with_what_it_needs(app: Penstock, one: Own) -> None:
    first = await add(app)
    jobs = [
        new(after=(first.id,)),
        new(follows=(0,)),
        new(after=(first.id,), on_failure=OnFailure.RUN),
    ]
    second, third, anyway = await app.enqueue_many(jobs, connection=one.connection)
    [running] = await take(app)
    await app.leases.settle([(running, Failed("no", permanent=True))])
    await one.commit()
    assert await taken(app) == [anyway.id]
    for job in (second, third):
        assert (await app.get(job.id)).state is State.CANCELLED
    assert await tally(app) == {
        (State.FAILED, None): 1, (State.CANCELLED, None): 2, (State.RUNNING, None): 1,
    }  # fmt: skip


async def test_needed_job_may_be_gone_at_the_commit(app: Penstock, one: Own) -> None:
    first = await add(app)
    second = await within(app, one, after=(first.id,))
    await app.cancel(first.id)
    await app.delete(first.id)
    await one.commit()
    assert await take(app) == []
    assert (await app.get(second.id)).state is State.CANCELLED


async def test_duplicate_is_the_holder(app: Penstock, one: Own) -> None:
    held = await add(app, dedupe="d", payload='{"n":1}')
    hit, first, again, other = await app.enqueue_many(
        [new(dedupe="d"), new(dedupe="e"), new(dedupe="e"), new()], connection=one.connection
    )
    assert (hit.id, hit.duplicate, hit.payload) == (held.id, True, held.payload)
    assert (again.id, again.duplicate) == (first.id, True)
    assert not first.duplicate
    assert not other.duplicate
    await one.commit()
    assert (await add(app, dedupe="e")).id == first.id
    assert sorted(await taken(app)) == [held.id, first.id, other.id]


async def test_scope_decides_whether_a_running_job_holds_its_dedupe_key(
    app: Penstock, one: Own
) -> None:
    held = await add(app, dedupe="d", scope=Scope.PENDING)
    await take(app)
    assert (await within(app, one, dedupe="d", scope=Scope.UNFINISHED)).id == held.id
    behind = await within(app, one, dedupe="d", scope=Scope.PENDING)
    assert not behind.duplicate
    await one.commit()
    assert await taken(app) == [behind.id]


async def test_length_limit_counts_what_is_committed(app: Penstock, one: Own) -> None:
    await app.limits.queue("default", max_pending=2)
    await add(app)
    await within(app, one)
    with pytest.raises(QueueFull):
        await within(app, one)
    await one.commit()
    with pytest.raises(QueueFull):
        await add(app)


# Together with others


async def test_open_transaction_keeps_nobody_waiting(app: Penstock, one: Own) -> None:
    old = await add(app, dedupe="d", scope=Scope.PENDING)
    ending = await add(app, key="ended")
    [job, running] = await take(app)
    assert (job.id, running.id) == (old.id, ending.id)
    await app.leases.finish(running, connection=one.connection)
    await within(app, one, dedupe="d", scope=Scope.PENDING)
    held = await within(app, one, key="k", tags=("x",), queue="fresh", after=(old.id,))
    await within(app, one, tags=("x",), queue="fresh")
    async with asyncio.timeout(SOON):
        await app.leases.settle([(job, Failed("again"))])  # it takes its dedupe key again
        added = await app.enqueue_many(
            [new(), new(key="k"), new(dedupe="d2"), new(queue="fresh"), new(after=(ending.id,))]
        )
        assert await app.store.renew([running.lease]) == []
        assert await app.store.expired(10) == []
        assert await app.leases.reclaim() == 0
        for _ in range(3):
            for one_job in await take(app):
                await app.leases.settle([(one_job, Done())])
        assert (await app.get(added[-1].id)).state is State.PENDING
        await app.cancel(added[-1].id)
        await app.delete(added[0].id)
        await app.store.prune(Retention(finished=0 * SECOND), 100)
        await app.store.roll_up(1000)
        await app.limits.queue("fresh", concurrency=5)
        await app.log()
    await one.commit()
    async with asyncio.timeout(SOON):
        assert len(await take(app)) == 1
    assert (await app.get(running.id)).state is State.DONE
    assert (await app.get(held.id)).waiting is Waiting.BLOCKED


@pytest.mark.parametrize("commits", [True, False])
async def test_second_with_the_same_dedupe_key_waits_for_the_first(
    app: Penstock, postgres_server: str, one: Own, commits: bool
) -> None:
    first = await within(app, one, dedupe="d")
    async with KINDS["psycopg-async"](postgres_server) as other:
        (pid,) = await (await other.connection.execute("SELECT pg_backend_pid()")).fetchone()
        adding = asyncio.create_task(within(app, other, dedupe="d"))

        async def waits() -> bool:
            asked = "SELECT pid FROM pg_locks WHERE NOT granted"
            return (pid,) in await asyncio.to_thread(ask, postgres_server, asked)

        await eventually(waits)
        await (one.commit() if commits else one.rollback())
        async with asyncio.timeout(SOON):
            second = await adding
        assert second.duplicate is commits
        assert (second.id == first.id) is commits
        await other.commit()
    assert await taken(app) == [second.id]


async def test_dedupe_key_that_was_taken_meanwhile_is_held_by_one(app: Penstock, one: Own) -> None:
    late = await within(app, one, dedupe="d")
    waiting = await within(app, one, after=(late.id,))
    held = await add(app, dedupe="d")
    assert not held.duplicate
    await one.commit()
    assert await taken(app) == [held.id]
    found = await app.get(late.id)
    assert found.state is State.SUPERSEDED
    assert await events_of(app, late) == [Event.ENQUEUED, Event.SUPERSEDED]
    # Who waits for it waits for the one that does its work.
    assert await take(app) == []
    await app.leases.settle([(await app.get(held.id), Done())])
    assert await taken(app) == [waiting.id]


async def test_nothing_is_left_of_a_caller_that_is_killed(
    app: Penstock, one: Own, postgres_server: str
) -> None:
    await add(app, key="k")
    [job] = await take(app)
    await app.leases.finish(job, connection=one.connection)
    await within(app, one, dedupe="d")
    pid = one.connection.info.backend_pid
    ask(postgres_server, f"SELECT pg_terminate_backend({pid}, 30000)")
    one.connection.close()
    assert [found.id for found in await app.find()] == [job.id]
    assert [held.id for held in await app.leases.renew([job.lease])] == [job.id]
    [settled] = await app.leases.settle([(job, Done())])
    assert settled.state is State.DONE
    assert not (await add(app, dedupe="d")).duplicate


async def test_locked_store_accepts_nothing(app: Penstock, own: Own) -> None:
    await add(app)
    [job] = await take(app)
    await app.store.set_migration_lock(
        MigrationLock(phase=MigrationPhase.LEFT, peer=1, place="elsewhere"), expected=None
    )
    with pytest.raises(StoreMoved):
        await within(app, own)
    with pytest.raises(StoreMoved):
        await app.leases.finish(job, connection=own.connection)
    await own.commit()
    assert [found.state for found in await app.find()] == [State.RUNNING]


async def test_lock_waits_for_open_transactions_and_links_their_jobs(
    app: Penstock, one: Own
) -> None:
    first = await add(app)
    job = await within(app, one, after=(first.id,))
    lock = MigrationLock(phase=MigrationPhase.LEAVING, peer=1, place="elsewhere")
    locking = asyncio.create_task(app.store.set_migration_lock(lock, expected=None))

    async def is_locked() -> bool:
        return await app.store.migration_lock() is not None

    await eventually(is_locked)
    assert not locking.done()
    await one.commit()
    async with asyncio.timeout(SOON):
        assert await locking
    assert [edge.needed for edge in await app.edges([job.id])] == [first.id]


async def test_deleted_job_has_released_its_dependents(app: Penstock, one: Own) -> None:
    first = await add(app)
    waiting = await add(app, after=(first.id,))
    [job] = await take(app)
    await app.leases.finish(job, connection=one.connection)
    await one.commit()
    await app.delete(first.id)
    assert await taken(app) == [waiting.id]


async def test_log_is_read_up_to_what_is_still_open(app: Penstock, one: Own) -> None:
    inside = await within(app, one)
    await add(app)
    assert await app.log() == []
    await one.commit()
    assert {entry.job_id for entry in await app.log()} == {inside.id, inside.id + 1}

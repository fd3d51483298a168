"""Own transactions that jobs join, also those of Django and SQLAlchemy."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections, transaction
from msgspec.structs import replace
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    LeaseLost,
    Penstock,
    QueueFull,
    State,
    StoreError,
    Worker,
    run_sync,
)
from penstock.core.job import JobId
from penstock.jobs import Event, Scope, Waiting
from penstock.leases import Done
from tests.contract.support import new
from tests.django.project import set_up
from tests.engine.support import add_one, claim_one, events_of
from tests.environment import SOON

pytestmark = pytest.mark.every_store  # each database joins transactions in a way of its own

set_up()


class Django(NamedTuple):
    """A store in the database of a Django project, which has a table of its own."""

    app: Penstock
    url: str

    def orders(self) -> int:
        """How many orders the project has stored."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM orders")
            count: int = cursor.fetchone()[0]
            return count

    def buy(self) -> None:
        """Store an order and, in the same transaction, a job."""
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (item) VALUES (%s)", ["tea"])
        run_sync(self.app.enqueue("send", {"order": 1}, connection=connection))

    def buy_and_fail(self) -> None:
        """Do the same inside `atomic`, which an error ends."""
        with transaction.atomic():
            self.buy()
            raise ZeroDivisionError


@pytest.fixture(params=["sqlite", "postgres"])
def django(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Django]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/project.db"
        database: dict[str, Any] = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": tmp_path / "project.db",
        }
    else:
        url = request.getfixturevalue("postgres_url")
        database = of_postgres(request.getfixturevalue("postgres_server"))
    app = Penstock(url)
    app.task("send", lambda order: order)
    run_sync(app.count())
    connections.settings["default"] = connections.configure_settings({"default": database})[
        "default"
    ]
    with suppress(AttributeError):  # pytest has looked at `connection` when it collected tests
        del connections["default"]
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS orders")
        cursor.execute("CREATE TABLE orders (item text)")
    yield Django(app, url)
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE orders")
    connections["default"].close()
    del connections["default"]
    run_sync(app.close())


def of_postgres(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    named = dict(pair.split("=", 1) for pair in parts.query.split("&") if pair)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or named.get("host", "").replace("%2F", "/"),
        "PORT": parts.port or "",
    }


def test_job_is_stored_if_and_only_if_django_commits(django: Django) -> None:
    with transaction.atomic():
        django.buy()
        assert run_sync(django.app.find()) == []
    assert (django.orders(), len(run_sync(django.app.find()))) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        django.buy_and_fail()
    assert (django.orders(), len(run_sync(django.app.find()))) == (1, 1)


def test_savepoint_of_django_takes_its_jobs_back(django: Django) -> None:
    with transaction.atomic():
        django.buy()
        with pytest.raises(ZeroDivisionError):
            django.buy_and_fail()
    assert (django.orders(), len(run_sync(django.app.find()))) == (1, 1)


@pytest.mark.parametrize("given", [lambda: connection, lambda: connections["default"]])
def test_proxy_and_wrapper_are_both_taken(django: Django, given: Callable[[], Any]) -> None:
    with transaction.atomic():
        run_sync(django.app.tasks["send"].using(connection=given()).enqueue(1))
    assert len(run_sync(django.app.find())) == 1


def test_job_is_finished_in_a_transaction_of_django(django: Django) -> None:
    run_sync(django.app.enqueue("send", {"order": 1}))
    [job] = run_sync(django.app.leases.claim(worker="w"))
    with transaction.atomic():
        django.buy()
        run_sync(django.app.leases.finish(job, Done('{"sent": true}'), connection=connection))
    assert run_sync(django.app.get(job.id)).returned == {"sent": True}


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_django_connection_in_autocommit_mode_is_refused(django: Django, *, is_open: bool) -> None:
    if not is_open:
        connections["default"].close()
    with pytest.raises(ConfigurationError, match=r"enqueue inside transaction\.atomic\(\)"):
        run_sync(django.app.enqueue("send", {"order": 1}, connection=connection))
    assert run_sync(django.app.find()) == []


def test_transaction_that_django_does_not_manage_is_joined(django: Django) -> None:
    transaction.set_autocommit(False)
    django.buy()
    transaction.rollback()
    django.buy()
    transaction.commit()
    transaction.set_autocommit(True)
    assert (django.orders(), len(run_sync(django.app.find()))) == (1, 1)


def test_cursor_of_django_is_refused(django: Django) -> None:
    with (
        transaction.atomic(),
        connection.cursor() as cursor,
        pytest.raises(ConfigurationError, match=r"pass django\.db\.connection"),
    ):
        run_sync(django.app.enqueue("send", {"order": 1}, connection=cursor))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Penstock]:
    opened = Penstock(f"sqlite:///{tmp_path}/shop.db")
    opened.task("send", lambda order: order)
    run_sync(opened.count())
    with closing(sqlite3.connect(tmp_path / "shop.db")) as own, own:
        own.execute("CREATE TABLE orders (item TEXT)")
    yield opened
    run_sync(opened.close())


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_sqlalchemy_on_sqlite_is_joined(kind: str, app: Penstock, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=NullPool)
    with Session(engine) if kind == "session" else engine.connect() as own:
        for end in (own.rollback, own.commit):
            own.execute(text("INSERT INTO orders VALUES ('tea')"))
            run_sync(app.enqueue("send", {"order": 1}, connection=own))
            end()
        assert own.execute(text("SELECT count(*) FROM orders")).scalar_one() == 1
    assert len(run_sync(app.find())) == 1


def test_other_connections_are_refused_by_name(app: Penstock, tmp_path: Path) -> None:
    session = AsyncSession(create_async_engine("postgresql+asyncpg://nowhere/x"))
    for wrong in (object(), session, tmp_path):
        name = type(wrong).__name__
        with pytest.raises(ConfigurationError, match=f"a SQLite store takes .* not a {name}"):
            run_sync(app.enqueue("send", {"order": 1}, connection=wrong))


# The caller's own transaction


@pytest.fixture
def own(path: Path, file_app: Penstock) -> Iterator[sqlite3.Connection]:
    """The caller's connection to the same file."""
    run_sync(file_app.count())
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (name TEXT)")
    yield connection
    connection.close()


async def within(app: Penstock, connection: Any, **options: Any) -> Job:
    [job] = await app.enqueue_many([new(**options)], connection=connection)
    return job


async def test_job_becomes_visible_with_the_callers_commit(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.execute("INSERT INTO orders VALUES ('tea')")
    job = await within(file_app, own, tags=("x",), payload='{"n":1}')
    assert await file_app.find() == []
    own.commit()
    assert await file_app.get(job.id) == job
    assert await events_of(file_app, job) == [Event.ENQUEUED]
    assert (await file_app.count())["default", State.PENDING, Waiting.READY] == 1


async def test_job_is_gone_with_the_callers_rollback(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.execute("INSERT INTO orders VALUES ('tea')")
    await within(file_app, own)
    own.rollback()
    assert await file_app.find() == []
    assert await file_app.log() == []
    assert dict(await file_app.count()) == {}
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (0,)


async def test_transaction_is_begun_for_a_connection_that_commits_by_hand(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await within(file_app, own)
    assert own.in_transaction
    assert await file_app.find() == []
    own.commit()
    assert len(await file_app.find()) == 1


async def test_task_enqueues_in_the_callers_transaction(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    task = file_app.task("t", lambda n: None)
    await task.using(connection=own).enqueue(1)
    assert await file_app.find() == []
    own.commit()
    assert [job.args for job in await file_app.find()] == [{"n": 1}]


async def test_job_is_done_with_the_callers_commit(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    first, second = await file_app.enqueue_many([new(key="k")] * 2)
    job = await claim_one(file_app)
    done = await file_app.leases.finish(job, Done('"ok"'), connection=own)
    assert (await file_app.get(first.id)).state is State.RUNNING
    own.commit()
    assert await file_app.get(first.id) == done
    assert (done.state, done.returned) == (State.DONE, "ok")
    assert await events_of(file_app, job) == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]
    assert (await claim_one(file_app)).id == second.id


async def test_job_still_runs_after_the_callers_rollback(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await file_app.enqueue_many([new()])
    job = await claim_one(file_app)
    await file_app.leases.finish(job, connection=own)
    own.rollback()
    assert await file_app.get(job.id) == job


async def test_job_that_is_lost_cannot_be_finished(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await file_app.enqueue_many([new()])
    job = await claim_one(file_app)
    await file_app.leases.settle([(job, Done())])
    with pytest.raises(LeaseLost):
        await file_app.leases.finish(job, connection=own)
    with pytest.raises(LeaseLost):
        await file_app.leases.finish(replace(job, id=JobId(777)), connection=own)
    with pytest.raises(ConfigurationError, match=r"sqlite3\.Connection"):
        await file_app.leases.finish(job, connection=object())


def test_synchronous_code_enqueues_in_its_own_transaction(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    with own:
        own.execute("INSERT INTO orders VALUES ('tea')")
        job = run_sync(within(file_app, own))
    assert run_sync(file_app.get(job.id)) == job


async def test_autocommit_without_a_transaction_is_refused(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.isolation_level = None
    with pytest.raises(ConfigurationError, match="begin a transaction first"):
        await within(file_app, own)
    assert await file_app.find() == []
    own.execute("BEGIN IMMEDIATE")
    await within(file_app, own)
    own.execute("COMMIT")
    assert len(await file_app.find()) == 1


async def test_connection_to_another_file_is_refused(
    file_app: Penstock, own: sqlite3.Connection, tmp_path: Path
) -> None:
    for other in (tmp_path / "other.db", ":memory:"):
        connection = sqlite3.connect(other)
        connection.execute("CREATE TABLE t (x)")
        with pytest.raises(ConfigurationError, match="connection"):
            await within(file_app, connection)
        connection.close()
    assert await file_app.find() == []


async def test_file_is_recognised_under_another_name(
    file_app: Penstock, own: sqlite3.Connection, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(path)
    connection = sqlite3.connect(tmp_path / "link.db")
    await within(file_app, connection)
    connection.commit()
    connection.close()
    assert len(await file_app.find()) == 1


@pytest.mark.parametrize("connection", ["jobs.db", object(), 0])
async def test_what_is_no_connection_is_refused(file_app: Penstock, connection: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite3\.Connection"):
        await within(file_app, connection)


async def test_memory_store_takes_no_connection(tmp_path: Path) -> None:
    app = Penstock("memory://")
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ConfigurationError):
        await within(app, connection)
    connection.close()
    assert await app.find() == []


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip([column[0] for column in cursor.description], row, strict=True))


@pytest.mark.parametrize("row_factory", [sqlite3.Row, as_dict])
@pytest.mark.parametrize("text_factory", [str, bytes, lambda raw: raw.decode().upper()])
async def test_factories_of_the_connection_neither_disturb_nor_change(
    file_app: Penstock, own: sqlite3.Connection, row_factory: Any, text_factory: Any
) -> None:
    await file_app.limits.queue("small", 1)
    first = await add_one(file_app, dedupe="d", key="k")
    own.row_factory, own.text_factory = row_factory, text_factory
    met = await within(file_app, own, dedupe="d")
    behind = await within(file_app, own, key="k", queue="small", tags=("x",))
    with pytest.raises(QueueFull):
        await within(file_app, own, queue="small")
    assert (own.row_factory, own.text_factory) == (row_factory, text_factory)
    own.commit()
    assert (met.id, met.duplicate) == (first.id, True)
    assert behind.waiting is Waiting.BLOCKED
    assert await file_app.get(behind.id) == behind


async def test_dedupe_sees_the_jobs_of_the_open_transaction(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    first = await within(file_app, own, dedupe="d", scope=Scope.PENDING)
    second = await within(file_app, own, dedupe="d", scope=Scope.PENDING)
    assert (second.id, second.duplicate) == (first.id, True)
    own.commit()
    assert len(await file_app.find()) == 1


async def test_invalid_job_leaves_the_callers_transaction_as_it_was(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.execute("INSERT INTO orders VALUES ('tea')")
    with pytest.raises(InvalidJob):
        await within(file_app, own, priority=99)
    own.commit()
    assert own.execute("SELECT name FROM orders").fetchall() == [("tea",)]
    assert await file_app.find() == []


async def test_full_queue_leaves_the_callers_transaction_as_it_was(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    await file_app.limits.queue("default", 1)
    own.execute("INSERT INTO orders VALUES ('tea')")
    with pytest.raises(QueueFull):
        await file_app.enqueue_many([new()] * 2, connection=own)
    own.commit()
    assert own.execute("SELECT name FROM orders").fetchall() == [("tea",)]
    assert await file_app.find() == []


async def test_closed_connection_is_a_store_error(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    own.close()
    with pytest.raises(StoreError):
        await within(file_app, own)


async def test_waiting_worker_finds_the_job_after_the_commit(
    file_app: Penstock, own: sqlite3.Connection
) -> None:
    ran = asyncio.Event()

    async def note() -> None:
        ran.set()

    file_app.task("t", note)
    worker = Worker(file_app)
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await within(file_app, own)
        own.commit()
        await ran.wait()
        worker.stop()

"""Connections of other libraries that jobs join: Django's and SQLAlchemy's."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from django import setup
from django.conf import settings
from django.db import connection, connections, transaction
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock import ConfigurationError, Done, Penstock, run_sync

if not settings.configured:
    settings.configure(DATABASES={"default": {}}, USE_TZ=True, LOGGING_CONFIG=None)
    setup()


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
    [job] = run_sync(django.app.claim(worker="w"))
    with transaction.atomic():
        django.buy()
        run_sync(django.app.finish(job, Done('{"sent": true}'), connection=connection))
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

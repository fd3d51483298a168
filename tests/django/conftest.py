"""A fresh database for every test of the Django integration, migrated once for each process."""

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from asgiref.sync import SyncToAsync

from penstock import Penstock, Worker
from tests.django.project import set_up

set_up()

from django.core.management import call_command  # noqa: E402 - after the settings
from django.db import connections  # noqa: E402

from penstock.django import databases  # noqa: E402
from penstock.django.framework import task_backends  # noqa: E402


class Site(NamedTuple):
    """The project with a database of its own."""

    database: dict[str, Any]
    backend: Any

    @property
    def app(self) -> Penstock:
        """The queue in the database of the project."""
        app: Penstock = self.backend.penstock
        return app

    def work(self, **options: Any) -> None:
        """Run the tasks that are ready, with a worker of Penstock."""
        asyncio.run(self._work(options))

    async def _work(self, options: Any) -> None:
        async with self.backend.worker_app() as app:
            await Worker(app, **options).run(until_empty=True)


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """The project on either database."""
    database = request.getfixturevalue(f"{request.param}_database")
    use(database)
    yield Site(database, task_backends["default"])
    forget()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("django") / "template.db"
    use(of_sqlite(path))
    call_command("migrate", verbosity=0)
    forget()
    return path


@pytest.fixture
def sqlite_database(migrated_file: Path, tmp_path: Path) -> dict[str, Any]:
    shutil.copy(migrated_file, tmp_path / "site.db")
    return of_sqlite(tmp_path / "site.db")


@pytest.fixture(scope="session")
def migrated_database(postgres_server: str) -> Iterator[str]:
    name = f"django_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        use(of_postgres(postgres_server, name))
        call_command("migrate", verbosity=0)
        forget()
        yield name
        connection.execute(f"DROP DATABASE {name}")


@pytest.fixture
def postgres_database(migrated_database: str, postgres_server: str) -> Iterator[dict[str, Any]]:
    name = f"{migrated_database}_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_database}")
        yield of_postgres(postgres_server, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def of_sqlite(path: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }


def of_postgres(url: str, name: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }


def use(database: dict[str, Any], alias: str = "default") -> None:
    """Let the project have this database."""
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: database})[
        alias
    ]
    with suppress(AttributeError):
        del connections[alias]


def forget(alias: str = "default") -> None:
    """Close the database, and the queue in it, also in the thread of asynchronous code."""
    databases.close(databases.url_of(connections[alias]))
    _disconnect(alias)
    SyncToAsync.single_thread_executor.submit(_disconnect, alias).result()


def _disconnect(alias: str) -> None:
    with suppress(AttributeError):
        connections[alias].close()
        del connections[alias]

"""Settings, system checks, migrations, and the databases of tests."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections
from django.test import TestCase, override_settings

from penstock import JobQuery, RetryPolicy, Worker, run_sync
from penstock.core.redaction import redacted
from penstock.django import databases
from penstock.django import tasks as declared
from penstock.django.framework import task_backends
from penstock.errors import StoreMissing
from penstock.stores.schemas import status
from tests.django.conftest import of_postgres, of_sqlite, use
from tests.django.project.shop import tasks

BACKEND = "penstock.django.backend.PenstockBackend"


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Any]:
    """A second database, which is migrated by whoever needs it."""
    use(of_sqlite(tmp_path / "another.db"), "another")
    yield connections["another"]
    databases.close(databases.url_of(connections["another"]))
    connections["another"].close()
    del connections["another"]
    del connections.settings["another"]


def problems(**params: Any) -> list[str]:
    """The ids of what the checks find with these settings of the backend."""
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, **params}}):
        return [message.id for message in task_backends["default"].check()]


def test_project_has_no_problems(site: Any) -> None:
    call_command("check", fail_level="INFO")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"retry": RetryPolicy(attempts=5)}, []),
        ({"typo": 1}, ["penstock.E002"]),
        ({"retry": 3}, ["penstock.E002"]),
        ({"modules": "tests.extra"}, ["penstock.E002"]),
        ({"database": "nowhere"}, ["penstock.E003"]),
    ],
)
def test_options_are_checked(site: Any, options: dict[str, Any], found: list[str]) -> None:
    assert problems(OPTIONS=options) == found


def test_missing_app_is_found(site: Any) -> None:
    from django.apps import apps

    with override_settings(
        INSTALLED_APPS=[
            config.name for config in apps.get_app_configs() if config.label != "penstock"
        ]
    ):
        assert "penstock.E001" in problems()


def test_databases_are_checked(site: Any, another: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"OPTIONS": {"database": "another"}}
    assert problems(**given) == []
    monkeypatch.setitem(another.settings_dict, "OPTIONS", {})
    assert problems(**given) == ["penstock.W002"]
    monkeypatch.setitem(another.settings_dict, "NAME", ":memory:")
    assert problems(**given) == ["penstock.W001"]
    monkeypatch.setattr(another, "vendor", "mysql")
    assert problems(**given) == ["penstock.E004"]


def test_task_that_workers_do_not_import_is_found(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.tick.func, "__module__", "elsewhere")
    monkeypatch.setattr(declared, "_declared", {"elsewhere.tick": tasks.tick})
    assert problems() == ["penstock.W003"]
    assert problems(OPTIONS={"modules": ["elsewhere"]}) == []


def test_retry_of_the_settings_is_the_default(site: Any) -> None:
    policy, own = RetryPolicy(attempts=7), RetryPolicy(attempts=2)
    params = {"BACKEND": BACKEND, "OPTIONS": {"retry": policy}}
    with override_settings(TASKS={"default": params}):
        first = tasks.add.enqueue(1, 2)
        second = tasks.add.using(retry=own).enqueue(1, 2)
    assert run_sync(site.app.get(int(first.id))).retry == policy
    assert run_sync(site.app.get(int(second.id))).retry == own


def test_tasks_go_to_the_database_of_their_backend(site: Any, another: Any) -> None:
    call_command("migrate", database="another", verbosity=0)
    params = {
        "default": {"BACKEND": BACKEND},
        "another": {"BACKEND": BACKEND, "OPTIONS": {"database": "another"}},
    }
    with override_settings(TASKS=params):
        result = tasks.add.using(backend="another").enqueue(1, 2)
        assert run_sync(site.app.find()) == []
        (job,) = run_sync(task_backends["another"].penstock.find())
        assert task_backends["another"].get_result(result.id).backend == "another"
    assert str(job.id) == result.id


def test_schedule_belongs_to_the_workers_of_its_backend(site: Any, another: Any) -> None:
    call_command("migrate", database="another", verbosity=0)
    params = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]},
        "another": {"BACKEND": BACKEND, "OPTIONS": {"database": "another"}},
    }
    with override_settings(TASKS=params):
        result = tasks.add.using(backend="another").enqueue(1, 2)
        for alias in params:
            asyncio.run(work(task_backends[alias]))
        schedules = {
            alias: [one.name for one in run_sync(task_backends[alias].penstock.schedules.list())]
            for alias in params
        }
        assert task_backends["another"].get_result(result.id).return_value == 3
    assert schedules == {"default": [tasks.tick.module_path], "another": []}


async def work(backend: Any) -> None:
    async with backend.worker_app() as app:
        await Worker(app).run(until_empty=True)


def test_database_without_tables_is_refused_with_the_remedy(site: Any, another: Any) -> None:
    params = {"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "another"}}}
    with another.cursor() as cursor:
        cursor.execute("CREATE TABLE other (id int)")
    with override_settings(TASKS=params), pytest.raises(StoreMissing) as refused:
        tasks.add.enqueue(1, 2)
    assert refused.value.__notes__ == ["run: manage.py migrate"]


@pytest.mark.every_store
def test_migrations_can_be_repeated_and_keep_the_jobs(site: Any) -> None:
    result = tasks.add.enqueue(1, 2)
    call_command("migrate", "penstock", "zero", verbosity=0)
    call_command("migrate", verbosity=0)
    result.refresh()
    assert result.status == "READY"
    found = status(databases.url_of(connection))
    assert found is not None
    assert found.is_current
    call_command("makemigrations", "--check", "--dry-run", "penstock", stdout=io.StringIO())


def test_database_in_memory_is_migrated_and_refuses_tasks(site: Any, another: Any) -> None:
    """As that of a project's tests on SQLite, where most enqueue nothing."""
    use({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "another")
    call_command("migrate", database="another", verbosity=0)
    params = {"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "another"}}}
    with (
        override_settings(TASKS=params),
        pytest.raises(ImproperlyConfigured, match="dummy or immediate backend"),
    ):
        tasks.add.enqueue(1, 2)
    use(of_sqlite(Path("/nowhere/another.db")), "another")


@pytest.mark.every_store
def test_test_database_is_made_used_and_destroyed(site: Any) -> None:
    """With the test runner of Django; PostgreSQL drops no database that is in use."""
    connection.settings_dict["TEST"]["NAME"] = (
        f"{site.database['NAME']}.test" if connection.vendor == "sqlite" else None
    )
    before = connection.settings_dict["NAME"]
    name = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    assert name != before

    class OfProject(TestCase):
        def test_enqueue(self) -> None:
            with self.captureOnCommitCallbacks():
                result = tasks.add.enqueue(1, 2)
            assert tasks.add.get_result(result.id).status == "READY"
            run_sync(task_backends["default"].penstock.count())

    outcome = OfProject("test_enqueue").run()
    connection.creation.destroy_test_db(before, verbosity=0)
    assert outcome is not None
    assert outcome.wasSuccessful(), outcome.errors
    assert connection.settings_dict["NAME"] == before


@pytest.mark.every_store
def test_jobs_can_be_removed_after_a_test_without_a_transaction(site: Any) -> None:
    """A flush of Django empties the tables of models, and leaves those of the queue."""
    tasks.add.enqueue(1, 2)
    tasks.fail.using(retry=RetryPolicy(attempts=1)).enqueue()
    site.work()
    tasks.add.enqueue(3, 4)
    call_command("flush", interactive=False, verbosity=0)
    assert len(run_sync(site.app.find())) == 3
    jobs = site.app.bulk(JobQuery())  # as the documentation says
    jobs.sync.cancel()
    jobs.sync.delete()
    assert run_sync(site.app.find()) == []
    assert tasks.add.enqueue(1, 2).status == "READY"


@pytest.mark.parametrize(
    "changes",
    [
        {"PASSWORD": "p@:/? %w#", "USER": "o'hara"},
        {"HOST": "/var/run/postgresql", "PORT": ""},
        {"HOST": "::1"},
        {"HOST": "", "PORT": "", "USER": "", "PASSWORD": ""},
        {"OPTIONS": {"sslmode": "require", "connect_timeout": 3, "pool": False}},
        {"OPTIONS": {"options": "-c search_path=shop"}},
    ],
)
def test_url_of_postgres(changes: dict[str, Any]) -> None:
    """The driver reads in the URL what Django gives it."""
    import psycopg

    from penstock.stores.postgres.connection import address

    given = {**of_postgres("postgresql://me:secret@db:5433/x", "shop"), **changes}
    use(given, "elsewhere")
    url = databases.url_of(connections["elsewhere"])
    read = psycopg.conninfo.conninfo_to_dict(address(url).conninfo)
    names = {
        "dbname": "NAME",
        "user": "USER",
        "password": "PASSWORD",
        "host": "HOST",
        "port": "PORT",
    }
    assert {name: read.get(name, "") for name in names} == {
        name: str(given[of_django]) for name, of_django in names.items()
    }
    for name, value in changes.get("OPTIONS", {}).items():
        assert name == "pool" or read[name] == str(value)
    assert not given["PASSWORD"] or given["PASSWORD"] not in redacted(url)
    del connections["elsewhere"]
    del connections.settings["elsewhere"]


def test_transaction_pooler_is_noticed() -> None:
    given = {**of_postgres("postgresql://me@db/x", "shop"), "DISABLE_SERVER_SIDE_CURSORS": True}
    use(given, "elsewhere")
    assert "pooler=transaction" in databases.url_of(connections["elsewhere"])
    del connections["elsewhere"]
    del connections.settings["elsewhere"]


def test_nothing_of_it_is_imported_unless_used() -> None:
    code = "import penstock, penstock.cli.main, sys; sys.exit('django' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

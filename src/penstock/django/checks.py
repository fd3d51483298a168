"""System checks of the backend, which `manage.py check` runs."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.db import connections

from penstock.core.retry import RetryPolicy
from penstock.django import databases, tasks

OPTIONS = ("database", "modules", "retry")
"""What `OPTIONS` of the backend may contain."""


def check_backend(backend: Any) -> Iterator[CheckMessage]:
    """Check the settings of a backend, its database and its tasks."""
    if not apps.is_installed("penstock.django"):
        yield Error(
            "a backend of TASKS is Penstock, but its app is not installed",
            hint='Add "penstock.django" to INSTALLED_APPS.',
            id="penstock.E001",
        )
    yield from _check_options(backend)
    if backend.database in connections:
        yield from _check_database(connections[backend.database])
    else:
        yield Error(
            f"TASKS[{backend.alias!r}] uses a database {backend.database!r}, "
            "which DATABASES does not have",
            id="penstock.E003",
        )
    yield from _check_tasks(backend)


def _check_options(backend: Any) -> Iterator[CheckMessage]:
    where = f"OPTIONS of TASKS[{backend.alias!r}]"
    for name in sorted(backend.options.keys() - set(OPTIONS)):
        yield Error(
            f"{where} contain {name!r}, which is not an option",
            hint=f"The options are {', '.join(OPTIONS)}.",
            id="penstock.E002",
        )
    retry = backend.options.get("retry")
    if retry is not None and not isinstance(retry, RetryPolicy):
        yield Error(f"retry in {where} must be a penstock.RetryPolicy", id="penstock.E002")
    if isinstance(backend.modules, str):
        yield Error(f"modules in {where} must be a list of names", id="penstock.E002")


def _check_database(connection: Any) -> Iterator[CheckMessage]:
    obstacle = databases.obstacle_of(connection)
    if obstacle is not None:
        # Tests of a project may have such a database and enqueue nothing.
        kind = Warning if databases.is_in_memory(connection) else Error
        yield kind(obstacle, id="penstock.E004" if kind is Error else "penstock.W001")
    elif connection.vendor == "sqlite" and _begins_without_lock(connection):
        yield Warning(
            f"transactions of DATABASES[{connection.alias!r}] begin without the lock that an "
            "enqueue needs, and may fail at it with 'database is locked'",
            hint='Set "transaction_mode": "IMMEDIATE" in OPTIONS of the database.',
            id="penstock.W002",
        )


def _begins_without_lock(connection: Any) -> bool:
    mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
    return str(mode).upper() == "DEFERRED"


def _check_tasks(backend: Any) -> Iterator[CheckMessage]:
    if isinstance(backend.modules, str) or not apps.ready:
        return
    for path, task in tasks.declared().items():
        if task.backend == backend.alias and not tasks.is_loaded_by_workers(task, backend.modules):
            yield Warning(
                f"workers do not import the module of task {path}, and so do not run it",
                hint="Move it to the module `tasks` of an installed app, or add its module to "
                f"OPTIONS['modules'] of TASKS[{backend.alias!r}].",
                id="penstock.W003",
            )

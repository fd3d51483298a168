"""Backends of Django's Tasks framework, each in a project of its own, with durable settings."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import json
import os
import signal
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import postgres
from benchmarks.contenders import Handle, Payload

SETTINGS = "benchmarks.contenders.django.settings"


class DjangoQueue:
    """A project with one task, which does nothing.

    Every backend gets the same database settings: on SQLite a write-ahead log that is synced with
    every commit, on PostgreSQL connections that stay open. Workers run as their commands do.
    """

    backend = ""
    apps: Sequence[str] = ()
    on_postgres = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        set_up(self._database(), self.backend, self.apps)
        self.tasks: Any = import_module("benchmarks.contenders.django.tasks")
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def _database(self) -> dict[str, Any]:
        if not self.on_postgres:
            return {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(self.folder.resolve() / "site.db"),
                "OPTIONS": {
                    "transaction_mode": "IMMEDIATE",
                    "timeout": 20,
                    "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL",
                },
            }
        parts = urlsplit(postgres.url_of(self.folder))
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.strip("/"),
            "USER": parts.username,
            "PASSWORD": parts.password,
            "HOST": parts.hostname,
            "PORT": parts.port,
            "CONN_MAX_AGE": None,
        }

    def enqueue(self, payload: Payload) -> None:
        self.tasks.noop.enqueue(payload)

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        """Enqueue one by one inside `atomic`: the framework has no other way."""
        from django.db import transaction

        with transaction.atomic():
            for payload in payloads:
                self.tasks.noop.enqueue(payload)

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)
        if self.on_postgres:
            postgres.rest(self.folder)

    def drain(self, handle: Handle) -> None:
        self.tasks.handle = stopping(handle)
        self.work(until_empty=True)

    def serve(self, handle: Handle) -> None:
        self.tasks.handle = stopping(handle)
        self.work(until_empty=False)

    def work(self, *, until_empty: bool) -> None:
        """Run the worker of the backend in this process, until SIGTERM."""
        raise NotImplementedError

    def close(self) -> None:
        from django.db import connections

        connections.close_all()


def set_up(database: dict[str, Any], backend: str, apps: Sequence[str]) -> None:
    """Set Django up, once in a process, and so for one project."""
    os.environ["BENCHMARK_DJANGO"] = json.dumps([database, backend, list(apps)])
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    import django
    from django.apps import apps as registry

    if not registry.ready:
        django.setup()


def stopping(handle: Handle) -> Handle:
    """Stop the worker as an administrator does, once, when the handler has seen enough."""
    enough = threading.Lock()

    def handled(payload: Payload) -> bool:
        if not handle(payload) and enough.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    return handled

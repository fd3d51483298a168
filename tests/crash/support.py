"""What the crash tests share: recovering a store, and holding its history against the promises."""

import contextlib
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.core.lifecycle import Done
from penstock.engine import run_sync
from penstock.stores.postgres.connection import address
from tests.crash.client import Client
from tests.crash.history import check, read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import is_journal, is_postgres, read_history, store_url

QUEUES = ("default", "limited", "valve")
on_both = pytest.mark.parametrize("folder", ["sqlite", "postgres"], indirect=True)
"""A test of what holds on every store that processes share."""


@contextmanager
def client(folder: Path, role: str = "test", **options: object) -> Iterator[Client]:
    """A client in the process of the test."""
    app = Client(role, folder, options)
    try:
        yield app
    finally:
        run_sync(app.close())
        app.recorder.close()
        app.fence.close()


def finish_by_hand(folder: Path) -> None:
    """Recover a store and do all that is left, with a clock that is always past every lease."""
    with client(folder, "finisher") as app:
        for queue in QUEUES:
            run_sync(app.resume(queue))
        while run_sync(app.store.backlog())[0]:
            app.offset += 10
            run_sync(app.reclaim())
            for job in run_sync(app.claim(worker=app.actor, limit=100)):
                run_sync(app.settle([(app.handle(job), Done())]))


def drain(zygote: Zygote, folder: Path, **options: Any) -> None:
    """Recover a store and do all that is left, by a healthy worker."""
    with client(folder, "test", **options) as app:
        for queue in QUEUES:
            run_sync(app.resume(queue))
        healthy = zygote.start("worker", folder, **options)
        until(
            lambda: healthy.ended or not run_sync(app.store.backlog())[0],
            "a healthy worker does not finish the jobs",
        )
        healthy.stop()


def stop_between_writes(folder: Path, child: Child) -> None:
    """Stop a process while it writes nothing: else all others would wait for it to go on.

    PostgreSQL lets them wait for a while only.
    """
    if is_postgres(folder):
        child.signal(signal.SIGSTOP)
        return
    connection = sqlite3.connect(folder / "jobs.db", timeout=60, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    child.signal(signal.SIGSTOP)
    connection.execute("ROLLBACK")
    connection.close()


def assert_promises_kept(folder: Path, context: object = "", **options: object) -> None:
    """Nothing was lost, doubled, misordered, stuck or forgotten, and the file is sound."""
    wait_for_writers(folder)
    violations = check(read_history(folder), read_store(folder), **options)  # type: ignore[arg-type] # options as data
    assert not violations, (context, *violations)
    if is_journal(folder):
        return
    if not is_postgres(folder):
        assert ask(folder, "PRAGMA integrity_check") == [("ok",)], context
    if options.get("drained", True):
        ready = ask(folder, f"SELECT count(*) FROM {table(folder, 'ready_tag')}")  # noqa: S608 - names of our own
        assert ready == [(0,)], (context, "finished jobs could be claimed by their tags")


def table(folder: Path, name: str) -> str:
    """What a table of the store is called in its database."""
    if is_postgres(folder):
        return f"{address(store_url(folder)).schema}.{name}"
    return f"penstock_{name}"


def ask(folder: Path, sql: str) -> list[Any]:
    """Ask the database itself, past the store."""
    if is_postgres(folder):
        with psycopg.connect(address(store_url(folder)).conninfo, autocommit=True) as postgres:
            return postgres.execute(sql.encode()).fetchall()
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as sqlite:
        return sqlite.execute(sql).fetchall()


def wait_for_writers(folder: Path) -> None:
    """Wait until PostgreSQL has noticed that clients are dead: they may have been writing."""
    if not is_postgres(folder):
        return
    log = f"'{table(folder, 'log')}'::regclass"
    held = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {log}"  # noqa: S608 - names of our own
    until(lambda: ask(folder, held) == [(0,)], "a transaction does not end")

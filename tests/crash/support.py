"""What the crash tests share: recovering a store, and holding its history against the promises."""

import contextlib
import signal
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from penstock.core.lifecycle import Done, State
from penstock.engine.penstock import run_sync
from penstock.stores.postgres.connection import address
from tests.crash.client import Client
from tests.crash.history import Violation, check, read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import (
    Claimed,
    Settled,
    Told,
    is_journal,
    is_postgres,
    read_history,
    store_url,
)
from tests.postgres import within

CAST = ("steady_producer", "steady_producer", "worker", "worker")
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
            run_sync(app.queues.resume(queue))
        while run_sync(app.store.backlog())[0]:
            app.offset += 10
            run_sync(app.leases.reclaim())
            for job in run_sync(app.leases.claim(worker=app.connection.actor, limit=100)):
                run_sync(app.leases.settle([(app.handle(job), Done())]))


def drain(zygote: Zygote, folder: Path, **options: Any) -> None:
    """Recover a store and do all that is left, by a healthy worker."""
    with client(folder, "test", **options) as app:
        for queue in QUEUES:
            run_sync(app.queues.resume(queue))
        healthy = zygote.start("worker", folder, **options)
        until(
            lambda: healthy.ended or not run_sync(app.store.backlog())[0],
            "a healthy worker does not finish the jobs",
        )
        healthy.stop()


def use(folder: Path, url: str) -> None:
    """Let the clients of a folder keep their jobs in a new schema there."""
    (folder / "url").write_text(within(url, f"t_{uuid.uuid4().hex[:16]}"))


@contextmanager
def at_work(zygote: Zygote, folder: Path) -> Iterator[list[Child]]:
    """Producers and workers; none may end before it is asked to, and all is done in the end."""
    actors = [
        zygote.start(role, folder, seed=n, clock="server", outages=True)
        for n, role in enumerate(CAST)
    ]
    wait_for_all(folder)
    yield actors
    for actor in actors:
        assert not actor.ended, (folder / "errors.txt").read_text()
        actor.stop()
    drain(zygote, folder, clock="server", outages=True)
    assert_promises_kept(folder)


def wait_for_all(folder: Path) -> None:
    """Wait until each client has been answered, from now on."""
    since = time.monotonic_ns()

    def all_go_on() -> bool:
        heard = {
            note.client
            for note in read_history(folder)
            if note.at > since and isinstance(note, Told | Claimed | Settled)
        }
        return len(heard) >= len(CAST)

    until(all_go_on, "somebody does not go on", pause=0.1)


def wait_for_another(app: Client) -> None:
    """Check that work continues, whatever was killed."""
    before = done(app)
    until(lambda: done(app) > before, "nothing is done any more")


def done(app: Client) -> int:
    """Return how many jobs have succeeded."""
    counts = run_sync(app.count())
    return sum(n for (_, state, _), n in counts.items() if state is State.DONE)


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


class Scene(NamedTuple):
    """What is played by how many clients, where they die, and whether others clean up."""

    role: str
    clients: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    cleaned_up: bool = True


SCENES = {
    "stale settle": Scene("stale_settle"),
    "two by turns": Scene("two_by_turns"),
    "dies while enqueueing": Scene("enqueues", options={"point": "before COMMIT 5"}),
    "dies while enqueueing batches": Scene("batches", options={"point": "before COMMIT 5"}),
    "dies in the handler": Scene("works", options={"point": "at handling 2"}),
    "a key": Scene("jobs_of_a_key"),
    "race for a dedupe key": Scene("race", clients=2, options={"job": {"dedupe": "d"}}),
    "race for the last place": Scene("race", clients=2, options={"job": {"queue": "limited"}}),
    "silent worker": Scene("silent_worker", cleaned_up=False),
    "pause": Scene("pause"),
}


def play(zygote: Zygote, folder: Path, scene: Scene, variant: str | None) -> Sequence[Violation]:
    """What the checker finds after a scene, with or without a broken variant."""
    children = [
        zygote.start(scene.role, folder, variant=variant, **scene.options)
        for _ in range(scene.clients)
    ]
    for child in children:
        assert child.wait() in (0, -signal.SIGKILL), (folder / "errors.txt").read_text()
    if scene.cleaned_up:
        finish_by_hand(folder)
    wait_for_writers(folder)
    return check(read_history(folder), read_store(folder))

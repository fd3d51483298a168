"""PostgreSQL goes away under load, as a whole or one backend at a time: all wait, and go on.

The number of outages is that of the environment variable PENSTOCK_OUTAGES.
"""

import contextlib
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.core.errors import StoreUnavailable
from penstock.engine import run_sync
from penstock.stores.postgres import store
from penstock.stores.postgres.connection import address
from tests.crash.history import check, read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.proxy import BEFORE, MOMENTS, Proxy
from tests.crash.recording import Claimed, Refused, Settled, Told, read_history, store_url
from tests.crash.support import assert_promises_kept, client, drain
from tests.crash.variants_postgres import reading
from tests.postgres import PostgresServer, within

OUTAGES = int(os.environ.get("PENSTOCK_OUTAGES", "4"))
BACK_WITHIN = 30.0
"""Seconds in which everybody works again after an outage."""
CAST = ("steady_producer", "steady_producer", "worker", "worker")
# What was not committed reaches the disk late: so crashes lose as much as they can.
SETTINGS = {"fsync": "on", "max_connections": "40", "wal_writer_delay": "10s"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One whose crashes are nobody else's."""
    with PostgresServer.create(SETTINGS) as started:
        yield started


@pytest.fixture
def folder(server: PostgresServer, tmp_path: Path) -> Path:
    use(tmp_path, server.url)
    return tmp_path


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

    until(all_go_on, "somebody does not go on", pause=0.1, within=BACK_WITHIN)


@contextmanager
def administered(server: PostgresServer) -> Iterator["psycopg.Connection[Any]"]:
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(server.url, autocommit=True, options=options) as connection:
        yield connection


def backends(connection: "psycopg.Connection[Any]") -> list[int]:
    found = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock'"
    )
    return [pid for (pid,) in found]


@pytest.mark.timeout(120 + 60 * OUTAGES)
@pytest.mark.parametrize("stop", [PostgresServer.stop, PostgresServer.kill], ids=["stop", "kill"])
def test_server_goes_away_and_comes_back(
    stop: Callable[[PostgresServer], None], server: PostgresServer, zygote: Zygote, folder: Path
) -> None:
    rng = random.Random(1)
    with at_work(zygote, folder):
        for _ in range(OUTAGES):
            stop(server)
            time.sleep(rng.uniform(0, 0.5))
            server.start()
            wait_for_all(folder)


def crash_at_a_commit(server: PostgresServer, folder: Path) -> None:
    """Crash while one client commits; another gets the number of its transaction, and commits."""
    with Proxy(server.url) as proxy, client(folder, clock="server") as other:
        run_sync(other.enqueue_many([other.new()]))
        through(proxy, folder)

        def crash() -> str:
            proxy.choose = lambda: None
            server.kill()
            server.start()
            for _ in range(20):
                run_sync(other.enqueue_many([other.new()]))
            return BEFORE

        with client(folder, clock="server") as app:
            run_sync(app.count())
            proxy.choose = crash
            with contextlib.suppress(StoreUnavailable):
                run_sync(app.enqueue_many([app.new()]))
            run_sync(app.enqueue_many([app.new()]))
            assert run_sync(app.store.backlog())[0] == 22
    (folder / "url").write_text(store_url(folder).replace(place(proxy.url), place(server.url)))


def place(url: str) -> str:
    return urlsplit(url).netloc


def test_server_crashes_at_a_commit(server: PostgresServer, folder: Path) -> None:
    crash_at_a_commit(server, folder)
    assert_promises_kept(folder, drained=False)
    assert len(refusals(folder, 0, "try again")) == 1


def test_writer_that_trusts_a_number_is_mistaken(
    monkeypatch: pytest.MonkeyPatch, server: PostgresServer, folder: Path
) -> None:
    """A broken variant: it takes the commit of another transaction for its own."""
    monkeypatch.setitem(vars(store), "queries", reading("life", ".life()", ".life() * 0"))
    crash_at_a_commit(server, folder)
    found = check(read_history(folder), read_store(folder), drained=False)
    assert 1 in {violation.promise for violation in found}


def through(proxy: Proxy, folder: Path) -> None:
    """Let clients that come from now on speak through a proxy."""
    (folder / "url").write_text(within(proxy.url, address(store_url(folder)).schema))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "jobs", [[{}], [{}, {}], [{"key": "k"}], [{"dedupe": "d"}]], ids=["one", "two", "key", "dedupe"]
)
def test_connection_is_cut_at_the_commit_of_an_enqueue(
    moment: str, jobs: list[dict[str, Any]], server: PostgresServer, folder: Path
) -> None:
    with Proxy(server.url) as proxy:
        through(proxy, folder)
        with client(folder, clock="server") as app:
            run_sync(app.enqueue_many([app.new()]))
            proxy.cut_once(moment)
            new = [app.new(**options) for options in jobs]
            if moment == BEFORE:
                with pytest.raises(StoreUnavailable):
                    run_sync(app.enqueue_many(new))
            else:
                stored = run_sync(app.enqueue_many(new))
                assert [job.duplicate for job in stored] == [False] * len(jobs)
            assert proxy.cuts == 1
            left, _ = run_sync(app.store.backlog())
            assert left == 1 + len(jobs) * (moment != BEFORE)
            run_sync(app.enqueue_many([app.new()]))
        assert_promises_kept(folder, drained=False)


@pytest.mark.timeout(300)
def test_connections_are_cut_at_commits(
    server: PostgresServer, zygote: Zygote, folder: Path
) -> None:
    with Proxy(server.url) as proxy:
        through(proxy, folder)
        with at_work(zygote, folder):
            proxy.cut_often(random.Random(1), 0.3)
            until(lambda: proxy.cuts >= 12 * OUTAGES, "too little is cut", within=120)
            proxy.choose = lambda: None
            wait_for_all(folder)


@pytest.mark.timeout(300)
def test_backends_are_terminated(server: PostgresServer, zygote: Zygote, folder: Path) -> None:
    rng = random.Random(1)
    with at_work(zygote, folder), administered(server) as admin:
        for _ in range(10 * OUTAGES):
            for pid in backends(admin):
                if rng.random() < 0.3:
                    admin.execute("SELECT pg_terminate_backend(%s)", [pid])
            time.sleep(rng.uniform(0, 0.1))
        wait_for_all(folder)


@pytest.mark.timeout(120 + 60 * OUTAGES)
def test_backends_crash_and_take_the_server_with_them(
    server: PostgresServer, zygote: Zygote, folder: Path
) -> None:
    rng = random.Random(1)
    with at_work(zygote, folder):
        for _ in range(max(2, OUTAGES // 2)):
            with administered(server) as admin:
                victim = rng.choice(backends(admin))
            os.kill(victim, signal.SIGKILL)
            wait_for_all(folder)


@pytest.mark.timeout(300)
def test_server_is_read_only_for_a_while(
    server: PostgresServer, zygote: Zygote, folder: Path
) -> None:
    with at_work(zygote, folder), administered(server) as admin:
        try:
            admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            admin.execute("SELECT pg_reload_conf()")
            since = time.monotonic_ns()
            until(
                lambda: bool(refusals(folder, since, "StoreUnavailable")),
                "nobody is refused",
                pause=0.1,
            )
        finally:
            admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            admin.execute("SELECT pg_reload_conf()")
        wait_for_all(folder)


def refusals(folder: Path, since: int, reason: str) -> list[Refused]:
    """The enqueues that were refused for this reason since then."""
    return [
        note
        for note in read_history(folder)
        if note.at > since and isinstance(note, Refused) and reason in note.error
    ]


@pytest.mark.timeout(300)
def test_others_take_all_connections_for_a_while(
    server: PostgresServer, zygote: Zygote, folder: Path
) -> None:
    hogs: list[psycopg.Connection[Any]] = []

    def grab(admin: "psycopg.Connection[Any]") -> None:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                hogs.append(psycopg.connect(server.url))
        for pid in backends(admin):
            admin.execute("SELECT pg_terminate_backend(%s, 1000)", [pid])

    with at_work(zygote, folder), administered(server) as admin:
        since = time.monotonic_ns()
        while not refusals(folder, since, "too many clients"):
            grab(admin)
        for hog in hogs:
            hog.close()
        wait_for_all(folder)

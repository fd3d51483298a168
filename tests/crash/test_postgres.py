"""PostgreSQL goes away under load, as a whole or one backend at a time: all wait, and go on.

The number of outages is that of the environment variable PENSTOCK_OUTAGES.
"""

import asyncio
import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import Claim
from penstock.engine.penstock import run_sync
from penstock.stores.postgres import database, scan_positions, writer
from penstock.stores.postgres.connection import address
from tests import tiers
from tests.crash.client import Client
from tests.crash.history import check, read_store
from tests.crash.processes import Zygote, until
from tests.crash.proxy import BEFORE, MOMENTS, Proxy
from tests.crash.recording import Refused, read_history, store_url
from tests.crash.support import assert_promises_kept, at_work, client, use, wait_for_all
from tests.crash.variants_postgres import reading
from tests.postgres import PostgresServer, within

OUTAGES = tiers.amount(2, 4, "PENSTOCK_OUTAGES")
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


@pytest.mark.timeout(1100 + 60 * OUTAGES)
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


def crash_at_a_commit(server: PostgresServer, folder: Path, **options: str) -> int:
    """Crash while one client commits; another gets the number of its transaction, and commits.

    Return how many jobs there are then; 23 are those of other commits.
    """
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
            run_sync(app.enqueue_many([app.new()]))
            proxy.choose = crash
            with contextlib.suppress(StoreUnavailable):
                run_sync(app.enqueue_many([app.new(**options)]))
            run_sync(app.enqueue_many([app.new()]))
            left, _ = run_sync(app.store.backlog())
    (folder / "url").write_text(store_url(folder).replace(place(proxy.url), place(server.url)))
    return left


def place(url: str) -> str:
    return urlsplit(url).netloc


def test_server_crashes_at_a_commit(server: PostgresServer, folder: Path) -> None:
    assert crash_at_a_commit(server, folder, key="k") == 23
    assert_promises_kept(folder, drained=False)
    assert len(refusals(folder, 0, "try again")) == 1


def test_server_crashes_at_a_commit_in_one_round_trip(server: PostgresServer, folder: Path) -> None:
    """It left no receipt, and its session is gone: it is run again."""
    assert crash_at_a_commit(server, folder) == 24
    assert_promises_kept(folder, drained=False)
    assert not refusals(folder, 0, "try again")


def test_writer_that_trusts_a_number_is_mistaken(
    monkeypatch: pytest.MonkeyPatch, server: PostgresServer, folder: Path
) -> None:
    """A broken variant: it takes the commit of another transaction for its own."""
    monkeypatch.setitem(vars(database), "queries", reading("session", ".life()", ".life() * 0"))
    crash_at_a_commit(server, folder, key="k")
    found = check(read_history(folder), read_store(folder), drained=False)
    assert 1 in {violation.promise for violation in found}


def test_calls_of_a_commit_in_doubt_are_not_done_again(
    monkeypatch: pytest.MonkeyPatch, server: PostgresServer, folder: Path
) -> None:
    """The outcome is unknown: each caller of the group gets that error, and nothing is retried."""
    monkeypatch.setattr(writer, "_DOUBT", 0.1)

    async def enqueue(app: Client) -> list[object]:
        with vars(app.store)["database"]._group.lock:  # all of them have come before it begins
            calls = [asyncio.ensure_future(app.enqueue_many([app.new()])) for _ in range(3)]
            await asyncio.sleep(0)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    def crash() -> str:
        server.kill()
        return BEFORE

    with Proxy(server.url) as proxy:
        through(proxy, folder)
        with client(folder, clock="server") as app:
            run_sync(app.enqueue_many([app.new()]))
            proxy.choose = crash
            answers = asyncio.run(enqueue(app))
            proxy.choose = lambda: None
            server.start()
            assert all(isinstance(answer, StoreUnavailable) for answer in answers)
            assert all("may or may not" in str(answer) for answer in answers)
            assert run_sync(app.store.backlog())[0] == 1
        assert_promises_kept(folder, drained=False)


def test_connection_that_is_stuck_in_a_command_is_released(folder: Path) -> None:
    """The driver gave up waiting for an answer, and calls the connection open."""
    with client(folder, clock="server") as app:
        run_sync(app.enqueue_many([app.new()]))
        connection = vars(app.store)["database"]._writer._connection
        connection.pgconn.send_query(b"SELECT 1")
        run_sync(app.enqueue_many([app.new()]))
        assert connection.closed
    assert_promises_kept(folder, drained=False)


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
            is_refused = moment == BEFORE and any(jobs)  # others leave receipts, and are run again
            if is_refused:
                with pytest.raises(StoreUnavailable):
                    run_sync(app.enqueue_many(new))
            else:
                stored = run_sync(app.enqueue_many(new))
                assert [job.duplicate for job in stored] == [False] * len(jobs)
            assert proxy.cuts == 1
            left, _ = run_sync(app.store.backlog())
            assert left == 1 + len(jobs) * (not is_refused)
            run_sync(app.enqueue_many([app.new()]))
        assert_promises_kept(folder, drained=False)


@pytest.mark.parametrize("moment", MOMENTS)
def test_connection_is_cut_at_the_commit_of_a_claim(
    moment: str, monkeypatch: pytest.MonkeyPatch, server: PostgresServer, folder: Path
) -> None:
    """The worker gets the jobs that it has claimed, although it never heard the answer."""
    monkeypatch.setattr(scan_positions, "_SLOW", math.inf)  # all in one round trip
    with Proxy(server.url) as proxy:
        through(proxy, folder)
        with client(folder, clock="server") as app:
            run_sync(app.enqueue_many([app.new() for _ in range(4)]))
            run_sync(app.store.claim(Claim(worker="w", limit=1)))
            proxy.cut_once(moment)
            jobs = run_sync(app.store.claim(Claim(worker="w", limit=2)))
            assert proxy.cuts == 1
            assert [job.attempt for job in jobs] == [1, 1]
            assert run_sync(app.store.get([job.id for job in jobs])) == jobs
            assert len(run_sync(app.store.claim(Claim(worker="w", limit=10)))) == 1


def test_connections_are_cut_at_commits(
    server: PostgresServer, zygote: Zygote, folder: Path
) -> None:
    with Proxy(server.url) as proxy:
        through(proxy, folder)
        with at_work(zygote, folder):
            proxy.cut_often(random.Random(1), 0.3)
            until(lambda: proxy.cuts >= 12 * OUTAGES, "too little is cut")
            proxy.choose = lambda: None
            wait_for_all(folder)


def test_backends_are_terminated(server: PostgresServer, zygote: Zygote, folder: Path) -> None:
    rng = random.Random(1)
    with at_work(zygote, folder), administered(server) as admin:
        for _ in range(10 * OUTAGES):
            for pid in backends(admin):
                if rng.random() < 0.3:
                    admin.execute("SELECT pg_terminate_backend(%s)", [pid])
            time.sleep(rng.uniform(0, 0.1))
        wait_for_all(folder)


@pytest.mark.timeout(1100 + 60 * OUTAGES)
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

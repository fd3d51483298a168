"""A standby of PostgreSQL is promoted under load: all go on with it, and no token comes twice.

Two real servers in streaming replication. With `-s`, each test prints what it measured.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock import Job, NewJob, Penstock, run_sync
from penstock.leases import Done
from penstock.stores.postgres import timeline
from tests import tiers
from tests.crash.history import check, read_store
from tests.crash.processes import Zygote, until
from tests.crash.recording import Claimed, Told, read_history
from tests.crash.support import ask, at_work, client, table, use, wait_for_all, wait_for_writers
from tests.postgres import PostgresServer

SETTINGS = {"fsync": "on", "max_connections": "60", "wal_writer_delay": "10s"}
STEP = 2**40
PROMISED = 30.0
"""Seconds after a promotion within which all go on; it takes about one."""


class Pair:
    """A primary and its standby, and the URL that names both."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary, self.standby = primary, standby
        first, second = urlsplit(primary.url), urlsplit(standby.url)
        hosts = first.netloc + "," + second.netloc.rpartition("@")[2]
        self.url = f"postgresql://{hosts}/postgres?target_session_attrs=read-write"

    def wait_until_followed(self) -> None:
        """Wait until the standby has all that the primary has written."""

        def followed() -> bool:
            found = query(
                self.primary,
                "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication",
            )
            return found == [(True,)]

        until(followed, "the standby does not follow")

    def be_synchronous(self) -> None:
        """Let each commit wait for the standby."""
        query(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        query(self.primary, "SELECT pg_reload_conf()")
        synchronous = "SELECT sync_state FROM pg_stat_replication"
        until(lambda: query(self.primary, synchronous) == [("sync",)], "it is not synchronous")

    def cut(self) -> None:
        """Let the standby hear nothing more."""
        query(self.standby, "ALTER SYSTEM SET primary_conninfo = ''")
        query(self.standby, "SELECT pg_reload_conf()")
        until(
            lambda: query(self.standby, "SELECT pid FROM pg_stat_wal_receiver") == [],
            "the standby still follows",
        )

    def fail_over(self) -> float:
        """Kill the primary and promote the standby; return when that was, on the shared clock."""
        self.primary.kill()
        self.standby.promote()
        return time.monotonic()


def query(server: PostgresServer, sql: str) -> list[Any]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def paired() -> Iterator[Pair]:
    with PostgresServer.create(SETTINGS) as primary, primary.standby() as standby:
        yield Pair(primary, standby)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with paired() as started:
        yield started


def claims(folder: Path, since: float, until: float = float("inf")) -> list[int]:
    """The tokens that were given in this time."""
    return [
        token
        for note in read_history(folder)
        if isinstance(note, Claimed) and since * 1e9 < note.at < until * 1e9
        for _, token in note.runs
    ]


def test_nothing_is_lost_with_synchronous_replication(
    pair: Pair, zygote: Zygote, tmp_path: Path
) -> None:
    pair.be_synchronous()
    use(tmp_path, pair.url)
    with at_work(zygote, tmp_path):
        began = time.monotonic()
        for _ in range(tiers.amount(3, 20)):
            wait_for_all(tmp_path)
        promoted = pair.fail_over()
        wait_for_all(tmp_path)
        went_on = time.monotonic() - promoted
        print(f"all went on {went_on:.1f} s after the promotion")  # noqa: T201
    assert went_on < PROMISED
    before, after = claims(tmp_path, 0, began), claims(tmp_path, promoted)
    floor = max(before) + STEP // 2
    assert max(after) > floor
    # A claim that the former primary had committed may be answered late, with its old token.
    log = read_store(tmp_path).log
    assert max(entry.at for entry in log if entry.id < floor) < min(
        entry.at for entry in log if entry.id > floor
    )
    meta = f"SELECT value FROM {table(tmp_path, 'meta')} WHERE name = 'timeline'"  # noqa: S608 - names of our own
    assert ask(tmp_path, meta) == [(2,)]


def test_without_it_what_the_standby_had_not_got_is_lost_and_nothing_else(
    pair: Pair, tmp_path: Path
) -> None:
    """The checker tells what: those enqueues that were acknowledged after the cut."""
    use(tmp_path, pair.url)
    with client(tmp_path, clock="server") as app:
        for _ in range(20):
            run_sync(app.enqueue_many([app.new()]))
        pair.wait_until_followed()
        pair.cut()
        cut = time.monotonic_ns()
        for _ in range(30):
            run_sync(app.enqueue_many([app.new()]))
        pair.fail_over()
        for _ in range(20):
            run_sync(app.enqueue_many([app.new()]))
        failed_over = time.monotonic_ns()
        assert run_sync(app.store.backlog())[0] == 40
    wait_for_writers(tmp_path)
    notes = [note for note in read_history(tmp_path) if isinstance(note, Told)]
    lost = [note for note in notes if cut < note.at < failed_over][:30]
    ids = {str(number) for note in lost for number, _ in note.jobs}
    found = check(read_history(tmp_path), read_store(tmp_path), drained=False)
    print(f"{len(found)} violations for {len(ids)} lost jobs")  # noqa: T201
    assert {violation.promise for violation in found} == {1}
    assert len(found) == len(ids) == 30


def lose_tokens(pair: Pair) -> tuple[list[int], list[int], int]:
    """Claim on the primary what its standby never hears of, then on the standby.

    Returns both kinds of tokens, and how many of the first are refused then.
    """
    app = Penstock(pair.url)
    new = NewJob(task="t", payload="{}")
    run_sync(app.enqueue_many([new] * 200))
    pair.wait_until_followed()
    pair.cut()
    lost: list[Job] = []
    for _ in range(100):
        lost += run_sync(app.leases.claim(worker="before"))
    pair.fail_over()
    found: list[int] = []
    until(lambda: _claims(app, found), "nothing can be claimed")
    while _claims(app, found):
        pass
    settled = run_sync(app.leases.settle_held([(job, Done()) for job in lost]))
    run_sync(app.close())
    return [job.token for job in lost], found, settled.count(None)


def _claims(app: Penstock, found: list[int]) -> bool:
    jobs = run_sync(app.leases.claim(worker="after", limit=50))
    found += [job.token for job in jobs]
    return bool(jobs)


def test_promoted_standby_gives_no_token_again(pair: Pair) -> None:
    lost, found, refused = lose_tokens(pair)
    assert len(lost) == refused == 100
    assert len(found) == 200
    assert min(found) > max(lost)
    assert max(found) < 2**53


def test_store_that_ignores_timelines_gives_tokens_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant, which shows that the test before would notice."""
    monkeypatch.setattr(timeline, "current", lambda *_: None)
    lost, found, _ = lose_tokens(pair)
    assert set(lost) & set(found)


def test_primary_that_is_read_only_is_left_for_the_other_one(pair: Pair) -> None:
    """It was replaced, and stays up: the connection must not stay with it."""
    app = Penstock(pair.url)
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
    pair.wait_until_followed()
    pair.standby.promote()
    query(pair.primary, "ALTER SYSTEM SET default_transaction_read_only = on")
    query(pair.primary, "SELECT pg_reload_conf()")
    until(
        lambda: query(pair.primary, "SHOW default_transaction_read_only") == [("on",)],
        "it is not read-only",
    )
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
    assert query(pair.standby, "SELECT count(*) FROM penstock.job") == [(2,)]
    run_sync(app.close())

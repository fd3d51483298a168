"""Many processes on one PostgreSQL schema: they start at once, share, and tell the same time.

The number of jobs is that of the environment variable PENSTOCK_MANY.
"""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import RawCursor

from penstock.core.errors import StoreError
from penstock.core.job import LogId
from penstock.core.lifecycle import Done, Event
from penstock.core.query import JobQuery
from penstock.engine.penstock import Penstock, run_sync
from penstock.stores.postgres import database
from penstock.stores.postgres.arrays import Texts, register
from penstock.stores.postgres.connection import SCRIPTS, address, queries
from tests import tiers
from tests.contract.statistics import assert_exact
from tests.contract.support import drive
from tests.crash.client import LONG_LEASE, Client
from tests.crash.history import read_store
from tests.crash.processes import Zygote, until
from tests.crash.recording import Started, history_size, read_history, store_url
from tests.crash.support import ask, assert_promises_kept, client, finish_by_hand, table
from tests.crash.variants_postgres import reading

MANY = tiers.amount(1000, 3000, "PENSTOCK_MANY")
HOUR = 3600


@pytest.fixture
def folder(postgres_url: str, tmp_path: Path) -> Path:
    (tmp_path / "url").write_text(postgres_url)
    return tmp_path


def test_ten_processes_start_on_an_empty_database(zygote: Zygote, folder: Path) -> None:
    starting = [zygote.start("enqueues", folder) for _ in range(10)]
    for child in starting:
        child.succeed()
    finish_by_hand(folder)
    assert_promises_kept(folder)
    assert len(read_store(folder).jobs) == 100


def test_schema_is_that_of_the_url(folder: Path) -> None:
    schema = address(store_url(folder)).schema
    with client(folder, clock="server") as app:
        run_sync(app.enqueue_many([app.new()]))
    assert ask(folder, f"SELECT count(*) FROM {schema}.job") == [(1,)]  # noqa: S608 - names of our own


def test_newer_schema_is_refused(folder: Path) -> None:
    with client(folder, clock="server") as app:
        run_sync(app.enqueue_many([app.new()]))
    name = table(folder, "meta")
    with psycopg.connect(address(store_url(folder)).conninfo, autocommit=True) as connection:
        connection.execute(
            f"UPDATE {name} SET value = {SCRIPTS.version + 1} "  # noqa: S608 - names of our own
            "WHERE name IN ('schema', 'oldest_program')".encode()
        )
    newer = Penstock(store_url(folder))
    with pytest.raises(StoreError, match=r"newer Penstock .*schema \d+.*upgrade Penstock"):
        run_sync(newer.count())


@pytest.mark.timeout(1100 + MANY // 20)
def test_ten_workers_share_many_jobs(zygote: Zygote, folder: Path) -> None:
    """Also a reader that follows the log misses nothing of it, and counts each entry once."""
    follower = zygote.start("follower", folder, clock="server")
    producers = [
        zygote.start("busy_producer", folder, jobs=MANY // 3, seed=n, clock="server")
        for n in range(3)
    ]
    workers = [zygote.start("worker", folder, clock="server") for _ in range(10)]
    with client(folder, clock="server") as app:

        def all_is_done() -> bool:
            broken = [child for child in (*workers, follower) if child.ended]
            assert not broken, (folder / "errors.txt").read_text()
            return all(child.ended for child in producers) and not run_sync(app.store.backlog())[0]

        until(
            all_is_done,
            "the jobs do not come to an end",
            pause=0.1,
            progress=lambda: history_size(folder),
        )
        for child in (*producers, *workers, follower):
            child.stop()
        assert_promises_kept(folder)
        followed = [int(number) for number in (folder / "followed").read_text().split()]
        log = read_store(folder).log
        assert followed == [entry.id for entry in log]
        run_sync(app.statistics.roll_up())
        counted: Counter[Event] = Counter()
        for one in run_sync(app.statistics.counters()):
            counted.update(one.counts)
        assert counted == Counter(entry.event for entry in log)
    runs = Counter(note.job for note in read_history(folder) if isinstance(note, Started))
    assert set(runs.values()) == {1}


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_clock_of_a_worker_does_not_matter(skew: int, zygote: Zygote, folder: Path) -> None:
    """It neither steals what others hold nor loses what it holds."""
    with client(folder, clock="server") as app:
        (job,) = run_sync(app.enqueue_many([app.new(lease=LONG_LEASE)]))
        holder = zygote.start("skewed", folder, skew=skew, clock="server")
        until(
            lambda: any(isinstance(note, Started) for note in read_history(folder)),
            "the job does not start",
        )
        for other in (skew, -skew, 0):
            zygote.start("skewed_worker", folder, skew=other, clock="server").succeed()
        (folder / "go").touch()
        holder.succeed()
        events = [entry.event for entry in run_sync(app.log(job.id))]
        assert events == [Event.ENQUEUED, Event.CLAIMED, Event.DONE]
    assert_promises_kept(folder)


@contextmanager
def held_open(folder: Path) -> Iterator["psycopg.Connection[Any]"]:
    """A transaction of somebody else, rolled back unless it is committed."""
    where = address(store_url(folder))
    with psycopg.connect(where.conninfo, cursor_factory=RawCursor) as connection:
        register(connection)
        yield connection
        connection.rollback()


def test_snapshot_is_held_while_the_queue_works(zygote: Zygote, folder: Path) -> None:
    with client(folder, clock="server") as app, held_open(folder) as other:
        run_sync(app.enqueue_many([app.new(lease=LONG_LEASE)]))
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute(f"SELECT count(*) FROM {table(folder, 'job')}".encode())  # noqa: S608 - names of our own
        producer = zygote.start("busy_producer", folder, jobs=600, clock="server")
        workers = [zygote.start("worker", folder, clock="server") for _ in range(2)]
        producer.succeed()
        until(lambda: not run_sync(app.store.backlog())[0], "the jobs do not come to an end")
        for worker in workers:
            worker.stop()
    assert_promises_kept(folder)


def add_late(folder: Path, connection: "psycopg.Connection[Any]", app: Client) -> None:
    """Add a job and its entry of the log as the store does, without committing it."""
    sql = queries(address(store_url(folder)).schema)
    new = app.new()
    app.note_asked([new])
    parameters = (
        None, Texts([new.payload]), None, None, Texts(["late"]), None, 0, "default", new.task, 5,
        int(LONG_LEASE.total_seconds() * 1e6), None, None, None, None, None, None,
    )  # fmt: skip
    assert len(connection.execute(sql["add_plain"].encode(), parameters).fetchall()) == 1


EARLY, WRITTEN = "before others", "and written before others"


def follow(folder: Path, app: Client, entered: str) -> tuple[list[LogId], list[LogId]]:
    """Read the log while somebody commits late: what was read until then, and what in the end."""
    run_sync(app.enqueue_many([app.new(), app.new()]))
    seen = [entry.id for entry in run_sync(app.log())]
    with held_open(folder) as late:
        sql = queries(address(store_url(folder)).schema)
        late.execute(sql["enter"].encode(), (0,))
        if entered == WRITTEN:
            add_late(folder, late, app)
        for _ in range(5):
            run_sync(app.enqueue_many([app.new()]))
            for job in run_sync(app.leases.claim(worker=app.connection.actor)):
                run_sync(app.leases.settle([(app.handle(job), Done())]))
            run_sync(app.statistics.roll_up())
            seen += [entry.id for entry in run_sync(app.log(after=seen[-1]))]
        before = list(seen)
        if entered == EARLY:
            add_late(folder, late, app)
        late.commit()
    while entries := run_sync(app.log(after=seen[-1], limit=4)):
        seen += [entry.id for entry in entries]
    run_sync(app.statistics.roll_up())
    return before, seen


def all_entries(app: Client) -> list[LogId]:
    chains = [run_sync(app.log(job.id)) for job in run_sync(app.find(JobQuery(limit=100)))]
    return sorted(entry.id for chain in chains for entry in chain)


@pytest.mark.parametrize("entered", [EARLY, WRITTEN])
def test_log_is_read_without_a_gap(entered: str, folder: Path) -> None:
    """Who commits late has entries below those of others: a reader waits for them."""
    with client(folder, clock="server") as app:
        before, seen = follow(folder, app, entered)
        assert len(before) == 2, "it cannot know yet what comes below"
        assert seen == all_entries(app)
        drive(assert_exact(app.store))
    assert_promises_kept(folder, drained=False)


def test_reader_that_does_not_wait_misses_what_comes_late(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A broken variant: the test above would notice."""
    monkeypatch.setitem(
        vars(database), "queries", reading("complete_log", ".complete()", ".newest()")
    )
    with client(folder, clock="server") as app:
        _, seen = follow(folder, app, WRITTEN)
        assert len(set(all_entries(app)) - set(seen)) == 1


def test_stopped_process_keeps_others_waiting_for_a_while_only(
    zygote: Zygote, postgres_url: str, folder: Path
) -> None:
    """It has the queue alone, and says nothing more: the server ends its session."""
    patience = "&options=-c%20idle_in_transaction_session_timeout%3D2s"
    (folder / "url").write_text(postgres_url + patience)
    stopped = zygote.start("jobs_of_a_key", folder, point="stopped BEGIN 7")
    state = Path(f"/proc/{stopped.pid}/stat")
    until(lambda: state.read_text().rpartition(") ")[2].startswith("T"), "it does not stop")
    exclusive = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' "
    )
    exclusive += f"AND classid = '{table(folder, 'job')}'::regclass"
    assert ask(folder, exclusive) == [(1,)]
    with client(folder) as app:
        run_sync(app.enqueue_many([app.new(key="k")]))
        assert ask(folder, exclusive) == [(0,)]
    stopped.signal(signal.SIGCONT)
    stopped.succeed()
    finish_by_hand(folder)
    assert_promises_kept(folder)

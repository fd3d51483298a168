"""Test that rows inserted by other programs have jobs before anything can observe otherwise."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import JobQuery, NewJob, Penstock, State, run_sync
from penstock.apps.ingest import unified_queue
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.leases import Done
from tests.apps.ingest.support import Both, Program, opened, own
from tests.environment import SOON

ALL = JobQuery(queue="ingest")
READS: dict[str, Callable[[Penstock, int], Coroutine[Any, Any, Any]]] = {
    "get": lambda app, job_id: app.get(job_id),
    "records": lambda app, job_id: app.archive.records([job_id]),
    "explain": lambda app, job_id: app.explain(job_id),
    "log of a job": lambda app, job_id: app.log(job_id),
    "log": lambda app, _: app.log(),
    "newest_log": lambda app, _: app.newest_log(),
    "find": lambda app, _: app.find(ALL),
    "find_ids": lambda app, _: app.find_ids(ALL),
    "tally": lambda app, _: app.store.tally(ALL),
    "count": lambda app, _: app.count(),
    "backlog": lambda app, _: app.store.backlog("ingest"),
    "oldest_ready": lambda app, _: app.queues.oldest_ready(),
    "queues": lambda app, _: app.queues.list(),
    "origin": lambda app, _: app.store.origin(),
    "stats": lambda app, _: app.tables.read(unified_queue.totals),
    "item": lambda app, job_id: app.tables.read(lambda tx: unified_queue.get(tx, f"q{job_id}")),
}
KILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("INSERT INTO unified_queue (queue_id, item_type, op, tenant_id, collection, "
                   "idempotency_key) VALUES ('q', 'file', 'ingest', 't', 'c', 'k')")
os.kill(os.getpid(), signal.SIGKILL)
"""
CLAIMS = """
import sys
from penstock import Penstock, run_sync
app = Penstock(sys.argv[1])
while jobs := run_sync(app.leases.claim(worker="w", queues=("ingest",), limit=7)):
    print(*(job.id for job in jobs), flush=True)
"""


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Both]:
    yield from opened(f"sqlite:///{tmp_path}/jobs.db")


@pytest.fixture
def on_postgres(postgres_url: str) -> Iterator[Both]:
    yield from opened(postgres_url)


def noted(both: Both) -> int:
    """Return how many rows have no job yet."""
    return counted(both, "newcomer")


def counted(both: Both, table: str) -> int:
    prefix = "penstock_" if both.program.is_sqlite else ""
    return int(both.program.ask(f"SELECT count(*) FROM {prefix}{table}")[0][0])  # noqa: S608 - names of our own


def test_job_of_an_insert_is_created_by_the_next_read(both: Both) -> None:
    both.program.insert()
    assert noted(both) == 1
    assert counted(both, "job") == 0
    assert len(run_sync(both.app.find())) == 1
    assert noted(both) == 0


def test_every_read_sees_inserted_rows(both: Both) -> None:
    for job_id, (name, look) in enumerate(READS.items(), 1):
        both.program.insert()
        seen = run_sync(look(both.app, job_id))
        assert noted(both) == 0, name
        assert seen == run_sync(look(both.app, job_id)), name


def test_totals_count_what_has_no_job_yet(both: Both) -> None:
    both.program.insert()
    both.program.insert(tenant_id="other")
    found = "SELECT tenant_id, status, n FROM unified_queue_total ORDER BY tenant_id"
    before = both.program.ask(found)
    assert before == [("other", "pending", 1), ("t", "pending", 1)]
    assert noted(both) == 2
    run_sync(both.app.count())
    assert both.program.ask(found) == before


async def test_waiting_reader_is_woken(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    await unified_queue.prepare(app)
    program = Program(app.url)
    seen = await app.wait(0, 0)
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(app.wait(seen, 30))
        program.run("BEGIN IMMEDIATE")
        program.insert()
        # Registering a worker alone does not wake anyone.
        program.run("INSERT INTO penstock_worker (name, tags, seen_at) VALUES ('w', '[]', 0)")
        program.run("COMMIT")
        assert await waiting != seen
    [job] = await app.leases.claim(worker="w", queues=("ingest",), limit=1)
    assert json.loads(job.payload)["queue_id"] == "q1"
    program.connection.close()
    await app.close()


def test_key_order_is_the_order_of_inserts_and_calls(both: Both) -> None:
    first = both.program.insert("/own/1")
    [second] = run_sync(both.app.transaction(lambda tx: unified_queue.add(tx, [own(1, after=())])))
    third = both.program.insert("/own/1")
    for item in (first, second.queue_id, third):
        [job] = both.claim()
        assert json.loads(job.payload)["queue_id"] == item
        both.settle(job, Done())


def test_job_of_a_callers_transaction_comes_after_the_rows_before_it(both: Both) -> None:
    program = both.program
    item = program.insert("/p")
    key = "ingest:t/c/main:/p"
    program.run("BEGIN")
    [job] = run_sync(
        both.app.enqueue_many(
            [NewJob(task="other", payload="{}", queue="q", key=key)], connection=program.connection
        )
    )
    program.run("COMMIT")
    assert both.job(item).id < job.id
    assert [one.queue for one in run_sync(both.app.leases.claim(worker="w", limit=9))] == ["ingest"]


def test_idempotency_key_of_a_row_without_job_is_taken(both: Both) -> None:
    item = both.program.insert(idempotency_key="own 1")
    [added] = run_sync(both.app.transaction(lambda tx: unified_queue.add(tx, [own(1, after=())])))
    assert (added.queue_id, added.duplicate) == (item, True)


def test_insert_that_is_rolled_back_never_was(both: Both) -> None:
    both.program.run("BEGIN")
    both.program.insert()
    both.program.run("ROLLBACK")
    assert run_sync(both.app.find()) == []


def test_lease_in_the_transaction_of_the_insert(both: Both) -> None:
    both.program.run("BEGIN")
    first, second = both.program.insert("/p"), both.program.insert("/p")
    assert [both.program.lease(second), both.program.lease(first)] == [False, True]
    both.program.run("COMMIT")
    assert both.job(first).state is State.RUNNING
    assert both.events(first) == ["enqueued", "claimed"]
    assert both.claim() == []


def test_row_without_job_is_changed_and_deleted(both: Both) -> None:
    program = both.program
    renamed, moved, cancelled, gone = (program.insert() for _ in range(4))
    program.change(renamed, "queue_id = 'new', payload_json = '{\"file_path\": \"/new\"}'")
    assert noted(both) == 0
    assert json.loads(both.job("new").payload)["payload"] == {"file_path": "/new"}
    program.insert()
    program.change(moved, "tenant_id = 'other', priority = 9")
    assert both.job(moved).priority == 9
    program.change(cancelled, "status = 'failed', error_message = 'no'")
    assert both.job(cancelled).state is State.CANCELLED
    job_id = both.job(gone).id
    left = program.insert()
    assert program.run("DELETE FROM unified_queue WHERE queue_id IN (?, ?)", gone, left) == 2
    log = run_sync(both.app.log())
    assert [entry.event for entry in log if entry.job_id == job_id] == ["enqueued", "cancelled"]
    assert sorted(entry.event for entry in log[-3:]) == ["cancelled", "cancelled", "enqueued"]


@pytest.mark.parametrize("same", ["queue_id", "idempotency_key"])
def test_row_that_is_replaced_before_it_has_a_job(on_sqlite: Both, same: str) -> None:
    for n in (1, 2):
        on_sqlite.program.insert(f"/{n}", "INSERT OR REPLACE", **{same: "one"})
    [pending] = [job for job in run_sync(on_sqlite.app.find()) if job.state is State.PENDING]
    assert json.loads(pending.payload)["payload"] == {"file_path": "/2"}
    events = [entry.event for entry in run_sync(on_sqlite.app.log())]
    assert events == ["enqueued", "cancelled", "enqueued"]


def test_row_that_is_ignored_changes_nothing(on_sqlite: Both) -> None:
    for n in (1, 2):
        on_sqlite.program.insert(f"/{n}", "INSERT OR IGNORE", idempotency_key="one")
    [job] = run_sync(on_sqlite.app.find())
    assert json.loads(job.payload)["payload"] == {"file_path": "/1"}


def test_full_queue_refuses_the_insert_itself(both: Both) -> None:
    both.program.insert()
    run_sync(both.app.limits.queue("ingest", max_pending=2))
    both.program.insert()
    assert noted(both) == 0
    with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match="full"):
        both.program.insert()
    assert len(run_sync(both.app.find())) == 2


def test_store_under_migration_lock_has_all_older_rows_and_refuses_new_ones(both: Both) -> None:
    both.program.insert()
    seal = MigrationLock(phase=MigrationPhase.LEAVING, peer=1, place="elsewhere")
    assert run_sync(both.app.store.set_migration_lock(seal, expected=None))
    assert noted(both) == 0
    with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match="move"):
        both.program.insert()
    assert len(run_sync(both.app.find())) == 1


def test_insert_that_cannot_become_a_job_is_refused(on_sqlite: Both) -> None:
    with pytest.raises(sqlite3.Error, match="BLOB"):
        on_sqlite.program.insert(tenant_id=b"t")
    assert run_sync(on_sqlite.app.find()) == []


def test_job_that_is_not_an_item_does_not_block_a_row(on_sqlite: Both) -> None:
    item = on_sqlite.program.insert()
    on_sqlite.program.run(
        "INSERT INTO penstock_add (queue, task, dedupe) VALUES ('q', 'other', 'ingest:key 1')"
    )
    assert on_sqlite.job(item).dedupe is None


def test_row_is_as_old_as_its_insert(both: Both) -> None:
    item = both.program.insert()
    table = "penstock_newcomer" if both.program.is_sqlite else "newcomer"
    both.program.run(f"UPDATE {table} SET at = at - 3600000000")  # noqa: S608 - names of our own
    assert datetime.now(UTC) - both.job(item).enqueued_at > timedelta(minutes=59)
    [entry] = run_sync(both.app.log(both.job(item).id))
    assert both.job(item).enqueued_at <= entry.at < datetime.now(UTC)


def test_many_rows_get_their_jobs_in_their_order(both: Both) -> None:
    both.program.run("BEGIN")
    items = [both.program.insert() for _ in range(2_100)]
    both.program.run("COMMIT")
    query = JobQuery(limit=10_000, newest_first=False)
    found = [json.loads(job.payload)["queue_id"] for job in run_sync(both.app.find(query))]
    assert found == items
    both.program.run("DELETE FROM unified_queue WHERE queue_id > 'q10'")


def test_reader_goes_without_rows_whose_jobs_nobody_can_write(
    on_sqlite: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.database._IMPORT_PATIENCE", 0.01)
    on_sqlite.program.insert()
    on_sqlite.program.run("BEGIN IMMEDIATE")
    assert run_sync(on_sqlite.app.find()) == []
    on_sqlite.program.run("COMMIT")
    assert len(run_sync(on_sqlite.app.find())) == 1


def test_others_go_without_rows_whose_jobs_an_open_transaction_makes(on_postgres: Both) -> None:
    both = on_postgres
    waiting, leased = both.program.insert(), both.program.insert()
    both.program.run("BEGIN")
    assert both.program.lease(leased)
    assert run_sync(both.app.find()) == []
    other = Program(both.app.url)
    assert not other.lease(waiting)
    both.program.run("COMMIT")
    assert other.lease(waiting)
    other.connection.close()
    assert len(run_sync(both.app.find())) == 2


def test_rows_come_from_many_transactions_at_once(on_postgres: Both) -> None:
    both = on_postgres
    other = Program(both.app.url)
    both.program.run("BEGIN")
    first = both.program.insert("/p")
    second = other.insert("/p", queue_id="other", idempotency_key="other")
    assert both.job(second).state is State.PENDING
    both.program.run("COMMIT")
    assert both.job(first).id > both.job(second).id
    other.connection.close()


def test_program_that_is_killed_after_its_insert(on_sqlite: Both) -> None:
    path = on_sqlite.app.url.removeprefix("sqlite:///")
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert on_sqlite.job("q").state is State.PENDING


def test_vacuum_does_not_lose_rows_without_job(on_sqlite: Both) -> None:
    gone, item = on_sqlite.program.insert(), on_sqlite.program.insert()
    on_sqlite.program.run("DELETE FROM unified_queue WHERE queue_id = ?", gone)
    last = on_sqlite.program.insert()
    on_sqlite.program.run("VACUUM")
    assert on_sqlite.job(item).state is on_sqlite.job(last).state is State.PENDING


def test_processes_take_each_row_once(both: Both) -> None:
    both.program.run("BEGIN")
    for _ in range(300):
        both.program.insert()
    both.program.run("COMMIT")
    command = [sys.executable, "-c", CLAIMS, both.app.url]
    claimers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    taken = [job for claimer in claimers for job in claimer.communicate(timeout=120)[0].split()]
    assert sorted(map(int, taken)) == list(range(1, 301))
    assert noted(both) == 0

"""Test programs that use `unified_queue` with SQL beside Penstock: a row and its job agree."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from penstock import Penstock, RetryPolicy, State, run_sync
from penstock.apps.ingest import unified_queue
from penstock.apps.ingest.items import Rejected
from penstock.apps.ingest.order import key_of
from penstock.apps.ingest.tasks import ItemFailed
from penstock.leases import Cancelled, Done, Failed
from penstock.tables import Tables
from tests.apps.ingest.support import ACTIVE, Both, Program, own

ITEM_FAILED = f"{ItemFailed.__module__}.{ItemFailed.__qualname__}"
REJECTED = f"{Rejected.__module__}.{Rejected.__qualname__}"
LATER = "2099-02-01T00:00:00.000Z"
LONG_AGO = "2001-01-01T00:00:00.000Z"


def linked(both: Both) -> None:
    """Link what other transactions have added, as any claim does."""
    run_sync(both.app.leases.claim(worker="nobody", queues=("none",), limit=1))


def test_an_inserted_row_is_a_job(both: Both) -> None:
    item = both.program.insert("/src/ä.py", priority=7, branch=None, max_retries=1)
    linked(both)
    job = both.job(item)
    assert json.loads(job.payload) == {
        "queue_id": item,
        "item_type": "file",
        "op": "ingest",
        "tenant_id": "t",
        "collection": "c",
        "branch": "main",
        "payload": {"file_path": "/src/ä.py"},
        "metadata": {},
    }
    assert (job.task, job.queue, job.tenant, job.priority) == ("ingest.item", "ingest", "t", 7)
    assert job.retry == RetryPolicy(attempts=2)
    assert job.lease_time == timedelta(minutes=5)
    assert job.key == "ingest:t/c/main:/src/ä.py"
    assert both.events(item) == ["enqueued"]


def test_row_that_is_inserted_as_taken_is_held_by_its_program(both: Both) -> None:
    item = both.program.insert(status="in_progress", lease_until=ACTIVE, worker_id="me")
    job = both.job(item)
    assert (job.state, job.worker) == (State.RUNNING, "me")
    assert both.claim() == []
    assert both.program.change(item, "status = 'done', lease_until = NULL, worker_id = NULL")
    assert both.job(item).state is State.DONE
    assert both.events(item) == ["enqueued", "claimed", "done"]


def test_our_worker_takes_what_a_program_has_inserted(both: Both) -> None:
    item = both.program.insert()
    [job] = both.claim()
    both.check()
    row = both.program.row(item)
    assert (row["status"], row["worker_id"]) == ("in_progress", "ours")
    assert datetime.fromisoformat(row["lease_until"]) > datetime.now(UTC)
    assert not both.program.lease(item)
    both.settle(job, Done())
    assert both.program.row(item)["status"] == "done"


def test_a_program_leases_renews_and_finishes(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    for until in ("2098-01-01T00:00:00.000Z", "2098-02-01T00:00:00+00:00", "2098-03-01 00:00:00"):
        if both.program.row(item)["status"] == "pending":
            assert both.program.lease(item, until)
        else:
            assert both.program.change(item, "lease_until = ?", until) == 1
        expires = datetime.fromisoformat(until).replace(tzinfo=UTC)
        assert both.job(item).expires_at == expires
        both.check()
    assert both.job(item).worker == "me"
    assert both.claim() == []
    assert both.program.change(item, "status = 'done', lease_until = NULL") == 1
    assert both.job(item).state is State.DONE
    assert both.events(item) == ["enqueued", "claimed", "done"]


def test_a_lease_without_an_end_gets_one(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item, None)
    assert both.program.row(item)["lease_until"] is not None


def test_invalid_lease_time_is_refused(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    with pytest.raises((sqlite3.Error, psycopg.Error), match="lease_until"):
        both.program.lease(item, "soon")


def test_a_program_fails_until_the_attempts_are_used_up(both: Both) -> None:
    item = both.program.insert(max_retries=1)
    linked(both)
    assert both.program.lease(item)
    retry = "status = 'pending', retry_count = retry_count + 1, error_message = 'oh', "
    retry += "lease_until = NULL, worker_id = NULL"
    assert both.program.change(item, retry) == 1
    both.check()
    assert (both.job(item).state, both.job(item).error) == (State.PENDING, "oh")
    linked(both)
    assert both.program.lease(item)
    assert both.program.change(item, retry.replace("'oh'", "'no'")) == 1
    assert both.job(item).state is State.FAILED
    assert both.program.row(item)["status"] == "failed"
    assert both.program.row(item)["error_message"] == "no"


RETRY = "status = 'pending', retry_count = retry_count + 1, error_message = 'oh', worker_id = NULL"


@pytest.mark.parametrize(
    ("held", "change"),
    [
        (True, f"{RETRY}, lease_until = NULL"),
        (True, "status = 'pending', error_message = 'oh', worker_id = NULL, lease_until = NULL"),
        (True, "status = 'failed', error_message = 'never'"),
        (True, "status = 'failed'"),
        (False, "status = 'failed', error_message = 'never'"),
    ],
)
def test_time_of_an_error_is_kept_when_a_program_fails_an_item(
    both: Both, held: bool, change: str
) -> None:
    item = both.program.insert()
    linked(both)
    if held:
        assert both.program.lease(item)
    assert both.program.change(item, change) == 1
    at = both.program.row(item)["last_error_at"]
    assert abs(datetime.fromisoformat(at) - datetime.now(UTC)) < timedelta(minutes=1)


def test_time_that_a_program_sets_stays(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item)
    change = f"{RETRY}, lease_until = NULL, last_error_at = '2020-01-01T00:00:00Z'"
    assert both.program.change(item, change) == 1
    assert both.program.row(item)["last_error_at"] == "2020-01-01T00:00:00Z"
    linked(both)
    assert both.program.lease(item)
    assert both.program.change(item, f"{RETRY}, lease_until = NULL") == 1  # the same message
    assert both.program.row(item)["last_error_at"] > "2026"


def test_item_that_is_done_or_given_back_has_no_error(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item)
    both.program.change(item, "status = 'pending', lease_until = NULL, worker_id = NULL")
    linked(both)
    assert both.program.lease(item)
    both.program.change(item, "status = 'done', lease_until = NULL, worker_id = NULL")
    assert both.program.row(item)["last_error_at"] is None


@pytest.mark.parametrize(
    "name", [ITEM_FAILED, REJECTED, "penstock.apps.ingest.handlers.ItemFailed"]
)
def test_row_shows_the_first_line_of_our_errors_and_all_that_a_program_says(
    both: Both, name: str
) -> None:
    item = both.program.insert()
    [job] = both.claim()
    trace = "Traceback (most recent call last):\n  File '/srv/x.py', line 1"
    both.settle(job, Failed(f"{name}: the disk is full\n\n{trace}"))
    row = both.program.row(item)
    assert row["error_message"] == "the disk is full"
    assert row["last_error_at"] is not None
    assert trace in str(both.job(item).error)
    other = both.program.insert()
    linked(both)
    assert both.program.lease(other)
    both.program.change(other, f"{RETRY}, lease_until = NULL".replace("oh", "one\ntwo"))
    linked(both)
    assert both.program.row(other)["error_message"] == "one\ntwo"


NAMES = {"tenant_id": "a/b:c%", "collection": "ü", "branch": "feature/x"}
KEYS = {
    "/p": "ingest:a%2Fb%3Ac%25/ü/feature%2Fx:/p",
    "/" + "long" * 250: "ingest:" + ("long" * 250)[-993:],
}


@pytest.mark.parametrize("path", KEYS)
def test_key_of_an_item_is_the_same_in_sql_and_in_python_and_can_be_read(
    both: Both, path: str
) -> None:
    item = both.program.insert(path, **NAMES)
    linked(both)
    made = key_of(NAMES["tenant_id"], NAMES["collection"], NAMES["branch"], path)
    assert both.job(item).key == made == KEYS[path]


@pytest.mark.parametrize("path", KEYS)
def test_items_of_the_first_tables_keep_their_order(
    postgres_url: str, tmp_path: Path, path: str
) -> None:
    tables = unified_queue.TABLES
    first = Tables(sqlite=tables.sqlite[:2], postgres=tables.postgres[:2])
    for url in (f"sqlite:///{tmp_path}/before.db", postgres_url):
        app = Penstock(url)
        run_sync(app.tables.prepare("unified_queue", first))
        program = Program(url)
        items = [program.insert(path, **NAMES) for _ in range(2)]
        (held,) = run_sync(app.leases.claim(worker="w", queues=["ingest"], limit=9))
        assert "\x1f" in str(held.key) or len(path) > 900
        run_sync(app.close())
        run_sync(unified_queue.prepare(app := Penstock(url)))
        items.append(program.insert(path, **NAMES))
        assert run_sync(app.leases.claim(worker="w", queues=["ingest"], limit=9)) == []
        run_sync(app.reset(held.id, "its worker was stopped for the upgrade"))
        ended = []
        while jobs := run_sync(app.leases.claim(worker="w", queues=["ingest"], limit=9)):
            (job,) = jobs  # one at a time
            run_sync(app.leases.settle([(job, Done())]))
            ended.append(job)
        assert [json.loads(job.payload)["queue_id"] for job in ended] == items
        assert {run_sync(app.get(job.id)).key for job in ended} == {KEYS[path]}
        program.connection.close()
        run_sync(app.close())


def test_rows_of_the_first_tables_lose_their_tracebacks(postgres_url: str, tmp_path: Path) -> None:
    tables = unified_queue.TABLES
    first = Tables(sqlite=tables.sqlite[:1], postgres=tables.postgres[:1])
    for url in (f"sqlite:///{tmp_path}/before.db", postgres_url):
        app = Penstock(url)
        run_sync(app.tables.prepare("unified_queue", first))
        run_sync(app.close())
        program = Program(url)
        trace = "Traceback (most recent call last)"
        item = program.insert(error_message=f"{ITEM_FAILED}: no\n\n{trace}:\n x")
        run_sync(unified_queue.prepare(app := Penstock(url)))
        assert program.row(item)["error_message"] == "no"
        program.connection.close()
        run_sync(app.close())


def test_a_retry_with_a_time_is_not_claimed_before(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item)
    both.program.change(
        item, "status = 'pending', retry_count = 1, error_message = 'x', lease_until = ?", LATER
    )
    linked(both)
    both.check()
    assert both.job(item).run_at == datetime.fromisoformat(LATER)
    assert both.claim() == []
    assert not both.program.lease(item)
    assert both.program.row(item)["lease_until"] == LATER


def test_what_is_given_back_has_not_used_an_attempt(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item)
    both.program.change(item, "status = 'pending', lease_until = NULL, worker_id = NULL")
    assert both.job(item).attempt == 0
    assert both.events(item)[-1] == "snoozed"


def test_a_program_fails_for_good(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item)
    both.program.change(item, "status = 'failed', error_message = 'never'")
    assert both.job(item).state is State.FAILED
    both.check()
    both.program.change(item, "status = 'pending'")
    linked(both)
    assert both.job(item).state is State.PENDING
    [job] = both.claim()
    assert json.loads(job.payload)["queue_id"] == item


def test_programs_recover_what_has_expired(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item, LONG_AGO)
    recovered = both.program.run(
        "UPDATE unified_queue SET status = 'pending', lease_until = NULL, worker_id = NULL "
        "WHERE status = 'in_progress' AND lease_until < '2026-01-01'"
    )
    assert recovered == 1
    assert both.events(item)[-1] == "expired"
    assert both.job(item).attempt == 1


def test_penstock_recovers_items_of_a_dead_program(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.lease(item, LONG_AGO)
    assert run_sync(both.app.leases.reclaim()) == 1
    assert both.program.row(item)["status"] == "pending"
    [job] = both.claim()
    # The program is late: another worker has the item, and no row is updated.
    assert both.program.change(item, "status = 'done'") == 0
    both.check()
    assert both.events(item)[-1] == "refused"
    both.settle(job, Done())
    assert both.program.change(item, "status = 'failed'") == 0


def test_what_cannot_start_is_not_leased(both: Both) -> None:
    first, second = both.program.insert("/one"), both.program.insert("/one")
    later = both.program.insert(lease_until=ACTIVE)
    linked(both)
    assert not both.program.lease(second)  # after the first with its path
    assert not both.program.lease(later)
    run_sync(both.app.queues.pause("ingest"))
    assert not both.program.lease(first)
    run_sync(both.app.queues.resume("ingest"))
    run_sync(both.app.limits.queue("ingest", concurrency=1))
    assert both.program.lease(first)
    other = both.program.insert("/two")
    linked(both)
    assert not both.program.lease(other)
    run_sync(both.app.limits.queue("ingest", concurrency=None))
    assert both.program.change(first, "status = 'done'") == 1
    linked(both)
    assert both.program.lease(second)


def test_the_key_is_unique_among_unfinished_items(both: Both) -> None:
    item = both.program.insert(idempotency_key="same")
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        both.program.insert(idempotency_key="same")
    linked(both)
    assert both.program.lease(item)
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        both.program.insert(idempotency_key="same")
    both.program.change(item, "status = 'done'")
    both.program.insert(idempotency_key="same")
    assert len(run_sync(both.app.find())) == 2


@pytest.mark.parametrize("kind", ["content", "file", "folder", "rename", "delete_tenant", "odd"])
@pytest.mark.parametrize("op", ["ingest", "update", "delete", "scan", "odd"])
def test_invalid_item_is_not_stored(tmp_path: Path, kind: str, op: str) -> None:
    allowed = {"content": "iud", "file": "iud", "folder": "ids", "rename": "u"}
    allowed["delete_tenant"] = "d"
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    run_sync(unified_queue.prepare(app))
    with closing(Program(app.url).connection):
        program = Program(app.url)
    if op != "odd" and op[0] in allowed.get(kind, ""):
        program.insert(item_type=kind, op=op)
    else:
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            program.insert(item_type=kind, op=op)
        assert run_sync(app.find()) == []
    program.connection.close()
    run_sync(app.close())


def test_rows_that_are_deleted(both: Both) -> None:
    waiting, held, ours = (both.program.insert(priority=n) for n in (1, 2, 9))
    linked(both)
    jobs = {item: both.job(item).id for item in (waiting, held, ours)}
    [job] = both.claim(1)
    assert job.id == jobs[ours]
    assert both.program.lease(held)
    assert both.program.run("DELETE FROM unified_queue") == 3
    assert run_sync(both.app.get(jobs[waiting])).state is State.CANCELLED
    assert run_sync(both.app.get(jobs[held])).state is State.DONE
    assert run_sync(both.app.get(jobs[ours])).cancel_requested
    both.settle(job, Cancelled())


def test_a_row_goes_with_its_job(both: Both) -> None:
    item = both.program.insert()
    [job] = both.claim()
    both.settle(job, Done())
    run_sync(both.app.delete(job.id))
    assert both.program.ask("SELECT * FROM unified_queue WHERE queue_id = ?", item) == []
    assert both.program.ask("SELECT * FROM unified_queue_job") == []


def test_priorities_and_payloads_of_waiting_items_change(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    both.program.change(item, 'priority = 9, payload_json = \'{"file_path": "/new"}\'')
    assert both.job(item).priority == 9
    assert json.loads(both.job(item).payload)["payload"] == {"file_path": "/new"}
    run_sync(both.app.set_priority(both.job(item).id, 2))
    assert both.program.row(item)["priority"] == 2


def test_done_without_a_lease_is_a_whole_run(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    assert both.program.change(item, "status = 'done'") == 1
    assert both.events(item) == ["enqueued", "claimed", "done"]


def test_a_done_item_that_is_pending_again_is_a_new_job(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    both.program.change(item, "status = 'done'")
    before = both.job(item).id
    both.program.change(item, "status = 'pending'")
    assert both.job(item).id > before
    [job] = both.claim()
    both.settle(job, Failed("x", permanent=True))
    assert both.program.row(item)["status"] == "failed"


def test_our_own_items_are_the_same_rows(both: Both) -> None:
    rows = [own(n, after=()) for n in range(3)]
    added = run_sync(both.app.transaction(lambda tx: unified_queue.add(tx, rows)))
    assert [one.duplicate for one in added] == [False] * 3
    again = run_sync(both.app.transaction(lambda tx: unified_queue.add(tx, rows[:1])))
    assert again == [(added[0].queue_id, added[0].job_id, True)]
    linked(both)
    both.check()
    assert both.program.lease(added[1].queue_id)
    both.program.change(added[1].queue_id, "status = 'done'")
    assert {job.id for job in both.claim()} == {added[0].job_id, added[2].job_id}


def test_dependent_item_is_released_when_a_program_ends_its_dependency(both: Both) -> None:
    item = both.program.insert()
    linked(both)
    first = both.job(item).id
    [after] = run_sync(
        both.app.transaction(lambda tx: unified_queue.add(tx, [own(1, after=(first,))]))
    )
    linked(both)
    assert both.program.lease(item)
    both.program.change(item, "status = 'failed', error_message = 'no'")
    assert [job.id for job in both.claim()] == [after.job_id]


@pytest.mark.parametrize("how", ["INSERT OR IGNORE", "INSERT OR REPLACE"])
def test_conflict_clauses_of_others_do_no_harm(tmp_path: Path, how: str) -> None:
    both = Both(f"sqlite:///{tmp_path}/jobs.db")
    run_sync(both.app.limits.queue("ingest", concurrency=5))
    for queue_id in ("a", "b", "a"):
        both.program.insert("/p", how=how, queue_id=queue_id, idempotency_key="same")
        both.check()
    [queue] = [queue for queue in run_sync(both.app.queues.list()) if queue.name == "ingest"]
    assert queue.concurrency == 5
    assert len(both.program.ask("SELECT * FROM unified_queue")) == 1
    pending = [job for job in run_sync(both.app.find()) if job.state is State.PENDING]
    assert len(pending) == 1
    [job] = both.claim()
    assert job.id == pending[0].id
    if how.endswith("REPLACE"):
        with pytest.raises(sqlite3.IntegrityError, match="in progress"):
            both.program.insert("/p", how=how, idempotency_key="same")
    both.program.connection.close()
    run_sync(both.app.close())


def test_a_program_needs_no_worker_of_ours(both: Both) -> None:
    first, second = both.program.insert("/one"), both.program.insert("/one")
    for item in (first, second):
        assert [both.program.lease(one) for one in (first, second)].count(True) == 1
        both.check()
        assert both.program.change(item, "status = 'pending', retry_count = 1") == 1
        assert both.program.lease(item)
        assert both.program.change(item, "status = 'done'") == 1
    linked(both)
    assert both.claim() == []


def test_table_that_a_program_created_before_is_imported(tmp_path: Path) -> None:
    """Such programs create it with a permanently unique key and without defaults."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    program = Program(url)
    program.run(
        "CREATE TABLE unified_queue (queue_id TEXT PRIMARY KEY NOT NULL, item_type TEXT NOT NULL, "
        "op TEXT NOT NULL, tenant_id TEXT NOT NULL, collection TEXT NOT NULL, "
        "priority INTEGER NOT NULL, status TEXT NOT NULL, created_at TEXT NOT NULL, "
        "updated_at TEXT NOT NULL, lease_until TEXT, worker_id TEXT, idempotency_key TEXT NOT NULL "
        "UNIQUE, payload_json TEXT NOT NULL, retry_count INTEGER NOT NULL DEFAULT 0, max_retries "
        "INTEGER NOT NULL DEFAULT 3, error_message TEXT, last_error_at TEXT, branch TEXT DEFAULT "
        "'main', metadata TEXT DEFAULT '{}')"
    )
    program.run("CREATE UNIQUE INDEX idx_unified_queue_idempotency ON unified_queue (queue_id)")
    waiting = program.insert()
    held = program.insert(status="in_progress", lease_until=ACTIVE, worker_id="me")
    program.insert(status="done")
    app = Penstock(url)
    run_sync(unified_queue.prepare(app))
    run_sync(unified_queue.prepare(app))
    rows = program.ask("SELECT queue_id, status, worker_id FROM unified_queue ORDER BY queue_id")
    assert rows == [(waiting, "pending", None), (held, "in_progress", "me"), ("q3", "done", None)]
    jobs = {json.loads(job.payload)["queue_id"]: job for job in run_sync(app.find())}
    assert {name: job.state for name, job in jobs.items()} == {
        waiting: State.PENDING,
        held: State.RUNNING,
    }
    assert program.change(held, "status = 'done'")
    assert run_sync(app.get(jobs[held].id)).state is State.DONE
    program.insert(idempotency_key="key 2")  # free again, as if it had never been used
    run_sync(app.close())
    program.connection.close()

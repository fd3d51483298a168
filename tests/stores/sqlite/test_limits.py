"""What limits and shares cost: nothing without them, and no more for a longer backlog."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Claim, NewJob, Queue
from penstock.core.limits import Limit
from penstock.stores import system_clock
from penstock.stores.sqlite.connection import MIGRATIONS, statements
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.sqlite.transaction import SQL, SqliteTransaction
from tests.contract.support import drive

INITIAL = MIGRATIONS[0]


def new(**options: str) -> NewJob:
    return NewJob(task=options.pop("task", "t"), payload="{}", **options)  # type: ignore[arg-type] # options as data


def claim(store: SqliteStore, limit: int = 1) -> list[int]:
    return [job.id for job in drive(store.claim(Claim(worker="w", limit=limit)))]


def instructions(store: SqliteStore, work: Callable[[], object]) -> int:
    """How many instructions SQLite runs for some work, in hundreds."""
    ran = 0

    def count() -> int:
        nonlocal ran
        ran += 1
        return 0

    connection = store._writer._connection
    connection.set_progress_handler(count, 100)
    work()
    connection.set_progress_handler(None, 0)
    return ran


def statements_of_a_claim(store: SqliteStore) -> list[str]:
    """The queries that a claim runs, by name."""
    names = {text: name for name, text in SQL.items()}
    connection = store._writer._connection
    ran: list[str] = []

    def execute(sql: str, *parameters: Any) -> sqlite3.Cursor:
        ran.append(names[sql])
        return connection.execute(sql, *parameters)

    connection.execute("BEGIN IMMEDIATE")
    tx = SqliteTransaction(connection, store._clock)
    tx._execute = execute
    store._claim(tx, [Claim(worker="w", limit=1)])
    connection.execute("ROLLBACK")
    return ran


def test_claim_without_limits_runs_no_statement_more(store: SqliteStore) -> None:
    drive(store.add([new()] * 3, actor="p"))
    plain = ["arrived", "seal", "any_due", "outlook", "pick", "last_ids", "log_claimed"]
    plain += ["start", "jobs", *["add_totals"] * 2]
    assert statements_of_a_claim(store) == plain
    drive(store.limit(Limit(kind="throttle", name="x", concurrency=2)))
    drive(store.add([new(queue="other")], actor="p"))
    assert statements_of_a_claim(store).count("pick") == 2
    drive(store.add([new(queue="other", tenant="a")], actor="p"))
    assert "pick" not in statements_of_a_claim(store)


def backlog(store: SqliteStore, n: int, job: NewJob) -> None:
    for _ in range(n // 1_000):
        drive(store.add([job] * 1_000, actor="p"))


@pytest.mark.parametrize("kind", ["tenant", "throttle", "task"])
def test_cost_of_a_claim_does_not_grow_with_the_backlog(kind: str, tmp_path: Path) -> None:
    """Of a tenant, or of what a limit holds; measured when what is held was put aside."""
    costs = []
    for n in (3_000, 30_000):
        store = SqliteStore(tmp_path / f"{n}.db", system_clock)
        drive(store.limit(Limit(kind="task", name="slow", concurrency=1)))
        job = new(task="slow") if kind == "task" else new(**{kind: "large"})
        backlog(store, n, job)
        for _ in range(1 if kind == "tenant" else n // 1_000 + 1):
            claim(store)
        drive(store.add([new(tenant="small")] * 20, actor="p"))
        costs.append(instructions(store, lambda store=store: claim(store, 5)))  # type: ignore[misc] # bound at once
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs


def test_cost_of_a_claim_by_tag_does_not_grow_with_a_tenants_backlog(tmp_path: Path) -> None:
    costs = []
    wanted = Claim(worker="w", limit=5, tags=("red", "blue"))
    for n in (3_000, 30_000):
        store = SqliteStore(tmp_path / f"{n}.db", system_clock)
        backlog(store, n, NewJob(task="t", payload="{}", tenant="large", tags=("red", "blue")))
        drive(store.add([NewJob(task="t", payload="{}", tenant="s", tags=("red",))], actor="p"))
        drive(store.claim(wanted))
        costs.append(instructions(store, lambda store=store: drive(store.claim(wanted))))  # type: ignore[misc] # bound at once
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs


def test_file_of_the_first_schema_is_brought_up_with_its_jobs(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements(INITIAL[1]):
        connection.execute(statement)
    connection.execute("INSERT INTO penstock_meta VALUES ('schema', ?)", (INITIAL[0],))
    connection.execute("INSERT INTO penstock_queue (name, max_pending) VALUES ('q', 9)")
    connection.execute("INSERT INTO penstock_queue (name, paused) VALUES ('held', 1)")
    for job_id, tenant in ((1, "a"), (2, "a"), (3, "b"), (4, None)):
        connection.execute(
            "INSERT INTO penstock_job (id, stage, version, run_at, queue, task, priority, "
            "enqueued_at, lease_time, tenant, tags) "
            "VALUES (?, 0, ?, 0, 'q', 't', 5, 0, 1000000, ?, '[\"x\"]')",
            (job_id, job_id, tenant),
        )
        connection.execute("INSERT INTO penstock_payload VALUES (?, '{}')", (job_id,))
        connection.execute(
            "INSERT INTO penstock_log (id, job_id, at, event, state, actor) "
            "VALUES (?, ?, 0, 'enqueued', 'pending', 'p')",
            (job_id, job_id),
        )
    connection.execute("INSERT INTO penstock_total VALUES ('q', 0, 4)")
    connection.close()
    store = SqliteStore(path, system_clock)
    assert drive(store.queues()) == [
        Queue(name="held", paused=True),
        Queue(name="q", max_pending=9),
    ]
    assert drive(store.backlog()) == (4, 4)
    [first] = drive(store.claim(Claim(worker="w", limit=1, tags=("x",))))
    assert [first.id, *claim(store, 9)] == [1, 3, 4, 2]
    drive(store.close())

"""What limits and shares cost: nothing without them, and no more for a longer backlog."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.job import Claim, NewJob
from penstock.core.limits import Limit
from penstock.core.store import Clock
from penstock.core.tasks import KnownTasks
from penstock.runtime import Runtime, system_clock
from penstock.stores import open_store
from penstock.stores.sql import claims
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.transaction import SQL, SqliteTransaction
from tests.contract.support import ManualClock, drive
from tests.stores.sql.databases import Database
from tests.stores.support import sqlite_store, writing_connection

KNOWN = KnownTasks({"t": (1,)})


def new(**options: str) -> NewJob:
    return NewJob(task=options.pop("task", "t"), payload="{}", **options)  # type: ignore[arg-type] # options as data


def opened(database: Database, clock: Clock = system_clock) -> SqlStore:
    store = open_store(database.url, runtime=Runtime(clock))
    assert isinstance(store, SqlStore)
    return store


def claim(store: SqlStore, limit: int = 1, tasks: KnownTasks | None = None) -> list[int]:
    return [job.id for job in drive(store.claim(Claim(worker="w", limit=limit, tasks=tasks)))]


def instructions(store: SqlStore, work: Callable[[], object]) -> int:
    """How many instructions SQLite runs for some work, in hundreds."""
    ran = 0

    def count() -> int:
        nonlocal ran
        ran += 1
        return 0

    connection = writing_connection(store)
    connection.set_progress_handler(count, 100)
    work()
    connection.set_progress_handler(None, 0)
    return ran


def statements_of_a_claim(store: SqlStore, tasks: KnownTasks | None = None) -> list[str]:
    """The queries that a claim runs, by name."""
    names = {text: name for name, text in SQL.items()}
    connection = writing_connection(store)
    ran: list[str] = []

    def execute(sql: str, *parameters: Any) -> sqlite3.Cursor:
        ran.append(names[sql])
        return connection.execute(sql, *parameters)

    connection.execute("BEGIN IMMEDIATE")
    tx = SqliteTransaction(connection, store.clock, set())
    tx._execute = execute
    claims.claim(tx, [Claim(worker="w", limit=1, tasks=tasks)])
    connection.execute("ROLLBACK")
    return ran


def test_claim_without_limits_runs_no_statement_more(store: SqlStore) -> None:
    drive(store.add([new()] * 3, actor="p"))
    plain = [
        "external_changes",
        "migration_lock",
        "any_due",
        "claimable",
        "pick",
        "last_ids",
        "jobs",
    ]
    plain += ["log_claimed", "start", *["add_totals"] * 2]
    assert statements_of_a_claim(store) == plain
    assert statements_of_a_claim(store, KNOWN) == plain
    drive(store.limit(Limit(kind="throttle", name="x", concurrency=2)))
    drive(store.add([new(queue="other")], actor="p"))
    assert statements_of_a_claim(store).count("pick") == 2
    drive(store.add([new(queue="other", tenant="a")], actor="p"))
    assert "pick" not in statements_of_a_claim(store)


def backlog(store: SqlStore, n: int, job: NewJob) -> None:
    for _ in range(n // 1_000):
        drive(store.add([job] * 1_000, actor="p"))


def test_cost_of_a_claim_does_not_grow_with_jobs_of_unknown_tasks(tmp_path: Path) -> None:
    """Measured when they are set aside: for a worker that does not know them, and for one."""
    costs: list[tuple[int, int, int]] = []
    for n in (3_000, 100_000):
        store = sqlite_store(tmp_path / f"{n}.db", system_clock)
        backlog(store, n, new(task="unknown"))
        drive(store.add([new()] * 10, actor="p"))
        assert len(claim(store, 5, KNOWN)) == 5, "it sets the others aside"
        plain = statements_of_a_claim(store, KNOWN)
        assert "pick" in plain, "what is set aside is no concern of others"
        work: list[Callable[[], object]] = [
            lambda store=store: claim(store, 5, KNOWN),  # type: ignore[misc] # bound at once
            lambda store=store: claim(store, 5, KnownTasks({"unknown": (1,)})),  # type: ignore[misc] # bound at once
            lambda store=store: claim(store, 5),  # type: ignore[misc] # bound at once
        ]
        none, some, everything = (instructions(store, one) for one in work)
        costs.append((none, some, everything))
        drive(store.close())
    for few, many in zip(*costs, strict=True):
        assert many <= 1.2 * few + 1


@pytest.mark.parametrize("tags", [(), ("red",)], ids=["any", "by tag"])
def test_one_transaction_sets_aside_a_portion_and_others_write_meanwhile(
    database: Database, tags: tuple[str, ...]
) -> None:
    store = opened(database)
    drive(store.add([replace(new(task="unknown"), tags=tags)] * 3_500, actor="p"))
    wanted = Claim(worker="w", limit=5, tasks=KNOWN, tags=tags)
    for portion in (1_000, 2_000, 3_000):
        assert drive(store.database.write(store.database.claim, wanted)) is None
        assert [one.jobs for one in drive(store.set_aside())] == [portion]
    own = drive(store.add([replace(new(), tags=tags)], actor="p"))
    assert drive(store.claim(wanted))[0].id == own[0].id
    drive(store.close())


def test_one_transaction_makes_a_portion_ready_of_what_has_fallen_due(database: Database) -> None:
    clock = ManualClock()
    store = opened(database, clock)
    due = clock.now + timedelta(hours=1)
    drive(store.add([replace(new(task="unknown"), run_at=due)] * 2_500, actor="p"))
    clock.advance(timedelta(hours=2))
    wanted = Claim(worker="w", limit=5, tasks=KNOWN)
    assert drive(store.database.write(store.database.claim, wanted)) is None
    assert sum(one.jobs for one in drive(store.set_aside())) <= 1_000
    assert drive(store.claim(wanted)) == []
    assert sum(one.jobs for one in drive(store.set_aside())) == 2_500
    drive(store.close())


@pytest.mark.parametrize("kind", ["tenant", "throttle", "task"])
def test_cost_of_a_claim_does_not_grow_with_the_backlog(kind: str, tmp_path: Path) -> None:
    """Of a tenant, or of what a limit holds; measured when what is held was put aside."""
    costs = []
    for n in (3_000, 30_000):
        store = sqlite_store(tmp_path / f"{n}.db", system_clock)
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
        store = sqlite_store(tmp_path / f"{n}.db", system_clock)
        backlog(store, n, NewJob(task="t", payload="{}", tenant="large", tags=("red", "blue")))
        drive(store.add([NewJob(task="t", payload="{}", tenant="s", tags=("red",))], actor="p"))
        drive(store.claim(wanted))
        costs.append(instructions(store, lambda store=store: drive(store.claim(wanted))))  # type: ignore[misc] # bound at once
        drive(store.close())
    assert costs[1] <= 1.2 * costs[0] + 5, costs

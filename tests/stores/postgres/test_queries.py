"""What the planner believes of a table may be wrong by a million jobs: it is left no choice."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.core.job import Claim, NewJob
from penstock.core.tasks import KnownTasks
from penstock.engine.penstock import Penstock, run_sync
from penstock.stores.postgres.arrays import Texts
from penstock.stores.postgres.connection import Address, address, connect, queries

# Tables that do not grow with the jobs.
SMALL = {
    "arrival",
    "counter",
    "job_id",
    "limit",
    "queue",
    "rate",
    "receipt",
    "schedule",
    "seal",
    "token",
}
SMALL |= {"departed_task", "newcomer", "series", "total", "worker"}
# Queries that walk, and why they may.
WALKS = {
    "any_ready": "one entry of each line",
    "oldest_held_merged": "jobs that limits hold",
    "any_forward_edge": "edges of jobs that are waiting; asked when one is superseded",
    "expired": "jobs that are running",
    "has_logged": "the newest entries, after a crash of the server",
    "holding_limits": "from one limit to the next",
    "holding_limits_among": "one entry",
    "holdings": "jobs that are running",
    "any_queue_has_room": "jobs that are running",
    "running_by_task": "jobs that are running",
    "running_of_throttle": "jobs that are running",
    "size": "the catalogue",
    "find": "without conditions, all jobs",
    "find_ids": "without conditions, all jobs",
    "tally": "without conditions, all jobs",
}
# Indexes of which one entry is enough to know that there is any.
ASKED_FOR_ANY = {"job_held", "job_share", "job_throttled"}
# What follows the beginning of a search.
TAILS = {"find": " true", "tally": " true GROUP BY j.stage"}


@pytest.fixture
def where(postgres_url: str) -> Address:
    """A store with tables for today."""
    app = Penstock(postgres_url)
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}")]))
    run_sync(app.close())
    return address(postgres_url)


@pytest.fixture
def connection(where: Address) -> Iterator["psycopg.Connection[Any]"]:
    """Plans as the store's own do."""
    with connect(where) as opened:
        yield opened


def was_empty(connection: "psycopg.Connection[Any]", schema: str) -> None:
    """Let the planner believe that there are no jobs, as after a quiet night."""
    connection.execute(f"DELETE FROM {schema}.job".encode(), prepare=False)  # noqa: S608 - our own name
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = $1::regnamespace",
        (schema,),
    ).fetchall()
    for (table,) in tables:
        connection.execute(f'VACUUM ANALYZE {schema}."{table}"'.encode(), prepare=False)


def walked(plan: dict[str, Any]) -> set[str]:
    """The tables that a plan reads from one end to the other."""
    found: set[str] = set()
    any_is_enough = plan.get("Parent Relationship") == "InitPlan"
    looked_up = plan.get("Index Cond") or plan.get("TID Cond")
    looked_up = looked_up or (any_is_enough and plan.get("Index Name") in ASKED_FOR_ANY)
    if "Relation Name" in plan and plan["Node Type"].endswith("Scan") and not looked_up:
        found.add(plan["Relation Name"])
    return found.union(*(walked(part) for part in plan.get("Plans", ())))


@pytest.mark.parametrize("known", [False, True], ids=["fresh", "emptied"])
def test_no_query_walks_where_jobs_pile_up(
    known: bool, where: Address, connection: "psycopg.Connection[Any]"
) -> None:
    if known:
        was_empty(connection, where.schema)
    walking: dict[str, set[str]] = {}
    for name, text in queries(where.schema).items():
        if name in {"lock_job_ids", "lock_log_ids"}:
            continue  # no query
        tail = TAILS.get(name.partition("_")[0], "")
        statement = f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}{tail}".encode()
        ((said,),) = connection.execute(statement, prepare=False).fetchall()
        plan = (json.loads(said) if isinstance(said, str) else said)[0]["Plan"]
        if (tables := walked(plan) - SMALL) and name not in WALKS:
            walking[name] = tables
    assert walking == {}


def examined(plan: dict[str, Any]) -> int:
    """Return how many rows the scans of a plan looked at when it was run."""
    rows = 0
    if "Relation Name" in plan:
        looked_at = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        rows = round(looked_at * plan["Actual Loops"])
    return rows + sum(map(examined, plan.get("Plans", ())))


@pytest.mark.parametrize("running", [False, True])
def test_rearranging_a_key_does_not_look_at_the_jobs_behind_its_head(
    running: bool, postgres_url: str, connection: "psycopg.Connection[Any]"
) -> None:
    app = Penstock(postgres_url)
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}", key="k")] * 2_000))
    if running:
        run_sync(app.leases.claim(worker="w", limit=9))
    run_sync(app.close())
    text = queries(address(postgres_url).schema)["key_lines"]
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".encode()
    ((said,),) = connection.execute(explained, ('["k"]',), prepare=False).fetchall()
    plan = (json.loads(said) if isinstance(said, str) else said)[0]["Plan"]
    assert examined(plan) <= 3


def test_unknown_tasks_cost_a_claim_nothing_and_are_counted_to_a_bound(
    postgres_url: str, connection: "psycopg.Connection[Any]"
) -> None:
    """By the rows that are looked at, once 3,000 jobs are set aside."""
    app = Penstock(postgres_url)
    known = KnownTasks({"t": (1,)})
    run_sync(app.enqueue_many([NewJob(task="unknown", payload="{}")] * 3_000))
    run_sync(app.enqueue_many([NewJob(task="t", payload="{}")] * 4))
    assert len(run_sync(app.store.claim(Claim(worker="w", limit=1, tasks=known)))) == 1
    run_sync(app.close())
    sql = queries(address(postgres_url).schema)

    def rows(name: str, parameters: tuple[Any, ...]) -> int:
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql[name]}".encode()
        ((said,),) = connection.execute(explained, parameters, prepare=False).fetchall()
        return examined((json.loads(said) if isinstance(said, str) else said)[0]["Plan"])

    beginning = ("default", -(2**31), 0, 0)
    expected = (None, None, Texts(known.holders))
    parameters = (1, "w", None, None, *beginning, 1, *expected)
    assert rows("claim_of_one", parameters) < 20
    assert rows("set_aside", (50,)) < 100


def test_job_that_has_left_its_stage_is_not_restaged(
    postgres_url: str, connection: "psycopg.Connection[Any]"
) -> None:
    app = Penstock(postgres_url)
    [job] = run_sync(app.enqueue_many([NewJob(task="t", payload="{}", queue="q", key="k")]))
    run_sync(app.close())
    text = queries(address(postgres_url).schema)["restage"].encode()
    blocked, ready, scheduled = 2, 0, 1
    assert connection.execute(text, (f"[{job.id}]", blocked, ready)).fetchall() == []
    moved = connection.execute(text, (f"[{job.id}]", ready, scheduled)).fetchall()
    assert moved == [(job.id, "q")]

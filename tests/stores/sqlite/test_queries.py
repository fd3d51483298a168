"""Every question is answered by the index that was made for it: no cost grows with the backlog."""

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import JobId
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery
from penstock.stores.sqlite.schema import SCRIPTS, prepared
from penstock.stores.sqlite.search import searched, tagged
from penstock.stores.sqlite.transaction import SQL

SMALL = {
    "penstock_meta",
    "penstock_limit",
    "penstock_rate",
    "penstock_turn",
    "penstock_token",
    "penstock_counter",
    "penstock_series",
    "penstock_worker",
    "penstock_departed_task",
    "penstock_seal",
    f"penstock_schema_{SCRIPTS.version}",
}
"""Tables with a few rows per setting, token or worker, or of limited length: may be read whole."""


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = prepared(path, create=True)
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, sql: str) -> list[str]:
    """What SQLite will do, step by step."""
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    parameters: list[Any] = [None] * (max(numbered) if numbered else sql.count("?"))
    found = connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
    return [detail for *_, detail in found]


def scanned(sql: str, steps: list[str]) -> set[str]:
    """The large tables of which every row is read."""
    names = {alias: table for table, alias in re.findall(r"(penstock_\w+) AS (\w+)", sql)}
    found = [str(match[1]) for step in steps if (match := re.fullmatch(r"SCAN (\w+)", step))]
    tables: set[str] = {names.get(name, name) for name in found}
    return {table for table in tables if table.startswith("penstock_")} - SMALL


def used(steps: list[str]) -> set[str]:
    return {name for step in steps for name in re.findall(r"INDEX (penstock_\w+)", step)}


@pytest.mark.parametrize(
    ("query", "indexes"),
    [
        ("pick", {"penstock_job_ready"}),
        ("pick_level", {"penstock_job_ready"}),
        ("pick_share", {"penstock_job_share"}),
        ("tenants", {"penstock_job_share"}),
        ("running_of_throttle", {"penstock_job_throttle"}),
        ("running_by_task", {"penstock_job_leased"}),
        ("holding_limits", {"penstock_job_held"}),
        ("held_groups", {"penstock_job_held"}),
        ("release_held", {"penstock_job_held"}),
        ("oldest_ready", {"penstock_job_ready"}),
        ("keys", {"penstock_job_key"}),
        ("oldest_of_tenants", {"penstock_job_share"}),
        ("oldest_held", {"penstock_job_held"}),
        (
            "claimable",
            {
                "penstock_job_held",
                "penstock_job_merged",
                "penstock_job_share",
                "penstock_job_throttled",
                "penstock_queue_leaving",
                "penstock_queue_own",
            },
        ),
        (
            "claimable_named",
            {
                "penstock_job_held",
                "penstock_job_share",
                "penstock_job_throttled",
                "penstock_queue_leaving",
            },
        ),
        ("pick_merged", {"penstock_job_merged"}),
        ("pick_merged_level", {"penstock_job_merged"}),
        ("pick_merged_tagged", {"penstock_ready_tag_merged"}),
        ("pick_merged_level_tagged", {"penstock_ready_tag_merged"}),
        ("merged_levels", {"penstock_job_merged"}),
        ("unmerge_jobs", {"penstock_job_member"}),
        ("unmerging", {"penstock_job_member", "penstock_queue_leaving"}),
        ("rates_in_force", {"penstock_queue_rated"}),
        (
            "any_limit",
            {"penstock_job_held", "penstock_job_throttled", "penstock_queue_limited"},
        ),
        ("any_due", {"penstock_job_scheduled"}),
        ("promote_due", {"penstock_job_scheduled"}),
        (
            "next_change",
            {"penstock_job_scheduled", "penstock_queue_paused", "penstock_queue_rated"},
        ),
        ("expired", {"penstock_job_leased"}),
        ("holdings", {"penstock_job_leased"}),
        ("prunable", {"penstock_job_finished"}),
        ("dedupe_holders", {"penstock_job_dedupe", "penstock_job_dedupe_running"}),
        ("held_keys", {"penstock_job_key"}),
        ("key_lines", {"penstock_job_key"}),
    ],
)
def test_question_is_answered_by_its_own_index(
    connection: sqlite3.Connection, query: str, indexes: set[str]
) -> None:
    steps = plan(connection, SQL[query])
    assert used(steps) == indexes, steps
    assert query in ALL_BUT or scanned(SQL[query], steps) == set(), steps


@pytest.mark.parametrize(
    "query",
    [
        "pick",
        "pick_tagged",
        "pick_level",
        "pick_share",
        "pick_level_tagged",
        "pick_merged",
        "pick_merged_tagged",
        "pick_merged_level",
        "pick_merged_level_tagged",
        "held_groups",
        "release_held",
        "oldest_held",
        "promote_due",
        "expired",
    ],
)
def test_order_comes_from_the_index(connection: sqlite3.Connection, query: str) -> None:
    steps = plan(connection, SQL[query])
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


def test_tagged_jobs_are_found_by_queue_and_tag(connection: sqlite3.Connection) -> None:
    steps = plan(connection, SQL["pick_tagged"])
    assert "SEARCH penstock_ready_tag USING PRIMARY KEY (queue=? AND tag=?)" in steps
    for name in ("pick_level_tagged", "tenants_tagged"):
        steps = plan(connection, SQL[name])
        sought = "t USING PRIMARY KEY (queue=? AND tag=? AND priority=? AND tenant"
        assert any(sought in step for step in steps), steps


def test_held_jobs_are_sought_by_what_they_wait_for(connection: sqlite3.Connection) -> None:
    """From one tenant, queue and priority to the next, without a look at what lies between."""
    steps = [step for step in plan(connection, SQL["held_groups"]) if "SEARCH j" in step]
    ends = [step.split("penstock_job_held ")[1] for step in steps]
    assert ends == [
        "(held=? AND <expr>=? AND <expr>=? AND priority>?)",
        "(held=? AND <expr>=? AND <expr>>?)",
        "(held=? AND <expr>>?)",
    ]


def test_pick_begins_where_its_queue_does(connection: sqlite3.Connection) -> None:
    steps = plan(connection, SQL["pick"])
    [step] = [step for step in steps if "penstock_job" in step]
    assert step.endswith("INDEX penstock_job_ready (queue=?)")


ALL_BUT = {
    "external_changes": "what programs have ended since the last claim",
    "find": "built from its parts: see below",
    "oldest_held_merged": "jobs that limits hold",
    "oldest_of_tenants": "of every queue: that is its question",
    "oldest_ready": "of every queue: that is its question",
    "count_queues": "counts every queue: asked seldom",
    "queues": "lists every queue",
    "ready_queues": "of every queue: that is its question",
    "totals": "lists every queue",
    "total_summary": "adds up every queue: asked seldom",
    "without_series": "passes by queues that have a series, of which there are few, and ends",
    "find_tagged": "as find",
    "holding_limits_among": "asks for any row at all",
    "find_ids": "as find",
    "find_ids_tagged": "as find",
    "tally": "as find",
    "tally_tagged": "as find",
    "backlog": "counts what is unfinished: that is its question",
}


@pytest.mark.parametrize("query", sorted(SQL.keys() - ALL_BUT.keys()))
def test_no_query_reads_a_large_table_whole(connection: sqlite3.Connection, query: str) -> None:
    steps = plan(connection, SQL[query])
    assert scanned(SQL[query], steps) == set(), steps


def test_backlog_reads_only_what_is_unfinished(connection: sqlite3.Connection) -> None:
    steps = plan(connection, SQL["backlog"])
    tables = [step for step in steps if "penstock_job" in step]
    assert len(tables) == 7
    assert all("INDEX penstock_job_" in step or "INTEGER PRIMARY KEY" in step for step in tables)


def find(query: JobQuery) -> str:
    tail, _ = searched(query)
    return f"{SQL['find_tagged' if tagged(query) else 'find']} {tail}"


RUNNING = frozenset({State.RUNNING})


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (JobQuery(states=RUNNING, cancel_requested=True), "penstock_job_cancelling"),
        (JobQuery(states=RUNNING, key="k", newest_first=False), "penstock_job_key"),
        (
            JobQuery(states=frozenset({State.PENDING}), key="k", newest_first=False),
            "penstock_job_key",
        ),
        (JobQuery(states=RUNNING), "penstock_job_leased"),
        (JobQuery(states=frozenset({State.FAILED})), "penstock_job_finished"),
    ],
)
def test_search_uses_an_index_where_few_jobs_fit(
    connection: sqlite3.Connection, query: JobQuery, index: str
) -> None:
    steps = plan(connection, find(query))
    assert index in used(steps), steps


@pytest.mark.parametrize(
    "query",
    [
        JobQuery(),
        JobQuery(queue="q"),
        JobQuery(states=frozenset({State.DONE})),
        JobQuery(states=frozenset({State.PENDING}), queue="q"),
        JobQuery(after=JobId(5), newest_first=False),
        JobQuery(after=JobId(9), until=JobId(5), states=frozenset({State.FAILED}), text="x"),
    ],
)
def test_search_where_many_jobs_fit_walks_them_by_id_without_sorting(
    connection: sqlite3.Connection, query: JobQuery
) -> None:
    steps = plan(connection, find(query))
    assert used(steps) == set()
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


def test_search_by_tag_uses_the_tags(connection: sqlite3.Connection) -> None:
    steps = plan(connection, find(JobQuery(tags=("x",))))
    assert any("t USING PRIMARY KEY (tag=?" in step for step in steps), steps
    assert not [step for step in steps if "SCAN" in step or "TEMP B-TREE" in step], steps


def test_search_by_several_tags_looks_at_no_other_job(connection: sqlite3.Connection) -> None:
    steps = plan(connection, find(JobQuery(tags=("x", "y"))))
    assert any("penstock_tag USING PRIMARY KEY (tag=?" in step for step in steps), steps
    assert any("j USING INTEGER PRIMARY KEY (rowid=?" in step for step in steps), steps
    assert not [step for step in steps if "SCAN j " in step or "TEMP B-TREE" in step], steps


def test_plans_stay_the_same_when_the_file_was_analysed(connection: sqlite3.Connection) -> None:
    """A user's ANALYZE of an empty or one-sided file must not mislead the claim."""
    connection.execute("ANALYZE")
    for query, index in (("pick", "ready"), ("expired", "leased"), ("held_keys", "key")):
        assert used(plan(connection, SQL[query])) == {f"penstock_job_{index}"}


@pytest.mark.parametrize("query", ["held_keys", "key_lines", "tail_of_key"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_cost_does_not_grow_with_the_blocked_jobs_of_a_key(
    connection: sqlite3.Connection, query: str, stage: int
) -> None:
    def steps(blocked: int) -> int:
        connection.execute("DELETE FROM penstock_job")
        connection.executemany(
            "INSERT INTO penstock_job (id, stage, version, run_at, queue, task, priority,"
            " enqueued_at, lease_time, key, needs) VALUES (?, ?, 1, 0, 'q', 't', 5, 0, 1, 'k', 1)",
            [(1, stage), *((place, 2) for place in range(2, blocked + 2))],
        )
        done = [0]

        def count() -> int:
            done[0] += 1
            return 0

        keys = "k" if query == "tail_of_key" else '["k"]'
        connection.set_progress_handler(count, 1)
        connection.execute(SQL[query], (keys,)).fetchall()
        connection.set_progress_handler(None, 1)
        return done[0]

    assert steps(blocked=1000) <= steps(blocked=10) + 5


@pytest.mark.parametrize(("query", "tenant"), [("oldest_ready", None), ("oldest_of_tenants", "a")])
def test_oldest_ready_job_is_found_without_a_look_at_the_others(
    connection: sqlite3.Connection, query: str, tenant: str | None
) -> None:
    def steps(jobs: int) -> int:
        connection.execute("DELETE FROM penstock_job")
        connection.execute("INSERT OR IGNORE INTO penstock_queue (name) VALUES ('q')")
        connection.executemany(
            "INSERT INTO penstock_job (id, stage, version, run_at, queue, task, priority,"
            " enqueued_at, lease_time, tenant) VALUES (?1, 0, 1, ?1, 'q', 't', ?1 % 11, 0, 1, ?2)",
            [(place, tenant) for place in range(1, jobs + 1)],
        )
        done = [0]

        def count() -> int:
            done[0] += 1
            return 0

        connection.set_progress_handler(count, 1)
        assert connection.execute(SQL[query], ('["q"]',)).fetchall() == [("q", 1)]
        connection.set_progress_handler(None, 1)
        return done[0]

    assert steps(jobs=2000) <= steps(jobs=20) + 5


def test_ready_tags_are_found_without_a_look_at_their_jobs(connection: sqlite3.Connection) -> None:
    def steps(jobs: int) -> int:
        connection.execute("DELETE FROM penstock_ready_tag")
        connection.execute("INSERT OR IGNORE INTO penstock_queue (name) VALUES ('q')")
        connection.executemany(
            "INSERT INTO penstock_ready_tag VALUES ('q', ?, 5, '', 0, ?, 0)",
            [(tag, place) for place in range(jobs) for tag in "abc"],
        )
        done = [0]

        def count() -> int:
            done[0] += 1
            return 0

        connection.set_progress_handler(count, 1)
        found = connection.execute(SQL["ready_tags"], ("q", 1000)).fetchone()
        connection.set_progress_handler(None, 1)
        assert found == ('["a","b","c"]',)
        return done[0]

    assert steps(jobs=1000) <= steps(jobs=10) + 5


def test_job_that_has_left_its_stage_is_not_restaged(connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO penstock_job (id, stage, version, run_at, queue, task, priority,"
        " enqueued_at, lease_time, key) VALUES (1, 3, 1, 0, 'q', 't', 5, 0, 1, 'k')"
    )
    blocked, running = 2, 3
    assert connection.execute(SQL["restage"], ("[1]", blocked, 0)).fetchall() == []
    assert connection.execute(SQL["restage"], ("[1]", running, 0)).fetchall() == [(1, "q")]


def test_no_query_is_prepared_again_when_other_values_are_bound(path: Path) -> None:
    """SQLite does so where a value decides whether a partial index can be used.

    It asks the authorizer whenever it prepares a statement.
    """
    asked = [0]

    def authorize(*_: object) -> int:
        asked[0] += 1
        return sqlite3.SQLITE_OK

    def run(text: str, value: str) -> None:
        numbered = [int(number) for number in re.findall(r"\?(\d+)", text)]
        parameters = [value] * (max(numbered) if numbered else text.count("?"))
        with contextlib.suppress(sqlite3.Error):  # of a value that the query cannot use
            opened.execute(text, parameters).fetchall()

    prepared(path, create=True).close()
    again = set()
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None, cached_statements=500)
    ) as opened:
        opened.set_authorizer(authorize)
        for name, text in SQL.items():
            if "?" not in text:
                continue
            run(text, "[]")
            before = asked[0]
            run(text, "[1]")
            if asked[0] > before:
                again.add(name)
    assert again == {"prunable"}  # which is run once for thousands of jobs

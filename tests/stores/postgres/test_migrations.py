"""Schemas of earlier versions are brought up with what is in them."""

from collections.abc import Sequence
from datetime import timedelta

from penstock.core.job import Queue
from penstock.engine import Penstock, run_sync
from penstock.stores import open_store
from penstock.stores.postgres.connection import MIGRATIONS, address, connect, renamed
from penstock.stores.sql.rows import encoded
from tests.contract.support import drive, ids, retry_all, take


def failed_before_names(url: str, jobs: Sequence[tuple[str, str | None]]) -> None:
    """Jobs of these queues and tenants, all of which have failed in a schema of the last version
    in which each queue had a line of its own.
    """
    where = address(url)
    job = {"task": "t", "body": "{}", "priority": 5, "lease_time": 30_000_000}
    end = """
        INSERT INTO penstock.meta VALUES ('schema', 6);
        UPDATE penstock.job
        SET stage = 5, finished_at = enqueued_at, shelf = 2 * (enqueued_at / 86400000000) + 1;
        UPDATE penstock.delta SET stage = 5;
    """
    with connect(where) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {where.schema}")
        for number, script in MIGRATIONS:
            if number < 7:
                connection.execute(renamed(script, where.schema).encode(), prepare=False)
        for queue, tenant in jobs:
            connection.execute(
                f"SELECT {where.schema}.call_add($1::json, 'p')",
                (encoded({**job, "queue": queue, "tenant": tenant}),),
            )
        connection.execute(renamed(end, where.schema).encode(), prepare=False)


def test_queues_stay_paused_and_keep_their_limits(postgres_url: str) -> None:
    where = address(postgres_url)
    filled = """
        INSERT INTO penstock.meta VALUES ('schema', 1);
        INSERT INTO penstock.queue VALUES ('held', true), ('open', false);
        UPDATE penstock.queue SET promote_after = 60000000 WHERE name = 'open';
    """
    with connect(where) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {where.schema}")
        for script in (MIGRATIONS[0][1], filled):
            connection.execute(renamed(script, where.schema).encode(), prepare=False)
    app = Penstock(postgres_url)
    still = Queue(name="open", promote_after=timedelta(minutes=1))
    assert run_sync(app.queues()) == [Queue(name="held", paused=True), still]
    run_sync(app.close())


def test_jobs_that_failed_before_the_upgrade_run_when_retried(postgres_url: str) -> None:
    failed_before_names(postgres_url, [(f"q-{i}", None) for i in range(40)])
    store = open_store(postgres_url)
    retried = drive(retry_all(store))
    assert ids(drive(take(store))) == ids(retried)
    drive(store.close())


def test_tenants_whose_jobs_failed_before_the_upgrade_take_turns_when_retried(
    postgres_url: str,
) -> None:
    others: list[tuple[str, str | None]] = [(f"q-{i}", None) for i in range(40)]
    failed_before_names(postgres_url, [*others, *(("shared", tenant) for tenant in "aaabb")])
    store = open_store(postgres_url)
    drive(retry_all(store))
    found = [job.tenant for job in drive(take(store)) if job.queue == "shared"]
    assert {*found[:2]} == {*found[2:4]} == {"a", "b"}
    drive(store.close())

"""Days of finished jobs, which PostgreSQL drops as whole partitions."""

from datetime import timedelta

import psycopg

from penstock.core.job import Retention
from penstock.core.lifecycle import Done, Failed
from penstock.core.times import to_micros
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.stores.postgres.connection import DAY
from tests.contract.support import (
    HOUR,
    ManualClock,
    add,
    everything,
    ids,
    new,
    settle,
    take_one,
)

KEPT = Retention(finished=HOUR, failed=72 * HOUR)


def partitions(server: str, url: str, day: int) -> set[str]:
    """Return which partitions of jobs that ended on a day a store has."""
    schema = url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(server) as connection:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE %s",
            (schema, rf"job\_{day}\_%"),
        )
        return {name.rpartition("_")[2] for (name,) in found}


async def test_days_are_dropped_with_their_partitions_and_failed_jobs_later(
    postgres_url: str, postgres_server: str, clock: ManualClock
) -> None:
    store = open_store(postgres_url, runtime=Runtime(clock))
    day = to_micros(clock.now) // DAY
    await add(store, new(), new())
    await settle(store, await take_one(store), Done())
    failed = await settle(store, await take_one(store), Failed("boom", permanent=True))
    assert partitions(postgres_server, postgres_url, day) == {"ended", "failed"}

    assert await store.prune(KEPT, 100, whole_days=True) == 0, "the day is not over"
    clock.advance(timedelta(hours=48))
    assert await store.prune(KEPT, 100, whole_days=True) == 1
    assert partitions(postgres_server, postgres_url, day) == {"failed"}
    assert ids(await everything(store)) == [failed.id]

    clock.advance(timedelta(hours=72))
    assert await store.prune(KEPT, 100, whole_days=True) == 1
    assert partitions(postgres_server, postgres_url, day) == set()
    await store.close()

"""Rows of an application follow the jobs of a queue, whatever changes them."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import Penstock
from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, Retention
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Failed,
    Snoozed,
    cancel,
    reprioritise,
    reset,
    start,
)
from penstock.core.lifecycle import Expired as LeaseOver
from penstock.core.store import Store
from penstock.core.superseding import Tail
from penstock.core.tables import Mirror
from penstock.core.times import to_micros
from penstock.runtime import SYSTEM, Runtime
from penstock.stores import open_store
from penstock.stores.postgres.connection import address
from tests.contract.support import (
    HOUR,
    SECOND,
    STORES,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    look,
    move,
    new,
    settle,
    tables_of,
    take,
    take_one,
)

COLUMNS = "stage, attempt, worker, run_at, expires_at, finished_at, error, priority, token"
FOLLOW = (
    "INSERT INTO shadow (job_id, stage, attempt, worker, run_at, expires_at, finished_at, error, "
    "priority, token) VALUES (NEW.id, NEW.stage, NEW.attempt, NEW.worker, NEW.run_at, "
    "NEW.expires_at, NEW.finished_at, NEW.error, NEW.priority, NEW.token) "
    "ON CONFLICT (job_id) DO UPDATE SET stage = excluded.stage, attempt = excluded.attempt, "
    "worker = excluded.worker, run_at = excluded.run_at, expires_at = excluded.expires_at, "
    "finished_at = excluded.finished_at, error = excluded.error, priority = excluded.priority, "
    "token = excluded.token"
)
MIRROR = Mirror(
    name="shadow",
    queue="watched",
    sqlite=FOLLOW,
    postgres=FOLLOW,
    removed="DELETE FROM shadow WHERE job_id = OLD.id",
)
TABLE = (
    "(job_id bigint PRIMARY KEY, stage int, attempt int, worker text, run_at bigint, "
    "expires_at bigint, finished_at bigint, error text, priority int, token bigint)"
)


class Shadow:
    """The rows that follow, and the store that they follow."""

    def __init__(self, kind: str, url: str, clock: ManualClock) -> None:
        self.url = url
        self.store = open_store(self.url, runtime=Runtime(clock))
        self._kind = kind
        self._table = "shadow"
        if kind == "postgres":
            self._table = f"{address(self.url).schema}.shadow"
        self.run(f"CREATE TABLE {self._table} {TABLE}")
        drive(tables_of(self.store).add_mirror(MIRROR))

    def run(self, sql: str) -> list[Any]:
        if self._kind == "sqlite":
            path = self.url.removeprefix("sqlite:///")
            with closing(SYSTEM.sqlite(path, isolation_level=None)) as connection:
                return connection.execute(sql).fetchall()
        with psycopg.connect(address(self.url).conninfo) as other:
            cursor = other.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> dict[int, tuple[Any, ...]]:
        found = self.run(f"SELECT job_id, {COLUMNS} FROM {self._table}")  # noqa: S608 - our own
        return {row[0]: tuple(row[1:]) for row in found}

    async def check(self) -> None:
        """The rows are the jobs, and there is no other row."""
        jobs = [job for job in await everything(self.store) if job.queue == "watched"]
        assert self.rows() == {job.id: as_row(job) for job in jobs}


STAGES = {"ready": 0, "scheduled": 1, "blocked": 2, "running": 3, "done": 4, "failed": 5}
STAGES |= {"cancelled": 6, "superseded": 7}


def as_row(job: Job) -> tuple[Any, ...]:
    def at(instant: Any) -> int | None:
        return None if instant is None else to_micros(instant)

    stage = STAGES[job.waiting or job.state]
    times = at(job.run_at), at(job.expires_at), at(job.finished_at)
    return (stage, job.attempt, job.worker, *times, job.error, job.priority, job.token)


@pytest.fixture(params=["sqlite", "postgres"])
def shadow(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Any:
    # A schema of its own: what is made there stays in it.
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    opened = Shadow(request.param, url, clock)
    yield opened
    drive(opened.store.close())


async def one(store: Store, **options: Any) -> Job:
    return await add_one(store, queue="watched", **options)


async def test_rows_follow_a_run_from_its_beginning_to_its_end(
    shadow: Shadow, clock: ManualClock
) -> None:
    store = shadow.store
    await add(store, *[new(queue="watched", priority=n) for n in range(3)])
    await shadow.check()
    job = await take_one(store)
    await shadow.check()
    clock.advance(SECOND)
    [job] = await store.renew([job.lease])
    await shadow.check()
    job = await move(store, job, start(job))
    await shadow.check()
    await settle(store, job, Done('"x"'))
    await shadow.check()
    failing, other = await take(store, limit=2)
    await settle(store, failing, Failed("broken"))
    await shadow.check()
    await settle(store, other, Failed("broken for good", permanent=True))
    await shadow.check()
    clock.advance(HOUR)
    [again] = await take(store)
    assert again.id == failing.id
    await shadow.check()
    await settle(store, again, Snoozed(HOUR))
    await shadow.check()


async def test_rows_follow_leases_that_run_out(shadow: Shadow, clock: ManualClock) -> None:
    store = shadow.store
    await one(store)
    for _ in range(2):
        job = await take_one(store)
        clock.advance(2 * job.lease_time)
        await settle(store, job, LeaseOver())
        await shadow.check()
        clock.advance(HOUR)
    assert [row[0] for row in shadow.rows().values()] == [5]


async def test_rows_follow_what_people_do(shadow: Shadow, clock: ManualClock) -> None:
    store = shadow.store
    waiting, running = await one(store), await one(store, priority=9)
    await move(store, waiting, reprioritise(waiting, 7))
    await shadow.check()
    waiting = await move(store, await look(store, waiting), cancel(waiting, "no"))
    await shadow.check()
    await move(store, waiting, reset(waiting))
    await shadow.check()
    [running] = await take(store, limit=1)
    running = await move(store, running, cancel(running))
    await shadow.check()
    await settle(store, running, Cancelled())
    await shadow.check()
    running = await look(store, running)
    await move(store, running, reset(running))
    await shadow.check()
    clock.advance(HOUR)
    taken = await take_one(store)
    await move(store, taken, reset(taken, forced=True))
    await shadow.check()


async def test_rows_follow_what_ends_and_keys_mean_for_others(shadow: Shadow) -> None:
    store = shadow.store
    first = await one(store, key="k")
    second = await one(store, key="k")
    after = await one(store, after=(first.id,))
    await shadow.check()
    [merged] = await store.add(
        [new(queue="watched", key="k")], actor="p", tail=Tail(job=second, replaces=True)
    )
    await shadow.check()
    job = await take_one(store)
    await settle(store, job, Failed("broken", permanent=True))
    await shadow.check()
    states = {job.id: job.state.value for job in await everything(store)}
    assert states[after.id] == "cancelled"
    assert states[second.id] == "superseded"
    assert states[merged.id] == "pending"


async def test_a_row_goes_with_its_job(shadow: Shadow, clock: ManualClock) -> None:
    store = shadow.store
    await add(store, *[new(queue="watched") for _ in range(3)], new(queue="other"))
    jobs = await take(store, queues=("watched",))
    for job in jobs:
        await settle(store, job, Done())
    ended = [await look(store, job) for job in jobs]
    assert len(await store.delete(ended[:1])) == 1
    await shadow.check()
    clock.advance(timedelta(days=3))
    await shadow.check()
    await store.prune(Retention(finished=HOUR, failed=HOUR), 100, whole_days=True)
    await shadow.check()
    assert not shadow.rows()


async def test_a_scheduled_job_that_falls_due_is_ready_in_its_row(
    shadow: Shadow, clock: ManualClock
) -> None:
    await one(shadow.store, delay=HOUR)
    await shadow.check()
    clock.advance(2 * HOUR)
    await take(shadow.store, queues=("watched",))
    await shadow.check()


async def test_jobs_of_other_queues_are_left_alone(shadow: Shadow) -> None:
    await add_one(shadow.store, queue="other")
    await take(shadow.store)
    assert shadow.rows() == {}


async def test_a_mirror_takes_the_place_of_one_with_its_name(shadow: Shadow) -> None:
    changed = Mirror(
        name="shadow",
        queue="other",
        sqlite="INSERT INTO shadow (job_id, stage) VALUES (-NEW.id, 99)",
        postgres="INSERT INTO shadow (job_id, stage) VALUES (-NEW.id, 99)",
    )
    for _ in range(2):
        await tables_of(shadow.store).add_mirror(changed)
    await one(shadow.store)
    job = await add_one(shadow.store, queue="other")
    assert {place: row[0] for place, row in shadow.rows().items()} == {-job.id: 99}


async def test_a_change_fails_with_its_mirror(shadow: Shadow) -> None:
    broken = "UPDATE nowhere SET x = NEW.id"
    await tables_of(shadow.store).add_mirror(
        Mirror(name="broken", queue="watched", sqlite=broken, postgres=broken)
    )
    with pytest.raises(Exception, match="nowhere"):
        await one(shadow.store)
    await shadow.check()
    assert shadow.rows() == {}


@pytest.mark.parametrize("kind", ["memory", "journal"])
async def test_without_a_database_there_is_none(kind: str, tmp_path: Path) -> None:
    async with Penstock(STORES[kind](tmp_path)) as app:
        assert app.store.tables is None
        with pytest.raises(ConfigurationError, match="use a store that has one: sqlite:///FILE"):
            await app.tables.mirror(MIRROR)

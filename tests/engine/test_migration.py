"""Moving a queue between any two stores: all of it, once, whatever happens in between."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import (
    ConfigurationError,
    Job,
    JobQuery,
    Penstock,
    State,
    StoreUnavailable,
    Worker,
    run_sync,
)
from penstock.core.lifecycle import Event
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.core.workers import SILENT_AFTER, WorkerInfo
from penstock.engine import migration
from penstock.engine.migration import Moved, migrate, survey
from penstock.errors import MigrationRefused, StoreMoved
from penstock.leases import Done
from penstock.testing.faults import READS
from penstock.testing.stores import Proxy
from tests.contract.support import (
    HOUR,
    SECOND,
    STORES,
    ManualClock,
    add,
    add_one,
    everything,
    history,
    new,
    settle,
    take,
    take_one,
    totals,
)
from tests.moving import assert_moved, fill, states


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "PORTION", 3)
    monkeypatch.setattr(migration, "_IDS_AT_ONCE", 7)


def opened(kind: str, folder: Path, clock: ManualClock) -> Penstock:
    folder.mkdir()
    return Penstock(STORES[kind](folder), clock=clock, actor="mover")


@pytest.fixture(params=STORES)
def source(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Penstock]:
    """A Penstock on every store in turn."""
    app = opened(request.param, tmp_path / "source", clock)
    yield app
    run_sync(app.close())


@pytest.fixture(params=STORES)
def target(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Penstock]:
    """Another one."""
    app = opened(request.param, tmp_path / "target", clock)
    yield app
    run_sync(app.close())


async def drain(app: Penstock, clock: ManualClock) -> list[tuple[str | None, int, str]]:
    """Run all that is there; what ran, in that order."""
    for queue in await app.store.queues():
        await app.store.configure(
            QueueSettings(name=queue.name, paused=False, rate=None, concurrency=None)
        )
    ran = []
    while (await app.store.backlog())[0]:
        clock.advance(HOUR)
        while jobs := await take(app.store):
            ran += [(job.key, int(job.id), job.payload) for job in jobs]
            for job in jobs:
                await settle(app.store, job, Done())
    return ran


@pytest.mark.every_store
async def test_all_of_it_moves(source: Penstock, target: Penstock, clock: ManualClock) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    seen: list[Moved] = []
    moved = await migrate(source, target, progress=seen.append)
    jobs = await everything(source.store)
    assert states(jobs) == set(State) - {State.RUNNING}
    assert moved == Moved(
        jobs=len(jobs), moved=len(jobs), queues=7, limits=2, schedules=2, tokens=1
    )
    assert [one.moved for one in seen] == sorted({one.moved for one in seen})
    assert seen[-1].moved == len(jobs)
    await assert_moved(source.store, target.store)
    assert await totals(target.store) == await totals(source.store)


async def test_job_of_a_dead_worker_is_taken_back_and_keeps_its_checkpoint(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    await migrate(source, target)
    [job] = [one for one in await everything(target.store) if one.queue == "dead"]
    assert (job.state, job.attempt) == (State.PENDING, 1)
    events = [entry.event for entry in await history(target.store, job)]
    assert events == [Event.ENQUEUED, Event.CLAIMED, Event.EXPIRED, Event.RESTORED]
    assert await target.store.checkpoint(job.id) == '{"at": 3}'
    assert [line.text for line in await target.store.lines(job.id)] == [
        "line 0",
        "line 1",
        "line 2",
    ]


@pytest.mark.every_store
async def test_moved_jobs_run_once_in_the_order_of_their_keys(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    await migrate(source, target)
    pending = [job for job in await everything(target.store) if job.state is State.PENDING]
    edges = [
        edge for one in await target.store.records([j.id for j in pending]) for edge in one.edges
    ]
    assert any(edge.needed > edge.job_id for edge in edges)
    ran = await drain(target, clock)
    assert sorted(job_id for _, job_id, _ in ran) == [job.id for job in pending]
    order = [job_id for _, job_id, _ in ran]
    assert all(order.index(edge.needed) < order.index(edge.job_id) for edge in edges)
    for key, numbers in (("k0", "024"), ("k1", "135")):
        line = [f'{{"n": {n}}}' for n in numbers]
        assert [payload for of, _, payload in ran if of == key] == line


async def test_nothing_starts_in_the_source_any_more(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    await migrate(source, target)
    for write in (
        add(source.store, new(queue="unknown")),
        take(source.store),
        source.cancel((await everything(source.store))[-1].id),
        source.queues.pause("other"),
    ):
        with pytest.raises(
            StoreMoved, match=r"have moved to (sqlite|memory|journal|postgresql)://"
        ):
            await write
    clock.advance(2 * HOUR)
    source.task("cron", lambda: None)
    with pytest.raises(StoreMoved):
        await source.schedules.fire_due()
    await assert_moved(source.store, target.store)


async def test_worker_on_the_source_ends_with_an_error(source: Penstock, target: Penstock) -> None:
    await migrate(source, target)
    with pytest.raises(StoreMoved):
        await Worker(source).run()


async def test_there_and_back_and_there(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    await migrate(source, target)
    for _ in range(2):
        # What happens in between happens where the queue is.
        await settle(target.store, await take_one(target.store), Done())
        await add_one(target.store, key="k0")
        assert await target.store.drop_token("ci") or not await target.store.tokens()
        assert await target.store.drop_schedule("resting") or True
        await migrate(target, source)
        await assert_moved(target.store, source.store)
        source, target = target, source
    assert [one.name for one in await target.store.schedules()] == ["hourly"]
    assert await target.store.tokens() == []
    pending = [job.id for job in await everything(target.store) if job.state is State.PENDING]
    assert sorted(job_id for _, job_id, _ in await drain(target, clock)) == pending


async def test_second_move_of_the_same_has_nothing_to_do(
    source: Penstock, target: Penstock
) -> None:
    await add(source.store, *[new()] * 4)
    await migrate(source, target)
    job = await settle(target.store, await take_one(target.store), Done())
    assert (await migrate(source, target)).moved == 0
    assert len(await everything(target.store)) == 4
    assert await everything(target.store) != []
    assert (await target.get(job.id)).state is State.DONE


async def test_ids_and_tokens_of_the_source_are_not_given_again(
    source: Penstock, target: Penstock
) -> None:
    """Also those of jobs that were removed before."""
    await add(source.store, *[new()] * 10)
    jobs = [await settle(source.store, job, Done()) for job in await take(source.store)]
    await source.store.delete(jobs[1:])
    last = await source.store.origin()
    await migrate(source, target)
    job = await add_one(target.store)
    assert job.id > last.last_job
    assert job.version > last.last_log
    assert (await take_one(target.store)).token > last.last_log


def test_finished_job_that_is_removed_meanwhile_is_in_nobodys_way(
    source: Penstock, target: Penstock
) -> None:
    run_sync(add(source.store, *[new()] * 10))
    done = [run_sync(settle(source.store, job, Done())) for job in run_sync(take(source.store))]

    def remove(_: Moved) -> None:
        run_sync(source.store.delete([done[4], done[9]]))

    run_sync(migrate(source, target, progress=remove))
    left = [job.id for job in run_sync(everything(source.store))]
    assert (
        [job.id for job in run_sync(everything(target.store))] == left == [1, 2, 3, 4, 6, 7, 8, 9]
    )


# Interrupted


class Killed(BaseException):
    """Stands for a kill: nothing that comes behind it is done."""


class Mortal(Proxy):
    """A store whose process is killed before its n-th write."""

    def __init__(self, store: Store, left: list[int]) -> None:
        super().__init__(store)
        self._left = left

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name in READS or name == "clock":
            return verb

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._left[0] -= 1
            if not self._left[0]:
                raise Killed
            return await verb(*args, **kwargs)

        return call


async def interrupted(source: Penstock, target: Penstock, n: int) -> bool:
    """Return whether a move that is killed before its n-th write ended before that."""
    left = [n]
    with (
        Mortal(source.store, left).before(source),
        Mortal(target.store, left).before(target),
    ):
        try:
            await migrate(source, target)
        except Killed:
            return False
    return True


async def test_move_that_was_interrupted_anywhere_continues(
    source: Penstock, clock: ManualClock
) -> None:
    """Before each of its writes: that is also behind each."""
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    for n in range(1, 1000):
        target = Penstock("memory://", clock=clock, actor="mover")
        if await interrupted(source, target, n):
            break
        await assert_at_most_one_is_open(source, target)
        await migrate(source, target)
        await assert_moved(source.store, target.store)
        # And back, so that the next one begins with the same.
        if not await interrupted(target, source, n):
            await assert_at_most_one_is_open(target, source)
            await migrate(target, source)
        await assert_moved(target.store, source.store)
    assert n > 20
    await assert_moved(source.store, target.store)


async def assert_at_most_one_is_open(source: Penstock, target: Penstock) -> None:
    locks = await source.store.migration_lock(), await target.store.migration_lock()
    assert locks != (None, None) or not await everything(target.store)


async def test_target_waits_until_all_is_there(source: Penstock, target: Penstock) -> None:
    await add(source.store, *[new()] * 10)
    assert not await interrupted(source, target, 6)
    assert 0 < len(await everything(target.store)) < 10
    for write in (add_one(target.store), take(target.store)):
        with pytest.raises(StoreUnavailable, match="on their way here from"):
            await write
    with pytest.raises(StoreMoved, match="on their way to"):
        await add_one(source.store)
    await migrate(source, target)
    assert len(await take(target.store)) == 10


# Refused


async def test_refused_while_a_job_runs(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await add_one(source.store, lease=HOUR)
    job = await take_one(source.store, worker="busy")
    for _ in range(2):  # a long silence is no proof while the lease lasts
        with pytest.raises(MigrationRefused, match="busy holds 1 job until 2030-01-01 01:00:00"):
            await survey(source, target)
        with pytest.raises(MigrationRefused, match="busy holds 1 job until 2030-01-01 01:00:00"):
            await migrate(source, target)
        clock.advance(HOUR - SECOND - (clock.now - job.enqueued_at))
    assert await source.store.migration_lock() is None
    assert await target.store.migration_lock() is None
    clock.advance(SECOND)
    assert (await migrate(source, target)).moved == 1
    assert (await take_one(target.store)).attempt == 2


async def test_refused_while_a_worker_is_heard_of(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    workers = [
        WorkerInfo(name=f"w{n}", host="here", pid=n, seen_at=clock.now, started_at=clock.now)
        for n in range(7)
    ]
    await source.store.heartbeat(workers)
    clock.advance(20 * SECOND)
    with pytest.raises(
        MigrationRefused, match=r"w0 \(here, pid 0\) was heard of 20 s ago.*and 2 more"
    ):
        await migrate(source, target)
    clock.advance(SILENT_AFTER)
    await migrate(source, target)


async def test_claim_that_comes_just_before_the_lock_counts(
    source: Penstock, target: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_one(source.store, lease=HOUR)
    lock = source.store.set_migration_lock

    async def late(*args: Any, **kwargs: Any) -> bool:
        monkeypatch.setattr(source.store, "set_migration_lock", lock)
        await take_one(source.store, worker="quick")
        return await lock(*args, **kwargs)

    monkeypatch.setattr(source.store, "set_migration_lock", late)
    with pytest.raises(MigrationRefused, match="quick holds 1 job"):
        await migrate(source, target)
    assert await source.store.migration_lock() is None
    assert await target.store.migration_lock() is None
    assert await everything(target.store) == []


async def test_target_with_unfinished_jobs_is_refused(source: Penstock, target: Penstock) -> None:
    await add_one(source.store)
    await add_one(target.store)
    for move in (survey(source, target), migrate(source, target)):
        with pytest.raises(MigrationRefused, match="has 1 unfinished jobs of its own"):
            await move
    done = await settle(target.store, await take_one(target.store), Done())
    await add(source.store, *[new()] * 2)
    await migrate(source, target)
    await assert_moved(source.store, target.store, but=1)
    assert done in await everything(target.store)


async def test_job_that_comes_just_before_the_lock_counts(
    source: Penstock, target: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = target.store.set_migration_lock

    async def late(*args: Any, **kwargs: Any) -> bool:
        monkeypatch.setattr(target.store, "set_migration_lock", lock)
        await add_one(target.store)
        return await lock(*args, **kwargs)

    monkeypatch.setattr(target.store, "set_migration_lock", late)
    with pytest.raises(MigrationRefused, match="has 1 unfinished jobs of its own"):
        await migrate(source, target)
    assert (await source.store.migration_lock(), await target.store.migration_lock()) == (
        None,
        None,
    )
    assert len(await take(target.store)) == 1


async def test_old_copy_of_what_has_moved_opens_nothing(
    clock: ManualClock, tmp_path: Path, target: Penstock
) -> None:
    """As a backup is, from before a move that was not finished."""
    source = opened("sqlite", tmp_path / "copied", clock)
    await add(source.store, *[new()] * 10)
    assert not await interrupted(source, target, 6)
    lock = await source.store.migration_lock()
    assert await source.store.set_migration_lock(
        None, expected=lock
    )  # as if it never had been locked
    for _ in range(2):
        with pytest.raises(MigrationRefused, match="unfinished jobs of its own"):
            await migrate(source, target)
        with pytest.raises(StoreUnavailable):
            await take(target.store)
    assert await source.store.migration_lock() is None
    await source.close()


async def test_token_with_another_secret_is_refused(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    [token] = await source.store.tokens()
    await target.store.add_token(replace(token, digest="another"))
    with pytest.raises(MigrationRefused, match="'ci'"):
        await migrate(source, target)
    await target.store.drop_token("ci")
    await migrate(source, target)
    await assert_moved(source.store, target.store)


async def test_store_cannot_move_to_itself(source: Penstock, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the same store"):
        await migrate(source, source)


async def test_no_other_move_begins_before_the_end_of_one(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await add(source.store, *[new()] * 10)
    assert not await interrupted(source, target, 6)
    third = Penstock("memory://", clock=clock)
    for here, there in ((source, third), (third, source), (target, third), (third, target)):
        with pytest.raises(MigrationRefused, match="finish it first"):
            await migrate(here, there)
    with pytest.raises(MigrationRefused, match="finish it first"):
        await migrate(target, source)
    await migrate(source, target)
    with pytest.raises(MigrationRefused, match="have already moved to"):
        await migrate(source, third)
    assert (await migrate(target, third)).moved == 10
    await migrate(third, source)  # where only copies are, of all three moves ago
    await assert_moved(third.store, source.store)


async def test_several_moves_at_once_move_everything_once(
    source: Penstock, target: Penstock, clock: ManualClock
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    results = await asyncio.gather(
        *(migrate(source, target) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(one, Moved | MigrationRefused) for one in results), results
    await migrate(source, target)
    await assert_moved(source.store, target.store)
    assert await target.store.migration_lock() is None


Overtake = Callable[[Penstock, Penstock], None]


@pytest.fixture
def overtake(monkeypatch: pytest.MonkeyPatch) -> Overtake:
    """Has the next move overtaken by another one, from its begin to its end.

    It happens when the next move has checked both stores and has read which leases have expired.
    """

    def arrange(source: Penstock, target: Penstock) -> None:
        expired = source.store.expired

        async def read_and_wait(limit: int) -> list[Job]:
            monkeypatch.setattr(source.store, "expired", expired)
            found = await expired(limit)
            await migrate(source, target)
            return found

        monkeypatch.setattr(source.store, "expired", read_and_wait)

    return arrange


async def test_move_that_is_overtaken_is_refused(
    source: Penstock, target: Penstock, clock: ManualClock, overtake: Overtake
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    assert await source.store.expired(1)
    overtake(source, target)
    with pytest.raises(MigrationRefused, match="another 'penstock migrate'"):
        await migrate(source, target)
    await assert_moved(source.store, target.store)
    assert await target.store.migration_lock() is None


async def test_move_that_is_overtaken_leaves_the_target_open(
    source: Penstock, target: Penstock, overtake: Overtake
) -> None:
    await add_one(source.store)
    await settle(source.store, await take_one(source.store), Done())
    overtake(source, target)
    with pytest.raises(MigrationRefused, match="another 'penstock migrate'"):
        await migrate(source, target)
    await assert_moved(source.store, target.store)
    assert await target.store.migration_lock() is None


async def test_move_back_that_is_overtaken_removes_nothing(
    source: Penstock, target: Penstock, clock: ManualClock, overtake: Overtake
) -> None:
    await fill(source.store, clock.now)
    clock.advance(SECOND)
    await migrate(source, target)
    overtake(target, source)
    with pytest.raises(MigrationRefused, match="another 'penstock migrate'"):
        await migrate(target, source)
    await assert_moved(target.store, source.store)
    assert await source.store.migration_lock() is None


async def test_survey_counts_and_changes_nothing(source: Penstock, target: Penstock) -> None:
    await add(source.store, *[new()] * 4)
    assert await survey(source, target) == await survey(source, None) == Moved(jobs=4, queues=1)
    assert (await source.store.migration_lock(), await target.store.migration_lock()) == (
        None,
        None,
    )
    assert await everything(target.store) == []
    assert len(await source.find(JobQuery())) == 4

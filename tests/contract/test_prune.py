import pytest

from penstock.core.job import JobId, Retention
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Failed,
    Outcome,
    Snoozed,
    State,
    cancel,
    reset,
)
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    everything,
    history,
    ids,
    look,
    move,
    new,
    settle,
    take,
    take_one,
    totals,
)

KEEP = Retention(finished=HOUR, failed=3 * HOUR)


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [(Done(), HOUR), (Cancelled(), HOUR), (Failed("no", permanent=True), 3 * HOUR)],
)
async def test_finished_job_is_kept_for_its_time(
    store: Store, clock: ManualClock, outcome: Outcome, kept: object
) -> None:
    await add_one(store)
    ended = await settle(store, await take_one(store), outcome)
    clock.advance(kept - SECOND)  # type: ignore[operator] # a duration
    assert await store.prune(KEEP, 10) == 0
    assert await everything(store) == [ended]
    clock.advance(2 * SECOND)
    assert await store.prune(KEEP, 10) == 1
    assert await everything(store) == []


async def test_removed_job_is_gone_with_its_log(store: Store, clock: ManualClock) -> None:
    kept = await add_one(store, delay=HOUR)
    await add_one(store, dedupe="d", tags=("x",), payload='{"text":"' + "x" * 5000 + '"}')
    ended = await settle(store, await take_one(store), Done())
    clock.advance(2 * HOUR)
    await store.prune(KEEP, 10)
    assert await store.get([ended.id]) == []
    assert await history(store, ended) == []
    assert await store.log() == await history(store, kept)
    assert [place[1] for place in await totals(store)] == [State.PENDING]
    assert (await store.backlog())[0] == 1


async def test_time_counts_from_the_end_not_the_start(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(2 * HOUR)
    await settle(store, job, Done())
    assert await store.prune(KEEP, 10) == 0


async def test_unfinished_jobs_are_never_removed(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 4, new(key="k"), new(key="k"), new(delay=9000 * HOUR))
    running, snoozed, failed, ended, *_ = await take(store)
    await settle(store, snoozed, Snoozed(HOUR))
    await settle(store, failed, Failed("no"))
    back = await settle(store, ended, Cancelled())
    await move(store, back, reset(back))
    clock.advance(8000 * HOUR)
    assert await store.prune(Retention(finished=0 * HOUR, failed=0 * HOUR), 100) == 0
    assert len(await everything(store)) == 7
    assert (await look(store, running)).state is State.RUNNING


async def test_no_more_than_the_limit_are_removed(store: Store, clock: ManualClock) -> None:
    jobs = await add(store, *[new()] * 5)
    for job in await take(store, limit=3):
        await settle(store, job, Done())
    for job in await take(store):
        await settle(store, job, Failed("no", permanent=True))
    clock.advance(9 * HOUR)
    assert await store.prune(KEEP, 0) == 0
    assert await store.prune(KEEP, 2) == 2
    assert await store.prune(KEEP, 2) == 2
    assert len(await everything(store)) == 1
    assert await store.prune(KEEP, 2) == 1
    assert await store.prune(KEEP, 2) == 0
    assert len(jobs) == 5


async def test_ids_tokens_and_versions_are_never_given_again(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    ended = await settle(store, await take_one(store), Done())
    clock.advance(2 * HOUR)
    assert await store.prune(KEEP, 10) == 1
    fresh, fresher = await add_one(store), await add_one(store)
    taken = await take_one(store)
    assert ended.id < fresh.id < fresher.id
    assert ended.version < fresh.version < fresher.version < taken.token


async def test_queue_goes_with_its_last_job(store: Store, clock: ManualClock) -> None:
    job, other = await add_one(store, queue="q"), await add_one(store, queue="other")
    await move(store, job, cancel(job))
    assert [queue.name for queue in await store.queues()] == ["other", "q"]
    clock.advance(2 * HOUR)
    await store.prune(KEEP, 10)
    assert [queue.name for queue in await store.queues()] == ["other"]
    assert (await store.get([other.id])) == [other]


async def test_key_and_dedupe_work_on_after_removal(store: Store, clock: ManualClock) -> None:
    _, second = await add(store, new(key="k", dedupe="d"), new(key="k"))
    await settle(store, await take_one(store), Done())
    clock.advance(2 * HOUR)
    assert await store.prune(KEEP, 10) == 1
    assert not (await add_one(store, dedupe="d", delay=HOUR)).duplicate
    assert ids(await take(store)) == [second.id]


async def test_removed_job_cannot_be_moved_or_renewed(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    running = await take_one(store)
    ended = await settle(store, running, Failed("no", permanent=True))
    clock.advance(9 * HOUR)
    await store.prune(KEEP, 10)
    assert await store.renew([running.lease]) == []
    with pytest.raises(AssertionError):
        await move(store, ended, reset(ended))
    assert await store.get([JobId(ended.id)]) == []

from datetime import timedelta

import pytest
from msgspec.structs import replace

from penstock.core.lifecycle import Done
from penstock.core.store import Store
from penstock.core.tasks import AnnouncedTask
from penstock.core.workers import WorkerInfo
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    new,
    settle,
    take,
    take_one,
)


def worker(clock: ManualClock, name: str = "w") -> WorkerInfo:
    """What a worker says of itself that takes everything."""
    return WorkerInfo(
        name=name, host="h", pid=7, concurrency=20, started_at=clock.now, seen_at=clock.now
    )


async def test_idle_worker_is_listed_as_its_heartbeat_says(
    store: Store, clock: ManualClock
) -> None:
    picky = replace(worker(clock, "b ö"), queues=("q", "r"), tags=("x",))
    assert await store.workers() == []
    await store.heartbeat([picky, worker(clock, "a")])
    assert await store.workers() == [worker(clock, "a"), picky]


async def test_clock_of_the_store_says_when_a_worker_was_seen(
    store: Store, clock: ManualClock
) -> None:
    first = worker(clock)
    await store.heartbeat([replace(first, seen_at=clock.now - HOUR)])
    assert await store.workers() == [first]
    clock.advance(SECOND)
    assert await store.workers() == [first]
    await store.heartbeat([first])
    assert await store.workers() == [replace(first, seen_at=clock.now)]


async def test_last_heartbeat_of_a_name_counts(store: Store, clock: ManualClock) -> None:
    """As of a worker with a fixed name that was restarted, perhaps elsewhere."""
    await store.heartbeat([replace(worker(clock), queues=("q",), tags=("x",))])
    clock.advance(HOUR)
    again = replace(worker(clock), host="other", pid=8)
    await store.heartbeat([again])
    assert await store.workers() == [again]


async def test_deregistered_worker_is_gone(store: Store, clock: ManualClock) -> None:
    await store.heartbeat([worker(clock, name) for name in ("a", "b", "c")])
    await store.deregister(["a", "c", "unknown"])
    assert await store.workers() == [worker(clock, "b")]
    await store.deregister([])
    await store.heartbeat([])
    assert await store.workers() == [worker(clock, "b")]
    await store.heartbeat([worker(clock, "a")])
    assert len(await store.workers()) == 2


async def test_leases_of_a_worker_are_counted(store: Store, clock: ManualClock) -> None:
    await store.heartbeat([worker(clock), worker(clock, "idle")])
    await add(store, new(lease=60 * SECOND), new(lease=20 * SECOND), new(), new())
    started = clock.now
    [one, _] = await take(store, limit=2)
    clock.advance(SECOND)
    await take(store, limit=1)
    idle, busy = await store.workers()
    assert (idle.running, idle.oldest_start, idle.expires_at) == (0, None, None)
    assert (busy.running, busy.oldest_start) == (3, started)
    assert busy.expires_at == started + 20 * SECOND
    await settle(store, one, Done())
    assert (await store.workers())[1].running == 2


async def test_worker_without_a_heartbeat_is_known_by_its_leases(
    store: Store, clock: ManualClock
) -> None:
    job = await add_one(store, lease=20 * SECOND)
    running = await take_one(store, worker="foreign")
    listed = WorkerInfo(
        name="foreign",
        seen_at=clock.now,
        running=1,
        oldest_start=clock.now,
        expires_at=clock.now + 20 * SECOND,
    )
    assert await store.workers() == [listed]
    clock.advance(15 * SECOND)
    assert await store.workers() == [listed]
    await store.renew([running.lease])
    renewed = replace(listed, seen_at=clock.now, expires_at=clock.now + job.lease_time)
    assert await store.workers() == [renewed]
    await settle(store, running, Done())
    assert await store.workers() == []


async def test_newest_of_several_leases_says_when_a_worker_was_seen(
    store: Store, clock: ManualClock
) -> None:
    await add(store, new(lease=HOUR), new(lease=SECOND))
    await take_one(store)
    clock.advance(SECOND)
    await take_one(store)
    [seen] = await store.workers()
    assert (seen.running, seen.seen_at) == (2, clock.now)
    assert (seen.oldest_start, seen.expires_at) == (clock.now - SECOND, clock.now + SECOND)


async def test_renewal_counts_as_being_seen(store: Store, clock: ManualClock) -> None:
    """A handler that blocks the event loop stops heartbeats, but not renewals."""
    sent = worker(clock)
    await store.heartbeat([sent])
    await add_one(store)
    running = await take_one(store)
    clock.advance(10 * SECOND)
    await store.renew([running.lease])
    [seen] = await store.workers()
    assert seen.seen_at == clock.now
    clock.advance(10 * SECOND)
    await store.heartbeat([sent])
    [seen] = await store.workers()
    assert seen.seen_at == clock.now


async def test_killed_worker_stays_listed_and_grows_old(store: Store, clock: ManualClock) -> None:
    await store.heartbeat([worker(clock)])
    await add_one(store)
    await take_one(store)
    died = clock.now
    clock.advance(48 * HOUR)
    [killed] = await store.workers()
    assert (killed.seen_at, killed.running) == (died, 1)
    assert killed.expires_at is not None
    assert killed.expires_at < clock.now


@pytest.mark.parametrize("verb", ["heartbeat", "deregister"])
async def test_registry_wakes_nobody(store: Store, clock: ManualClock, verb: str) -> None:
    await store.heartbeat([worker(clock)])
    seen = await store.wait(-1, 0)
    clock.advance(SECOND)
    await (store.heartbeat([worker(clock)]) if verb == "heartbeat" else store.deregister(["w"]))
    assert await store.wait(seen, 0) == seen


async def test_registry_is_shared_with_other_openers(shared_url: str, clock: ManualClock) -> None:
    one, other = (
        open_store(shared_url, runtime=Runtime(clock)),
        open_store(shared_url, runtime=Runtime(clock)),
    )
    await one.heartbeat([worker(clock)])
    assert await other.workers() == [worker(clock)]
    await other.deregister(["w"])
    assert await one.workers() == []
    await one.close()
    await other.close()


def test_worker_is_silent_after_three_missing_heartbeats(clock: ManualClock) -> None:
    heard = worker(clock)
    assert not heard.is_silent(clock.now + timedelta(seconds=30))
    assert heard.is_silent(clock.now + timedelta(seconds=30, microseconds=1))


def test_worker_without_a_heartbeat_is_silent_when_its_lease_is_over(clock: ManualClock) -> None:
    leased = WorkerInfo(name="w", seen_at=clock.now, running=1, expires_at=clock.now + HOUR)
    assert not leased.is_silent(clock.now + HOUR - SECOND)
    assert leased.is_silent(clock.now + HOUR)
    brief = replace(leased, expires_at=clock.now + SECOND)
    assert not brief.is_silent(clock.now + SECOND)
    assert brief.is_silent(clock.now + HOUR)
    assert replace(leased, host="h").is_silent(clock.now + HOUR - SECOND)


async def test_worker_that_should_drain_hears_of_it_with_its_heartbeat(
    store: Store, clock: ManualClock
) -> None:
    assert await store.heartbeat([worker(clock, "a"), worker(clock, "b")]) == []
    assert await store.drain_worker("a")
    assert not await store.drain_worker("unknown")
    assert [one.draining for one in await store.workers()] == [True, False]
    assert await store.heartbeat([worker(clock, "a"), worker(clock, "b")]) == ["a"]
    assert await store.heartbeat([worker(clock, "a")]) == ["a"]


async def test_next_worker_of_a_name_is_not_asked_to_drain(
    store: Store, clock: ManualClock
) -> None:
    await store.heartbeat([worker(clock)])
    await store.drain_worker("w")
    await store.deregister(["w"])
    assert await store.heartbeat([worker(clock)]) == []
    assert [one.draining for one in await store.workers()] == [False]


# The tasks of workers


async def test_tasks_of_workers_that_have_left_are_remembered_for_a_while(
    store: Store, clock: ManualClock
) -> None:
    def tasks(*names: str) -> tuple[AnnouncedTask, ...]:
        return tuple(AnnouncedTask(name=name, newest=3) for name in names)

    async def beat(name: str, *names: str) -> None:
        await store.heartbeat([replace(worker(clock, name), tasks=tasks(*names) or None)])

    began = clock.now
    await beat("w1", "a", "b")
    await beat("w2")
    clock.advance(HOUR)
    await beat("w3", "b", "c")
    assert await store.departed_tasks() == []
    await store.deregister(["w3", "w1", "w2", "nobody"])
    found = [(one.task, one.seen_at - began) for one in await store.departed_tasks()]
    assert found == [
        (*tasks("a"), 0 * HOUR),
        (*tasks("b"), HOUR),
        (*tasks("c"), HOUR),
    ]
    clock.advance(31 * 24 * HOUR)
    await beat("w4", *(f"{n:04}" for n in range(1_000)))
    await beat("w5", "z")
    await store.deregister(["w4"])
    clock.advance(HOUR)
    await beat("w5", "z")
    await store.deregister(["w5"])
    names = [one.task.name for one in await store.departed_tasks()]
    assert (len(names), names[0], names[-1]) == (1_000, "0000", "z")

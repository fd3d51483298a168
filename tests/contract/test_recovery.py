"""A store that was set back to an earlier moment: ids and tokens continue above all others."""

from msgspec.structs import replace

from penstock.core.job import NewJob, Scope
from penstock.core.lifecycle import Done, Event, State, Waiting, advance, cancel
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.progress import Report
from penstock.core.recovery import next_floor
from penstock.core.schedule import Rhythm, Schedule
from penstock.core.store import Store
from penstock.core.transition import Change
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    everything,
    history,
    look,
    move,
    new,
    settle,
    take,
    take_one,
    totals,
)

REASON = "restored from a backup"


async def test_ids_and_tokens_continue_above_the_floor(store: Store, clock: ManualClock) -> None:
    before = await add_one(store)
    held = await take_one(store)
    last = await store.newest_log()
    cut = await store.raise_floor(actor="admin", reason=REASON)
    assert (cut.last_log, cut.floor) == (last, next_floor(last, clock.now))
    assert cut.reclaimed == []
    after = await add_one(store)
    token = (await take_one(store)).token
    assert before.id < held.token < cut.floor < min(after.id, after.version, token)
    assert (await settle(store, held, Done())).state is State.DONE


async def test_every_floor_is_higher_than_the_last(store: Store, clock: ManualClock) -> None:
    floors = [(await store.raise_floor(actor="admin", reason=REASON)).floor for _ in range(3)]
    clock.advance(HOUR)
    floors.append((await store.raise_floor(actor="admin", reason=REASON)).floor)
    assert floors == sorted(set(floors))


async def test_a_number_known_from_elsewhere_counts(store: Store) -> None:
    known = 2**50
    cut = await store.raise_floor(actor="admin", reason=REASON, above=known)
    assert cut.floor > known
    assert (await add_one(store)).id > known


async def test_a_store_without_jobs_gets_a_floor_too(store: Store) -> None:
    cut = await store.raise_floor(actor="admin", reason=REASON, reclaim=True)
    assert (cut.last_log, cut.reclaimed) == (0, [])
    assert (await add_one(store)).id > cut.floor


async def test_running_job_gives_way_to_a_pending_one_with_its_dedupe_key(store: Store) -> None:
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    held = await take_one(store)
    newer = await add_one(store, dedupe="d", scope=Scope.PENDING)
    await store.raise_floor(actor="admin", reason=REASON, reclaim=True)
    assert (await look(store, held)).state is State.SUPERSEDED
    assert (await look(store, newer)).state is State.PENDING
    assert (await store.verify(lambda *_: None)).problems == []


async def test_running_jobs_are_taken_from_their_workers(store: Store) -> None:
    [first, second, cancelled, waiting] = await add(
        store, new(key="k"), new(key="k"), new(), new(queue="other")
    )
    held = await take(store, limit=2)
    assert [job.id for job in held] == [first.id, cancelled.id]
    asked = await move(store, held[1], cancel(held[1]))
    await store.report([Report(lease=held[0].lease, state='{"page": 3}')])
    cut = await store.raise_floor(actor="admin", reason=REASON, reclaim=True)
    assert [job.id for job in cut.reclaimed] == [first.id, cancelled.id]
    returned = await look(store, first)
    assert (returned.state, returned.waiting) == (State.PENDING, Waiting.READY)
    assert (returned.attempt, returned.worker, returned.expires_at) == (0, None, None)
    assert await store.checkpoint(first.id) == '{"page": 3}'
    assert (await look(store, asked)).state is State.CANCELLED
    assert (await look(store, second)).waiting is Waiting.BLOCKED
    assert (await look(store, waiting)).state is State.PENDING
    # Neither the end of the old run nor its renewal is accepted.
    stale = Change(held[0], advance(held[0], Done()))
    assert await store.transition([stale], actor="w") == [None]
    assert await store.renew([held[0].lease]) == []
    again = await take_one(store, queues=["default"])
    assert again.id == first.id
    assert again.token > cut.floor > held[0].token
    assert await totals(store) == {
        ("default", State.PENDING, Waiting.BLOCKED): 1,
        ("default", State.RUNNING, None): 1,
        ("default", State.CANCELLED, None): 1,
        ("other", State.PENDING, Waiting.READY): 1,
    }


async def test_the_log_notes_the_cut(store: Store) -> None:
    finished = await add_one(store)
    running = await add_one(store)
    await settle(store, await take_one(store), Done("1"))
    await take_one(store)
    was = await look(store, finished)
    cut = await store.raise_floor(actor="admin", reason=REASON, reclaim=True)
    for job, state in ((finished, State.DONE), (running, State.PENDING)):
        entry = (await history(store, job))[-1]
        assert (entry.event, entry.state, entry.actor) == (Event.RESTORED, state, "admin")
        assert entry.id > cut.floor
        assert entry.reason == (
            f"{REASON}; entries after {cut.last_log} are lost, ids continue above {cut.floor}"
        )
    # The job that only carries the note stays as it is.
    noted = await look(store, finished)
    assert replace(noted, version=was.version) == was


async def test_a_worker_whose_claim_was_lost_is_refused(store: Store) -> None:
    """It holds a token that the store has never heard of."""
    job = await add_one(store)
    cut = await store.raise_floor(actor="admin", reason=REASON, reclaim=True)
    lost = replace(
        job, state=State.RUNNING, token=cut.last_log + 7, version=cut.last_log + 7, attempt=1,
        worker="w",
    )  # fmt: skip
    assert await store.renew([lost.lease]) == []
    assert await store.transition([Change(lost, advance(lost, Done()))], actor="w") == [None]


async def test_versions_of_schedules_continue_above_the_floor(store: Store) -> None:
    schedule = Schedule(
        name="s", job=NewJob(task="t", payload="{}"), rhythm=Rhythm(every=HOUR), version=0
    )
    kept = await store.put_schedule(schedule)
    assert kept is not None
    cut = await store.raise_floor(actor="admin", reason=REASON)
    lost = replace(kept, version=kept.version + 1)
    assert await store.put_schedule(lost) is None
    written = await store.put_schedule(kept)
    assert written is not None
    assert written.version > cut.floor


async def test_jobs_of_a_locked_store_stay_as_they_are(store: Store) -> None:
    job = await add_one(store)
    lock = MigrationLock(phase=MigrationPhase.LEAVING, peer=77, place="sqlite:///elsewhere.db")
    assert await store.set_migration_lock(lock, expected=None)
    cut = await store.raise_floor(actor="admin", reason=REASON, reclaim=True)
    assert (await store.origin()).last_log == cut.floor
    assert await look(store, job) == job


async def test_tokens_grow_from_store_to_store(store: Store, clock: ManualClock) -> None:
    """A store that takes over jobs continues above the ids of the one they come from."""
    await add_one(store)
    held = await take_one(store)
    await settle(store, held, Done())
    cut = await store.raise_floor(actor="admin", reason=REASON)
    pending = await add_one(store)
    origin = await store.origin()
    other = open_store("memory://", runtime=Runtime(clock))
    records = await store.records([job.id for job in await everything(store)])
    await other.restore(records, origin=origin, actor="admin")
    taken = await take_one(other)
    assert taken.id == pending.id
    assert taken.token > origin.last_log > cut.floor
    await other.close()


async def test_everything_works_above_the_floor(store: Store, clock: ManualClock) -> None:
    await store.raise_floor(actor="admin", reason=REASON)
    [one, two] = await add(store, new(key="k", tags=("a",)), new(key="k", delay=SECOND))
    first = await take_one(store, tags=("a",))
    assert first.id == one.id
    await settle(store, first, Done())
    clock.advance(2 * SECOND)
    second = await take_one(store)
    assert second.id == two.id
    await settle(store, second, Done())
    entries = await store.log()
    assert [entry.event for entry in entries] == [
        Event.ENQUEUED, Event.ENQUEUED, Event.CLAIMED, Event.DONE, Event.CLAIMED, Event.DONE,
    ]  # fmt: skip
    assert await store.roll_up(100) == 6

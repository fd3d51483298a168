import gc
import random
import sqlite3
import weakref
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.job import Change, Claim, JobId, QueueSettings, Retention
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Failed,
    Outcome,
    Snoozed,
    advance,
    cancel,
    reset,
)
from penstock.engine import Penstock, run_sync
from penstock.stores.memory.batch import Batch
from penstock.stores.memory.shelves import SLACK, Ranking, Shelf
from penstock.stores.memory.store import MemoryStore
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    ids,
    move,
    new,
    settle,
    take,
    take_one,
    totals,
)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


async def test_foreign_transaction_is_refused(store: MemoryStore) -> None:
    with sqlite3.connect(":memory:") as connection, pytest.raises(ConfigurationError):
        await store.add([new()], actor="p", connection=connection)
    connection.close()
    assert await everything(store) == []


def test_verbs_finish_without_an_event_loop(store: MemoryStore) -> None:
    [job] = drive(store.add([new()], actor="p"))
    [running] = drive(store.claim(Claim(worker="w", limit=1)))
    drive(store.transition([Change(running, advance(running, Done()))], actor="w"))
    assert ids(drive(everything(store))) == [job.id]
    assert drive(store.wait(-1, 0)) > 0


# Batches are the store


class Recording(MemoryStore):
    """Keeps every batch as the JSON text that a journal would write."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.written: list[bytes] = []

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
        self.written.append(msgspec.json.encode(batch))
        super()._commit(batch, wake=wake)


class Failing(MemoryStore):
    """Cannot write down what it is told while it is broken."""

    broken = False

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
        if self.broken:
            raise OSError("no space left")
        super()._commit(batch, wake=wake)


async def live(store: MemoryStore, clock: ManualClock, chance: random.Random) -> None:
    """A bit of everything."""
    outcomes: list[Outcome] = [Done("[1]"), Failed("no"), Snoozed(SECOND), Cancelled()]
    for _ in range(60):
        await add(
            store,
            *(
                new(
                    key=chance.choice([None, "k", "l"]),
                    tags=chance.choice([(), ("x",), ("x", "y")]),
                    dedupe=chance.choice([None, None, "d"]),
                    delay=chance.choice([None, 5 * SECOND]),
                    priority=chance.randrange(10),
                )
                for _ in range(3)
            ),
        )
        for job in await take(store, limit=3):
            if chance.random() < 0.2:
                await move(store, job, cancel(job))
            elif chance.random() < 0.8:
                ended = await settle(store, job, chance.choice(outcomes))
                if ended.state.final and not ended.dedupe and chance.random() < 0.1:
                    await move(store, ended, reset(ended)) if ended.error else None
            else:
                await store.renew([job.lease])
        clock.advance(chance.randrange(10) * SECOND)
        await store.prune(Retention(finished=60 * SECOND, failed=90 * SECOND), 5)
    await store.configure(QueueSettings(name="q", paused=True))


@pytest.mark.parametrize("seed", range(5))
async def test_replayed_batches_make_the_same_store(clock: ManualClock, seed: int) -> None:
    store = Recording(clock)
    await live(store, clock, random.Random(seed))
    again = MemoryStore(clock)
    for line in store.written:
        again._tick()
        again._content.apply(msgspec.json.decode(line, type=Batch))
    assert await everything(again) == await everything(store)
    assert await again.log(limit=10_000) == await store.log(limit=10_000)
    assert await totals(again) == await totals(store)
    assert await again.queues() == await store.queues()
    one, other = await add_one(store), await add_one(again)
    assert one == other
    assert await take(again) == await take(store)


async def test_verb_that_could_not_be_written_down_changed_nothing(clock: ManualClock) -> None:
    store = Failing(clock)
    await add(store, new(key="k"), new(key="k"), new(tags=("x",)), new(dedupe="d"))
    running = await take_one(store)
    before, log = await everything(store), await store.log()
    store.broken = True
    with pytest.raises(OSError, match="no space"):
        await add_one(store, dedupe="e")
    with pytest.raises(OSError, match="no space"):
        await take(store)
    with pytest.raises(OSError, match="no space"):
        await settle(store, running, Done())
    with pytest.raises(OSError, match="no space"):
        await store.configure(QueueSettings(name="default", paused=True))
    store.broken = False
    assert await everything(store) == before
    assert await store.log() == log
    assert not (await add_one(store, dedupe="e")).duplicate
    assert len(await take(store, tags=("x",))) == 1
    assert len(await take(store)) == 2
    await settle(store, running, Done())
    assert len(await take(store)) == 1


async def test_finished_work_leaves_nothing_behind(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    for turn in range(5):
        jobs = [new(key=f"k{n}", dedupe=f"d{n}", tags=(f"x{turn}.{n}",)) for n in range(50)]
        await add(store, *jobs)
        for job in await take(store):
            await settle(store, job, Done())
    clock.advance(48 * HOUR)
    await store.prune(Retention(), 1000)
    content = store._content
    assert (content.ready, content.lines, content.holders, content.entries) == ({}, {}, {}, {})
    assert len(content.leased) == len(content.scheduled) == 0
    assert len(content.jobs._ids) <= SLACK
    assert len(content.log._ids) <= SLACK


# Ranking

steps = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 5)), max_size=300)


@given(steps)
def test_ranking_is_a_sorted_set(steps: list[tuple[bool, int, int]]) -> None:
    ranking, model = Ranking(), dict[int, int]()
    for puts, place, rank in steps:
        if puts:
            ranking.put(JobId(place), rank)
            model[place] = rank
        else:
            ranking.drop(JobId(place))
            model.pop(place, None)
        wanted = sorted((rank, place) for place, rank in model.items())
        assert list(ranking) == wanted
        assert ranking.first() == (wanted[0] if wanted else None)
        assert (len(ranking), sorted(ranking.ids())) == (len(model), sorted(model))


def test_ranking_forgets_what_was_dropped() -> None:
    ranking = Ranking()
    ranking.put(JobId(0), 0)
    for place in range(1, 10_000):
        ranking.put(JobId(place), place)
        ranking.drop(JobId(place))
        ranking.put(JobId(0), 0)
    assert len(ranking._heap) <= 2 + SLACK


def test_reading_the_first_few_of_many_looks_at_few() -> None:
    looked = 0

    class Rank(int):
        def __lt__(self, other: int) -> bool:
            nonlocal looked
            looked += 1
            return int.__lt__(self, other)

    ranking = Ranking()
    for place in range(10_000):
        ranking.put(JobId(place), Rank(place * 7919 % 10_007))
    looked = 0
    read: Iterator[tuple[int, int]] = iter(ranking)
    assert [next(read)[0] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert looked < 100


# Shelf


@given(
    st.lists(st.integers(0, 200), unique=True), st.sets(st.integers(0, 200)), st.integers(0, 200)
)
def test_shelf_reads_onwards_and_backwards_from_any_id(
    kept: list[int], taken: set[int], start: int
) -> None:
    shelf: Shelf[str] = Shelf()
    for place in sorted({*kept, *taken}):
        shelf.put(place, f"value {place}")
    for place in taken:
        assert shelf.take(place) == f"value {place}"
    left = sorted(set(kept) - taken)
    assert list(shelf.after(start)) == [f"value {n}" for n in left if n > start]
    assert list(shelf.before(start)) == [f"value {n}" for n in left[::-1] if n < start]
    assert list(shelf.after(None)) == [f"value {n}" for n in left]
    assert list(shelf.before(None)) == [f"value {n}" for n in left[::-1]]
    assert shelf.get(start) == (f"value {start}" if start in left else None)


def test_store_does_not_keep_alive_who_hands_out_its_jobs() -> None:
    app = Penstock("memory://")
    (job,) = run_sync(app.enqueue_many([new()]))
    run_sync(app.get(job.id))
    run_sync(app.claim(worker="w"))
    gone = weakref.ref(app)
    del app, job
    gc.collect()
    assert gone() is None

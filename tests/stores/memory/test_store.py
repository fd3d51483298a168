import gc
import random
import sqlite3
import weakref

import msgspec
import pytest

from penstock.core.errors import ConfigurationError
from penstock.core.job import Claim, Retention
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
from penstock.core.queue import QueueSettings
from penstock.core.transition import Change
from penstock.engine.penstock import Penstock, run_sync
from penstock.runtime import Runtime
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.indexes import SLACK
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
    return MemoryStore(Runtime(clock))


async def test_foreign_transaction_is_refused(store: MemoryStore) -> None:
    app = Penstock("memory://", opener=lambda *_, **__: store)
    with sqlite3.connect(":memory:") as connection, pytest.raises(ConfigurationError):
        await app.enqueue_many([new()], connection=connection)
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
        super().__init__(Runtime(clock))
        self.written: list[bytes] = []

    def _commit(self, batch: WriteBatch, *, wake: bool = True) -> None:
        self.written.append(msgspec.json.encode(batch))
        super()._commit(batch, wake=wake)


class Failing(MemoryStore):
    """Cannot write anything while it is broken."""

    broken = False

    def _commit(self, batch: WriteBatch, *, wake: bool = True) -> None:
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
    again = MemoryStore(Runtime(clock))
    for line in store.written:
        again._tick()
        again._content.apply(msgspec.json.decode(line, type=WriteBatch))
    assert await everything(again) == await everything(store)
    assert await again.log(limit=10_000) == await store.log(limit=10_000)
    assert await totals(again) == await totals(store)
    assert await again.queues() == await store.queues()
    one, other = await add_one(store), await add_one(again)
    assert one == other
    assert await take(again) == await take(store)


async def test_verb_that_could_not_be_written_down_changed_nothing(clock: ManualClock) -> None:
    store = Failing(Runtime(clock))
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
    store = MemoryStore(Runtime(clock))
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


def test_store_does_not_keep_the_source_of_its_jobs_alive() -> None:
    app = Penstock("memory://")
    (job,) = run_sync(app.enqueue_many([new()]))
    run_sync(app.get(job.id))
    run_sync(app.leases.claim(worker="w"))
    gone = weakref.ref(app)
    del app, job
    gc.collect()
    assert gone() is None

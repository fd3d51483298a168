"""What the tests of the journal share: a life to write down, and what a store has come to."""

import random
from pathlib import Path
from typing import Any

from penstock.core.job import JobId, LogId, Retention
from penstock.core.lifecycle import Done, Failed, Outcome, Snoozed, cancel
from penstock.core.limits import Limit
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.progress import Line, Progress, Report
from penstock.core.queue import QueueSettings
from penstock.core.restoration import Origin
from penstock.core.schedule import Rhythm, Schedule
from penstock.core.store import Store
from penstock.core.tokens import Access, Token
from penstock.core.workers import WorkerInfo
from penstock.runtime import Files, Runtime
from penstock.stores.journal.snapshot import portions
from penstock.stores.journal.store import JournalStore
from penstock.stores.memory.batch import WriteBatch
from penstock.stores.memory.content import Content
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    drive,
    move,
    new,
    settle,
    take,
    take_one,
)


def opened(
    folder: Path, clock: ManualClock, files: Files | None = None, **options: Any
) -> JournalStore:
    """Open a journal whose files are reached through `files`."""
    runtime = Runtime(clock)
    if files is not None:
        runtime.files = files
    return JournalStore(folder, runtime, **options)


def said(content: Content) -> list[WriteBatch]:
    """All that a store keeps, as values that can be compared."""
    return list(portions(content))


def live(store: Store, clock: ManualClock, seed: int = 1, rounds: int = 4) -> None:
    """A bit of everything that a store keeps, in one transaction each."""
    chance = random.Random(seed)
    for turn in range(rounds):
        drive(_work(store, clock, chance))
        drive(_say(store, clock, turn))
    drive(_set_up(store, clock))


async def _work(store: Store, clock: ManualClock, chance: random.Random) -> None:
    outcomes: list[Outcome] = [Done("[1]"), Failed("nö"), Snoozed(SECOND)]
    first = await add_one(store, key="k", tags=("x", "ü"), payload='{"a":"ä\\n"}')
    await add(store, new(key="k"), new(after=(first.id,), dedupe="d"), new(delay=5 * SECOND))
    await add(store, new(tenant="t", throttle="th"), new(dedupe="d", priority=9))
    for job in await take(store, limit=3):
        await settle(store, job, chance.choice(outcomes))
    if running := await take(store, limit=1):
        await store.renew([running[0].lease])
        await move(store, running[0], cancel(running[0]))
    clock.advance(chance.randrange(10) * SECOND)
    await store.prune(Retention(finished=9 * SECOND, failed=9 * SECOND), 1)
    await store.roll_up(5)


async def _say(store: Store, clock: ManualClock, turn: int) -> None:
    now = clock.now
    await store.heartbeat([WorkerInfo(name=f"w{turn}", host="h", pid=1, seen_at=now)])
    job = await add_one(store, task="talks", priority=10)
    talker = await take_one(store)
    if talker.id == job.id:
        note = Report(
            lease=talker.lease,
            progress=Progress(1, 3, "half", now, now),
            state='{"at":1}',
            lines=(Line(0, now, "info", "so far", 1),),
        )
        await store.report([note])
    if turn:
        await store.deregister([f"w{turn - 1}"])


async def _set_up(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="q", max_pending=3, rate=(2, SECOND)))
    await add(store, new(queue="q"), new(queue="q"))
    await take(store, queues=("q",))
    await store.limit(Limit(kind="task", name="t", concurrency=7))
    await store.put_schedule(
        Schedule(name="s", job=new(), rhythm=Rhythm(every=HOUR), next=clock.now)
    )
    scopes = frozenset({Access.READ})
    for name in ("one", "two"):
        token = Token(name=name, digest=name, scopes=scopes, created_at=clock.now)
        await store.add_token(token)
    await store.drop_token("two")
    finished = await store.records([JobId(n) for n in range(1, 50)])
    others = [one for one in finished if one.job.state.final][:2]
    await store.restore(
        others, origin=Origin(source=5, last_job=JobId(500), last_log=LogId(700)), actor="a"
    )
    await store.set_migration_lock(
        MigrationLock(phase=MigrationPhase.LEAVING, peer=1, place="there"), expected=None
    )
    await store.set_migration_lock(None, expected=await store.migration_lock())
    await add(store, new(), new(key="k"))

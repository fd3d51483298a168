"""What contract tests share: the stores, a clock to move, and short helpers."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.job import Claim, Job, LogEntry, NewJob
from penstock.core.lifecycle import Move, Outcome, State, Waiting, advance, reset
from penstock.core.query import JobQuery
from penstock.core.retry import RetryPolicy
from penstock.core.store import Store, TableStore
from penstock.core.tables import Within
from penstock.core.transition import Change
from penstock.runtime import Runtime
from penstock.stores import open_store
from tests.schemas import schemas

T = TypeVar("T")

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _folder: "memory://",
    "journal": lambda folder: f"journal:///{folder}/journal?durability=process",
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda _folder: schemas().take(),
}
"""Every store there is, as the URL of an empty one; a file is made in a fresh folder. A store is
done when the suite passes.
"""

MERGED = ["sqlite merged", "postgres merged"]
"""Stores of which no queue has a line of its own unless it needs one."""

LASTING = [name for name in STORES if name != "memory"]
"""The stores that outlive a process."""

SHARED = [name for name in LASTING if name != "journal"]
"""Those of them that several processes can open at the same time."""

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
STEADY = RetryPolicy(attempts=2, delay=10 * SECOND, factor=1, jitter=0)
"""Two attempts, ten seconds apart."""


class ManualClock:
    """A store's clock that advances only when it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def advance(self, by: timedelta) -> None:
        self.now += by


def descriptors() -> set[tuple[int, str]]:
    """What this process has open: the number of each and what it is. A set, because what earlier
    tests have left may be closed at any moment.
    """
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add((int(number.name), str(number.readlink())))
    return found


def drive(verb: Coroutine[Any, Any, T]) -> T:
    """Run a verb where no event loop runs: it may not suspend."""
    try:
        verb.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return] # a coroutine's own result
    verb.close()
    raise AssertionError("a verb suspended although no event loop runs")


def open_named(name: str, folder: Path, clock: ManualClock) -> Store:
    """An empty store of `STORES` or of `MERGED`; or one that is there already, opened again."""
    store = open_store(STORES[name.removesuffix(" merged")](folder), runtime=Runtime(clock))
    if name in MERGED:
        drive(tables_of(store).transact(give_no_lines))
    return store


def tables_of(store: Store) -> TableStore:
    """The part for tables of a store that has a database."""
    tables = store.tables
    assert tables is not None
    return tables


def give_no_lines(within: Within) -> None:
    """Let every new queue begin without a line of its own."""
    table = "penstock_meta" if within.dialect == "sqlite" else "meta"
    within.execute(f"UPDATE {table} SET value = 0 WHERE name = 'own_lines'")  # noqa: S608 - ours


def new(**options: Any) -> NewJob:
    return NewJob(**{"task": "t", "payload": "{}", "retry": STEADY, **options})


async def add(store: Store, *jobs: NewJob) -> list[Job]:
    return await store.add(jobs, actor="producer")


async def add_one(store: Store, **options: Any) -> Job:
    [job] = await add(store, new(**options))
    return job


async def take(store: Store, limit: int = 100, worker: str = "w", **wanted: Any) -> list[Job]:
    return await store.claim(Claim(worker=worker, limit=limit, **wanted))


async def take_one(store: Store, **wanted: Any) -> Job:
    [job] = await take(store, limit=1, **wanted)
    return job


async def move(store: Store, job: Job, step: Move, actor: str = "w") -> Job:
    """Write one move that has to be accepted."""
    [moved] = await store.transition([Change(job, step)], actor=actor)
    assert moved is not None
    return moved


async def settle(store: Store, job: Job, outcome: Outcome) -> Job:
    return await move(store, job, advance(job, outcome))


async def retry_all(store: Store) -> list[Job]:
    """Let all jobs of a store, every one of which has failed, run again."""
    failed = await everything(store)
    assert {job.state for job in failed} == {State.FAILED}
    return [await move(store, job, reset(job)) for job in failed]


async def look(store: Store, job: Job) -> Job:
    [found] = await store.get([job.id])
    return found


async def everything(store: Store) -> list[Job]:
    return await store.find(JobQuery(newest_first=False, limit=10_000))


async def history(store: Store, job: Job) -> list[LogEntry]:
    return await store.log(job.id)


async def totals(store: Store) -> dict[tuple[str, State, Waiting | None], int]:
    """The kept totals, without those that came down to nothing."""
    return {place: total for place, total in (await store.count()).items() if total}


def ids(jobs: list[Job]) -> list[int]:
    return [job.id for job in jobs]

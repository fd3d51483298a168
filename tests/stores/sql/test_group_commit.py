"""Group commit: many callers share a transaction, and none pays for another."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import QueueFull, StoreError, TransitionRefused
from penstock.core.job import Claim, Job, NewJob
from penstock.core.lifecycle import Done, advance, cancel, reset
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.transition import Change
from penstock.stores.sql import additions
from penstock.stores.sql.database import Transaction
from penstock.stores.sql.group_commit import Request
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.checkpoints import Checkpointer
from tests.contract.support import ManualClock, add, add_one, drive, ids, new, take, take_one
from tests.environment import SOON
from tests.stores.support import at_once, database_of, sqlite_store, writing_connection

UNSTORABLE = "\ud800"
"""No store can hold it; the checks of the engine keep it away from there."""


@contextmanager
def counting(store: SqlStore) -> Iterator[Counter[str]]:
    """The transactions that the writing connection begins and ends."""
    counts: Counter[str] = Counter()
    connection = writing_connection(store)

    def trace(statement: str) -> None:
        counts[statement.split(maxsplit=1)[0]] += 1

    connection.set_trace_callback(trace)
    try:
        yield counts
    finally:
        connection.set_trace_callback(None)


async def test_concurrent_callers_share_transactions(store: SqlStore) -> None:
    with counting(store) as counts:
        jobs = await at_once(store, *(add_one(store) for _ in range(500)))
    assert len({job.id for job in jobs}) == 500
    assert counts["BEGIN"] == counts["COMMIT"] == 1


async def test_different_verbs_share_a_transaction_in_their_order(store: SqlStore) -> None:
    await add_one(store, key="k")
    running = await take_one(store)
    with counting(store) as counts:
        _, settled, claimed, queue = await at_once(
            store,
            add_one(store, key="k"),
            store.transition([Change(running, advance(running, Done()))], actor="w"),
            store.claim(Claim(worker="w", limit=5)),
            store.configure(QueueSettings(name="default", paused=True)),
        )
    assert counts["COMMIT"] == 1
    assert settled[0] is not None
    assert (len(claimed), queue.paused) == (1, True)


async def test_looking_without_finding_writes_nothing(store: SqlStore) -> None:
    with counting(store) as counts:
        assert await take(store) == []
        assert await store.renew([]) == []
    assert counts["COMMIT"] == 0


def test_threads_without_event_loop_take_each_other_along(store: SqlStore) -> None:
    together = threading.Barrier(16, timeout=SOON)

    def work(_: int) -> list[int]:
        together.wait()
        return [drive(add_one(store)).id for _ in range(20)]

    with counting(store) as counts, ThreadPoolExecutor(16) as pool:
        with database_of(
            store
        )._group.lock:  # so that the first calls of all wait for one transaction
            finding = [pool.submit(work, n) for n in range(16)]
            pause = threading.Event()
            for _ in range(SOON * 100):
                if len(database_of(store)._group._waiting) == 16:
                    break
                pause.wait(0.01)
        added = [job_id for found in finding for job_id in found.result(SOON)]
    assert sorted(added) == list(range(1, 321))
    assert counts["COMMIT"] <= 320 - 15


async def test_loop_and_threads_may_write_at_once(store: SqlStore) -> None:
    in_threads = [asyncio.to_thread(lambda: drive(add_one(store))) for _ in range(20)]
    jobs = await asyncio.gather(*in_threads, *(add_one(store) for _ in range(20)))
    assert sorted(ids(jobs)) == list(range(1, 41))


@pytest.mark.parametrize("place", [0, 3, 6])
async def test_call_that_cannot_be_written_fails_alone(store: SqlStore, place: int) -> None:
    calls = [add_one(store, task=f"t{n}") for n in range(6)]
    calls.insert(place, add_one(store, task=UNSTORABLE))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(place), Exception)
    assert [job.task for job in await store.find(JobQuery(newest_first=False))] == [
        f"t{n}" for n in range(6)
    ]
    assert len({entry.id for entry in await store.log()}) == 6


async def test_refusals_are_answers_to_their_own_caller(store: SqlStore) -> None:
    await store.configure(QueueSettings(name="small", max_pending=1))
    ended = await add_one(store, dedupe="d")
    [gone] = await store.transition([Change(ended, cancel(ended))], actor="w")
    assert gone is not None
    await add_one(store, dedupe="d")
    with counting(store) as counts:
        full, fine, refused = await asyncio.gather(
            add(store, new(queue="small"), new(queue="small")),
            add_one(store),
            store.transition([Change(gone, reset(gone))], actor="w"),
            return_exceptions=True,
        )
    assert isinstance(full, QueueFull)
    assert isinstance(refused, TransitionRefused)
    assert not isinstance(fine, BaseException)
    assert counts["ROLLBACK"] == 0


async def test_caller_that_gave_up_disturbs_nobody(store: SqlStore) -> None:
    leaving = asyncio.create_task(add_one(store))
    staying = asyncio.create_task(add_one(store))
    await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(SOON):
        assert await staying in await store.find(JobQuery())
    with pytest.raises(asyncio.CancelledError):
        await leaving


def test_caller_whose_loop_is_gone_disturbs_nobody(store: SqlStore) -> None:
    async def leave() -> None:
        task = asyncio.create_task(add_one(store))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    job = drive(add_one(store))
    assert drive(store.get([job.id])) == [job]


def test_what_was_accepted_is_finished_before_the_store_is_closed(
    path: Path, clock: ManualClock
) -> None:
    store = sqlite_store(path, clock)

    async def close_at_once() -> list[Job]:
        calls = [asyncio.create_task(add_one(store)) for _ in range(50)]
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(SOON):
            jobs: list[Job] = await asyncio.gather(*calls)
            return jobs

    jobs = asyncio.run(close_at_once())
    store = sqlite_store(path, clock)
    assert len(drive(store.find(JobQuery()))) == len(jobs) == 50
    drive(store.close())


async def test_closed_store_refuses_every_verb(path: Path, clock: ManualClock) -> None:
    store = sqlite_store(path, clock)
    job = await add_one(store)
    await store.close()
    for call in (add_one(store), take(store), store.get([job.id]), store.count()):
        with pytest.raises(StoreError, match="closed"):
            await call


async def test_error_after_the_commit_is_neither_reported_as_failure_nor_retried(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk was done: telling otherwise makes the caller do it again."""

    def failing(self: Checkpointer) -> None:
        raise OSError("no thread could be started")

    monkeypatch.setattr(Checkpointer, "request", failing)
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*(add_one(store) for _ in range(10)), return_exceptions=True)
    monkeypatch.undo()
    stored = await store.find(JobQuery())
    assert [type(answer).__name__ for answer in answers] == ["Job"] * 10
    assert len(stored) == 10
    async with asyncio.timeout(SOON):
        await add_one(store)


async def test_bulk_of_many_different_jobs_keeps_their_order(store: SqlStore) -> None:
    wanted = [
        NewJob(
            task=f"t{n % 3}",
            payload='{"n":%d,"fill":"%s"}' % (n, "x" * (1200 if n % 7 == 0 else 5)),  # noqa: UP031 - a format that % keeps short
            queue=f"q{n % 5}",
            key=f"k{n % 11}" if n % 2 else None,
            tags=("a", "b") if n % 4 == 0 else (),
        )
        for n in range(500)
    ]
    added = await add(store, *wanted)
    assert [job.args["n"] for job in added] == list(range(500))
    assert await store.get(ids(added)) == added  # type: ignore[arg-type] # ids of jobs


def test_interrupted_caller_leaves_no_other_without_an_answer(store: SqlStore) -> None:
    def interrupted(_transaction: Transaction, _calls: Sequence[Any]) -> list[Any]:
        raise KeyboardInterrupt

    other = Request(additions.add, ([new()], "p", None), None)
    database_of(store)._group._waiting.append(other)
    with pytest.raises(KeyboardInterrupt):
        drive(store.database.write(interrupted, None))
    assert other.done
    assert isinstance(other.answer, StoreError)
    assert drive(add_one(store)).id == 1

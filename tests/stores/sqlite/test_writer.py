"""One writer: many callers share a transaction, and none pays for another."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import QueueFull, StoreError, StoreUnavailable, TransitionRefused
from penstock.core.job import Change, Claim, JobQuery, NewJob, QueueSettings
from penstock.core.lifecycle import Done, advance, cancel, reset
from penstock.stores.sql import adding
from penstock.stores.sql.transaction import Transaction
from penstock.stores.sql.writer import Request
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.store import SqliteStore
from tests.contract.support import SOON, ManualClock, add, add_one, drive, ids, new, take, take_one

UNSTORABLE = "\ud800"
"""No store can hold it; the checks of the engine keep it away from there."""


@contextmanager
def counting(store: SqliteStore) -> Iterator[Counter[str]]:
    """What the writing connection is told to begin and to end."""
    counts: Counter[str] = Counter()
    connection = store._writer._connection

    def trace(statement: str) -> None:
        counts[statement.split(maxsplit=1)[0]] += 1

    connection.set_trace_callback(trace)
    try:
        yield counts
    finally:
        connection.set_trace_callback(None)


async def at_once(store: SqliteStore, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """The answers to calls of which none was begun before all of them were made."""
    async with asyncio.timeout(SOON):
        with store._writer._lock:
            tasks = [asyncio.create_task(call) for call in calls]
            while len(store._writer._waiting) < len(tasks):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)


async def test_concurrent_callers_share_transactions(store: SqliteStore) -> None:
    with counting(store) as counts:
        jobs = await at_once(store, *(add_one(store) for _ in range(500)))
    assert len({job.id for job in jobs}) == 500
    assert counts["BEGIN"] == counts["COMMIT"] == 1


async def test_different_verbs_share_a_transaction_in_their_order(store: SqliteStore) -> None:
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


async def test_looking_without_finding_writes_nothing(store: SqliteStore) -> None:
    with counting(store) as counts:
        assert await take(store) == []
        assert await store.renew([]) == []
    assert counts["COMMIT"] == 0


def test_threads_without_event_loop_take_each_other_along(store: SqliteStore) -> None:
    together = threading.Barrier(16, timeout=SOON)

    def work(_: int) -> list[int]:
        together.wait()
        return [drive(add_one(store)).id for _ in range(20)]

    with counting(store) as counts, ThreadPoolExecutor(16) as pool:
        with store._writer._lock:  # so that the first calls of all wait for one transaction
            finding = [pool.submit(work, n) for n in range(16)]
            pause = threading.Event()
            for _ in range(SOON * 100):
                if len(store._writer._waiting) == 16:
                    break
                pause.wait(0.01)
        added = [job_id for found in finding for job_id in found.result(SOON)]
    assert sorted(added) == list(range(1, 321))
    assert counts["COMMIT"] <= 320 - 15


async def test_loop_and_threads_may_write_at_once(store: SqliteStore) -> None:
    in_threads = [asyncio.to_thread(lambda: drive(add_one(store))) for _ in range(20)]
    jobs = await asyncio.gather(*in_threads, *(add_one(store) for _ in range(20)))
    assert sorted(ids(jobs)) == list(range(1, 41))


@pytest.mark.parametrize("place", [0, 3, 6])
async def test_call_that_cannot_be_written_fails_alone(store: SqliteStore, place: int) -> None:
    calls = [add_one(store, task=f"t{n}") for n in range(6)]
    calls.insert(place, add_one(store, task=UNSTORABLE))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(place), Exception)
    assert [job.task for job in await store.find(JobQuery(newest_first=False))] == [
        f"t{n}" for n in range(6)
    ]
    assert len({entry.id for entry in await store.log()}) == 6


async def test_refusals_are_answers_to_their_own_caller(store: SqliteStore) -> None:
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


async def test_caller_that_gave_up_disturbs_nobody(store: SqliteStore) -> None:
    leaving = asyncio.create_task(add_one(store))
    staying = asyncio.create_task(add_one(store))
    await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(SOON):
        assert await staying in await store.find(JobQuery())
    with pytest.raises(asyncio.CancelledError):
        await leaving


def test_caller_whose_loop_is_gone_disturbs_nobody(store: SqliteStore) -> None:
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
    store = SqliteStore(path, clock)

    async def close_at_once() -> list[Any]:
        calls = [asyncio.create_task(add_one(store)) for _ in range(50)]
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(SOON):
            return await asyncio.gather(*calls)

    jobs = asyncio.run(close_at_once())
    store = SqliteStore(path, clock)
    assert len(drive(store.find(JobQuery()))) == len(jobs) == 50
    drive(store.close())


async def test_closed_store_refuses_every_verb(path: Path, clock: ManualClock) -> None:
    store = SqliteStore(path, clock)
    job = await add_one(store)
    await store.close()
    for call in (add_one(store), take(store), store.get([job.id]), store.count()):
        with pytest.raises(StoreError, match="closed"):
            await call


async def test_trouble_after_the_commit_is_not_told_as_failure_nor_repeated(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk was done: telling otherwise makes the caller do it again."""

    def failing(self: Checkpointer) -> None:
        raise OSError("no thread could be started")

    monkeypatch.setattr(Checkpointer, "consider", failing)
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*(add_one(store) for _ in range(10)), return_exceptions=True)
    monkeypatch.undo()
    stored = await store.find(JobQuery())
    assert [type(answer).__name__ for answer in answers] == ["Job"] * 10
    assert len(stored) == 10
    async with asyncio.timeout(SOON):
        await add_one(store)


class Refusing:
    """A connection that fails to commit a number of times."""

    def __init__(self, connection: sqlite3.Connection, failures: Iterator[sqlite3.Error]) -> None:
        self._connection = connection
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        if sql == "COMMIT":
            for failure in self._failures:
                raise failure
        return self._connection.execute(sql, parameters)


def full_disk() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


async def test_commit_that_fails_changes_nothing_and_may_be_tried_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = Refusing(store._writer._connection, iter([full_disk()]))
    monkeypatch.setattr(store._writer, "_connection", connection)
    with pytest.raises(StoreUnavailable, match="disk is full; nothing was changed"):
        await add_one(store)
    assert await store.find(JobQuery()) == []
    job = await add_one(store)
    assert await store.find(JobQuery()) == [job]
    assert dict(await store.count()) == {("default", job.state, job.waiting): 1}


async def test_group_whose_commit_fails_is_tried_one_by_one(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = Refusing(store._writer._connection, iter([full_disk()]))
    monkeypatch.setattr(store._writer, "_connection", connection)
    answers = await asyncio.gather(*(add_one(store) for _ in range(10)), return_exceptions=True)
    stored = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert sorted(ids(stored)) == sorted(ids(await store.find(JobQuery())))
    assert len(stored) >= 9


async def test_bulk_of_many_different_jobs_keeps_their_order(store: SqliteStore) -> None:
    wanted = [
        NewJob(
            task=f"t{n % 3}",
            payload='{"n":%d,"fill":"%s"}' % (n, "x" * (1200 if n % 7 == 0 else 5)),  # noqa: UP031
            queue=f"q{n % 5}",
            key=f"k{n % 11}" if n % 2 else None,
            tags=("a", "b") if n % 4 == 0 else (),
        )
        for n in range(500)
    ]
    added = await add(store, *wanted)
    assert [job.args["n"] for job in added] == list(range(500))
    assert await store.get(ids(added)) == added  # type: ignore[arg-type]


async def test_locked_file_is_waited_for_once_for_all_callers(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def busy() -> None:
        tries.append(1)
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    monkeypatch.setattr(store._writer, "_begin", busy)
    calls = [add_one(store) for _ in range(20)]
    answers = await at_once(store, *map(told, calls))
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert len(tries) == 1


async def told(call: Coroutine[Any, Any, Any]) -> Any:
    """Its answer, or the error that it raised."""
    try:
        return await call
    except StoreUnavailable as error:
        return error


def test_interrupted_caller_leaves_no_other_without_an_answer(store: SqliteStore) -> None:
    def interrupted(_transaction: Transaction, _calls: Sequence[Any]) -> list[Any]:
        raise KeyboardInterrupt

    other = Request(adding.add, ([new()], "p"), None)
    store._writer._enter(other)
    with pytest.raises(KeyboardInterrupt):
        drive(store._writer.run(interrupted, None))
    assert other.done
    assert isinstance(other.answer, StoreError)
    assert drive(add_one(store)).id == 1

"""The queue of entries is paused, drained, counted, and paused for an import."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.apps import entries as application
from penstock.apps.entries import Entries, EntryQueue
from penstock.apps.entries.queue import RowsInFlight, paused_queue
from penstock.apps.entries.rows import QUEUE
from penstock.leases import Done
from tests.apps.entries.support import (
    Letters,
    assert_index_equals_rows,
    contents,
    experience,
    has_status,
    imported,
    in_flight,
    is_paused,
    lines,
    status,
    until,
    work_off,
    working,
)
from tests.environment import SOON
from tests.worker.support import eventually


async def test_pause_waits_for_rows_in_flight(entries: Entries, letters: Letters) -> None:
    queue = EntryQueue(entries)
    one = await in_flight(entries, letters, "slow")
    async with working(entries):
        await letters.wait_until_held()
        assert await queue.pause(timedelta(0)) == 1  # out of patience
        pausing = asyncio.create_task(queue.pause(timedelta(seconds=SOON)))
        other = await entries.write("experience", "A", experience("later"))
        assert not pausing.done()
        letters.release()
        assert await pausing == 0
        assert await status(entries, one) == "embedded"
        assert await status(entries, other.id) == "pending"
        drained = await queue.drain(timedelta(seconds=SOON))
        assert (drained.status, drained.remaining) == ("paused", 1)
        await queue.resume()
        assert (await queue.drain(timedelta(seconds=SOON))).status == "drained"
    await assert_index_equals_rows(entries)


async def test_drain_ends_at_what_there_was_when_it_began(
    entries: Entries, letters: Letters
) -> None:
    queue = EntryQueue(entries)
    await entries.write("experience", "A", experience("first"))
    async with working(entries, concurrency=1):
        draining = asyncio.create_task(queue.drain(timedelta(seconds=SOON)))
        for n in range(20):
            await entries.write("experience", "A", experience(f"n{n}"))
        assert (await draining).status == "drained"
        await in_flight(entries, letters, "slow")
        await letters.wait_until_held()
        late = await queue.drain(timedelta(0))
        assert (late.status, late.remaining >= 1) == ("timeout", True)
        letters.release()


async def test_drain_that_holds_works_off_a_paused_queue_and_leaves_it_paused(
    entries: Entries,
) -> None:
    queue = EntryQueue(entries)
    await queue.pause(timedelta(seconds=SOON))
    for n in range(10):
        await entries.write("experience", "A", experience(f"n{n}"))
    async with working(entries):
        drained = await queue.drain(timedelta(seconds=SOON), hold=True)
        assert (drained.status, drained.remaining) == ("drained", 0)
        assert await queue.is_paused()
        later = await entries.write("experience", "A", experience("later"))
        assert await queue.pause(timedelta(seconds=SOON)) == 0
        assert await status(entries, later.id) == "pending"
    await assert_index_equals_rows(entries)


async def test_row_that_takes_too_long_is_taken_from_its_worker(
    entries: Entries, letters: Letters
) -> None:
    queue = EntryQueue(entries)
    one = await in_flight(entries, letters, "slow")
    async with working(entries, concurrency=1):
        await letters.wait_until_held()
        assert await queue.requeue_stale(timedelta(minutes=30)) == {}
        await queue.pause(timedelta(0))
        assert await queue.requeue_stale(timedelta(0)) == {"experience": 1}
        assert await status(entries, one) == "pending"
        letters.release()
        await queue.resume()
        await eventually(lambda: has_status(entries, one, "embedded"))
    await assert_index_equals_rows(entries)


async def test_import_pauses_the_queue_and_waits_for_rows_in_flight(
    entries: Entries,
) -> None:
    await entries.write("manual", "A", {"title": "t", "content": "before"})
    (job,) = await entries.penstock.leases.claim(queues=[QUEUE], worker="slow")
    importing = asyncio.create_task(imported(entries, lines(range(3))))
    await until(entries, lambda: is_paused(entries))
    await entries.write("manual", "A", {"title": "t", "content": "meanwhile"})
    assert await entries.penstock.leases.claim(queues=[QUEUE], worker="quick") == []
    assert len(await contents(entries)) == 2
    assert not importing.done()
    await entries.penstock.leases.settle([(job.lease, Done())])
    report = await importing
    assert report.added == 3
    assert not await is_paused(entries)
    await work_off(entries)
    assert len(await contents(entries)) == 5


async def test_waiting_for_rows_in_flight_has_a_limit(entries: Entries) -> None:
    await entries.write("manual", "A", {"title": "t", "content": "before"})
    await entries.penstock.leases.claim(queues=[QUEUE], worker="slow")
    with pytest.raises(RowsInFlight, match="1 jobs"):
        async with paused_queue(entries.penstock, patience=timedelta(0)):
            pytest.fail("rows are in flight")
    assert not await is_paused(entries)


async def test_queue_that_was_paused_before_stays_paused(entries: Entries) -> None:
    """Pause, drain, import, resume: as administrators do by hand."""
    await imported(entries, lines(range(5)))
    await work_off(entries)
    await entries.penstock.queues.pause(QUEUE)
    await imported(entries, lines(range(10)), "2")
    assert await is_paused(entries)
    assert (await entries.counts())["manual", "pending"] == 10
    await entries.penstock.queues.resume(QUEUE)
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_pause_is_renewed_and_ends_when_the_block_fails(
    entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application.queue, "PAUSE", timedelta(seconds=0.4))

    ends: set[Any] = set()

    async def was_renewed() -> bool:
        [queue] = [one for one in await entries.penstock.queues.list() if one.name == QUEUE]
        ends.add(queue.paused_until)
        return len(ends) > 2

    async def hold() -> None:
        async with paused_queue(entries.penstock):
            await until(entries, was_renewed)
            raise ValueError("whatever")

    with pytest.raises(ValueError, match="whatever"):
        await hold()
    assert not await is_paused(entries)

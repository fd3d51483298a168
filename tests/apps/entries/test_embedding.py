"""Whatever happens while rows are embedded, the index has what the rows say."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Cancelled, JobQuery, Penstock, State, Transaction
from penstock.apps.entries import Chosen, Control, Entries, Settings, rows
from penstock.apps.entries.checking import Checked, Checker
from penstock.apps.entries.embedding import Embedding, Request
from penstock.apps.entries.tables import TABLES
from penstock.vectors import Item
from tests.apps.entries.support import (
    SOON,
    Letters,
    assert_index_equals_rows,
    everything,
    experience,
    vectors_of,
    work_off,
    worker,
)
from tests.worker.support import eventually


async def status(entries: Entries, one: str) -> str:
    (found,) = await entries.read([one])
    return found.embedding_status


async def jobs(entries: Entries) -> list[int]:
    return [job.id for job in await entries.penstock.find(JobQuery(queue="entries"))]


@asynccontextmanager
async def working(entries: Entries, **options: Any) -> AsyncIterator[None]:
    one = worker(entries, **options)
    running = asyncio.create_task(one.run())
    try:
        yield
    finally:
        one.stop()
        await running


async def in_flight(entries: Entries, letters: Letters, title: str) -> str:
    """A row that a worker is embedding; it waits until `letters` is released."""
    letters.hold(title)
    made = await entries.write("experience", "A", experience(title))
    return made.id


async def held(letters: Letters) -> None:
    assert await asyncio.to_thread(letters.held.wait, SOON)


async def test_row_edited_while_it_is_embedded_is_embedded_again(
    entries: Entries, letters: Letters
) -> None:
    one = await in_flight(entries, letters, "old")
    async with working(entries):
        await held(letters)
        assert await status(entries, one) == "processing"
        for n in range(3):
            changed = await entries.update(one, {"title": f"new {n}"})
            assert changed.embedding_status == "pending"
        assert len(await jobs(entries)) == 2  # exactly one behind the one that runs
        letters.release()
        await eventually(lambda: _is(entries, one, "embedded"))
    assert (await entries.read([one]))[0].version == 4
    await assert_index_equals_rows(entries)


async def _is(entries: Entries, one: str, wanted: str) -> bool:
    return await status(entries, one) == wanted


async def test_row_deleted_while_it_is_embedded_leaves_nothing(
    entries: Entries, letters: Letters
) -> None:
    one = await in_flight(entries, letters, "old")
    async with working(entries):
        await held(letters)
        await entries.delete([one])
        letters.release()
        drained = await entries.penstock.drain("entries", timeout=timedelta(seconds=SOON))
        assert drained.status == "drained"
    await assert_index_equals_rows(entries)


async def test_worker_that_slept_through_all_of_it_writes_nothing_old(
    entries: Entries, letters: Letters
) -> None:
    """It has read rows and embeds them, while others change, embed and delete those rows."""
    edited = await entries.write("experience", "A", experience("slow edited"))
    gone = await entries.write("experience", "A", experience("slow gone"))
    again = await entries.write("experience", "A", experience("slow again"))
    found = sorted(await entries.penstock.find(JobQuery(queue="entries")), key=lambda one: one.id)
    requests = [Request(job.id, job.args["ids"]) for job in found]
    letters.hold("slow")
    slow = threading.Thread(target=Embedding(entries)._work, args=(requests,))
    slow.start()
    await held(letters)
    letters.holds = ""
    # Each still waits, so that an edit keeps its job: the version alone tells the texts apart.
    await entries.update(edited.id, {"title": "quick"})
    await entries.delete([gone.id, again.id])
    await entries.write("experience", "A", experience("another"), entry_id=again.id)
    await work_off(entries)
    await assert_index_equals_rows(entries)
    letters.go_on.set()
    await asyncio.to_thread(slow.join, SOON)
    assert all(request.error is None for request in requests)
    await assert_index_equals_rows(entries)


async def test_same_job_twice_is_as_good_as_once(entries: Entries, letters: Letters) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(5)]
    found = await entries.penstock.find(JobQuery(queue="entries"))
    requests = [Request(job.id, job.args["ids"]) for job in found]
    await asyncio.to_thread(Embedding(entries)._work, requests)
    assert await status(entries, made[0].id) == "pending"  # nobody holds the job
    await work_off(entries)
    await asyncio.to_thread(Embedding(entries)._work, requests)
    await assert_index_equals_rows(entries)
    assert len(await everything(entries)) == 5


async def test_poison_fails_alone_and_says_why(entries: Entries, letters: Letters) -> None:
    for n in range(20):
        await entries.write("experience", "A", experience("poison" if n == 7 else f"n{n}"))
    await work_off(entries)
    (failed,) = await entries.page(Chosen(embedding_status="failed"))
    assert failed.data["title"] == "poison"
    assert failed.embedding_attempts == 1
    assert failed.embedding_error == "ValueError: this text is poison"
    await assert_index_equals_rows(entries)
    assert await entries.retry_failed() == {"experience": 1}
    assert await status(entries, failed.id) == "pending"
    await entries.update(failed.id, {"title": "cured"})
    await work_off(entries)
    assert await status(entries, failed.id) == "embedded"
    assert await entries.retry_failed() == {}
    await assert_index_equals_rows(entries)


async def test_row_that_becomes_poison_leaves_the_index(entries: Entries) -> None:
    made = await entries.write("experience", "A", experience("good"))
    await work_off(entries)
    await entries.update(made.id, {"title": "poison"})
    await work_off(entries)
    assert await status(entries, made.id) == "failed"
    await assert_index_equals_rows(entries)


async def test_poison_among_the_rows_of_one_job_gets_a_job_of_its_own(entries: Entries) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(4)]
    await work_off(entries)
    await entries.update(made[1].id, {"title": "poison"})
    await entries.update(made[2].id, {"title": "fine"})
    await work_off(entries)
    ids = [one.id for one in made]
    for wanted in ("embedded", "failed"):
        await entries.requeue(ids, status=wanted)
    await work_off(entries)
    assert [await status(entries, one) for one in ids] == [
        "embedded", "failed", "embedded", "embedded",
    ]  # fmt: skip
    await assert_index_equals_rows(entries)


@pytest.mark.parametrize("settings", [Settings(embedder="letters", attempts=3, retry_delay=0)])
async def test_row_is_tried_as_often_as_the_settings_say(entries: Entries) -> None:
    made = await entries.write("experience", "A", experience("poison"))
    async with working(entries):
        await eventually(lambda: _is(entries, made.id, "failed"))
    (now,) = await entries.read([made.id])
    assert now.embedding_attempts == 3


async def test_rows_of_a_worker_that_died_are_taken_up_again_and_shown_truly(
    entries: Entries,
) -> None:
    made = await entries.write("experience", "A", experience("x"))
    (job,) = await entries.penstock.claim(worker="dead", queues=["entries"])
    assert await status(entries, made.id) == "processing"
    await entries.penstock.reset(job.id)  # as the sweep does when the lease is over
    assert await status(entries, made.id) == "pending"
    await work_off(entries)
    assert await status(entries, made.id) == "embedded"
    await assert_index_equals_rows(entries)


@pytest.mark.parametrize("settings", [Settings(embedder="letters", lease=1)])
async def test_job_of_many_rows_that_killed_its_worker_is_parted(entries: Entries) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(3)]
    await work_off(entries)
    await entries.requeue([one.id for one in made], status="embedded")
    before = await jobs(entries)
    (job,) = await entries.penstock.claim(worker="dead", queues=["entries"])
    async with working(entries):  # its lease runs out
        for one in made:
            await eventually(lambda: _is(entries, one.id, "embedded"))  # noqa: B023 - at once
    after = [one for one in await jobs(entries) if one not in before]
    assert len(after) == 3
    assert (await entries.penstock.get(job.id)).attempt == 2
    await assert_index_equals_rows(entries)


@pytest.mark.parametrize(
    "settings", [Settings(embedder="letters", lease=0.2, attempts=2, retry_delay=0)]
)
async def test_rows_whose_worker_died_are_embedded_one_by_one_and_that_is_no_error(
    entries: Entries, letters: Letters
) -> None:
    titles = ["poison", "n1", "n2", "n3"]
    made = [await entries.write("experience", "A", experience(title)) for title in titles]
    await entries.penstock.claim(worker="dead", limit=4, queues=["entries"])
    states = ["failed", *["embedded"] * 3]
    async with working(entries):  # its leases run out
        for one, wanted in zip(made, states, strict=True):
            await eventually(lambda: _is(entries, one.id, wanted))  # noqa: B023 - at once
    assert all(len(texts) == 1 for texts in letters.calls)
    (failed,) = await entries.read([made[0].id])
    assert failed.embedding_attempts == 3  # one that nobody saw the end of, and two errors
    await assert_index_equals_rows(entries)


async def test_edit_does_not_keep_a_job_that_was_begun_since_the_row_was_looked_at(
    entries: Entries,
) -> None:
    made = await entries.write("experience", "A", experience("old"))
    new = entries.content("experience", "A", experience("new"), made.id)
    await entries.penstock.claim(worker="quick", queues=["entries"])
    assert not await entries.penstock.transact(lambda tx: rows.rewrite(tx, new, 1, 0))
    assert not await entries.penstock.transact(lambda tx: rows.replace(tx, new, 2, 99, 0))
    assert await status(entries, made.id) == "processing"


async def test_cancelled_job_is_a_failed_row_with_a_message(entries: Entries) -> None:
    made = await entries.write("experience", "A", experience("x"))
    (job,) = await jobs(entries)
    await entries.penstock.cancel(job)
    (now,) = await entries.read([made.id])
    assert (now.embedding_status, now.embedding_error) == ("failed", "its job was cancelled")
    await entries.retry_failed()
    await work_off(entries)
    await assert_index_equals_rows(entries)


@asynccontextmanager
async def following(entries: Entries) -> AsyncIterator[None]:
    task = asyncio.create_task(Checker(entries).follow())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _is_forgotten(entries: Entries, one: str) -> bool:
    return not (await entries.shelf()).index.metadata([one])


async def test_vector_that_is_written_while_its_job_is_cancelled_leaves_the_index(
    entries: Entries,
) -> None:
    made = await entries.write("experience", "A", experience("x"))
    (job,) = await entries.penstock.claim(worker="slow", queues=["entries"])
    await asyncio.to_thread(Embedding(entries)._work, [Request(job.id, [made.id])])
    assert not await _is_forgotten(entries, made.id)
    await entries.penstock.cancel(job.id)
    async with following(entries):
        await entries.penstock.settle([(job, Cancelled("cancel was requested"))])
        assert await status(entries, made.id) == "failed"
        assert await entries.search(experience("x")["title"]) == []
        await eventually(lambda: _is_forgotten(entries, made.id))
    await assert_index_equals_rows(entries)


async def test_former_vector_of_a_row_whose_waiting_job_is_cancelled_leaves_the_index(
    entries: Entries,
) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(2)]
    await work_off(entries)
    known = await jobs(entries)
    for one in made:
        await entries.update(one.id, {"title": "new"})
    await entries.penstock.cancel(min(set(await jobs(entries)) - set(known)))
    async with following(entries):
        await eventually(lambda: _is_forgotten(entries, made[0].id))
    assert not await _is_forgotten(entries, made[1].id)  # it waits
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_run_that_is_cancelled_takes_none_of_its_batch_along(
    entries: Entries, letters: Letters
) -> None:
    """The first of a batch embeds for all: when it is told to end, another one does."""
    letters.hold("slow")
    made = [await entries.write("experience", "A", experience(f"slow {n}")) for n in range(5)]
    first = min(await jobs(entries))
    async with working(entries):
        await held(letters)
        await entries.penstock.cancel(first)
        await eventually(lambda: _is(entries, made[0].id, "failed"))
        assert await Control(entries).pause(timedelta(seconds=0.5)) == 4  # still in flight
        letters.release()
        for one in made[1:]:
            await eventually(lambda: _is(entries, one.id, "embedded"))  # noqa: B023 - at once
    await assert_index_equals_rows(entries)


async def test_check_repairs_whatever_differs(entries: Entries) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(6)]
    await work_off(entries)
    await entries.update(made[5].id, {"title": "still waits"})
    index = (await entries.shelf()).index
    index.delete([made[0].id])
    index.upsert([Item("nobody", vectors_of(["x"])[0], "x", metadata={"digest": "x"})])
    index.upsert([Item(made[1].id, vectors_of(["y"])[0], "y", metadata={"digest": "y"})])
    assert await Checker(entries).check() == Checked(forgotten=1, requeued=2)
    assert [await status(entries, one.id) for one in made[:3]] == ["pending"] * 2 + ["embedded"]
    await work_off(entries)
    await assert_index_equals_rows(entries)
    assert await Checker(entries).check() == Checked()
    with entries.shelves.checking():
        assert await Checker(entries).check() is None


async def test_index_that_was_lost_is_made_again(entries: Entries, tmp_path: Path) -> None:
    for n in range(30):
        await entries.write("experience", "A", experience(f"n{n}"))
    await work_off(entries)
    (await entries.shelf()).index.clear()
    assert await Checker(entries).check() == Checked(requeued=30)
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_thousand_rapid_writes_are_all_embedded(entries: Entries) -> None:
    async with working(entries):
        for start in range(0, 1_000, 100):
            await asyncio.gather(
                *(entries.write("experience", "A", experience(f"n{start + n}")) for n in range(100))
            )
        drained = await entries.penstock.drain("entries", timeout=timedelta(seconds=SOON))
        assert drained.status == "drained"
    assert {key: n for key, n in (await entries.counts()).items() if n} == {
        ("experience", "embedded"): 1_000
    }
    await assert_index_equals_rows(entries)


# Steering


async def test_pause_waits_for_rows_in_flight(entries: Entries, letters: Letters) -> None:
    control = Control(entries)
    one = await in_flight(entries, letters, "slow")
    async with working(entries):
        await held(letters)
        assert await control.pause(timedelta(0)) == 1  # out of patience
        pausing = asyncio.create_task(control.pause(timedelta(seconds=SOON)))
        other = await entries.write("experience", "A", experience("later"))
        assert not pausing.done()
        letters.release()
        assert await pausing == 0
        assert await status(entries, one) == "embedded"
        assert await status(entries, other.id) == "pending"
        drained = await control.drain(timedelta(seconds=SOON))
        assert (drained.status, drained.remaining) == ("paused", 1)
        await control.resume()
        assert (await control.drain(timedelta(seconds=SOON))).status == "drained"
    await assert_index_equals_rows(entries)


async def test_drain_ends_at_what_there_was_when_it_began(
    entries: Entries, letters: Letters
) -> None:
    control = Control(entries)
    await entries.write("experience", "A", experience("first"))
    async with working(entries, concurrency=1):
        draining = asyncio.create_task(control.drain(timedelta(seconds=SOON)))
        for n in range(20):
            await entries.write("experience", "A", experience(f"n{n}"))
        assert (await draining).status == "drained"
        await in_flight(entries, letters, "slow")
        await held(letters)
        late = await control.drain(timedelta(0))
        assert (late.status, late.remaining >= 1) == ("timeout", True)
        letters.release()


async def test_drain_that_holds_works_off_a_paused_queue_and_leaves_it_paused(
    entries: Entries,
) -> None:
    control = Control(entries)
    await control.pause(timedelta(seconds=SOON))
    for n in range(10):
        await entries.write("experience", "A", experience(f"n{n}"))
    async with working(entries):
        drained = await control.drain(timedelta(seconds=SOON), hold=True)
        assert (drained.status, drained.remaining) == ("drained", 0)
        assert await control.is_paused()
        later = await entries.write("experience", "A", experience("later"))
        assert await control.pause(timedelta(seconds=SOON)) == 0
        assert await status(entries, later.id) == "pending"
    await assert_index_equals_rows(entries)


async def test_row_that_takes_too_long_is_taken_from_its_worker(
    entries: Entries, letters: Letters
) -> None:
    control = Control(entries)
    one = await in_flight(entries, letters, "slow")
    async with working(entries, concurrency=1):
        await held(letters)
        assert await control.requeue_stale(timedelta(minutes=30)) == {}
        await control.pause(timedelta(0))
        assert await control.requeue_stale(timedelta(0)) == {"experience": 1}
        assert await status(entries, one) == "pending"
        letters.release()
        await control.resume()
        await eventually(lambda: _is(entries, one, "embedded"))
    await assert_index_equals_rows(entries)


async def test_counts_are_kept_whatever_connection_has_counted(app: Penstock) -> None:
    """On PostgreSQL each connection counts in a slot of its own; those of the closed are added."""

    def left_behind(tx: Transaction) -> None:
        tx.execute("INSERT INTO entries_count VALUES (1, 'thing', 'failed', 2)")
        tx.execute("INSERT INTO entries_count VALUES (0, 'thing', 'failed', 5)")

    await app.tables("entries", TABLES)
    await app.transact(left_behind)
    for _ in range(2):
        await app.transact(rows.gather_counts)
        assert await app.read(rows.counts) == {("thing", "failed"): 7}


async def test_failed_jobs_state_is_the_rows(entries: Entries) -> None:
    await entries.write("experience", "A", experience("poison"))
    await work_off(entries)
    (job,) = await entries.penstock.find(JobQuery(queue="entries"))
    assert job.state is State.FAILED

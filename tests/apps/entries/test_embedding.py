"""Rows are embedded in batches, and whatever happens meanwhile, the index agrees with the rows."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import JobQuery, Penstock, State
from penstock.apps.entries import Entries, EntryQuery, EntryQueue, Settings, rows
from penstock.apps.entries.embedding import Embedding, Request
from penstock.tables import Statements
from tests.apps.entries.support import (
    LEASE,
    Letters,
    assert_index_equals_rows,
    claim_and_die,
    everything,
    experience,
    has_status,
    in_flight,
    jobs,
    status,
    work_off,
    worker,
    working,
)
from tests.environment import SOON
from tests.worker.support import eventually


async def test_row_edited_while_it_is_embedded_is_embedded_again(
    entries: Entries, letters: Letters
) -> None:
    one = await in_flight(entries, letters, "old")
    async with working(entries):
        await letters.wait_until_held()
        assert await status(entries, one) == "processing"
        for n in range(3):
            changed = await entries.update(one, {"title": f"new {n}"})
            assert changed.embedding_status == "pending"
        assert len(await jobs(entries)) == 2  # exactly one behind the one that runs
        letters.release()
        await eventually(lambda: has_status(entries, one, "embedded"))
    assert (await entries.read([one]))[0].version == 4
    await assert_index_equals_rows(entries)


async def test_row_deleted_while_it_is_embedded_leaves_nothing(
    entries: Entries, letters: Letters
) -> None:
    one = await in_flight(entries, letters, "old")
    async with working(entries):
        await letters.wait_until_held()
        await entries.delete([one])
        letters.release()
        drained = await entries.penstock.queues.drain("entries", timeout=timedelta(seconds=SOON))
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
    await letters.wait_until_held()
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
    (failed,) = await entries.page(EntryQuery(embedding_status="failed"))
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


@pytest.mark.parametrize(
    "settings", [Settings(embedder="letters", lease=LEASE, attempts=3, retry_delay=0)]
)
async def test_row_is_tried_as_often_as_the_settings_say(entries: Entries) -> None:
    made = await entries.write("experience", "A", experience("poison"))
    async with working(entries):
        await eventually(lambda: has_status(entries, made.id, "failed"))
    (now,) = await entries.read([made.id])
    assert now.embedding_attempts == 3


async def test_rows_of_a_dead_worker_are_embedded_by_another_and_shown_correctly(
    entries: Entries,
) -> None:
    made = await entries.write("experience", "A", experience("x"))
    (job,) = await entries.penstock.leases.claim(worker="dead", queues=["entries"])
    assert await status(entries, made.id) == "processing"
    await entries.penstock.reset(job.id)  # as the sweep does when the lease is over
    assert await status(entries, made.id) == "pending"
    await work_off(entries)
    assert await status(entries, made.id) == "embedded"
    await assert_index_equals_rows(entries)


async def test_job_of_many_rows_that_killed_its_worker_is_split(entries: Entries) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(3)]
    await work_off(entries)
    await entries.requeue([one.id for one in made], status="embedded")
    before = await jobs(entries)
    (job,) = await claim_and_die(entries, 1)
    async with working(entries):
        for one in made:
            await eventually(lambda: has_status(entries, one.id, "embedded"))  # noqa: B023 - at once
    after = [one for one in await jobs(entries) if one not in before]
    assert len(after) == 3
    assert (await entries.penstock.get(job)).attempt == 2
    await assert_index_equals_rows(entries)


@pytest.mark.parametrize(
    "settings", [Settings(embedder="letters", lease=LEASE, attempts=2, retry_delay=0)]
)
async def test_rows_whose_worker_died_are_embedded_one_by_one_and_that_is_no_error(
    entries: Entries, letters: Letters
) -> None:
    titles = ["poison", "n1", "n2", "n3"]
    made = [await entries.write("experience", "A", experience(title)) for title in titles]
    assert len(await claim_and_die(entries, 4)) == 4
    states = ["failed", *["embedded"] * 3]
    async with working(entries):
        for one, wanted in zip(made, states, strict=True):
            await eventually(lambda: has_status(entries, one.id, wanted))  # noqa: B023 - at once
    assert all(len(texts) == 1 for texts in letters.calls)
    (failed,) = await entries.read([made[0].id])
    assert failed.embedding_attempts == 3  # one lost with its worker, and two errors
    await assert_index_equals_rows(entries)


async def test_run_that_is_cancelled_takes_none_of_its_batch_along(
    entries: Entries, letters: Letters
) -> None:
    """The first of a batch embeds for all: when it is cancelled, another one does."""
    letters.hold("slow")
    made = [await entries.write("experience", "A", experience(f"slow {n}")) for n in range(5)]
    first = min(await jobs(entries))
    async with working(entries):
        await letters.wait_until_held()
        await entries.penstock.cancel(first)
        await eventually(lambda: has_status(entries, made[0].id, "failed"))
        assert await EntryQueue(entries).pause(timedelta(0)) == 4  # still in flight
        letters.release()
        for one in made[1:]:
            await eventually(lambda: has_status(entries, one.id, "embedded"))  # noqa: B023 - at once
    await assert_index_equals_rows(entries)


async def test_thousand_rapid_writes_are_all_embedded(entries: Entries) -> None:
    async with working(entries):
        for start in range(0, 1_000, 100):
            await asyncio.gather(
                *(entries.write("experience", "A", experience(f"n{start + n}")) for n in range(100))
            )
        drained = await entries.penstock.queues.drain("entries", timeout=timedelta(seconds=SOON))
        assert drained.status == "drained"
    assert {key: n for key, n in (await entries.counts()).items() if n} == {
        ("experience", "embedded"): 1_000
    }
    await assert_index_equals_rows(entries)


STATUSES = {
    State.PENDING: "pending",
    State.RUNNING: "processing",
    State.DONE: "embedded",
    State.FAILED: "failed",
}


@asynccontextmanager
async def others_working(
    entries: Entries, tmp_path: Path, letters: Letters, number: int
) -> AsyncIterator[None]:
    """So many workers that are woken by writes alone: they look for nothing by themselves."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        workers = []
        for _ in range(number):
            app = await stack.enter_async_context(Penstock(entries.penstock.url))
            own = Entries(
                app,
                tmp_path / "entries",
                settings=entries.settings,
                open_embedder=lambda _: letters,
            )
            stack.callback(own.close)
            own.register()
            workers.append(worker(own, sweep=timedelta(hours=1), concurrency=20))
            group.create_task(workers[-1].run())
        try:
            yield
        finally:
            for one in workers:
                one.stop()


async def test_two_workers_never_take_one_row_and_every_write_wakes_one(
    entries: Entries, tmp_path: Path, letters: Letters
) -> None:
    async with others_working(entries, tmp_path, letters, 2):
        for start in (0, 100):  # the second time they are idle before
            titles = [f"n{start + n}" for n in range(100)]
            writes = (entries.write("experience", "A", experience(title)) for title in titles)
            await asyncio.gather(*writes)
            await eventually(lambda: _all_embedded(entries))
    texts = list(itertools.chain(*letters.calls))
    assert len(texts) == len(set(texts)) == 200
    await assert_index_equals_rows(entries)


async def _all_embedded(entries: Entries) -> bool:
    counted = await entries.counts()
    return not any(n for (_, status), n in counted.items() if status != "embedded")


async def test_status_is_true_at_every_moment(
    entries: Entries, tmp_path: Path, letters: Letters
) -> None:
    """Rows are edited and embedded all the time; a reader compares row, job and vector."""
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(10)]
    over = asyncio.Event()

    async def edit() -> None:
        for n in range(150):
            title = "poison" if n % 7 == 0 else f"edited {n}"
            await entries.update(made[n % 10].id, {"title": title})
        over.set()

    seen: set[str] = set()
    async with others_working(entries, tmp_path, letters, 2), asyncio.timeout(SOON * 4):
        editing = asyncio.create_task(edit())
        while not over.is_set():
            for one in made:
                seen.add(await _compare(entries, one.id))
        await editing
        drained = await entries.penstock.queues.drain("entries", timeout=timedelta(seconds=SOON))
        assert drained.status == "drained"
    for one in made:
        seen.add(await _compare(entries, one.id))
    assert {"embedded", "failed"} <= seen
    await assert_index_equals_rows(entries)


async def _compare(entries: Entries, one: str) -> str:
    """Fail if a row says other than its job or its vector does, at a moment when it stood still."""
    before = await entries.penstock.tables.read(lambda tx: _row(tx, one))
    _, job, digest, status = before
    state = (await entries.penstock.get(job)).state
    items = (await entries.current_index()).index.metadata([one])
    if await entries.penstock.tables.read(lambda tx: _row(tx, one)) != before:
        return "moved"
    assert STATUSES[state] == status
    if status == "embedded":
        assert items[one]["digest"] == digest
    return status


def _row(tx: Statements, one: str) -> tuple[int, int, str, str]:
    job, version, status = rows.versions(tx, [one])[one]
    return version, job, rows.digests(tx, [one])[one][0], status

"""The index is made equal to the rows, and rebuilt with another embedder while searches go on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from penstock import ConfigurationError
from penstock.apps.entries import Entries
from penstock.apps.entries.embedding import Embedding, Request
from penstock.apps.entries.reconciliation import Reconciler, Repaired, rebuild
from penstock.apps.entries.rows import QUEUE
from penstock.leases import Cancelled
from penstock.vectors import Item
from tests.apps.entries.support import (
    Letters,
    assert_index_equals_rows,
    experience,
    imported,
    is_paused,
    jobs,
    kill_program,
    lines,
    opened,
    status,
    vectors_of,
    work_off,
    working,
)
from tests.worker.support import eventually


@asynccontextmanager
async def following(entries: Entries) -> AsyncIterator[None]:
    task = asyncio.create_task(Reconciler(entries).remove_failed_forever())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _is_forgotten(entries: Entries, one: str) -> bool:
    return not (await entries.current_index()).index.metadata([one])


async def test_vector_that_is_written_while_its_job_is_cancelled_leaves_the_index(
    entries: Entries,
) -> None:
    made = await entries.write("experience", "A", experience("x"))
    (job,) = await entries.penstock.leases.claim(worker="slow", queues=["entries"])
    await asyncio.to_thread(Embedding(entries)._work, [Request(job.id, [made.id])])
    assert not await _is_forgotten(entries, made.id)
    await entries.penstock.cancel(job.id)
    async with following(entries):
        await entries.penstock.leases.settle([(job, Cancelled("cancel was requested"))])
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


async def test_check_repairs_whatever_differs(entries: Entries) -> None:
    made = [await entries.write("experience", "A", experience(f"n{n}")) for n in range(6)]
    await work_off(entries)
    await entries.update(made[5].id, {"title": "still waits"})
    index = (await entries.current_index()).index
    index.delete([made[0].id])
    index.upsert([Item("nobody", vectors_of(["x"])[0], "x", metadata={"digest": "x"})])
    index.upsert([Item(made[1].id, vectors_of(["y"])[0], "y", metadata={"digest": "y"})])
    assert await Reconciler(entries).repair() == Repaired(removed=1, requeued=2)
    assert [await status(entries, one.id) for one in made[:3]] == ["pending"] * 2 + ["embedded"]
    await work_off(entries)
    await assert_index_equals_rows(entries)
    assert await Reconciler(entries).repair() == Repaired()
    with entries.indexes.check_lock():
        assert await Reconciler(entries).repair() is None


async def test_index_that_was_lost_is_made_again(entries: Entries, tmp_path: Path) -> None:
    for n in range(30):
        await entries.write("experience", "A", experience(f"n{n}"))
    await work_off(entries)
    (await entries.current_index()).index.clear()
    assert await Reconciler(entries).repair() == Repaired(requeued=30)
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def in_use(entries: Entries) -> str:
    return (await entries.current_index()).configuration


async def test_all_entries_are_embedded_by_the_new_one(entries: Entries) -> None:
    await imported(entries, lines(range(2_500)))
    await work_off(entries)
    rebuilt = await rebuild(entries, "others")
    assert (rebuilt.embedder, rebuilt.embedded, rebuilt.requeued) == ("others", 2_500, 0)
    assert await in_use(entries) == "others"
    assert not await is_paused(entries)
    await imported(entries, lines(range(2_490, 2_510), "new"), "2")
    await entries.delete(["m-1", "m-2"])
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_rebuild_back_embeds_only_what_has_changed_since(entries: Entries) -> None:
    await imported(entries, lines(range(50)))
    await work_off(entries)
    await rebuild(entries, "others")
    await entries.update("m-1", {"content": "changed"})
    await entries.delete(["m-2"])
    await work_off(entries)
    back = await rebuild(entries, "letters")
    assert (back.embedded, back.removed) == (1, 1)
    await assert_index_equals_rows(entries)


async def test_writes_searches_and_deletions_go_on_meanwhile(entries: Entries) -> None:
    await imported(entries, lines(range(1_500)))
    await work_off(entries)
    over = asyncio.Event()

    async def write() -> None:
        n = 0
        while not over.is_set():
            await entries.update(f"m-{n}", {"content": f"changed {n}"})
            await entries.write("manual", "B", {"title": "t", "content": f"new {n}"})
            await entries.delete([f"m-{1_499 - n}"])
            n += 1

    async def search() -> None:
        while not over.is_set():
            found = await entries.search("title 700\n\ntext 700", limit=1)
            assert [one.entry.id for one in found] == ["m-700"]

    async with working(entries):
        others = [asyncio.create_task(write()), asyncio.create_task(search())]
        for configuration in ("others", "letters"):
            await rebuild(entries, configuration)
            assert await in_use(entries) == configuration
        over.set()
        await asyncio.gather(*others)
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_row_that_the_new_embedder_refuses_fails_alone(
    entries: Entries, letters: Letters
) -> None:
    letters.poison = "nothing"  # the old embedder accepts it
    await imported(entries, lines(range(20)))
    await entries.write("manual", "A", {"title": "t", "content": "poison"}, entry_id="bad")
    await work_off(entries)
    rebuilt = await rebuild(entries, "others")
    assert (rebuilt.embedded, rebuilt.requeued) == (20, 1)
    await work_off(entries)
    [bad] = await entries.read(["bad"])
    assert bad.embedding_status == "failed"
    assert "poison" in (bad.embedding_error or "")
    await assert_index_equals_rows(entries)


async def test_unknown_embedder_changes_nothing(entries: Entries, tmp_path: Path) -> None:
    plain = Entries(entries.penstock, tmp_path / "plain")
    with pytest.raises(ConfigurationError, match="nonsense"):
        await rebuild(plain, "nonsense")
    plain.close()
    assert await in_use(entries) == "letters"
    assert not any(queue.paused for queue in await entries.penstock.queues.list())


@pytest.mark.parametrize("seed", range(2))
async def test_rebuild_that_is_killed_leaves_one_whole_index_in_use(
    url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "entries"
    async with opened(url, folder) as entries:
        await imported(entries, lines(range(1_500)))
        await work_off(entries)
        kill_program(chance, ["embedding", "switching"], url, str(folder), pause="30")
        assert await in_use(entries) in ("letters", "others")
        await assert_index_equals_rows(entries)
        await entries.penstock.queues.resume(QUEUE)  # as the end of the pause does
        await rebuild(entries, "others")
        assert await in_use(entries) == "others"
        await assert_index_equals_rows(entries)

"""Several workers, each with a Penstock of its own, and what clients see meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

from penstock import Penstock, State, Statements
from penstock.apps.entries import Entries, rows
from tests.apps.entries.support import (
    SOON,
    Letters,
    assert_index_equals_rows,
    experience,
    worker,
)
from tests.worker.support import eventually

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
                app, tmp_path / "entries", settings=entries.settings, opening=lambda _: letters
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
        drained = await entries.penstock.drain("entries", timeout=timedelta(seconds=SOON))
        assert drained.status == "drained"
    for one in made:
        seen.add(await _compare(entries, one.id))
    assert {"embedded", "failed"} <= seen
    await assert_index_equals_rows(entries)


async def _compare(entries: Entries, one: str) -> str:
    """Fail if a row says other than its job or its vector does, at a moment when it stood still."""
    before = await entries.penstock.read(lambda tx: _row(tx, one))
    _, job, digest, status = before
    state = (await entries.penstock.get(job)).state
    items = (await entries.shelf()).index.metadata([one])
    if await entries.penstock.read(lambda tx: _row(tx, one)) != before:
        return "moved"
    assert STATUSES[state] == status
    if status == "embedded":
        assert items[one]["digest"] == digest
    return status


def _row(tx: Statements, one: str) -> tuple[int, int, str, str]:
    job, version, status = rows.versions(tx, [one])[one]
    return version, job, rows.digests(tx, [one])[one][0], status

"""Rebuilds: searches go on with the old embedder until the new one has all, whatever is killed."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import ConfigurationError
from penstock.apps.entries import Entries
from penstock.apps.entries.rebuilding import rebuild
from penstock.apps.entries.rows import QUEUE
from tests.apps.entries.transfers import (
    assert_index_equals_rows,
    embedded,
    imported,
    is_paused,
    lines,
    opened,
    working,
)
from tests.contract.support import SHARED, STORES


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


@pytest.fixture
async def entries(url: str, tmp_path: Path) -> AsyncIterator[Entries]:
    async with opened(url, tmp_path / "entries") as opened_entries:
        yield opened_entries


async def in_use(entries: Entries) -> str:
    return (await entries.shelf()).configuration


async def test_all_entries_are_embedded_by_the_new_one(entries: Entries) -> None:
    await imported(entries, lines(range(2_500)))
    await embedded(entries)
    rebuilt = await rebuild(entries, "others")
    assert (rebuilt.embedder, rebuilt.embedded, rebuilt.requeued) == ("others", 2_500, 0)
    assert await in_use(entries) == "others"
    assert not await is_paused(entries)
    await imported(entries, lines(range(2_490, 2_510), "new"), "2")
    await entries.delete(["m-1", "m-2"])
    await embedded(entries)
    await assert_index_equals_rows(entries)


async def test_way_back_embeds_only_what_has_changed_since(entries: Entries) -> None:
    await imported(entries, lines(range(50)))
    await embedded(entries)
    await rebuild(entries, "others")
    await entries.update("m-1", {"content": "changed"})
    await entries.delete(["m-2"])
    await embedded(entries)
    back = await rebuild(entries, "letters")
    assert (back.embedded, back.removed) == (1, 1)
    await assert_index_equals_rows(entries)


async def test_writes_searches_and_deletions_go_on_meanwhile(entries: Entries) -> None:
    await imported(entries, lines(range(1_500)))
    await embedded(entries)
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
    await embedded(entries)
    await assert_index_equals_rows(entries)


async def test_row_that_the_new_embedder_refuses_fails_alone(entries: Entries) -> None:
    await imported(entries, lines(range(20)))
    await entries.write("manual", "A", {"title": "t", "content": "poison"}, entry_id="bad")
    await embedded(entries)
    rebuilt = await rebuild(entries, "others")
    assert (rebuilt.embedded, rebuilt.requeued) == (20, 1)
    await embedded(entries)
    [bad] = await entries.read(["bad"])
    assert bad.embedding_status == "failed"
    assert "poison" in (bad.embedding_error or "")
    await assert_index_equals_rows(entries)


async def test_unknown_embedder_changes_nothing(entries: Entries, tmp_path: Path) -> None:
    plain = Entries(entries.penstock, tmp_path / "plain")
    with pytest.raises(ConfigurationError, match="no embedder"):
        await rebuild(plain, "nonsense")
    plain.close()
    assert await in_use(entries) == "letters"
    assert not any(queue.paused for queue in await entries.penstock.queues())


@pytest.mark.parametrize("seed", range(2))
async def test_rebuild_that_is_killed_leaves_one_whole_index_in_use(
    url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "entries"
    async with opened(url, folder) as entries:
        await imported(entries, lines(range(1_500)))
        await embedded(entries)
        command = [sys.executable, "-m", "tests.apps.entries.transfers", url, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 - ours
            assert process.stdout is not None
            step = chance.choice(["embedding", "switching"])
            while process.stdout.readline().strip() != step:
                assert process.poll() is None
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.1))
            process.kill()
        assert await in_use(entries) in ("letters", "others")
        await assert_index_equals_rows(entries)
        await entries.penstock.resume(QUEUE)  # as the end of the hold does
        await rebuild(entries, "others")
        assert await in_use(entries) == "others"
        await assert_index_equals_rows(entries)

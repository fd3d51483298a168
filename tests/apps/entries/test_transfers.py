"""Imports and exports: all of a file or nothing, whatever is written or killed meanwhile."""

import asyncio
import io
import json
import random
from pathlib import Path

import pytest

from penstock.apps.entries import Entries, EntryExists, EntryQuery
from penstock.apps.entries.formats import FORMATS
from penstock.apps.entries.reconciliation import index_digests
from penstock.apps.entries.records import UnreadableFile
from penstock.apps.entries.rows import QUEUE, Content
from penstock.apps.entries.transfers import (
    ContentBuffer,
    ImportRefused,
    Options,
    _id_of,
    export_entries,
    import_records,
)
from tests.apps.entries.support import (
    assert_index_equals_rows,
    contents,
    imported,
    is_paused,
    kill_program,
    lines,
    opened,
    records,
    until,
    work_off,
    working,
)


async def test_file_is_stored_and_embedded(entries: Entries) -> None:
    report = await imported(entries, lines(range(450), embedding_status="embedded"))
    assert (report.stored, report.read, report.bad) == (True, 450, 0)
    assert (report.added, report.replaced, report.removed) == (450, 0, 0)
    assert await entries.counts() == {("manual", "pending"): 450}
    assert not await is_paused(entries)
    await work_off(entries)
    assert (await entries.counts())["manual", "embedded"] == 450
    await assert_index_equals_rows(entries)


async def test_merge_replaces_what_has_the_same_id_and_leaves_the_rest(entries: Entries) -> None:
    await imported(entries, lines(range(10)))
    await work_off(entries)
    report = await imported(entries, lines(range(5, 15), "other"), "2")
    assert (report.added, report.replaced, report.removed) == (5, 5, 0)
    counts = await entries.counts()
    assert (counts["manual", "embedded"], counts["manual", "pending"]) == (5, 10)
    await work_off(entries)
    assert await contents(entries) == {
        **{f"m-{n}": f"text {n}" for n in range(5)},
        **{f"m-{n}": f"other {n}" for n in range(5, 15)},
    }
    await assert_index_equals_rows(entries)


async def test_replace_removes_what_is_not_in_the_file(entries: Entries) -> None:
    await imported(entries, lines(range(10)))
    await imported(entries, lines(range(100, 103), category_code="B"), "2")
    await work_off(entries)
    report = await imported(entries, lines(range(5, 15)), "3", mode="replace", category_code="A")
    assert (report.added, report.replaced, report.removed) == (5, 5, 5)
    await work_off(entries)
    assert {*await contents(entries)} == {f"m-{n}" for n in (*range(5, 15), *range(100, 103))}
    await assert_index_equals_rows(entries)
    report = await imported(entries, lines([7]), "4", mode="replace")
    assert report.removed == 12
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_bad_records_are_reported_by_line_and_nothing_is_stored(entries: Entries) -> None:
    content = b"\n".join(
        [
            lines([1]),
            b'{"entity_type": "manual", "category_code": "A", "data": {"title": "no content"}}',
            b"{",
            lines([2]),
            lines([1]),
            b'{"entity_type": "manual", "data": {}}',
        ]
    )
    with pytest.raises(
        ImportRefused, match=r"4 of 6 records are invalid, the first in line 2: data.content"
    ) as no:
        await imported(entries, content)
    assert [one.line for one in no.value.report.errors] == [2, 3, 5, 6]
    assert "m-1 is also the id of line 1" in no.value.report.errors[2].error
    assert await contents(entries) == {}
    report = await imported(entries, content, skip_bad=True)
    assert (report.read, report.bad, report.added) == (6, 4, 2)
    assert {*await contents(entries)} == {"m-1", "m-2"}


async def test_only_the_first_errors_are_reported_one_by_one(entries: Entries) -> None:
    with pytest.raises(ImportRefused) as refused:
        await imported(entries, b"{\n" * 500)
    assert (refused.value.report.bad, len(refused.value.report.errors)) == (500, 100)


@pytest.mark.parametrize("content", [b"", b"{"])
async def test_file_without_entries_takes_the_place_of_nothing(
    entries: Entries, content: bytes
) -> None:
    await imported(entries, lines([1]))
    for dry_run in (True, False):
        with pytest.raises(UnreadableFile, match="has no entries"):
            await imported(entries, content, mode="replace", skip_bad=True, dry_run=dry_run)
    assert {*await contents(entries)} == {"m-1"}
    report = await imported(entries, content, "2", skip_bad=True)
    assert (report.added, report.removed) == (0, 0)


async def test_dry_run_changes_nothing(entries: Entries) -> None:
    await imported(entries, lines(range(10)))
    await work_off(entries)
    before = await entries.page(EntryQuery())
    jobs = await entries.penstock.count()
    content = lines(range(5, 25)) + b"\n{"
    report = await imported(entries, content, "2", mode="replace", dry_run=True)
    assert (report.stored, report.read, report.bad) == (False, 21, 1)
    assert (report.added, report.replaced, report.removed) == (15, 5, 5)
    assert report.errors[0].line == 21
    assert await entries.page(EntryQuery()) == before
    assert await entries.penstock.count() == jobs


async def test_same_import_again_stores_nothing_twice(entries: Entries) -> None:
    """Its process was killed behind the commit, and the job runs again."""
    content = json.dumps(
        {"entity_type": "manual", "category_code": "A", "title": "t", "content": "c"}
    )
    first = await imported(entries, content.encode())
    assert await imported(entries, content.encode()) == first
    assert len(await contents(entries)) == 1


async def test_file_without_ids_that_is_imported_twice_replaces_its_entries(
    entries: Entries,
) -> None:
    rows = [{"title": title, "content": "c"} for title in ("a", "b", "b")]
    given = {"entity_type": "manual", "category_code": "A"}
    content = b"\n".join(json.dumps({**given, **row}).encode() for row in rows)
    first = await imported(entries, content, "1")
    assert (first.added, first.replaced) == (3, 0)  # one record is in it twice
    sorted_otherwise = b"\n".join(
        json.dumps({**dict(reversed(row.items())), **given}).encode() for row in rows
    )
    again = await imported(entries, sorted_otherwise, "2")
    assert (again.added, again.replaced) == (0, 3)
    assert len(await contents(entries)) == 3
    other = await imported(entries, content.replace(b'"A"', b'"B"'), "3")
    assert (other.added, other.replaced) == (3, 0)
    dry = await imported(entries, content, "4", dry_run=True)
    assert (dry.added, dry.replaced) == (0, 3)


async def test_unreadable_file_leaves_the_queue_alone(entries: Entries) -> None:
    found = records(entries, b"titel\n1\n", "csv")
    with pytest.raises(UnreadableFile, match="unknown column 'titel'"):
        await import_records(entries, found, Options(), name="1")
    assert not any(queue.paused for queue in await entries.penstock.queues.list())


async def test_producers_that_write_meanwhile_lose_nothing(entries: Entries) -> None:
    written: list[str] = []
    over = asyncio.Event()

    async def produce(place: int) -> None:
        while not over.is_set():
            name = f"p-{place}-{len(written)}"
            await entries.write("manual", "B", {"title": "t", "content": name}, entry_id=name)
            written.append(name)

    async with working(entries):
        producers = [asyncio.create_task(produce(place)) for place in range(3)]
        for n in range(5):
            await imported(entries, lines(range(n * 100, n * 100 + 150)), str(n))
            replacing = lines(range(1_000, 1_050), category_code="C")
            await imported(entries, replacing, f"r{n}", mode="replace", category_code="C")
        over.set()
        await asyncio.gather(*producers)
    await work_off(entries)
    wanted = {*written, *(f"m-{n}" for n in (*range(550), *range(1_000, 1_050)))}
    assert {*await contents(entries)} == wanted
    assert written
    assert (await entries.counts())["manual", "embedded"] == len(wanted)
    await assert_index_equals_rows(entries)


@pytest.mark.parametrize("seed", range(2))
async def test_import_that_is_killed_has_stored_all_or_nothing(
    url: str, tmp_path: Path, seed: int
) -> None:
    """Killed at a random moment of a random step; the queue goes on by itself."""
    chance = random.Random(seed)
    folder, file = tmp_path / "entries", tmp_path / "new.jsonl"
    file.write_bytes(lines(range(500, 2_500), "new"))
    async with opened(url, folder) as entries:
        await imported(entries, lines(range(1_000), "old"), "0")
        await work_off(entries)
        steps = ["reading", "waiting for rows in flight", "storing"]
        kill_program(chance, steps, url, str(folder), str(file), pause="1")
        found = await contents(entries)
        old = {f"m-{n}": f"old {n}" for n in range(1_000)}
        new = {f"m-{n}": f"new {n}" for n in range(500, 2_500)}
        assert found in (old, new)
        [queue] = [one for one in await entries.penstock.queues.list() if one.name == QUEUE]
        assert not queue.paused or queue.paused_until is not None
        await until(entries, lambda: _goes_on(entries))
        report = await imported(entries, file.read_bytes(), mode="replace")
        assert (report.added, report.replaced, report.removed) == (1_500, 500, 500)
        await work_off(entries)
        assert await contents(entries) == new
        assert (await entries.counts())["manual", "embedded"] == 2_000
        assert {one for one, _ in index_digests(await entries.current_index())} == {*new}


async def _goes_on(entries: Entries) -> bool:
    return not await is_paused(entries)


@pytest.mark.parametrize("kind", FORMATS)
async def test_what_is_exported_can_be_imported(
    entries: Entries, tmp_path: Path, kind: str
) -> None:
    await imported(entries, lines(range(20)))
    data = {"title": "ünï", "playbook": "1\n2", "context": {"a": [1]}, "tags": ["x", "y"]}
    await entries.write("experience", "HOME", data)
    await work_off(entries)
    with io.BytesIO() as file:
        assert await export_entries(entries, file, kind, EntryQuery()) == 21
        content = file.getvalue()
    before = await entries.page(EntryQuery(), newest=False)
    async with opened(f"sqlite:///{tmp_path}/other.db", tmp_path / "other") as other:
        found = records(other, content, kind)
        report = await import_records(other, found, Options(), name="1")
        assert (report.added, report.bad) == (21, 0)
        after = await other.page(EntryQuery(), newest=False)
    for one, again in zip(before, after, strict=True):
        assert (one.id, one.type, one.category) == (again.id, again.type, again.category)
        assert one.data == again.data
        assert (again.embedding_status, again.version) == ("pending", 1)


async def test_export_has_what_is_asked_for(entries: Entries) -> None:
    await imported(entries, lines(range(3)))
    await imported(entries, lines(range(3, 5), category_code="B"), "2")
    with io.BytesIO() as file:
        assert await export_entries(entries, file, "jsonl", EntryQuery("manual", "B")) == 2
        found = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [one["id"] for one in found] == ["m-3", "m-4"]
    with pytest.raises(EntryExists):
        await entries.write("manual", "B", {"title": "t", "content": "c"}, entry_id="m-3")


def test_identical_records_are_numbered_without_trying_those_before(tmp_path: Path) -> None:
    """The work is counted, as the time depends on the machine."""

    class Ids(dict[str, int]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            self.asked += 1
            return super().__contains__(key)

    content = Content("x", "manual", "x", "", "{}", "")
    with ContentBuffer(tmp_path, 100) as buffer:
        buffer.ids = ids = Ids()
        made = _id_of(content, buffer)
        buffer.ids[f"{made}-3"] = 1  # given by the file itself
        for line in range(500):
            buffer.add(content._replace(id=_id_of(content, buffer)), line)
        assert list(ids)[:3] == [f"{made}-3", f"{made}-2", f"{made}-4"]
        assert len(ids) == 501
        assert ids.asked < 1_010

"""Entries are written, changed, read, searched and deleted, on both databases."""

import asyncio
from pathlib import Path

import pytest

from penstock import ConfigurationError, JobQuery, Penstock
from penstock.apps.entries import (
    Entries,
    EntryChanged,
    EntryExists,
    EntryNotFound,
    EntryQuery,
    InvalidEntry,
)
from tests.apps.entries.support import (
    Letters,
    assert_index_equals_rows,
    everything,
    experience,
    work_off,
)


async def test_entry_is_pending_when_written_and_embedded_soon_after(entries: Entries) -> None:
    tea = await entries.write("experience", "KITCHEN", experience("Tea"))
    assert (tea.embedding_status, tea.embedding_attempts, tea.version) == ("pending", 0, 1)
    assert await entries.counts() == {("experience", "pending"): 1}
    await work_off(entries)
    (now,) = await entries.read([tea.id])
    assert (now.embedding_status, now.embedding_attempts, now.version) == ("embedded", 1, 1)
    assert now.data == {"title": "Tea", "playbook": "do it"}
    await assert_index_equals_rows(entries)


async def test_search_filters_by_type_and_category(entries: Entries) -> None:
    for category in ("A", "B"):
        await entries.write("experience", category, experience(f"one {category}"))
        await entries.write("skill", category, {"title": f"two {category}", "content": "words"})
    await work_off(entries)
    found = await entries.search("one A\n\ndo it")
    assert found[0].entry.data["title"] == "one A"
    assert found[0].score == pytest.approx(1)
    assert len(found) == 4
    only = await entries.search("x", name="manual", category="B")
    assert [one.entry.data["title"] for one in only] == ["two B"]
    words = await entries.search("two", mode="bm25")
    assert {one.entry.type for one in words} == {"manual"}
    assert len(await entries.search("x", limit=2)) == 2


async def test_edit_of_a_waiting_row_keeps_its_job_and_its_place(
    entries: Entries, letters: Letters
) -> None:
    first = await entries.write("experience", "A", experience("first"))
    await entries.write("manual", "A", {"title": "second", "content": "words"})
    for n in range(3):
        first = await entries.update(first.id, {"title": f"first {n}"})
    assert (first.version, first.embedding_status) == (4, "pending")
    assert len(await entries.penstock.find(JobQuery(queue="entries"))) == 2
    await work_off(entries)
    assert letters.calls == [["first 2\n\ndo it", "second\n\nwords"]]
    await assert_index_equals_rows(entries)


async def test_oldest_row_goes_first_whatever_its_type(entries: Entries, letters: Letters) -> None:
    for n in range(3):
        await entries.write("experience", "A", experience(f"e{n}", "x"))
        await entries.write("manual", "A", {"title": f"m{n}", "content": "x"})
    await work_off(entries, concurrency=1)
    order = [text.split("\n")[0] for call in letters.calls for text in call]
    assert order == ["e0", "m0", "e1", "m1", "e2", "m2"]


async def test_update_changes_what_is_named_and_null_removes_a_field(entries: Entries) -> None:
    made = await entries.write("experience", "A", {**experience("Tea"), "source": "mother"})
    changed = await entries.update(made.id, {"title": "Coffee", "source": None}, category="B")
    assert changed.data == {"title": "Coffee", "playbook": "do it"}
    assert (changed.category, changed.version) == ("B", 2)
    with pytest.raises(InvalidEntry, match=r"data\.title: is required"):
        await entries.update(made.id, {"title": None})
    with pytest.raises(EntryChanged, match="is at version 2, not 1"):
        await entries.update(made.id, {"title": "x"}, version=1)
    assert (await entries.update(made.id, {"title": "x"}, version=2)).version == 3
    with pytest.raises(EntryNotFound):
        await entries.update(made.id, {"title": "x"}, name="manual")
    with pytest.raises(EntryNotFound):
        await entries.update("nobody", {"title": "x"})


async def test_updates_at_the_same_time_all_count(entries: Entries) -> None:
    made = await entries.write("experience", "A", experience("x"))
    fields = ["source", "author", "section", "title", "playbook"]
    await asyncio.gather(*(entries.update(made.id, {field: field}) for field in fields))
    (now,) = await entries.read([made.id])
    assert now.data == {field: field for field in fields}
    assert now.version == 6


async def test_deleted_rows_leave_the_index(entries: Entries) -> None:
    ids = [(await entries.write("experience", "A", experience(f"n{n}"))).id for n in range(4)]
    await work_off(entries)
    assert sorted(await entries.delete([*ids[:2], "nobody"])) == sorted(ids[:2])
    waiting = await entries.write("experience", "A", experience("never embedded"))
    await entries.delete([waiting.id])
    with pytest.raises(EntryNotFound):
        await entries.delete([waiting.id])
    with pytest.raises(EntryNotFound):
        await entries.delete([ids[2]], name="manual")
    await work_off(entries)
    assert [one.id for one in await everything(entries)] == ids[2:]
    await assert_index_equals_rows(entries)
    again = await entries.write("experience", "A", experience("again"), entry_id=ids[0])
    assert again.version == 1
    await work_off(entries)
    await assert_index_equals_rows(entries)


async def test_id_may_be_given_but_not_twice(entries: Entries) -> None:
    await entries.write("experience", "A", experience("x"), entry_id="EXP-1")
    with pytest.raises(EntryExists, match="entry EXP-1 already exists"):
        await entries.write("manual", "A", {"title": "x", "content": "x"}, entry_id="EXP-1")
    assert len(await entries.penstock.find(JobQuery(queue="entries"))) == 1
    with pytest.raises(InvalidEntry):
        await entries.write("experience", "A", experience("x"), entry_id="a b")


async def test_list_filters_and_pages(entries: Entries) -> None:
    for n in range(5):
        await entries.write("experience", "AB"[n % 2], experience(f"n{n}"))
    newest = await entries.page(EntryQuery("experience", "A"), limit=2)
    assert [one.data["title"] for one in newest] == ["n4", "n2"]
    rest = await entries.page(EntryQuery("experience", "A"), after=newest[-1].number)
    assert [one.data["title"] for one in rest] == ["n0"]
    assert await entries.page(EntryQuery(embedding_status="embedded")) == []
    assert len(await entries.page(EntryQuery(embedding_status="pending"))) == 5


async def test_store_without_tables_is_refused(tmp_path: Path) -> None:
    async with Penstock("memory://") as app:
        with pytest.raises(ConfigurationError):
            await Entries(app, tmp_path).prepare()

"""Rows, their contents, and what the mirror does with them."""

from pathlib import Path

from penstock import JobQuery, Penstock, State
from penstock.apps.entries import Entries, EntryQuery, Settings, rows
from penstock.apps.entries.rows import TABLES
from penstock.tables import Statements, Tables, Transaction
from tests.apps.entries.support import assert_index_equals_rows, experience, jobs, status, work_off

_FIRST = Tables(sqlite=TABLES.sqlite[:1], postgres=TABLES.postgres[:1])


async def test_contents_of_the_first_tables_are_kept(app: Penstock, tmp_path: Path) -> None:
    def written(tx: Transaction) -> None:
        for name in ("first", "second"):
            tx.execute(
                "INSERT INTO entries_entry (id, type, category, data, text, digest, version, "
                "embedding_status, embedding_attempts, job, created_at, updated_at) "
                "VALUES (?, 'experience', 'A', ?, ?, 'd', 1, 'embedded', 1, 7, 0, 0)",
                (name, f'{{"title": "{name}"}}', f"text of {name}"),
            )

    await app.tables.prepare("entries", _FIRST)
    await app.transaction(written)
    entries = Entries(app, tmp_path / "entries", settings=Settings(embedder="letters"))
    await entries.prepare()
    found = await entries.page(EntryQuery(), newest=False)
    assert [(one.id, one.data) for one in found] == [
        ("first", {"title": "first"}),
        ("second", {"title": "second"}),
    ]
    due = await app.tables.read(lambda tx: rows.due(tx, [7]))
    assert [one.text for one in due] == ["text of first", "text of second"]
    assert sum((await entries.counts()).values()) == 2


async def test_a_row_and_its_content_come_change_and_go_together(entries: Entries) -> None:
    penstock = entries.penstock
    kept = await entries.write("experience", "A", experience("kept"))
    gone = await entries.write("experience", "A", experience("gone"))
    await entries.update(kept.id, {"playbook": "changed"})
    again = entries.content("experience", "B", experience("again"), kept.id)
    added = entries.content("experience", "B", experience("added"), "added")
    await penstock.transaction(lambda tx: rows.insert(tx, [again, added], 1, 0))
    await entries.delete([gone.id])
    assert await penstock.tables.read(_contents) == {kept.id: again[3:], "added": added[3:]}
    await entries.delete([kept.id, "added"])
    assert await penstock.tables.read(_contents) == {}


def _contents(tx: Statements) -> dict[str | None, tuple[str, ...]]:
    """What there is in both tables, by id; None for a content whose row is gone."""
    found = tx.execute(
        "SELECT id, digest, data, text FROM entries_content LEFT JOIN entries_entry USING (number)"
    )
    return {one: tuple(rest) for one, *rest in found.fetchall()}


async def test_counts_are_kept_whatever_connection_has_counted(app: Penstock) -> None:
    """On PostgreSQL each connection counts in a slot of its own; those of the closed are added."""

    def left_behind(tx: Transaction) -> None:
        tx.execute("INSERT INTO entries_count VALUES (1, 'thing', 'failed', 2)")
        tx.execute("INSERT INTO entries_count VALUES (0, 'thing', 'failed', 5)")

    await app.tables.prepare("entries", TABLES)
    await app.transaction(left_behind)
    for _ in range(2):
        await app.transaction(rows.merge_counts)
        assert await app.tables.read(rows.counts) == {("thing", "failed"): 7}


async def test_edit_does_not_keep_a_job_that_was_begun_since_the_row_was_looked_at(
    entries: Entries,
) -> None:
    made = await entries.write("experience", "A", experience("old"))
    new = entries.content("experience", "A", experience("new"), made.id)
    await entries.penstock.leases.claim(worker="quick", queues=["entries"])
    assert not await entries.penstock.transaction(lambda tx: rows.rewrite(tx, new, 1, 0))
    assert not await entries.penstock.transaction(lambda tx: rows.replace(tx, new, 2, 99, 0))
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


async def test_row_of_a_failed_job_has_failed(entries: Entries) -> None:
    await entries.write("experience", "A", experience("poison"))
    await work_off(entries)
    (job,) = await entries.penstock.find(JobQuery(queue="entries"))
    assert job.state is State.FAILED

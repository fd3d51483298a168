"""Rows and what they hold stand in two tables."""

from pathlib import Path

from penstock import Penstock, Statements, Tables, Transaction
from penstock.apps.entries import Chosen, Entries, Settings, rows
from penstock.apps.entries.tables import TABLES
from tests.apps.entries.support import experience

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

    await app.tables("entries", _FIRST)
    await app.transact(written)
    entries = Entries(app, tmp_path / "entries", settings=Settings(embedder="letters"))
    await entries.prepare()
    found = await entries.page(Chosen(), newest=False)
    assert [(one.id, one.data) for one in found] == [
        ("first", {"title": "first"}),
        ("second", {"title": "second"}),
    ]
    due = await app.read(lambda tx: rows.due(tx, [7]))
    assert [one.text for one in due] == ["text of first", "text of second"]
    assert sum((await entries.counts()).values()) == 2


async def test_a_row_and_its_content_come_change_and_go_together(entries: Entries) -> None:
    penstock = entries.penstock
    kept = await entries.write("experience", "A", experience("kept"))
    gone = await entries.write("experience", "A", experience("gone"))
    await entries.update(kept.id, {"playbook": "changed"})
    again = entries.content("experience", "B", experience("again"), kept.id)
    added = entries.content("experience", "B", experience("added"), "added")
    await penstock.transact(lambda tx: rows.insert(tx, [again, added], 1, 0))
    await entries.delete([gone.id])
    assert await penstock.read(_contents) == {kept.id: again[3:], "added": added[3:]}
    await entries.delete([kept.id, "added"])
    assert await penstock.read(_contents) == {}


def _contents(tx: Statements) -> dict[str | None, tuple[str, ...]]:
    """What there is in both tables, by id; None for a content whose row is gone."""
    found = tx.execute(
        "SELECT id, digest, data, text FROM entries_content LEFT JOIN entries_entry USING (number)"
    )
    return {one: tuple(rest) for one, *rest in found.fetchall()}

import sqlite3
from pathlib import Path

from penstock.vectors import Where
from penstock.vectors.catalogue import Catalogue
from tests.vectors.support import item


def test_words_are_asked_for_once_however_many_items_fit(tmp_path: Path) -> None:
    """Else a filter that fits a thousand items makes a search take seconds."""
    catalogue = Catalogue(tmp_path / "catalogue.db")
    with catalogue.writing():
        catalogue.add(item(f"i{n}", "red fox", path=f"a/{n}") for n in range(20))
    said: list[str] = []
    catalogue._db.set_trace_callback(said.append)
    found = catalogue.with_words("fox", 5, Where(under="a"))
    catalogue._db.set_trace_callback(None)
    (question,) = (each for each in said if "MATCH" in each)
    plan = [row[3] for row in catalogue._db.execute(f"EXPLAIN QUERY PLAN {question}")]
    (words,) = (step for step in plan if "words" in step)
    assert "=" not in words.partition("INDEX")[2], words  # the sign for: by the number of a row
    assert len(found) == 5
    catalogue.close()


def test_catalogue_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """There, triggers wrote the words: they would be written twice."""
    file = tmp_path / "catalogue.db"
    Catalogue(file).close()
    db = sqlite3.connect(file)
    db.executescript(
        "CREATE TRIGGER body_added AFTER INSERT ON body BEGIN "
        "INSERT INTO words (rowid, title, text) VALUES (new.number, new.title, new.text); END;"
        "CREATE TRIGGER body_removed AFTER DELETE ON body BEGIN "
        "INSERT INTO words (words, rowid, title, text) "
        "VALUES ('delete', old.number, old.title, old.text); END;"
        "INSERT INTO item (number, id, path, type, metadata) VALUES (1, 'old', '', '', '{}');"
        "INSERT INTO body VALUES (1, '', 'red fox', x'');"
        "PRAGMA user_version = 1;"
    )
    db.close()
    catalogue = Catalogue(file)
    with catalogue.writing():
        catalogue.remove([1])
        catalogue.add([item("new", "grey fox")])
    assert [number for number, _ in catalogue.with_words("fox", 5, Where())] == [2]
    catalogue._db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    catalogue.close()


def test_words_follow_what_is_added_moved_and_removed(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "catalogue.db")
    with catalogue.writing():
        catalogue.add(item(f"a#{n}", f"fox {n}", path="a") for n in range(5))
        catalogue.remove([2, 4])
        catalogue.move([1, 3], "a", "b")
        catalogue.add([item("c", "hound", path="c")])
    assert [n for n, _ in catalogue.with_words("fox", 9, Where())] == [5, 6, 7]
    assert catalogue.paths(Where()) == ["a", "b", "c"]
    catalogue._db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    with catalogue.writing():
        catalogue.clear()
    assert catalogue.with_words("fox hound", 9, Where()) == []
    catalogue._db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    catalogue.close()

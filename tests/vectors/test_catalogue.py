import sqlite3
from pathlib import Path

import pytest

from penstock.vectors import IndexUnavailable, Where
from penstock.vectors.catalogue import Catalogue
from tests.vectors.support import item, opened


def test_words_are_asked_for_once_however_many_items_fit(tmp_path: Path) -> None:
    """Otherwise a search takes seconds if a filter matches a thousand items."""
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
    assert "=" not in words.partition("INDEX")[2], words  # "=" means a lookup by row number
    assert len(found) == 5
    catalogue.close()


def test_catalogue_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its triggers wrote the words; keeping them would write words twice."""
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


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough" * 100])
def test_file_that_is_not_a_catalogue_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "catalogue.db"
    file.write_bytes(content)
    if content:
        with pytest.raises(IndexUnavailable, match="not a database"):
            opened(tmp_path)
        assert file.read_bytes() == content
    else:
        opened(tmp_path).close()


def test_catalogue_of_a_later_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    db = sqlite3.connect(tmp_path / "catalogue.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(IndexUnavailable, match="version is 99"):
        opened(tmp_path)

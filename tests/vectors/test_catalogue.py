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

import re
import sys
from pathlib import Path

import pytest

from penstock.stores.sql import load_migrations, load_queries

SQLITE = "penstock.stores.sqlite"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that holds SQL."""
    folder = tmp_path / "some_store"
    (folder / "migrations").mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_store", raising=False)
    return folder


def test_queries_go_by_the_names_above_them(package: Path) -> None:
    (package / "queries.sql").write_text(
        "-- What this file is about.\n\n"
        "-- name: one\nSELECT 1;\n\n"
        "-- name: two\nSELECT\n    -- ö\n    2;\n"
    )
    assert load_queries("some_store") == {"one": "SELECT 1;", "two": "SELECT\n    -- ö\n    2;"}


def test_migrations_come_by_number_and_nothing_else_counts(package: Path) -> None:
    for name in ("0010_later.sql", "0002_second.sql", "0001_first.sql", "README.md", "x.sql"):
        (package / "migrations" / name).write_text(name)
    assert load_migrations("some_store") == [
        (1, "0001_first.sql"),
        (2, "0002_second.sql"),
        (10, "0010_later.sql"),
    ]


def test_every_query_of_the_sqlite_store_has_a_name_of_its_own() -> None:
    import penstock.stores.sqlite as package

    text = (Path(package.__path__[0]) / "queries.sql").read_text()
    names = re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)
    assert sorted(names) == sorted(load_queries(SQLITE))


RESERVED = {6, 7, 8, 9}
"""Numbers that other scripts of the same release take. Later, no gap may be filled: a file that is
past a number never gets its script."""


def test_migrations_of_the_sqlite_store_leave_no_other_number_out() -> None:
    numbers = [number for number, _ in load_migrations(SQLITE)]
    assert set(range(1, numbers[-1] + 1)) - set(numbers) <= RESERVED

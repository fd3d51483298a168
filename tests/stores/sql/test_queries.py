import re
import sys
from pathlib import Path

import pytest

from penstock.stores.sql import load_queries

SQLITE = "penstock.stores.sqlite"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that holds SQL."""
    folder = tmp_path / "some_store"
    folder.mkdir()
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


def test_every_query_of_the_sqlite_store_has_a_name_of_its_own() -> None:
    import penstock.stores.sqlite as package

    text = (Path(package.__path__[0]) / "queries.sql").read_text()
    names = re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)
    assert sorted(names) == sorted(load_queries(SQLITE))


def test_queries_of_both_databases_are_in_the_same_order() -> None:
    sqlite, postgres = (
        list(load_queries(f"penstock.stores.{name}")) for name in ("sqlite", "postgres")
    )
    shared = [name for name in sqlite if name in postgres]
    assert shared == [name for name in postgres if name in sqlite]

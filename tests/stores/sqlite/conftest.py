import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.stores.sqlite.store import SqliteStore
from tests.contract.support import ManualClock, drive


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, clock)
    yield opened
    drive(opened.close())


@pytest.fixture
def look(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that looks into the store's file from outside."""
    connection = sqlite3.connect(path)
    yield connection
    connection.close()

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.stores.sql.store import SqlStore
from tests.contract.support import ManualClock, drive
from tests.stores.support import sqlite_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[SqlStore]:
    """A SQLite store."""
    opened = sqlite_store(path, clock)
    yield opened
    drive(opened.close())


@pytest.fixture
def look(store: SqlStore, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that looks into the store's file from outside."""
    connection = sqlite3.connect(path)
    yield connection
    connection.close()

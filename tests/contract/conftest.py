from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.store import Store
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.stores.postgres import notifier as postgres_notifier
from penstock.stores.sqlite import notifier as sqlite_notifier
from tests.contract.support import LASTING, SHARED, STORES, ManualClock, drive


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Every store in turn."""
    opened = open_store(STORES[request.param](tmp_path), runtime=Runtime(clock))
    yield opened
    drive(opened.close())


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only notifications wake waiters.

    Reading SQLite's change counter, some time after any commit, may wake them once more.
    """
    monkeypatch.setattr(sqlite_notifier, "_POLL", 3600)
    monkeypatch.setattr(postgres_notifier, "POLL_LISTENING", 3600)
    monkeypatch.setattr(postgres_notifier, "POLL_ALONE", 3600)
    monkeypatch.setattr(postgres_notifier, "_CHECK", 3600)


@pytest.fixture(params=LASTING)
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of every store that can be closed and opened again."""
    return STORES[request.param](tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of every store that can be opened several times at once, also by processes."""
    return STORES[request.param](tmp_path)

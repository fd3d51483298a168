from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.store import Store
from penstock.stores import open_store
from penstock.stores.postgres import bell as postgres_bell
from penstock.stores.sqlite import bell as sqlite_bell
from tests.contract.support import LASTING, SHARED, STORES, ManualClock, drive


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Every store in turn."""
    opened = open_store(STORES[request.param](tmp_path), clock=clock)
    yield opened
    drive(opened.close())


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rings wake who waits. A look at SQLite's change counter, some time after any commit, is
    allowed to wake once more, for nothing.
    """
    monkeypatch.setattr(sqlite_bell, "_POLL", 3600)
    monkeypatch.setattr(postgres_bell, "POLL_LISTENING", 3600)
    monkeypatch.setattr(postgres_bell, "POLL_ALONE", 3600)
    monkeypatch.setattr(postgres_bell, "_CHECK", 3600)


@pytest.fixture(params=LASTING)
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of every store that can be closed and opened again."""
    return STORES[request.param](tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of every store that can be opened several times at once, also by processes."""
    return STORES[request.param](tmp_path)

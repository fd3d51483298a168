from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.store import Store
from penstock.stores import open_store
from tests.contract.support import SHARED, STORES, ManualClock, drive


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Every store in turn."""
    opened = open_store(STORES[request.param](tmp_path), clock=clock)
    yield opened
    drive(opened.close())


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of every store that can be opened again, from this or another process."""
    return STORES[request.param](tmp_path)

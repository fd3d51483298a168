from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from penstock.worker import upkeep
from tests.contract.support import STORES, ManualClock


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    """A Penstock on every store in turn, whose clock the test sets."""
    penstock = Penstock(STORES[request.param](tmp_path), clock=clock)
    yield penstock
    run_sync(penstock.close())


@pytest.fixture(autouse=True)
def _upkeep_is_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers roll up and prune at once instead of after seconds."""
    monkeypatch.setattr(upkeep, "ROLL_UP_EVERY", timedelta(milliseconds=20))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"

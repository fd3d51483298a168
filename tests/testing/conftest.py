from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Penstock, run_sync
from penstock.testing import Clock
from tests.contract.support import STORES


@pytest.fixture
def time() -> Clock:
    """A clock of the kit itself."""
    return Clock()


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, time: Clock) -> Iterator[Penstock]:
    """A Penstock on every store in turn, on a clock of the kit."""
    penstock = Penstock(STORES[request.param](tmp_path), clock=time)
    yield penstock
    run_sync(penstock.close())

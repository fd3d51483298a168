from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.apps.events.support import Api, served
from tests.contract.support import STORES


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    """The event API on each store; the clock stands still until it is moved."""
    async with served(STORES[request.param](tmp_path)) as api:
        yield api

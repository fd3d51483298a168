from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.apps.ingest.support import Bench, bench


@pytest.fixture
async def table(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made

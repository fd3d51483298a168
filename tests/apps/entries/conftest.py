from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.apps.entries import Entries, Settings
from tests.apps.entries.support import Letters
from tests.contract.support import SHARED, STORES


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture(params=SHARED)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Penstock]:
    """A Penstock on each of the databases."""
    async with Penstock(STORES[request.param](tmp_path), actor="tester") as penstock:
        yield penstock


@pytest.fixture
def settings() -> Settings:
    return Settings(embedder="letters", retry_delay=0, poll_interval=0.1)


@pytest.fixture
async def entries(
    app: Penstock, tmp_path: Path, letters: Letters, settings: Settings
) -> AsyncIterator[Entries]:
    """Entries whose task is known to the app, so that a worker on it embeds."""
    made = Entries(app, tmp_path / "entries", settings=settings, opening=lambda _: letters)
    await made.prepare()
    made.register()
    try:
        yield made
    finally:
        letters.release()
        made.close()

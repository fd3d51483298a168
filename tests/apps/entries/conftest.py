from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock import Penstock
from penstock.apps import Application
from penstock.apps.entries import Control, Entries, Settings
from penstock.apps.entries.routes import EntriesRoutes
from penstock.http.routes import routes_of
from penstock.server.app import Service
from tests.apps.entries.support import Api, Letters
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


@pytest.fixture
async def api(entries: Entries) -> AsyncIterator[Api]:
    routes = EntriesRoutes(entries, Control(entries))
    application = Application("entries", "", [*routes_of(routes)])
    service = Service(entries.penstock, [application])
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        yield Api(client)

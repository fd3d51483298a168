from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from penstock import Penstock
from penstock.apps.entries import Entries, EntryQueue, Settings
from penstock.apps.entries.routes import EntriesRoutes
from penstock.apps.kit import Application, routes_of
from penstock.server.app import Service
from tests.apps.entries.support import LEASE, Api, Letters, opened
from tests.apps.indexing.support import Embeddings
from tests.contract.support import SHARED, STORES


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each of the databases."""
    return STORES[request.param](tmp_path)


@pytest.fixture
async def app(url: str) -> AsyncIterator[Penstock]:
    async with Penstock(url, actor="tester") as penstock:
        yield penstock


@pytest.fixture
def settings() -> Settings:
    return Settings(embedder="letters", lease=LEASE, retry_delay=0, poll_interval=0.1)


@pytest.fixture
async def entries(
    url: str, tmp_path: Path, letters: Letters, settings: Settings
) -> AsyncIterator[Entries]:
    """Entries whose tasks are registered, so that a worker embeds."""
    async with opened(url, tmp_path / "entries", letters, settings) as made:
        yield made


@pytest.fixture
async def api(entries: Entries) -> AsyncIterator[Api]:
    routes = EntriesRoutes(entries, EntryQueue(entries))
    application = Application("entries", "", [*routes_of(routes)])
    service = Service(entries.penstock, [application])
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        yield Api(client)


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    """A service that embeds texts."""
    with Embeddings() as service:
        yield service

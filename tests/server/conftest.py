import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock import Penstock
from penstock.server.app import Service
from tests.contract.support import STORES, ManualClock
from tests.server.support import Api


@pytest.fixture(params=STORES)
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Penstock]:
    """A Penstock on each store in turn, with a manual clock."""
    async with Penstock(STORES[request.param](tmp_path), clock=clock, actor="tester") as penstock:
        yield penstock


@pytest.fixture
async def service(app: Penstock) -> AsyncIterator[Service]:
    service = Service(app, [])
    async with contextlib.AsyncExitStack() as stack:
        for application in service.applications:
            await stack.enter_async_context(application.running())
        yield service


@pytest.fixture
async def api(service: Service) -> AsyncIterator[Api]:
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        yield Api(client)

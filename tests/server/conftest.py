import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock
from penstock.server.app import Service
from tests.contract.support import STORES, ManualClock


class Api:
    """A client of the server's own routes, in the process of the test."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        """The answer, decoded; it has to have this status."""
        url = path if path.startswith("/health") else f"/api/v1{path}"
        answer = await self.client.request(method, url, json=body, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def refused(self, method: str, path: str, body: Any = None, status: int = 422) -> Any:
        """The field that a problem names; its body has the one shape."""
        problem = await self(method, path, body, status=status)
        assert problem.keys() <= {"detail", "field"}
        assert problem["detail"]
        return problem.get("field")


@pytest.fixture(params=STORES)
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Penstock]:
    """A Penstock on every store in turn, whose time stands still."""
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

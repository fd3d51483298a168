"""The event API in the process of a test, with a clock that the test advances."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from httpx import Response

from penstock import Penstock
from penstock.apps.events import Settings, install
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from penstock.testing import Clock

START = datetime(2025, 12, 24, 10, 30, tzinfo=UTC)
ADDRESS = "http://127.0.0.1:8000"
ALICE = "worker-01:7234"
BOB = "worker-02:8742"


class Api:
    """Sends the requests of publishers and workers."""

    def __init__(self, client: httpx.AsyncClient, app: Penstock, clock: Clock) -> None:
        self.client = client
        self.app = app
        self.clock = clock
        self.get = client.get
        self.post = client.post

    def at(self, instant: str) -> None:
        """Set the clock to this time of the first day."""
        self.clock.set(datetime.fromisoformat(f"{START.date()}T{instant}+00:00"))

    def after(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    async def publish(self, **fields: Any) -> dict[str, Any]:
        answer = await self.post("/events", json={"title": "t", "tags": "a", **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def pick(self, tags: str = "a", worker: str = ALICE) -> dict[str, Any]:
        """Return the event that a worker gets; there must be one."""
        answer = await self.get("/events/subscribe", params={"tags": tags, "worker_id": worker})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def nothing_for(self, tags: str = "a", worker: str = ALICE) -> bool:
        answer = await self.get("/events/subscribe", params={"tags": tags, "worker_id": worker})
        assert answer.status_code in (200, 204)
        return answer.status_code == 204

    async def say(self, action: str, event: int, worker: str = ALICE, **fields: Any) -> Response:
        return await self.post(f"/events/{event}/{action}", json={"worker_id": worker, **fields})

    async def look(self, event: int) -> dict[str, Any]:
        answer = await self.get(f"/events/{event}", params={"include_logs": "true"})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def actions(self, event: int) -> list[str]:
        return [line["action"] for line in (await self.look(event))["logs"]]


@asynccontextmanager
async def served(
    url: str, settings: Settings | None = None, *, clock: Clock | None = None
) -> AsyncIterator[Api]:
    """Return a service with the events application, on a store without tokens."""
    clock = clock or Clock(START)
    app = Penstock(url, clock=clock, payload_limit=1_200_000)
    service = Service(app, [install(app, settings or Settings())])
    gate = Authenticator(app, open_without_tokens=True)
    service.guard(gate)
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        gate.running(),
        httpx.AsyncClient(transport=transport, base_url=ADDRESS, timeout=30) as client,
    ):
        yield Api(client, app, clock)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}

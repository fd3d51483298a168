"""Notebooks behind their routes, in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from penstock import Penstock, Worker
from penstock.apps.notebooks import Settings, install
from penstock.server.app import Service
from penstock.server.gate import Gatekeeper
from penstock.stores import system_clock
from tests.apps.notebooks.disk import files_of


class Api:
    """Short ways to say what a client says; nobody works unless it is asked for."""

    def __init__(self, client: httpx.AsyncClient, app: Penstock, data: Path) -> None:
        self.client = client
        self.app = app
        self.root = data / "notebooks" / "garden"

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        given = options if body is None else {"json": body, **options}
        answer = await self.client.request(method, f"/api/v1{path}", **given)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def on(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """On the notebook; changes are accepted."""
        options.setdefault("status", 200 if method == "GET" else 202)
        return await self(method, f"/notebooks/garden{path}", body, **options)

    async def create(self, path: str, content: str = "", **fields: Any) -> Any:
        return await self.on("POST", "/files", {"path": path, "content": content, **fields})

    async def work(self) -> None:
        """Run all that can run now."""
        await Worker(self.app, queues=["notebooks"]).run(until_empty=True)

    async def event(self, accepted: Any) -> Any:
        return await self("GET", f"/events/{accepted['event_id']}")

    async def status(self, accepted: Any) -> str:
        return str((await self.event(accepted))["status"])

    async def paths(self) -> list[str]:
        return [file["path"] for file in (await self.on("GET", "/files"))["files"]]

    def disk(self) -> dict[str, str]:
        """Every file of the notebook, by its path."""
        return {path: file.read_text() for path, file in files_of(self.root)}

    async def check_agreement(self) -> None:
        """The disk has what is known, and nothing else."""
        known = {file["path"]: file["size"] for file in (await self.on("GET", "/files"))["files"]}
        assert known == {path: len(text.encode()) for path, text in self.disk().items()}


@asynccontextmanager
async def served(
    url: str,
    data: Path,
    *,
    git: bool = True,
    clock: Callable[[], int] = system_clock,
    **settings: Any,
) -> AsyncIterator[Api]:
    """A server with one notebook; jobs wait for `work`."""
    settings = {"watch": False, "commit_interval": 3_600, "retry_delay": 0, **settings}
    app = Penstock(url, clock=clock)
    application = install(app, Settings(**settings), data)
    service = Service(app, [application])
    gate = Gatekeeper(app, open_without_tokens=True)
    service.guard(gate)
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        application.working(),
        gate.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        api = Api(client, app, data)
        if not (await client.get("/api/v1/notebooks")).json()["notebooks"]:
            await api("POST", "/notebooks", {"name": "garden", "git": git}, status=201)
            await api.work()
        yield api


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[None]:
    """Have jobs run, inside the block."""
    worker = Worker(api.app, queues=["notebooks"], concurrency=4)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running

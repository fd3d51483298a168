"""A service behind a real socket, and readers of its stream.

Run as a program, it serves the store that is named until its input ends.
"""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn

from penstock import Penstock
from penstock.server.app import Service


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[str]:
    """The address of a running service, inside the block."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(service, lifespan="off", log_level="critical", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        service.let_go()
        server.should_exit = True
        await serving
        bound.close()


class Said(NamedTuple):
    """What came over a stream up to an empty line."""

    id: int | None
    event: str | None
    data: Any
    comment: str | None


async def said(answer: httpx.Response) -> AsyncIterator[Said]:
    """All that a stream says, also where nothing happened."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            assert name not in fields, "two fields of a name in one event"
            fields[name or "comment"] = value if name else line
            continue
        yield Said(
            int(fields["id"]) if "id" in fields else None,
            fields.get("event"),
            json.loads(fields["data"]) if "data" in fields else None,
            fields.get("comment"),
        )
        fields = {}


@asynccontextmanager
async def streaming(
    address: str, last: int | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[Said]]:
    """A stream, from its first words on, which tell where it begins."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
        client.stream("GET", f"{address}/api/v1/stream", params=query, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield said(answer)


async def transitions(stream: AsyncIterator[Said]) -> AsyncIterator[Said]:
    """The entries alone."""
    async for one in stream:
        if one.event is not None:
            assert one.event == "transition"
            assert one.id == one.data["entry"]["id"]
            yield one


async def main(url: str) -> None:
    """Serve a store until the input ends."""
    async with Penstock(url) as app:
        service = Service(app, [])
        async with service.running(), listening(service) as address:
            print(address, flush=True)  # noqa: T201 - who started this waits for it
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

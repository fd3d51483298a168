"""The example requests of the reference are sent to a server, which finds nothing wrong in them."""

import contextlib
import json
from pathlib import Path

import httpx

from docs.generate import http
from tests.apps.support import served

ENDLESS = {"GET /api/v1/stream", "POST /api/v1/queues/{name}/drain"}
"""Answered when there is something to say, or after a minute."""

ELSEWHERE = {"POST /api/v1/ingest", "POST /api/v1/queue/items", "POST /index/add"}
"""They name a folder of the reader's machine."""

MALFORMED = {400, 405, 413, 415, 422}
"""Statuses that blame the request, whatever the store contains."""

OPERATION = "POST /api/v1/operations/{operation}"
"""An operation that does not exist is 404, as is a job."""


async def test_example_requests_are_well_formed(tmp_path: Path) -> None:
    service = served(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    refused = {}
    async with contextlib.AsyncExitStack() as stack:
        for application in service.applications:
            await stack.enter_async_context(application.running())
        transport = httpx.ASGITransport(app=service, raise_app_exceptions=False)
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")
        )
        for name, operation, schemas in sorted(http.routes(), key=lambda one: one[0]):
            if name in ENDLESS:
                continue
            method, _, path = name.partition(" ")
            body = http.body_of(operation, schemas)
            content = b"text" if name in http.UPLOADS else None
            answer = await client.request(
                method,
                http.target_of(path, operation, schemas),
                content=json.dumps(body).encode() if body is not None else content,
                headers={"Content-Type": "application/json"} if body is not None else {},
            )
            blamed = answer.status_code in MALFORMED and name not in ELSEWHERE
            if blamed or (name == OPERATION and answer.status_code != 202):
                refused[name] = f"{answer.status_code} {answer.text}"
    assert refused == {}

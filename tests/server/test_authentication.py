"""Every route with every kind of token, and with none."""

import asyncio
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import NewJob, Penstock, State, run_sync
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from penstock.tokens import Access
from penstock.web.routes import Route, route, routes_of
from tests.environment import SOON
from tests.server.support import guarded, listening, serving, whole_service

ROUTES = whole_service(Penstock("memory://")).routes
SHUT = [route for route in ROUTES if route.declared.access is not None]


def label(route: Route) -> str:
    return f"{route.declared.method} {route.declared.path}"


def path_of(route: Route) -> str:
    return re.sub(r"{\w+}", "1", route.declared.path)


class Door:
    """A guarded service with a token of each scope."""

    def __init__(self, service: Service, app: Penstock, secrets: dict[str, str]) -> None:
        self.service = service
        self.app = app
        self.secrets = secrets

    async def knock(self, method: str, path: str, *tokens: str) -> tuple[int, dict[bytes, bytes]]:
        """Return the start of an answer; a stream need not end."""
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()
            sent = True
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start" and not started.done():
                started.set_result((message["status"], dict(message["headers"])))

        scope = {
            "type": "http",
            "http_version": "1.1",
            "asgi": {"version": "3.0"},
            "method": method,
            "scheme": "http",
            "path": path.replace("%2f", "/"),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 1),
            "headers": [
                (b"host", b"queue.example"),
                (b"content-type", b"application/json"),
                *((b"authorization", token.encode("latin-1")) for token in tokens),
            ],
        }
        task = asyncio.create_task(self.service(scope, receive, send))
        await asyncio.wait([task, started], timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        await asyncio.wait([task])
        status, headers = started.result()
        return status, headers

    async def knock_at(self, route: Route, *tokens: str) -> int:
        status, headers = await self.knock(route.declared.method, path_of(route), *tokens)
        assert (b"www-authenticate" in headers) is (status == 401)
        return status


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    app = Penstock("memory://")
    service = whole_service(app)
    secrets = {str(scope): await app.tokens.create(scope, [scope]) for scope in Access}
    secrets["expired"] = await app.tokens.create("expired", list(Access), timedelta(milliseconds=1))
    secrets["revoked"] = await app.tokens.create("revoked", list(Access))
    await app.tokens.revoke("revoked")
    [short] = [token for token in await app.tokens.list() if token.name == "expired"]
    while not short.has_expired(datetime.now(UTC)):
        pass  # for a millisecond at most
    async with guarded(service):
        yield Door(service, app, secrets)


@pytest.mark.parametrize("route", SHUT, ids=label)
async def test_only_a_good_token_of_the_right_scope_opens(
    route: Route, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert route.declared.access is not None
    right = door.secrets[route.declared.access]
    for token in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        f"Basic {right}",
        right,
        f"Bearer {right}x",
        f"Bearer {right[:-1]}",
        f"Bearer {right.upper()}",
        f"Bearer {right}, Bearer {right}",
        "Bearer \xff\xfe",
        f"Bearer {door.secrets['expired']}",
        f"Bearer {door.secrets['revoked']}",
    ):
        assert await door.knock_at(route, *([token] if token else [])) == 401, token
    for scope in Access:
        status = await door.knock_at(route, f"Bearer {door.secrets[scope]}")
        if scope is route.declared.access:
            assert status not in (401, 403)
        else:
            assert status == 403, scope
    assert await door.knock_at(route, f"bearer  {right} ") not in (401, 403)
    written = "".join(record.getMessage() for record in caplog.records)
    assert not [secret for secret in door.secrets.values() if secret in written]


async def test_open_routes_are_about_health_and_the_door(door: Door) -> None:
    """Besides health: the files of the dashboard, which contain no secret, and its sign-in."""
    opened = {label(one) for one in ROUTES if one.declared.access is None}
    assert opened == {
        "GET /health",
        "GET /health/live",
        "GET /health/ready",
        "GET /health/startup",
        "GET /",
        "GET /dashboard/{name}",
        "GET /api/v1/session",
        "POST /api/v1/session",
        "DELETE /api/v1/session",
    }
    for path in ("/health", "/health/ready", "/", "/dashboard/app.js", "/api/v1/session"):
        status, _ = await door.knock("GET", path)
        assert status in (200, 503)
    for method in ("POST", "DELETE"):  # not of the dashboard's own page
        status, _ = await door.knock(method, "/api/v1/session")
        assert status in (403, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/health/x",
        "//health",
        "/health%2f",
        "/health//",
        "/health/../events",
        "/healthx",
        "/Health",
    ],
)
async def test_health_is_open_by_its_exact_path_alone(door: Door, path: str) -> None:
    status, _ = await door.knock("GET", path)
    assert status in (401, 404)


class Public:
    @route("GET", "/public", None)
    async def look(self) -> dict[str, str]:
        """A route that needs no token."""
        return {}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/public", 200),
        ("/public/", 200),
        ("/public%2f", 404),
        ("//public", 404),
        ("/public//", 404),
        ("/public/x", 404),
    ],
)
async def test_escaped_slash_is_no_last_slash(path: str, status: int) -> None:
    app = Penstock("memory://")
    service = Service(app, [], routes_of(Public()))
    async with guarded(service):
        assert (await Door(service, app, {}).knock("GET", path))[0] == status


async def test_two_tokens_open_no_more_than_the_first(door: Door) -> None:
    tokens = [f"Bearer {door.secrets[scope]}" for scope in ("read", "admin")]
    status, _ = await door.knock("POST", "/events/1/reset", *tokens)
    assert status == 403


async def test_token_that_expires_opens_no_longer(tmp_path: Path) -> None:
    """Expiry is checked with every call."""
    app = Penstock("memory://")
    secret = await app.tokens.create("short", ["read"], timedelta(seconds=60))
    now = app.clock()
    async with guarded(whole_service(app)) as authenticator:
        scope = {"headers": [(b"authorization", f"Bearer {secret}".encode())]}
        assert authenticator(scope, Access.READ).name == "short"
        app.connection.runtime = app.runtime.with_clock(lambda: now + 61_000_000)
        with pytest.raises(Exception, match="expired"):
            authenticator(scope, Access.READ)


async def test_log_names_the_token_that_a_change_was_asked_with(door: Door) -> None:
    transport = httpx.ASGITransport(door.service)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for scope, path, body in (
            ("publish", "/events", {"title": "a", "tags": "x"}),
            ("publish", "/api/v1/jobs", {"task": "t", "args": {}}),
            ("admin", "/api/v1/jobs/2/cancel", {}),
        ):
            bearer = {"Authorization": f"Bearer {door.secrets[scope]}"}
            (await http.post(path, json=body, headers=bearer)).raise_for_status()
    actors = [entry.actor for entry in await door.app.log()]
    assert actors == ["token:publish", "token:publish", "token:admin"]
    assert door.app.connection.actor.startswith(socket.gethostname())


async def test_service_stays_shut_when_its_last_token_is_revoked(door: Door) -> None:
    authenticator = Authenticator(door.app, open_without_tokens=True)
    await authenticator.refresh()
    for token in await door.app.tokens.list():
        await door.app.tokens.revoke(token.name)
    await authenticator.refresh()
    assert not authenticator.is_open


def test_running_server_hears_of_a_revoked_token_and_writes_no_secret(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    secret = run_sync(app.tokens.create("t", ["read"]))
    keeps = run_sync(app.tokens.create("other", ["admin"]))
    with serving(tmp_path) as server:
        headers = {"Authorization": f"Bearer {secret}"}

        def status(**given: str) -> int:
            return httpx.get(f"{server.url}/events", headers=given, timeout=30).status_code

        assert status() == 401
        assert status(**headers) == 200
        assert status(Authorization=f"Bearer {keeps}") == 403
        run_sync(app.tokens.revoke("t"))
        deadline = time.monotonic() + SOON
        while status(**headers) != 401:
            assert time.monotonic() < deadline, "a revoked token still opens"
        later = run_sync(app.tokens.create("later", ["read"]))
        while status(Authorization=f"Bearer {later}") != 200:
            assert time.monotonic() < deadline, "a new token does not open"
        run_sync(app.tokens.revoke("later"))
        run_sync(app.tokens.revoke("other"))
        server.stop()
    written = server.output.read_text()
    assert not [one for one in (secret, keeps, later) if one in written]
    run_sync(app.close())


def test_public_address_needs_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(tmp_path)]
    refused = subprocess.run(
        [*command, "--host", "0.0.0.0", "--port", "0"],  # noqa: S104 - is what is refused
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert refused.returncode != 0
    assert "there is no access token" in refused.stderr
    assert "Traceback" not in refused.stderr
    advised = refused.stderr.partition("try: penstock ")[2].replace("SCOPE", "read").split()
    made = subprocess.run(
        [*command[:3], *advised], cwd=tmp_path, capture_output=True, timeout=SOON, check=False
    )
    assert made.returncode == 0, made.stderr


@pytest.fixture
async def revoking(tmp_path: Path) -> AsyncIterator[tuple[str, Authenticator, Penstock, str]]:
    """A service behind a socket, its authenticator, its store, and a token `t` with all scopes."""
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    secret = await app.tokens.create("t", list(Access))
    service = whole_service(app)
    async with guarded(service) as authenticator, listening(service) as address:
        yield address, authenticator, app, secret


async def test_open_stream_ends_with_its_token(
    revoking: tuple[str, Authenticator, Penstock, str],
) -> None:
    address, authenticator, app, secret = revoking
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        httpx.AsyncClient(timeout=SOON, headers=headers, trust_env=False) as client,
        client.stream("GET", f"{address}/api/v1/stream") as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        await app.tokens.revoke("t")
        await authenticator.refresh()
        await app.enqueue_many([NewJob(task="secret", payload="{}")])
        assert not [line async for line in lines if line.startswith("data")]


async def test_who_waits_gets_nothing_after_the_token_was_revoked(
    revoking: tuple[str, Authenticator, Penstock, str],
) -> None:
    address, authenticator, app, secret = revoking
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(timeout=SOON, headers=headers, trust_env=False) as client:
        wanted = {"tags": "a", "worker_id": "w", "wait": "60"}
        waits = asyncio.create_task(client.get(f"{address}/events/subscribe", params=wanted))
        other = {**wanted, "tags": "b", "wait": "0"}
        assert (await client.get(f"{address}/events/subscribe", params=other)).status_code == 204
        await app.tokens.revoke("t")
        await authenticator.refresh()
        (job,) = await app.enqueue_many(
            [NewJob(task="t", payload="{}", queue="events", tags=("a",))]
        )
        assert (await waits).status_code == 401
    assert (await app.get(job.id)).state is State.PENDING
    assert (await app.get(job.id)).attempt == 0

"""Web pages of other sites get nothing from a server that requires no token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from penstock import Penstock
from penstock.apps.events import Settings, install
from penstock.server.app import Service
from penstock.server.authentication import Authenticator, Site, is_loopback

ADDRESS = "http://127.0.0.1:8000"
FRIEND = "https://friend.example"
EVENT = {"title": "t", "tags": "a"}


@asynccontextmanager
async def serving(
    *, origins: tuple[str, ...] = (), token: bool = False
) -> AsyncIterator[httpx.AsyncClient]:
    app = Penstock("memory://")
    service = Service(app, [install(app, Settings())], cors_origins=origins)
    authenticator = Authenticator(app, open_without_tokens=True, site=Site("queue.local", origins))
    service.guard(authenticator)
    transport = httpx.ASGITransport(app=service)
    headers = {}
    async with service.running():
        if token:
            secret = await app.tokens.create("t", ["publish", "read", "work"])
            headers = {"Authorization": f"Bearer {secret}"}
        async with (
            authenticator.running(),
            httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers) as client,
        ):
            yield client


async def statuses(client: httpx.AsyncClient, headers: dict[str, str]) -> set[int]:
    """Return the statuses of requests to publish, subscribe and read."""
    answers = [
        await client.post("/events", json=EVENT, headers=headers),
        await client.get("/events/subscribe?tags=a&worker_id=w&limit=1", headers=headers),
        await client.get("/events", headers=headers),
    ]
    return {answer.status_code for answer in answers}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Host": "localhost:8000"},
        {"Host": "LOCALHOST:8000"},
        {"Host": "127.0.0.1"},
        {"Host": "127.9.9.9:80"},
        {"Host": "[::1]:8000"},
        {"Host": "[::1]"},
        {"Host": "queue.local:8000"},
        {"Origin": ADDRESS},
        {"Origin": "http://localhost:8000", "Host": "localhost:8000"},
        {"Origin": ADDRESS, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_who_is_let_in(headers: dict[str, str]) -> None:
    async with serving() as client:
        assert await statuses(client, headers) <= {200, 201}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1.evil.example:8000"},
        {"Host": "evil.example:80:127.0.0.1"},
        {"Host": "[::2]:8000"},
        {"Host": "0.0.0.0:8000"},
        {"Host": ""},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://evil.example:8000"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://localhost:8000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "file://"},
        {"Origin": FRIEND},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "Cross-Site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
async def test_who_is_refused(headers: dict[str, str]) -> None:
    async with serving() as client:
        assert await statuses(client, headers) == {403}
        answer = await client.get("/events", headers=headers)
        assert set(answer.json()) == {"detail"}
        assert (await client.get("/events")).json()["total"] == 0


async def test_second_host_is_looked_at_as_well() -> None:
    async with serving() as client:
        hosts = [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]
        assert (await client.get("/events", headers=hosts)).status_code == 403


async def test_with_a_token_the_name_of_the_server_does_not_matter() -> None:
    async with serving(token=True) as client:
        headers = {"Host": "queue.example", "Origin": "https://page.example"}
        assert await statuses(client, headers) <= {200, 201}
        answer = await client.get("/events", headers=headers)
        assert "access-control-allow-origin" not in answer.headers


async def test_cors_is_off() -> None:
    async with serving() as client:
        asked = await client.options(
            "/events", headers={"Origin": FRIEND, "Access-Control-Request-Method": "POST"}
        )
        assert not [name for name in asked.headers if name.startswith("access-control")]


async def test_allowed_origin_is_let_in_and_told_so() -> None:
    async with serving(origins=(FRIEND,)) as client:
        asked = await client.options(
            "/events",
            headers={
                "Origin": FRIEND,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type",
            },
        )
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == FRIEND
        headers = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
        answer = await client.post("/events", json=EVENT, headers=headers)
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] == FRIEND
        assert "access-control-allow-credentials" not in answer.headers


async def test_other_origins_stay_out() -> None:
    async with serving(origins=(FRIEND,)) as client:
        asked = await client.options(
            "/events",
            headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
        )
        assert "access-control-allow-origin" not in asked.headers
        assert await statuses(client, {"Origin": "http://evil.example"}) == {403}
        assert await statuses(client, {"Origin": FRIEND + ".evil.example"}) == {403}


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("0.0.0.0", False),  # noqa: S104 - is what is asked
        ("::", False),
        ("192.168.1.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback

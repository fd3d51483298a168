"""Sessions of a browser: the cookie, what it allows, and which pages may use it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock import Penstock
from tests.server.support import guarded, whole_service

ADDRESS = "http://127.0.0.1:8000"
PAGE = {"X-Requested-With": "penstock", "Origin": ADDRESS, "Sec-Fetch-Site": "same-origin"}


class Browser:
    """A browser on the dashboard of a server that requires tokens."""

    def __init__(self, client: httpx.AsyncClient, app: Penstock) -> None:
        self.client = client
        self.app = app

    async def sign_in(self, *scopes: str, name: str = "ada", **headers: str) -> httpx.Response:
        secret = await self.app.tokens.create(name, scopes)
        return await self.present(secret, **headers)

    async def present(self, secret: str, **headers: str) -> httpx.Response:
        body = {"token": secret}
        return await self.client.post("/api/v1/session", json=body, headers={**PAGE, **headers})


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    app = Penstock("memory://")
    service = whole_service(app)
    async with guarded(service) as authenticator:
        await app.tokens.create("first", ["read"])
        await authenticator.refresh()
        create = app.tokens.create

        async def created(*args: object) -> str:
            secret = await create(*args)  # type: ignore[arg-type] # as they come
            await authenticator.refresh()
            return secret

        app.tokens.create = created  # type: ignore[method-assign,assignment] # known at once
        transport = httpx.ASGITransport(app=service)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            yield Browser(client, app)


async def test_stranger_learns_only_that_a_token_is_needed(browser: Browser) -> None:
    found = (await browser.client.get("/api/v1/session")).json()
    assert not found.pop("signed_in")
    assert not found.pop("open")
    assert not any(found.values())


async def test_signing_in_keeps_the_token_where_no_script_reads_it(browser: Browser) -> None:
    answer = await browser.sign_in("read")
    assert answer.json()["name"] == "ada"
    assert answer.json()["scopes"] == ["read"]
    assert answer.json()["applications"] == ["events"]
    kept = answer.headers["set-cookie"]
    assert kept.startswith("penstock_8000=pst_")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(kept.split("; "))
    assert "Secure" not in kept
    assert (await browser.client.get("/api/v1/jobs")).status_code == 200
    assert (await browser.client.get("/api/v1/session")).json()["signed_in"]


async def test_cookie_of_a_page_that_came_by_https_stays_there(browser: Browser) -> None:
    answer = await browser.sign_in("read", Origin="https://127.0.0.1:8000")
    assert "Secure" in answer.headers["set-cookie"].split("; ")


async def test_wrong_token_keeps_nothing(browser: Browser) -> None:
    answer = await browser.present("pst_wrong")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert (await browser.present("a b")).status_code == 422


async def test_signing_out_forgets_the_token(browser: Browser) -> None:
    await browser.sign_in("read")
    assert (await browser.client.delete("/api/v1/session", headers=PAGE)).status_code == 200
    assert (await browser.client.get("/api/v1/jobs")).status_code == 401


async def test_token_that_only_reads_changes_nothing(browser: Browser) -> None:
    await browser.sign_in("read")
    answer = await browser.client.post("/api/v1/queues/q/pause", headers=PAGE)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Requested-With": "other"},
        {"X-Requested-With": "penstock", "Origin": "https://evil.example"},
        {"X-Requested-With": "penstock", "Origin": "null"},
        {"X-Requested-With": "penstock", "Sec-Fetch-Site": "cross-site"},
        {"X-Requested-With": "penstock", "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_page_of_another_site_cannot_use_the_cookie(
    browser: Browser, headers: dict[str, str]
) -> None:
    await browser.sign_in("admin", "read")
    answer = await browser.client.post("/api/v1/queues/q/pause", headers=headers)
    assert answer.status_code == 403
    assert await browser.app.queues.list() == []
    answer = await browser.client.post("/api/v1/queues/q/pause", headers=PAGE)
    assert answer.status_code == 200


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_page_of_another_site_signs_nobody_in_or_out(browser: Browser, method: str) -> None:
    body = {"token": "pst_x"} if method == "POST" else None
    answer = await browser.client.request(method, "/api/v1/session", json=body)
    assert answer.status_code == 403


async def test_another_site_cannot_read_along_with_the_cookie(browser: Browser) -> None:
    await browser.sign_in("read")
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert (await browser.client.get("/api/v1/jobs", headers=foreign)).status_code == 403


async def test_revoked_token_ends_the_session(browser: Browser) -> None:
    await browser.sign_in("read")
    await browser.app.tokens.revoke("ada")
    await browser.app.tokens.create("other", ["read"])
    assert (await browser.client.get("/api/v1/jobs")).status_code == 401


async def test_server_without_tokens_says_that_it_is_open() -> None:
    app = Penstock("memory://")
    service = whole_service(app)
    async with (
        guarded(service),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=service), base_url=ADDRESS) as client,
    ):
        found = (await client.get("/api/v1/session")).json()
        assert found["open"]
        assert found["scopes"] == ["admin", "publish", "read", "work"]

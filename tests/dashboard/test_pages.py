"""The files of the dashboard, as they are served."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from penstock import Penstock
from penstock.dashboard.pages import load
from penstock.server.app import Service

LIMIT = 150_000
"""The largest total size of all files, in bytes."""
FILES = load()
SCRIPTS = {name: one.body.decode() for name, one in FILES.items() if name.endswith(".js")}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    service = Service(Penstock("memory://"), [])
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        yield client


def test_everything_together_is_small() -> None:
    assert sum(len(one.body) for one in FILES.values()) < LIMIT


async def test_every_file_comes_with_its_kind_and_the_policy(client: httpx.AsyncClient) -> None:
    for path in ("/", *(f"/dashboard/{name}" for name in FILES)):
        answer = await client.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not answer.headers["content-type"].startswith("application/json")


async def test_file_that_is_known_is_not_sent_again(client: httpx.AsyncClient) -> None:
    etag = (await client.get("/")).headers["etag"]
    for known in (etag, f"W/{etag}", f'"x", {etag}'):
        answer = await client.get("/", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content) == (304, b"")
    assert (await client.get("/", headers={"If-None-Match": '"x"'})).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "pages.py"])
async def test_nothing_else_is_served(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/dashboard/{name}")).status_code == 404


def test_page_has_no_script_or_style_in_it() -> None:
    page = FILES["index.html"].body.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", page)


def test_page_finds_its_files_under_any_prefix() -> None:
    found = re.findall(r'(?:src|href)="([^"#]+)"', FILES["index.html"].body.decode())
    assert len(found) > 5
    assert [path for path in found if path.removeprefix("dashboard/") not in FILES] == []


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_makes_no_markup_from_text_and_loads_nothing_from_elsewhere(name: str) -> None:
    text = SCRIPTS[name]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert set(re.findall(r"https?://[^\"'`\s]+", text)) <= {"http://www.w3.org/2000/svg"}
    for module in re.findall(r'from "([^"]+)"', text):
        assert module.removeprefix("./") in FILES
    assert not re.search(r"""["'`(=]/dashboard/""", text)  # it would not work under a prefix

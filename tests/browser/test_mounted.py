"""The dashboard inside another application, under a prefix, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Page, expect
from starlette.requests import Request

from penstock import NewJob, Penstock
from penstock.integrations.asgi import Caller, MountedServer, lifespan
from tests.browser.conftest import ready
from tests.integrations.support import serving

SCOPES = {"ada": ["read", "admin", "publish"], "bob": ["read"], "eve": ["publish"]}


def who(request: Request) -> Caller | None:
    name = request.cookies.get("user", "")
    return Caller(name, SCOPES[name]) if name in SCOPES else None


def application(url: str, prefix: str) -> FastAPI:
    queue = Penstock(url)
    server = MountedServer(queue, authenticate=who)
    app = FastAPI(lifespan=lifespan(server))
    app.mount(prefix, server)

    @app.post("/orders")
    async def order() -> int:
        [job] = await queue.enqueue_many([NewJob(task="send", payload="{}", queue="mail")])
        return job.id

    return app


@pytest.fixture(params=[("/ops/queue", ""), ("/api", "/proxied/here")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of an application, and where in it the dashboard is.

    In the second, the server itself is behind a proxy that puts it under another prefix.
    """
    prefix, root = request.param
    app = application(f"sqlite:///{tmp_path}/jobs.db", prefix)
    with serving(app, root_path=root) as url:
        yield url, prefix


def sign_in(page: Page, url: str, user: str) -> None:
    page.context.add_cookies([{"name": "user", "value": user, "url": url}])


def test_dashboard_shows_and_changes_jobs_under_a_prefix(
    page: Page, place: tuple[str, str]
) -> None:
    url, prefix = place
    sign_in(page, url, "ada")
    ready(page, f"{url}{prefix}/")
    expect(page.get_by_text("ada", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
    assert page.request.post(f"{url}/orders").ok  # seen live, without loading again
    mail = page.get_by_role("region", name="Queues").locator("tbody tr", has_text="mail")
    expect(mail.locator("td[data-name='Waiting jobs']")).to_contain_text("1")
    page.goto(f"{url}{prefix}/#/jobs/1")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("Cancelled job 1.")


def test_user_who_may_only_read_sees_no_action(page: Page, place: tuple[str, str]) -> None:
    url, prefix = place
    assert page.request.post(f"{url}/orders").ok
    sign_in(page, url, "bob")
    ready(page, f"{url}{prefix}/#/jobs/1")
    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.locator("main")).to_contain_text("send")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_user_without_a_scope_sees_nothing(page: Page, place: tuple[str, str]) -> None:
    url, prefix = place
    sign_in(page, url, "eve")
    page.goto(f"{url}{prefix}/")
    expect(page.locator("main")).to_contain_text("eve does not have the scope read")


def test_user_who_signs_out_meanwhile_is_told_so(page: Page, place: tuple[str, str]) -> None:
    url, prefix = place
    sign_in(page, url, "ada")
    ready(page, f"{url}{prefix}/")
    page.context.clear_cookies()
    page.goto(f"{url}{prefix}/#/jobs")
    expect(page.locator("main")).to_contain_text("Sign in to the application")


def test_nobody_gets_the_page(page: Page, place: tuple[str, str]) -> None:
    url, prefix = place
    answer = page.goto(f"{url}{prefix}/")
    assert answer is not None
    assert (answer.status, answer.json()) == (401, {"detail": "sign in to the application first"})

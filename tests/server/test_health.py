"""Liveness and readiness: answered from memory, without a token."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import httpx
import msgspec
import pytest

from penstock import Penstock, StoreUnavailable
from penstock.leases import WorkerInfo
from penstock.server import health
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from penstock.testing import faulty
from penstock.tokens import Access
from tests.contract.support import ManualClock
from tests.environment import SOON
from tests.server.support import Api


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the store when the service starts, and not again."""
    monkeypatch.setattr(health, "CHECK_EVERY", 3600)


async def test_health_has_the_version_that_old_clients_compare_and_its_own(api: Api) -> None:
    for path in ("/health", "/health/"):
        assert await api("GET", path) == {
            "status": "healthy",
            "version": "10.7.0",
            "penstock": version("penstock"),
            "workers": {"running": 0, "silent": 0},
        }


async def test_health_counts_workers_that_live_and_those_that_are_silent(
    app: Penstock, clock: ManualClock
) -> None:
    for name in ("killed", "alive"):
        await app.store.heartbeat([WorkerInfo(name=name, host="h", pid=1, seen_at=clock.now)])
        clock.advance(timedelta(seconds=20))
    routes = health.HealthRoutes(app, asyncio.Event())
    async with routes.running():
        answer = (await routes.health()).value
    assert isinstance(answer, bytes)
    found = msgspec.json.decode(answer)
    assert found["workers"] == {"running": 1, "silent": 1}


async def test_ready_while_the_store_answers(api: Api) -> None:
    for path in ("/health/ready", "/health/ready/"):
        found = await api("GET", path)
        assert (found["status"], found["detail"]) == ("ready", None)
        assert 0 <= found["store_seconds"] < health.STORE_TIMEOUT


async def test_live_and_started_whatever_the_store_does(api: Api, service: Service) -> None:
    service.begin_shutdown()
    for path in ("/health/live", "/health/live/"):
        assert (await api("GET", path))["status"] == "healthy"
    for path in ("/health/startup", "/health/startup/"):
        assert await api("GET", path) == {"status": "started"}


async def test_not_started_before_the_store_has_answered(app: Penstock) -> None:
    routes = health.HealthRoutes(app, asyncio.Event())
    answer = await routes.startup()
    assert (answer.status, answer.value) == (503, health.Startup(status="starting"))
    with faulty(app) as faults:
        faults.fail("newest_log", every=1, error=StoreUnavailable("not yet"))
        async with routes.running():
            assert (await routes.startup()).status == 503
    async with routes.running():
        assert (await routes.startup()).status == 200
    with faulty(app) as faults:
        faults.fail("newest_log", every=1, error=StoreUnavailable("no more"))
        async with routes.running():
            assert (await routes.ready()).status == 503
            assert (await routes.startup()).status == 200


async def test_not_ready_when_the_service_drains(api: Api, service: Service) -> None:
    service.begin_drain()
    assert "shutting down" in (await api("GET", "/health/ready", status=503))["detail"]
    assert not service.stopping.is_set()  # requests that wait go on waiting


async def test_not_ready_when_the_service_stops(api: Api, service: Service) -> None:
    service.begin_shutdown()
    assert (await api("GET", "/health/ready", status=503))["status"] == "not ready"
    await api("GET", "/health")


async def test_no_question_to_the_store_is_asked_for_an_answer(
    app: Penstock, service: Service, api: Api
) -> None:
    with faulty(app) as faults:
        await api("GET", "/health")
        await api("GET", "/health/ready")
        assert not faults.calls


@pytest.fixture
async def impatient(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> AsyncIterator[tuple[Service, Api]]:
    """A service that checks its store continuously."""
    monkeypatch.setattr(health, "CHECK_EVERY", 0.01)
    monkeypatch.setattr(health, "STORE_TIMEOUT", 0.05)
    app = Penstock("memory://", clock=clock)
    service = Service(app, [])
    transport = httpx.ASGITransport(app=service)
    async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://x") as c:
        yield service, Api(c)


async def until_ready_is(api: Api, status: int) -> dict[str, str]:
    async with asyncio.timeout(SOON):
        while (  # noqa: ASYNC110 - the service has no event for it
            answer := await api.client.get("/health/ready")
        ).status_code != status:
            await asyncio.sleep(0)
    found: dict[str, str] = answer.json()
    return found


async def test_store_that_fails_makes_it_not_ready_until_it_answers_again(
    impatient: tuple[Service, Api],
) -> None:
    service, api = impatient
    await until_ready_is(api, 200)
    with faulty(service.penstock) as faults:
        faults.fail("newest_log", every=1, error=StoreUnavailable("/secret/place is locked"))
        found = await until_ready_is(api, 503)
        assert found["detail"] == "the store does not answer"
        await api("GET", "/health")
    await until_ready_is(api, 200)


async def test_store_that_hangs_is_asked_once_and_makes_it_not_ready(
    impatient: tuple[Service, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, api = impatient
    [route] = [one for one in service.routes if one.declared.path == "/health/ready"]
    found: list[Any] = []
    asked, answer = [0], asyncio.Event()

    async def hang() -> int:
        asked[0] += 1
        await answer.wait()
        return 0

    monkeypatch.setattr(service.penstock, "newest_log", hang)
    assert "did not answer within" in (await until_ready_is(api, 503))["detail"]
    async with asyncio.timeout(SOON):
        while len(found) < 4:  # each look leaves another verdict
            verdict = route.handler.__self__._found  # type: ignore[attr-defined] # a bound method
            if not any(verdict is one for one in found):
                found.append(verdict)
            await asyncio.sleep(0.001)
    assert asked == [1]
    answer.set()
    await until_ready_is(api, 200)


async def test_health_needs_no_token_and_all_else_does(app: Penstock, service: Service) -> None:
    authenticator = Authenticator(app, open_without_tokens=False)
    service.guard(authenticator)
    await app.tokens.create("t", {Access.PUBLISH})
    await authenticator.refresh()
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        for path in ("/health", "/health/live", "/health/ready", "/health/startup"):
            assert (await client.get(path)).status_code == 200
            assert (await client.get(f"{path}/")).status_code == 200
        for path in ("/health/x", "//health", "/health//"):
            assert (await client.get(f"http://x{path}")).status_code in (401, 404), path
        # The door of the dashboard is open, too; test_authentication.py lists those routes.
        opened = ("/health", "/dashboard/", "/api/v1/session")
        for route in service.routes:
            if route.declared.path != "/" and not route.declared.path.startswith(opened):
                path = route.declared.path.replace("{job_id}", "1")
                answer = await client.request(route.declared.method, path)
                assert answer.status_code == 401, route

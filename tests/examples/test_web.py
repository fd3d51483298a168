"""The shops on FastAPI and Flask run on real servers, roll back, and are killed."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock import Job, JobQuery, Penstock, State, run_sync
from penstock.jobs import Event
from tests.cli.support import COMMAND, Process, started
from tests.environment import SOON
from tests.integrations.databases import Shared, shared
from tests.server.support import address

__all__ = ["shared"]

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULE = (sys.executable, "-m")
UVICORN = ("uvicorn", "--port", "0", "--timeout-graceful-shutdown", "5")
GUNICORN = ("gunicorn", "--bind", "127.0.0.1:0", "--workers", "2", "--log-level", "info")

# Shops whose deliveries last until a test releases them.
HELD = {
    "fastapi_app": """
import asyncio, pathlib
import fastapi_app
from fastapi_app import app, queue

async def deliver(item):
    print("delivers", item, flush=True)
    while not pathlib.Path("released").exists():
        await asyncio.sleep(0.01)

fastapi_app.deliver = deliver
""",
    "flask_app": """
import pathlib, time
import flask_app
from flask_app import app, queue

def deliver(item):
    print("delivers", item, flush=True)
    while not pathlib.Path("released").exists():
        time.sleep(0.01)

flask_app.deliver = deliver
""",
}


class Shop(NamedTuple):
    """An example, where it runs, and its queue."""

    name: str
    folder: Path
    app: Penstock

    @contextmanager
    def serving(self, module: str = "") -> Iterator[tuple[Process, str]]:
        """Run the shop on a server inside the block; yields its process and its address."""
        target = f"{module or self.name}:app"
        command = UVICORN if self.name == "fastapi_app" else GUNICORN
        with started((*MODULE, *command, target), self.folder) as process:
            yield process, address(process)
            if command is GUNICORN:  # which ends its workers
                process.send(signal.SIGTERM)
                process.wait()

    @contextmanager
    def working(self, module: str = "") -> Iterator[Process]:
        """Run a worker beside it, inside the block."""
        command = (*COMMAND, "worker", f"{module or self.name}:queue")
        with started(command, self.folder) as process:
            process.wait_for("Worker ")
            yield process

    def jobs(self) -> list[Job]:
        return run_sync(self.app.find(JobQuery(limit=1_000)))


def a_shop(name: str, folder: Path, shared: Shared, patch: pytest.MonkeyPatch) -> Iterator[Shop]:
    flask = name == "flask_app"
    patch.setenv("PYTHONPATH", str(EXAMPLES))
    patch.setenv("PYTHONUNBUFFERED", "1")
    patch.setenv("SHOP_QUEUE", shared.queue)
    patch.setenv("SHOP_DATABASE", shared.synchronous if flask else shared.asynchronous)
    patch.setenv("SHOP_WORKER", "no")
    (folder / "held.py").write_text(HELD[name])
    if flask:
        with started((*MODULE, "flask", "--app", name, "create-tables"), folder) as creating:
            assert creating.wait() == 0, creating.printed
    app = Penstock(shared.queue)
    yield Shop(name, folder, app)
    run_sync(app.close())


@pytest.fixture(params=["fastapi_app", "flask_app"])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    yield from a_shop(request.param, tmp_path, shared, monkeypatch)


@pytest.fixture
def fastapi_shop(tmp_path: Path, shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    yield from a_shop("fastapi_app", tmp_path, shared, monkeypatch)


def buy(url: str, item: str = "tea") -> httpx.Response:
    return httpx.post(f"{url}/orders", params={"item": item}, timeout=SOON, trust_env=False)


def delivered(url: str) -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"{url}/orders", timeout=SOON, trust_env=False).json()
    return found


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.every_store
def test_job_is_stored_with_its_order_and_goes_with_it(shop: Shop) -> None:
    with shop.serving() as (_, url):
        assert buy(url, "gold").status_code == 409
        assert (shop.jobs(), delivered(url)) == ([], {})
        answer = buy(url)
        assert answer.status_code == 200, answer.text
        assert [job.id for job in shop.jobs()] == [answer.json()["job"]]
        assert delivered(url) == {str(answer.json()["order"]): 0}
        with ThreadPoolExecutor(4) as pool:  # some of these roll back while others commit
            asked = ["tea", "gold"] * 10
            statuses = [one.status_code for one in pool.map(lambda item: buy(url, item), asked)]
        assert statuses == [200, 409] * 10
        assert len(shop.jobs()) == len(delivered(url)) == 11
        with shop.working():
            until(lambda: set(delivered(url).values()) == {1})
        assert {job.state for job in shop.jobs()} == {State.DONE}


@pytest.mark.every_store
def test_killed_worker_loses_nothing(shop: Shop) -> None:
    with shop.serving() as (_, url):
        with shop.working("held") as worker:
            answer = buy(url).json()
            worker.wait_for("delivers tea")
            worker.send(signal.SIGKILL)
            assert worker.wait() == -signal.SIGKILL
        (shop.folder / "released").touch()
        with shop.working("held"):
            until(lambda: shop.jobs()[0].state is State.DONE)
        assert delivered(url) == {str(answer["order"]): 1}
    [job] = shop.jobs()
    events = [entry.event for entry in run_sync(shop.app.log(job.id))]
    assert (job.id, job.attempt) == (answer["job"], 2)
    assert events.count(Event.EXPIRED) == 1


@pytest.mark.every_store
def test_server_that_is_killed_with_its_worker_loses_nothing(
    fastapi_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = fastapi_shop
    monkeypatch.setenv("SHOP_WORKER", "yes")
    with shop.serving("held") as (process, url):
        answer = buy(url).json()
        process.wait_for("delivers tea")
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert [job.state for job in shop.jobs()] == [State.RUNNING]
    (shop.folder / "released").touch()
    with shop.serving("held") as (_, url):
        until(lambda: shop.jobs()[0].state is State.DONE)
        assert delivered(url) == {str(answer["order"]): 1}


def test_server_that_is_stopped_ends_its_job_first(
    fastapi_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = fastapi_shop
    monkeypatch.setenv("SHOP_WORKER", "yes")
    with shop.serving("held") as (process, url):
        buy(url)
        process.wait_for("delivers tea")
        process.send(signal.SIGTERM)
        process.wait_for("Waiting for application shutdown")
        (shop.folder / "released").touch()
        process.wait_for("Application shutdown complete")
    assert [job.state for job in shop.jobs()] == [State.DONE]


def test_dashboard_asks_for_the_password_of_the_shop(fastapi_shop: Shop) -> None:
    with fastapi_shop.serving() as (_, url):
        job = buy(url).json()["job"]
        with httpx.Client(base_url=f"{url}/ops/queue", trust_env=False, timeout=SOON) as http:
            answer = http.get("/")
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Basic")
            assert http.get("/", auth=("ada", "wrong")).status_code == 401
            assert "<title>Penstock</title>" in http.get("/", auth=("bob", "tea")).text
            cancel = f"/api/v1/jobs/{job}/cancel"
            page = {"X-Requested-With": "penstock"}
            assert http.post(cancel, auth=("ada", "tea")).status_code == 403  # a form of any site
            assert http.post(cancel, auth=("bob", "tea"), headers=page).status_code == 403
            assert fastapi_shop.jobs()[0].state is State.PENDING
            assert http.post(cancel, auth=("ada", "tea"), headers=page).status_code == 200
    assert fastapi_shop.jobs()[0].state is State.CANCELLED


@pytest.mark.parametrize("name", sorted(HELD))
def test_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 120
    assert os.environ.get("SHOP_QUEUE") is None

"""What `max_retries` and `retry_count` mean in each application, as the table in the docs says."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock import Job, Penstock
from penstock.apps import events, indexing, ingest, notebooks
from penstock.apps.kit.application import Application
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome
from penstock.server.app import Service
from tests.contract.support import STORES

TABLE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text("utf-8")
ROW = re.compile(
    r"^\| (\w+) \| [^|]+ \| (\d) \| (attempts in all|retries after the first) \|", re.MULTILINE
)


class Subject(NamedTuple):
    """An application, how a client asks it for a job, and where that is shown."""

    install: Callable[[Penstock, Path], Application]
    method: str
    path: str
    body: dict[str, Any]
    shown: str
    by: str
    queue: str


SUBJECTS = {
    "events": Subject(
        lambda app, _: events.install(app, events.Settings(retry_delay=0)),
        "POST",
        "/events",
        {"title": "t", "tags": "a"},
        "/events/{}",
        "id",
        "events",
    ),
    "notebooks": Subject(
        lambda app, data: notebooks.install(
            app, notebooks.Settings(retry_delay=0, watch=False), data
        ),
        "POST",
        "/api/v1/notebooks/garden/files",
        {"path": "a.md", "content": "a"},
        "/api/v1/events/{}",
        "event_id",
        "notebooks",
    ),
    "indexing": Subject(
        lambda app, data: indexing.install(
            app, indexing.Settings(retry_delay=0, project_root=str(data.parent)), data
        ),
        "POST",
        "/index",
        {"folder_path": "here"},
        "/index/jobs/{}",
        "job_id",
        "indexing",
    ),
    "ingest": Subject(
        lambda app, data: ingest.install(
            app, ingest.Settings(retry_delay=0, roots=(str(data),)), data
        ),
        "POST",
        "/api/v1/queue/items",
        {
            "items": [
                {
                    "item_type": "content",
                    "op": "ingest",
                    "tenant_id": "shop",
                    "collection": "docs",
                    "payload": {"content": "text", "source_type": "scratchbook"},
                }
            ]
        },
        "/api/v1/queue/items/{}",
        "queue_id",
        "ingest",
    ),
}


class Client:
    """A client of one application, whose job is run by hand."""

    def __init__(self, client: httpx.AsyncClient, app: Penstock, subject: Subject) -> None:
        self._client = client
        self.app = app
        self._subject = subject
        self._place = ""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    async def publish(self) -> None:
        answer = await self.ask(self._subject.method, self._subject.path, self._subject.body)
        accepted = answer["items"][0] if "items" in answer else answer
        self._place = self._subject.shown.format(accepted[self._subject.by])

    async def claim(self) -> Job | None:
        jobs = await self.app.leases.claim(worker="w", queues=[self._subject.queue])
        return jobs[0] if jobs else None

    async def retry_count(self) -> int:
        return int((await self.ask("GET", self._place))["retry_count"])

    async def ends(self, outcome: Outcome) -> None:
        job = await self.claim()
        assert job is not None
        await self.app.leases.settle([(job, outcome)])


@asynccontextmanager
async def serving(name: str, url: str, data: Path) -> AsyncIterator[Client]:
    subject = SUBJECTS[name]
    (data.parent / "here").mkdir()
    (data.parent / "here" / "a.md").write_text("text")
    app = Penstock(url)
    application = subject.install(app, data)
    service = Service(app, [application])
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        made = Client(client, app, subject)
        if name == "notebooks":
            await made.ask("POST", "/api/v1/notebooks", {"name": "garden"})
            await made.ends(Done())  # the look at its files
        await made.publish()
        yield made


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("name", SUBJECTS)
async def test_retry_count_is_the_number_of_failed_attempts(
    name: str, store: str, tmp_path: Path
) -> None:
    default, meaning = next((int(n), how) for app, n, how in ROW.findall(TABLE) if app == name)
    attempts = default + (meaning == "retries after the first")
    async with serving(name, STORES[store](tmp_path), tmp_path / "data") as client:
        for n in range(attempts):
            assert await client.retry_count() == n
            job = await client.claim()
            assert job is not None
            assert await client.retry_count() == n
            await client.app.leases.settle([(job, Failed("no luck"))])
        assert await client.retry_count() == attempts
        assert await client.claim() is None


@pytest.mark.parametrize("outcome", [Done(), Cancelled("asked to stop")], ids=["done", "cancelled"])
@pytest.mark.parametrize("name", SUBJECTS)
async def test_attempt_that_did_not_fail_is_not_counted(
    name: str, outcome: Outcome, tmp_path: Path
) -> None:
    async with serving(name, STORES["sqlite"](tmp_path), tmp_path / "data") as client:
        await client.ends(Failed("no luck"))
        await client.ends(outcome)
        assert await client.retry_count() == 1


@pytest.mark.parametrize("name", SUBJECTS)
async def test_permanent_failure_is_a_failed_attempt(name: str, tmp_path: Path) -> None:
    async with serving(name, STORES["sqlite"](tmp_path), tmp_path / "data") as client:
        await client.ends(Failed("never", permanent=True))
        assert await client.retry_count() == 1


@pytest.mark.parametrize("name", SUBJECTS)
async def test_job_that_is_cancelled_while_it_waits_keeps_its_count(
    name: str, tmp_path: Path
) -> None:
    async with serving(name, STORES["sqlite"](tmp_path), tmp_path / "data") as client:
        await client.ends(Failed("no luck"))
        [job] = [one for one in await client.app.find() if not one.state.final]
        await client.app.cancel(job.id)
        assert await client.retry_count() == 1


def test_table_names_every_application_with_retries() -> None:
    assert {name for name, _, _ in ROW.findall(TABLE)} == {*SUBJECTS, "entries"}

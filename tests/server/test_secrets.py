"""Secrets in arguments are shown by no route and found by no search."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import JobQuery, NewJob, Penstock, RetryPolicy, run_sync
from penstock.config import Server, Sources
from penstock.core.secrets import DEFAULT_FIELDS, HIDDEN, Secrets
from penstock.core.tokens import Access
from penstock.leases import Done, Failed
from penstock.server import search
from penstock.server.app import Service
from penstock.server.applications import install
from tests.cli.support import Shell
from tests.server.support import Api

SECRET = "hunter2"
ARGS = {
    "to": "ada",
    "db_password": SECRET,
    "nested": [{"api-key": {"v": SECRET}}],
    "dsn": f"postgresql://me:{SECRET}@db/jobs",
}


EVENT = {
    "title": f"copy {ARGS['dsn']}",
    "description": f"to https://{SECRET}@db/",
    "tags": "a",
    "payload": ARGS,
}


class Whole:
    """A server with every application, and a secret in everything that it stores."""

    def __init__(self, service: Service, client: httpx.AsyncClient) -> None:
        self.service = service
        self.app = service.penstock
        self.client = client
        self.parameters: dict[str, str] = {}
        self.ids: list[int] = []

    async def plant(self) -> None:
        app, client = self.app, self.client
        once = RetryPolicy(attempts=1)
        new = NewJob(task="t", payload=json.dumps(ARGS), correlation="c", retry=once)
        done, failed, pending = await app.enqueue_many([new, new, new])
        for outcome in (Done(json.dumps(ARGS)), Failed("it failed")):
            [job] = await app.leases.claim(worker="w", limit=1, queues=["default"])
            await app.leases.settle([(job, outcome)])
        event = await client.post("/events", json=EVENT)
        item = await client.post(
            "/api/v1/queue/items",
            json={
                "item_type": "content",
                "op": "ingest",
                "tenant_id": "x",
                "collection": "y",
                "payload": {"content": "text", "source_type": "s", **ARGS},
                "metadata": ARGS,
            },
        )
        self.parameters = {
            "job_id": str(done.id),
            "event_id": str(event.json()["id"]),
            "queue_id": item.json().get("queue_id", "none"),
            "correlation": "c",
        }
        assert SECRET not in event.text + item.text
        self.ids = [done.id, failed.id, pending.id, event.json()["id"]]


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Whole]:
    settings = Server(data=str(tmp_path), workers=0)
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db", secret_fields=settings.secret_fields)
    service = Service(app, install(app, settings, Sources({})))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(service.running())
        transport = httpx.ASGITransport(app=service)
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://penstock")
        )
        made = Whole(service, client)
        await made.plant()
        yield made


async def test_no_route_for_readers_shows_a_secret(whole: Whole) -> None:
    asked = answered = 0
    for route in whole.service.routes:
        declared = route.declared
        if declared.access is not Access.READ or declared.method != "GET" or declared.streams:
            continue
        for job_id in whole.ids:
            known = {**whole.parameters, "job_id": job_id}
            path = declared.path
            for name in route.path_types:
                path = path.replace(f"{{{name}}}", str(known.get(name, "default")))
            answer = await whole.client.get(path)
            assert SECRET not in answer.text, path
            asked += 1
            answered += answer.status_code == 200
    assert asked > 60
    assert answered > 40


async def test_what_steers_a_job_or_an_event_shows_no_secret(whole: Whole) -> None:
    done, failed, pending, event = whole.ids
    for path in (
        f"/api/v1/jobs/{failed}/retry",
        f"/api/v1/jobs/{pending}/reprioritise?priority=3",
        f"/api/v1/jobs/{pending}/reset",
        f"/api/v1/jobs/{pending}/cancel",
        f"/events/{event}/reset",
    ):
        answer = await whole.client.post(path)
        assert answer.status_code == 200, answer.text
        assert SECRET not in answer.text
        assert HIDDEN in answer.text
    answer = await whole.client.delete(f"/api/v1/jobs/{done}")
    assert SECRET not in answer.text


async def test_worker_gets_what_it_has_to_work_with(whole: Whole) -> None:
    answer = await whole.client.get("/events/subscribe", params={"tags": "a", "worker_id": "w"})
    assert answer.json()["payload"] == ARGS
    assert answer.json()["title"] == EVENT["title"]
    assert (await whole.app.get(whole.ids[2])).args == ARGS


@pytest.mark.parametrize(
    ("verb", "more"),
    [("cancel", {}), ("retry", {}), ("reprioritise", {"priority": 1}), ("delete", {})],
)
@pytest.mark.parametrize("dry_run", [True, False])
async def test_bulk_calls_find_nothing_by_what_is_hidden(
    whole: Whole, verb: str, more: dict[str, Any], *, dry_run: bool
) -> None:
    for text, found in ((SECRET, 0), (SECRET[:4], 0), ("ada", 1)):
        body = {"filter": {"text": text, "queue": "default"}, "dry_run": dry_run, **more}
        answer = await whole.client.post(f"/api/v1/jobs/bulk/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["matched"] > 0) == bool(found), (text, answer.text)
        assert (answer.json()["changed"] > 0) == (bool(found) and not dry_run)


async def test_bulk_calls_look_at_every_page(app: Penstock) -> None:
    """This holds even if whole portions of the results are hidden."""
    hidden = NewJob(task="t", payload='{"password":"needle"}')
    shown = NewJob(task="t", payload='{"note":"needle"}')
    await app.enqueue_many([hidden] * 700 + [shown] * 301 + [hidden] * 301)
    query = JobQuery(text="needle")
    assert await app.bulk(query).count() == 1_302
    app.connection.secrets = Secrets(["password"])
    assert await app.bulk(query).count() == 301
    bulk = await app.bulk(query).cancel()
    assert (bulk.matched, bulk.changed) == (301, 301)


GUESSES = ("Zx9qT", "Zx9qU")
"""The beginning of a hidden value, and a wrong guess."""


@pytest.mark.parametrize("newest_first", ["true", "false"])
@pytest.mark.parametrize("filters", [{}, {"state": "pending"}, {"state": "cancelled"}])
async def test_right_guess_at_a_hidden_value_is_answered_as_a_wrong_one(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, filters: dict[str, str], newest_first: str
) -> None:
    """This holds for every limit, and whatever surrounds the matches."""
    monkeypatch.setattr(search, "_PAGE_BYTES", 5_000)
    monkeypatch.setattr(search, "_PORTION", 2)
    monkeypatch.setattr(search, "_STRETCHES", (3, 4))
    app.connection.secrets = Secrets(["password"])
    theirs = NewJob(task="t", payload=json.dumps({"n": "x" * 900, "password": GUESSES[0] + "r"}))
    mine = NewJob(task="t", payload=json.dumps({"n": "x" * 900}), tags=GUESSES)
    around = [theirs] * 4
    ours = [*around, mine, *around, mine, mine, theirs, mine, mine, mine, *around]
    jobs = await app.enqueue_many(ours)
    if filters.get("state") == "cancelled":
        for job in jobs:
            await app.cancel(job.id)
    transport = httpx.ASGITransport(app=Service(app, []))
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        api = Api(client)
        for limit in range(1, 8):
            listed = {**filters, "limit": limit, "newest_first": newest_first}
            right, wrong = [await _pages(api, {**listed, "text": guess}) for guess in GUESSES]
            assert right == wrong
            assert sum(len(found) for found, _ in right) == 6
        for dry_run in (True, False):
            body = {"dry_run": dry_run, "priority": 7}
            answers = [
                await api("POST", "/jobs/bulk/reprioritise", body | {"filter": {"text": guess}})
                for guess in GUESSES
            ]
            assert answers[0]["matched"] == answers[1]["matched"]
            assert answers[0].keys() == answers[1].keys()


async def _pages(api: Api, listed: dict[str, Any]) -> list[tuple[list[int], int | None]]:
    """Return the jobs of each page and its `after`."""
    found: list[tuple[list[int], int | None]] = []
    after: dict[str, int] = {}
    while True:
        page = await api("GET", "/jobs", params={**listed, **after})
        found.append(([job["id"] for job in page["jobs"]], page["after"]))
        if page["after"] is None:
            return found
        after = {"after": page["after"]}


async def test_secret_fields_of_arguments_and_results_are_not_shown(app: Penstock) -> None:
    app.connection.secrets = Secrets(["password"])
    transport = httpx.ASGITransport(app=Service(app, []))
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        api = Api(client)
        args = {"to": "ada", "password": SECRET}
        made = await api("POST", "/jobs", {"task": "t", "args": args}, status=201)
        [job] = await app.leases.claim(worker="w", limit=1)
        assert job.args == args
        await app.leases.settle([(job, Done('{"password":"hunter2"}'))])
        one = await api("GET", f"/jobs/{job.id}")
        assert one["args"] == made["args"] == {"to": "ada", "password": HIDDEN}
        assert one["result"] == {"password": HIDDEN}


def test_commands_on_a_store_show_no_more_than_a_server(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path}/jobs.db")
    app = Penstock(shell.url)
    run_sync(app.enqueue_many([NewJob(task="t", payload=json.dumps(ARGS))]))
    run_sync(app.close())
    for command in (["jobs"], ["jobs", "1"], ["jobs", "--json"], ["jobs", "1", "--json"]):
        said = shell(*command).output
        assert SECRET not in said
    assert shell.json("jobs", "1")["args"]["db_password"] == HIDDEN
    assert shell.json("cancel", "--text", SECRET, "--dry-run")["matched"] == 0
    assert shell.json("cancel", "--text", "ada", "--dry-run")["matched"] == 1


def test_export_has_all_that_a_restore_needs(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path}/jobs.db")
    app = Penstock(shell.url)
    run_sync(app.enqueue_many([NewJob(task="t", payload=json.dumps(ARGS))]))
    run_sync(app.close())
    shell("export", str(tmp_path / "jobs.jsonl"))
    other = Penstock(f"sqlite:///{tmp_path}/other.db")
    run_sync(other.archive.import_(tmp_path / "jobs.jsonl"))
    assert [job.args for job in run_sync(other.find())] == [ARGS]
    run_sync(other.close())


def test_defaults_hide_what_people_call_their_secrets() -> None:
    assert Server().secret_fields == DEFAULT_FIELDS

"""Attacks on applications through the general routes; each of them once succeeded end to end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from penstock import Penstock, State
from penstock.apps import entries
from penstock.server.app import Service
from tests.apps.entries.support import work_off
from tests.apps.indexing.support import Embeddings, write
from tests.apps.indexing.support import serving as serving_index
from tests.apps.notebooks.support import served
from tests.server.support import guarded


def operation(kind: str, **fields: Any) -> dict[str, Any]:
    """A job for a task of notebooks."""
    return {
        "task": f"notebooks.{kind}",
        "queue": "notebooks",
        "args": {"operation": {"notebook": 1, "kind": kind, **fields}},
    }


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def embeddings() -> Iterator[Embeddings]:
    with Embeddings() as service:
        yield service


# Notebooks


async def test_no_job_makes_git_run_a_program(url: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    planted = f'[core]\n\trepositoryformatversion = 0\n[filter "x"]\n\tclean = "touch {ran}; cat"\n'
    async with served(url, tmp_path / "data") as api:
        config = (api.root / ".git" / "config").read_text()
        await api.create("planted", planted)
        await api.work()
        steps = [
            operation("delete", path=".git/config"),
            operation("move", path="planted", to=".git/config"),
        ]
        statuses = []
        for step in steps:
            statuses.append((await api.client.post("/api/v1/jobs", json=step)).status_code)
            await api.work()
        await api.create(".gitattributes", "* filter=x\n")
        await api.create("victim", "words")
        await api("POST", "/events/commit", {}, status=202)
        await api.work()
        assert not ran.exists()
        assert (api.root / ".git" / "config").read_text() == config
        assert statuses == [403, 403]


async def test_no_job_reaches_files_outside_of_a_notebook(url: str, tmp_path: Path) -> None:
    async with served(url, tmp_path / "data") as api:
        outside = api.root.parent.parent / "precious"
        outside.write_text("precious")
        statuses = []
        for step in (
            operation("move", path="../../precious", to="mine"),
            operation("delete", path="../../precious"),
        ):
            answer = await api.client.post("/api/v1/jobs/batch", json={"jobs": [step]})
            statuses.append(answer.status_code)
            await api.work()
        assert outside.exists()
        assert statuses == [403, 403]


# Indexing


def test_no_job_indexes_a_folder_elsewhere(tmp_path: Path, embeddings: Embeddings) -> None:
    project = write(tmp_path / "project", {"readme.md": "tea"})
    elsewhere = write(tmp_path / "elsewhere", {"secret.md": "password swordfish"})
    with serving_index(project, embeddings) as server:
        job = {
            "task": "indexing.run",
            "queue": "indexing",
            "args": {"parameters": {"folder": str(elsewhere)}},
        }
        answer = server.client.post("/api/v1/jobs", json=job)
        if answer.status_code == 201:
            server.finished(f"job_{answer.json()['id']}")
        assert server.found("swordfish") == []
        assert answer.status_code == 403
        assert "use POST /index" in answer.json()["detail"]


def test_no_job_writes_a_collection_elsewhere(tmp_path: Path, embeddings: Embeddings) -> None:
    project = write(tmp_path / "project", {"readme.md": "tea"})
    with serving_index(project, embeddings) as server:
        name = f"written-{uuid4()}"  # nothing that another test leaves beside this one is so named
        parameters = {"folder": str(project), "collection": f"../../../{name}"}
        job = {"task": "indexing.run", "queue": "indexing", "args": {"parameters": parameters}}
        answer = server.client.post("/api/v1/jobs", json=job)
        if answer.status_code == 201:
            server.finished(f"job_{answer.json()['id']}")
        assert not list(tmp_path.parent.rglob(name))
        assert answer.status_code == 403


def test_job_of_another_queue_does_not_stop_indexing(
    tmp_path: Path, embeddings: Embeddings
) -> None:
    project = write(tmp_path / "project", {"readme.md": "tea"})
    with serving_index(project, embeddings) as server:
        blocker = {"task": "t", "queue": "nobody-serves-this", "key": "indexing:default"}
        answer = server.client.post("/api/v1/jobs", json=blocker)
        assert server.finished(server.index("."))["status"] == "done"
        assert answer.status_code == 403, answer.text


# Entries


@contextmanager
def eavesdropper() -> Iterator[tuple[str, list[str | None]]]:
    """An HTTP server of an attacker, and the keys that were sent to it."""
    heard: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_response(400)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_no_job_sends_the_key_of_an_embedder_elsewhere(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    app = Penstock(url)
    application = entries.install(app, entries.Settings(workers=0), tmp_path / "data")
    made = entries.Entries(app, tmp_path / "data" / "entries", settings=entries.Settings())
    service = Service(app, [application])
    transport = httpx.ASGITransport(app=service)
    with eavesdropper() as (address, heard):
        async with (
            guarded(service),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
        ):
            made.register()
            payload = {"payload": {"embedder": f"openai:m@{address}"}}
            job = {"task": "entries.rebuild", "queue": "entries-operations", "args": payload}
            answer = await client.post("/api/v1/jobs", json=job)
            admins = await client.post("/api/v1/operations/rebuild", json=payload)
            await work_off(made)
            made.close()
            assert heard == []
            assert answer.status_code == 403, answer.text
            assert admins.status_code == 422, admins.text
            assert "embedders" in admins.json()["detail"]


# Other callers' jobs


async def test_superseding_leaves_the_jobs_of_other_callers_alone(url: str) -> None:
    app = Penstock(url)
    secrets = {name: await app.tokens.create(name, ["publish"]) for name in ("ada", "eve")}
    service = Service(app, [])
    transport = httpx.ASGITransport(app=service)
    async with (
        guarded(service),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):

        async def enqueue(who: str) -> Any:
            answer = await client.post(
                "/api/v1/jobs",
                json={"task": "t", "key": "k", "args": {"by": who}, "supersede": True},
                headers={"Authorization": f"Bearer {secrets[who]}"},
            )
            assert answer.status_code == 201, answer.text
            return answer.json()

        hers = await enqueue("ada")
        his = await enqueue("eve")
        assert (await app.get(hers["id"])).state is State.PENDING
        assert his["waiting"] == "blocked"

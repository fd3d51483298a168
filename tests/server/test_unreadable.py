"""What cannot be read back is refused by every route, and breaks no reader if it is stored."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock import InvalidJob, Penstock, State, run_sync
from penstock.client.remote import RemotePenstock
from penstock.config import Server, Sources
from penstock.server.app import Service
from penstock.server.applications import install
from tests.cli.support import Shell
from tests.server.support import serving_in_thread
from tests.worker.support import work_off

DIGITS = "9" * 5_000
UNREADABLE = {
    "digits": (DIGITS, "a", "5,000 digits"),
    "overflow": ("1e999", "a", "larger than any number"),
    "inside": ('{"b":[0,-1e999]}', "a.b[1]", "larger than any number"),
    "deep": ("[" * 979 + "]" * 979, "", "levels deep"),
    "deeper": ("[" * 201 + "]" * 201, "", "200 levels"),
    "objects": ('{"x":' * 900 + "1" + "}" * 900, "", "200 levels"),
    "deepest": ("[" * 50_000 + "]" * 50_000, "", "levels deep"),
}
CASES = pytest.mark.parametrize(("text", "place", "says"), UNREADABLE.values(), ids=UNREADABLE)
DEEP_ENOUGH = "[" * 200 + "]" * 200


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A server with every application."""
    settings = Server(data=str(tmp_path), workers=0)
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db", secret_fields=settings.secret_fields)
    service = Service(app, install(app, settings, Sources({})))
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        httpx.AsyncClient(transport=transport, base_url="http://penstock") as one,
    ):
        yield one


async def post(client: httpx.AsyncClient, path: str, body: str) -> httpx.Response:
    return await client.post(path, content=body, headers={"content-type": "application/json"})


@CASES
async def test_jobs_are_refused_with_the_field(
    client: httpx.AsyncClient, text: str, place: str, says: str
) -> None:
    one = await post(client, "/api/v1/jobs", f'{{"task":"t","args":{{"a":{text}}}}}')
    many = await post(
        client,
        "/api/v1/jobs/batch",
        f'{{"jobs":[{{"task":"t"}},{{"task":"t","args":{{"a":{text}}}}}]}}',
    )
    event = await post(client, "/events", f'{{"title":"t","tags":"x","payload":{{"a":{text}}}}}')
    for answer, field in ((one, "args"), (many, "jobs[1].args"), (event, "payload")):
        assert answer.status_code == 422, answer.text
        assert says in answer.json()["detail"]
        if says != "levels deep":  # else nobody could even find the field
            assert answer.json()["field"] == ".".join(filter(None, (field, place)))
    assert (await client.get("/api/v1/jobs")).json()["jobs"] == []


DOORS = {
    "/api/v1/queue/items": '{"item_type":"content","op":"ingest","tenant_id":"x","collection":"y",'
    '"payload":{"content":"c","source_type":"s"},"metadata":{"a":%s}}',
    "/api/v1/entries/write": '{"entity_type":"experience","category_code":"C","data":{"title":%s}}',
    "/api/v1/entries/update": '{"entity_id":"e","updates":{"title":%s}}',
    "/api/v1/operations/import": '{"payload":{"rows":[{"a":%s}]}}',
    "/api/v1/notebooks/n/files": '{"path":"a.md","content":"x","properties":{"a":%s}}',
}


@CASES
@pytest.mark.parametrize("path", DOORS)
async def test_other_doors_answer_clearly(
    client: httpx.AsyncClient, path: str, text: str, place: str, says: str
) -> None:
    del place, says
    answer = await post(client, path, DOORS[path] % text)
    assert answer.status_code in {400, 404, 413, 422}, answer.text
    assert "detail" in answer.json()


async def test_as_deep_as_is_allowed_comes_back_everywhere(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    body = f'{{"task":"t","args":{{"a":{DEEP_ENOUGH}}}}}'
    made = await post(client, "/api/v1/jobs", body)
    assert made.status_code == 201, made.text
    shown = await client.get("/api/v1/jobs/1")
    assert shown.json()["args"] == {"a": json.loads(DEEP_ENOUGH)}
    shell = Shell(f"sqlite:///{tmp_path}/jobs.db")
    listed = await asyncio.to_thread(shell.json, "jobs")
    assert listed["jobs"][0]["args"] == {"a": json.loads(DEEP_ENOUGH)}
    await asyncio.to_thread(shell, "jobs", "1")


def test_commands_refuse_what_cannot_be_read_back(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path}/jobs.db")
    run_sync(Penstock(shell.url).count())
    for text, _, _ in UNREADABLE.values():
        line = shell.error("enqueue", "t", "--args", f'{{"a":{text}}}', code=2)
        assert line.startswith("penstock: ")
        assert "Traceback" not in line
    assert shell.json("jobs")["jobs"] == []


@pytest.mark.parametrize("text", [one[0] for one in UNREADABLE.values()], ids=UNREADABLE)
async def test_rows_of_other_programs_break_no_reader(tmp_path: Path, text: str) -> None:
    """Inserted with SQL, because none of our routes would store it."""
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db", secret_fields=["password"])
    calls: list[int] = []
    app.task("t", lambda n=0, a=None: calls.append(n))
    await app.enqueue("t", {"n": 1})
    await app.enqueue("t", {"n": 2})
    rewrite(tmp_path / "jobs.db", f'{{"a":{text}}}')
    service = Service(app, [])
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        for path in ("/api/v1/jobs", "/api/v1/jobs/1", "/api/v1/jobs?text=x"):
            answer = await client.get(path)
            assert answer.status_code == 200
            json.loads(answer.text)
        assert "unreadable" in (await client.get("/api/v1/jobs/1")).json()["args"]
    shell = Shell(app.url)
    assert "unreadable" in (await asyncio.to_thread(shell.json, "jobs", "1"))["args"]
    assert len((await asyncio.to_thread(shell.json, "jobs"))["jobs"]) == 2
    await asyncio.to_thread(shell, "jobs", "1")
    with pytest.raises(InvalidJob, match="args of job 1"):
        _ = (await app.get(1)).args
    await work_off(app)
    bad, good = await app.get(1), await app.get(2)
    assert (good.state, calls[-1]) == (State.DONE, 2)
    assert bad.state.final  # a worker may run what its parser can read, deep as it is
    assert bad.state is State.DONE or "arguments of task t" in (bad.error or "")
    await app.close()


def rewrite(file: Path, payload: str) -> None:
    """Change the arguments of the first job."""
    connection = sqlite3.connect(file)
    with connection:
        statement = "UPDATE penstock_payload SET body = ? WHERE job_id = 1"
        assert connection.execute(statement, (payload,)).rowcount == 1
    connection.close()


def test_remote_queue_reads_what_a_server_has(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    app.task("t", lambda n=0: None)
    run_sync(app.enqueue("t", {"n": 1}))
    run_sync(app.enqueue("t", {"n": 2}))
    rewrite(tmp_path / "jobs.db", '{"a":1e999}')
    run_sync(app.close())
    with serving_in_thread(app.url) as server:
        remote = RemotePenstock(server.url, blocking=True)
        found = run_sync(remote.find())
        assert [job.id for job in found] == [2, 1]
        assert "unreadable" in run_sync(remote.get(1)).args
        for value in (float("nan"), float("inf"), 10**5_000, "\ud800"):
            with pytest.raises(InvalidJob, match=r"args\.a\.b"):
                run_sync(remote.enqueue("t", {"a": {"b": value}}))
        run_sync(remote.close())

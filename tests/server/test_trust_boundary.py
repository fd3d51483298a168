"""The trust boundary: only the routes of an application accept its names.

The doors are found by what the declared routes take, and the places where jobs enter a store by
reading the source: one that is added without being named here lets a test fail.
"""

import ast
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import penstock
from penstock import NewJob, Penstock, State
from penstock.apps.ingest.order import key_of
from penstock.apps.kit.manifest import application_names, manifest_of
from penstock.apps.kit.namespaces import FIELDS, Field
from penstock.apps.notebooks.operations.operation import Operation
from penstock.client import Client
from penstock.core.tokens import Access
from penstock.engine.connection import acting_as
from penstock.errors import NotAuthorised
from penstock.jobs import Verdict
from penstock.server.app import Service
from penstock.web.problems import JobProblem
from penstock.web.routes import route, routes_of
from tests.apps.notebooks.support import served as serving_notebooks
from tests.apps.support import served
from tests.cli.support import Shell
from tests.contract.support import STORES
from tests.server.support import guarded, serving

SOURCE = Path(penstock.__file__).parent

NAMED = {*FIELDS, "correlation_id"}
"""Fields of requests that name jobs, or relate them to each other."""

DOORS: dict[str, set[str]] = {
    "POST /api/v1/jobs": set(FIELDS),
    "POST /api/v1/jobs/batch": set(FIELDS),
    "POST /events": {"key", "dedupe"},
    "POST /events/batch": {"key", "dedupe"},
    "POST /api/v1/notebooks/{notebook}/batch": {"correlation_id"},
}
"""Routes that store jobs under names from the caller. Each is attacked below."""

_CHOOSING = {"task", "queue", "key", "correlation"}
CHOOSERS: dict[str, set[str]] = {
    f"POST /api/v1/jobs/bulk/{verb}": _CHOOSING
    for verb in ("cancel", "retry", "reprioritise", "delete")
}
"""Routes that select existing jobs; their scopes protect them."""

WRITERS = {
    ("engine/penstock.py", "_add", "add"): "asks first",
    ("engine/penstock.py", "_add_superseding", "add"): "for _add, which has asked",
    ("engine/penstock.py", "attempt", "add"): "inside _add_superseding",
    ("engine/schedules.py", "run_now", "add"): "stored already; only a schedule is named",
    ("engine/schedules.py", "_fire", "fire"): "for workers; whoever stores a schedule is asked",
    ("engine/schedules.py", "_put", "put_schedule"): "for put, which asks, and for declared ones",
    ("engine/schedules.py", "_change", "put_schedule"): "pauses and resumes",
    ("engine/schedules.py", "attempt", "put_schedule"): "inside the two before",
    ("engine/archive.py", "import_", "restore"): "asks first",
    ("engine/migration.py", "take_jobs", "restore"): "from one store to another",
    ("engine/migration.py", "_take", "restore"): "from one store to another",
    ("engine/migration.py", "take_settings", "put_schedule"): "from one store to another",
}
"""Where jobs, or what becomes jobs, are passed to a store, and why that is no way around."""


def fields(kind: Any) -> Iterator[str]:
    """Yield the names of all fields of a type, on all levels."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name
            yield from fields(field.type)
    for part in typing.get_args(kind) or getattr(kind, "__args__", ()):
        if isinstance(part, type | types.GenericAlias) or typing.get_args(part):
            yield from fields(part)


@asynccontextmanager
async def client_of(service: Service, secret: str = "") -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8000", headers=headers
    ) as client:
        yield client


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Penstock]:
    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made


# All doors, and all ways into a store


def test_every_route_that_takes_names_of_jobs_is_known(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for one in served(tmp_path).routes:
        if one.declared.method != "GET":
            taken = {*fields(one.body_type), *fields(one.query_type), *one.path_types} & NAMED
            if taken:
                found[f"{one.declared.method} {one.declared.path}"] = taken
    assert found == DOORS | CHOOSERS


def test_every_place_where_jobs_enter_a_store_is_known() -> None:
    found = set()
    for file in SOURCE.rglob("*.py"):
        place = file.relative_to(SOURCE)
        if place.parts[0] in ("stores", "core", "testing"):
            continue
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and _writes(node):
                        found.add((str(place), function.name, node.attr))
    assert found == WRITERS.keys()


def _writes(node: ast.Attribute) -> bool:
    verbs = ("add", "restore", "fire", "put_schedule")
    whose = ast.unparse(node.value)
    return node.attr in verbs and (whose.endswith("store") or node.attr in verbs[2:])


def test_every_route_is_kept_from_the_names_of_others(tmp_path: Path) -> None:
    service = served(tmp_path)
    own = {id(one): each.name for each in service.applications for one in each.routes}
    for one in service.routes:
        for name in application_names():
            job = NewJob(task=f"{name}.x", payload="{}")
            if own[id(one)] == name:
                one.admit([job])
            else:
                with pytest.raises(JobProblem):
                    one.admit([job])


class Later:
    """Routes that somebody adds later without knowing of the boundary."""

    def __init__(self, app: Penstock, job: NewJob, archive: Path) -> None:
        self._app = app
        self._job = job
        self._archive = archive

    @route("POST", "/later/enqueue", Access.PUBLISH)
    async def enqueue(self) -> None:
        await self._app.enqueue_many([self._job])

    @route("POST", "/later/batch", Access.PUBLISH)
    async def batch(self) -> None:
        await self._app.enqueue_batch([self._job])

    @route("POST", "/later/transact", Access.PUBLISH)
    async def transact(self) -> None:
        await self._app.transaction(lambda tx: tx.enqueue([self._job]))

    @route("POST", "/later/schedule", Access.PUBLISH)
    async def schedule(self) -> None:
        await self._app.schedules.put("s", self._job, every=timedelta(hours=1))

    @route("POST", "/later/import", Access.PUBLISH)
    async def import_jobs(self) -> None:
        await self._app.archive.import_(self._archive)


@pytest.mark.parametrize("door", ["enqueue", "batch", "transact", "schedule", "import"])
async def test_door_that_is_added_later_cannot_forget_the_boundary(
    app: Penstock, tmp_path: Path, door: str
) -> None:
    job = NewJob(task="notebooks.delete", payload="{}")
    async with Penstock(f"sqlite:///{tmp_path}/other.db") as other:
        await other.enqueue_many([job])
        await other.archive.export(tmp_path / "jobs.jsonl")
    service = Service(app, [], routes_of(Later(app, job, tmp_path / "jobs.jsonl")))
    async with client_of(service) as client:
        answer = await client.post(f"/later/{door}")
    assert answer.status_code == 403, answer.text
    assert await app.find() == []
    assert await app.schedules.list() == []


# The doors, one by one


def named(field: Field, text: str) -> dict[str, Any]:
    return {"task": "t", field: text}


@pytest.mark.parametrize("name", application_names())
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("form", ["{}", "{}.x", "{}:x", " {}-x", "{}/x"])
async def test_general_doors_refuse_the_names_of_applications(
    app: Penstock, name: str, field: Field, form: str
) -> None:
    text = form.format(name)
    async with client_of(Service(app, [])) as client:  # none of them is switched on here
        one = await client.post("/api/v1/jobs", json=named(field, text))
        jobs = [{"task": "innocent"}, named(field, text)]
        many = await client.post("/api/v1/jobs/batch", json={"jobs": jobs})
    assert (one.status_code, many.status_code) == (403, 403)
    assert one.json()["field"] == field
    assert many.json()["field"] == f"jobs[1].{field}"
    for answer in (one, many):
        said = answer.json()["detail"]
        assert f"{field} {text!r} belongs to the application {name}; use " in said
        assert manifest_of(name).route_for(text if field == "task" else "") in said
    assert await app.find() == []


async def test_refusal_names_the_right_route_for_a_task(app: Penstock) -> None:
    async with client_of(Service(app, [])) as client:
        answer = await client.post("/api/v1/jobs", json={"task": "notebooks.delete"})
        embed = await client.post("/api/v1/jobs", json={"task": "entries.rebuild"})
    assert answer.json() == {
        "detail": "task 'notebooks.delete' belongs to the application notebooks; "
        "use DELETE /api/v1/notebooks/{notebook}/files/{file_id}",
        "field": "task",
    }
    assert embed.json()["detail"].endswith("use POST /api/v1/operations/rebuild")


async def test_correlation_of_a_whole_batch_is_no_way_around(app: Penstock) -> None:
    async with client_of(Service(app, [])) as client:
        body = {"jobs": [{"task": "t"}], "correlation": "notebooks:b"}
        answer = await client.post("/api/v1/jobs/batch", json=body)
    assert answer.status_code == 403, answer.text
    assert await app.find() == []


@pytest.mark.parametrize("place", ["/a.md", "long" * 500])
async def test_key_of_an_item_is_refused(app: Penstock, place: str) -> None:
    key = key_of("shop", "docs", "main", place)
    async with client_of(Service(app, [])) as client:
        answer = await client.post("/api/v1/jobs", json={"task": "t", "key": key})
    assert answer.status_code == 403, answer.text
    assert "belongs to the application ingest" in answer.json()["detail"]


async def test_names_of_callers_are_taken_as_ever(app: Penstock) -> None:
    job = {
        "task": "my.notebooks",
        "queue": "notebook",
        "key": "eventsource",
        "dedupe": "client/1/0",
        "throttle": "indexed",
        "correlation": "ingested",
        "tenant": "events",
        "tags": ["events"],
    }
    async with client_of(Service(app, [])) as client:
        answer = await client.post("/api/v1/jobs", json=job)
    assert answer.status_code == 201, answer.text


async def test_events_keep_to_their_own_names(tmp_path: Path) -> None:
    service = served(tmp_path)
    async with client_of(service) as client:
        event = {"title": "t", "tags": "a"}
        one = await client.post("/events", json={**event, "key": "indexing:default"})
        events = [event, {**event, "key": "entries:x"}]
        many = await client.post("/events/batch", json={"events": events})
        assert (one.status_code, many.status_code) == (403, 403)
        assert "choose another key" in one.json()["detail"]
        assert many.json()["field"] == "events[1].key"
        assert await service.penstock.find() == []
        kept = await client.post("/events", json={**event, "key": "k", "dedupe": "indexing:x"})
        assert kept.status_code == 201
    (job,) = await service.penstock.find()
    assert (job.key, job.dedupe) == ("k", "events:indexing:x")


# Batches of notebooks


async def test_nobody_else_joins_a_batch_of_a_notebook(app: Penstock, tmp_path: Path) -> None:
    """A job that has failed under the name of a batch cancels none of its members."""
    (stranger,) = await app.enqueue_many([NewJob(task="t", payload="{}", correlation="mine")])
    await app.cancel(stranger.id)
    async with serving_notebooks(app.url, tmp_path / "data") as api:
        operations = [
            {"op": "create", "path": "a.md", "content": "1"},
            {"op": "move", "path": "a.md", "to": "b.md"},
        ]
        body = {"operations": operations, "correlation_id": "mine"}
        batch = await api.on("POST", "/batch", body)
        assert batch["correlation_id"] == "mine"
        await api.work()
        found = await api("GET", "/events/correlation/mine")
        assert (found["correlation_id"], found["completed"], found["total"]) == ("mine", 2, 2)
        assert {one["correlation_id"] for one in found["events"]} == {"mine"}
        assert api.disk() == {"b.md": "1"}


async def test_batch_of_an_earlier_version_is_found_and_runs(app: Penstock, tmp_path: Path) -> None:
    (stranger,) = await app.enqueue_many([NewJob(task="t", payload="{}", correlation="old")])
    await app.cancel(stranger.id)
    async with serving_notebooks(app.url, tmp_path / "data") as api:
        task = api.app.tasks["notebooks.create"]
        operation = Operation(
            notebook=1, kind="create", path="old", folder=True, exists=True, member=1
        )
        await task.using(correlation="old").enqueue(operation)
        await api.work()
        found = await api("GET", "/events/correlation/old")
        assert (found["completed"], found["total"]) == (1, 1)
        assert found["events"][0]["correlation_id"] == "old"


# What is there already


async def test_jobs_of_applications_are_steered_by_scope_as_ever(app: Penstock) -> None:
    (job,) = await app.enqueue_many([NewJob(task="entries.sync", payload="{}", queue="entries")])
    async with client_of(Service(app, [])) as client:
        for verb, path, body in (
            ("POST", f"/jobs/{job.id}/reprioritise?priority=9", None),
            ("POST", f"/jobs/{job.id}/cancel", None),
            ("POST", f"/jobs/{job.id}/retry", None),
            ("POST", "/jobs/bulk/cancel", {"filter": {"task": "entries.sync"}, "dry_run": False}),
            ("POST", "/queues/entries/pause", None),
            ("POST", "/queues/entries/resume", None),
            ("DELETE", f"/jobs/{job.id}", None),
        ):
            answer = await client.request(verb, f"/api/v1{path}", json=body)
            assert answer.status_code == 200, (path, answer.text)


async def test_schedule_that_a_program_stored_can_be_run_now(app: Penstock) -> None:
    await app.schedules.put(
        "s", NewJob(task="indexing.run", payload="{}"), every=timedelta(hours=1)
    )
    async with client_of(Service(app, [])) as client:
        answer = await client.post("/api/v1/schedules/s/run")
    assert answer.status_code == 201, answer.text


# Clients


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running.url


def test_python_client_says_which_route_to_use(server: str) -> None:
    with Client(server) as client, pytest.raises(NotAuthorised) as refused:
        client.enqueue("indexing.run", {"parameters": {"folder": "/"}})
    assert "belongs to the application indexing; use POST /index" in str(refused.value)


def test_enqueue_by_url_says_which_route_to_use_and_ends_with_4(server: str) -> None:
    for options in (
        ("notebooks.delete",),
        ("t", "--queue", "events"),
        ("t", "--key", "indexing:default"),
        ("t", "--dedupe", "entries.rebuild"),
    ):
        done = Shell(server)("enqueue", *options, code=4)
        assert "belongs to the application" in done.stderr
        assert "Traceback" not in done.stderr


# Superseding


class Callers:
    """Tokens of one service, and the jobs that their holders enqueue."""

    def __init__(self, service: Service) -> None:
        self.app = service.penstock
        self._service = service
        self._secrets: dict[str, str] = {}

    async def add(self, name: str, *scopes: str) -> None:
        self._secrets[name] = await self.app.tokens.create(name, scopes)

    async def enqueue(self, name: str, **options: Any) -> Any:
        async with client_of(self._service, self._secrets.get(name, "")) as client:
            body = {"task": "t", "key": "k", "args": {"by": name}, "supersede": True, **options}
            answer = await client.post("/api/v1/jobs", json=body)
            assert answer.status_code in (200, 201), answer.text
            return answer.json()

    async def states(self) -> list[tuple[str, State]]:
        return [(job.args["by"], job.state) for job in reversed(await self.app.find())]


@pytest.fixture(params=STORES)
async def callers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callers]:
    """Three tokens, on every store in turn."""
    service = Service(Penstock(STORES[request.param](tmp_path)), [])
    made = Callers(service)
    await made.add("ada", "publish")
    await made.add("eve", "publish", "read", "work")
    await made.add("root", "publish", "admin")
    async with guarded(service):
        yield made


async def test_superseding_job_replaces_what_the_same_token_enqueued(callers: Callers) -> None:
    await callers.enqueue("ada")
    await callers.enqueue("ada")
    assert await callers.states() == [("ada", State.SUPERSEDED), ("ada", State.PENDING)]


async def test_superseding_job_waits_behind_those_of_others(callers: Callers) -> None:
    await callers.enqueue("ada")
    job = await callers.enqueue("eve")
    assert job["waiting"] == "blocked"
    await callers.enqueue("ada")  # the newest is another's by now
    assert await callers.states() == [
        ("ada", State.PENDING),
        ("eve", State.PENDING),
        ("ada", State.PENDING),
    ]


async def test_token_with_admin_replaces_what_others_enqueued(callers: Callers) -> None:
    await callers.enqueue("ada")
    await callers.enqueue("root")
    assert await callers.states() == [("ada", State.SUPERSEDED), ("root", State.PENDING)]


async def test_jobs_of_programs_are_left_alone(callers: Callers) -> None:
    await callers.app.enqueue_many([NewJob(task="t", payload='{"by":"us"}', key="k")])
    await callers.enqueue("ada")
    assert await callers.states() == [("us", State.PENDING), ("ada", State.PENDING)]


async def test_job_that_was_retried_still_belongs_to_who_enqueued_it(callers: Callers) -> None:
    job = await callers.enqueue("ada")
    await callers.app.cancel(job["id"])
    await callers.app.retry(job["id"])
    await callers.enqueue("eve")
    await callers.enqueue("eve")
    assert await callers.states() == [
        ("ada", State.PENDING),
        ("eve", State.SUPERSEDED),
        ("eve", State.PENDING),
    ]


async def test_merge_rule_undoes_no_job_of_another(callers: Callers) -> None:
    callers.app.task("t", lambda by: by, merge=lambda *_: Verdict.DROP)
    await callers.enqueue("ada")
    await callers.enqueue("eve")
    assert await callers.states() == [("ada", State.PENDING), ("eve", State.PENDING)]
    await callers.enqueue("eve")
    assert await callers.states() == [("ada", State.PENDING), ("eve", State.SUPERSEDED)]


async def test_job_that_comes_between_is_not_replaced_unseen(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner that was checked must be that of the job that is replaced."""
    await callers.enqueue("ada")
    ask: Callable[..., Any] = callers.app._is_own
    came: list[bool] = []

    async def answer_late(job: Any) -> bool:
        owns = bool(await ask(job))
        if not came:
            came.append(True)
            with acting_as("us"):
                new = NewJob(task="t", payload='{"by":"us"}', key="k")
                await callers.app.enqueue_many([new])
        return owns

    monkeypatch.setattr(callers.app, "_is_own", answer_late)
    await callers.enqueue("ada")
    assert await callers.states() == [
        ("ada", State.PENDING),
        ("us", State.PENDING),
        ("ada", State.PENDING),
    ]


async def test_without_tokens_there_is_one_caller(app: Penstock) -> None:
    service = Service(app, [])
    callers = Callers(service)
    async with guarded(service):
        await app.enqueue_many([NewJob(task="t", payload='{"by":"us"}', key="k")])
        await callers.enqueue("")
    assert await callers.states() == [("us", State.SUPERSEDED), ("", State.PENDING)]

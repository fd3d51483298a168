"""Jobs that no route would have stored, for every task of every application and each parameter.

They are put into the store itself, as somebody with SQL could. Whatever they say, they harm no more
than a route would: they fail at the first attempt, with a sentence, and nothing outside changes.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from penstock import ConfigurationError, InvalidJob, Job, NewJob, Penstock, State, Worker
from penstock.apps import entries, indexing
from penstock.apps.indexing.files import Files, known_folders
from penstock.apps.indexing.job import FolderMissing, Parameters, Watching, check_arguments
from penstock.apps.indexing.places import OutOfBounds
from penstock.apps.notebooks.operations.operation import KINDS
from penstock.server.app import Service
from penstock.server.applications import APPS
from tests.apps.entries.support import Letters, work_off
from tests.apps.ingest.support import bench
from tests.apps.notebooks.support import served as serving_notebooks
from tests.apps.support import registered, served

LONG = "x" * 5_000
TYPES: tuple[Any, ...] = ([], {}, "x")

PATHS = (
    *("../outside/precious", "a/../../outside/precious", "..", ".", "/", "//x"),
    *("/etc/passwd", "./a", "a//b", "a/", ".git/config", "a/.git/hooks/x", ".GIT/config"),
    *(".git /config", ".git./config", ".g\u200bit/config", "git~1/config"),
    *(".penstock/lock", ".Penstock/staged/x", "a\0b", "a\nb", LONG),
)
STAGED = (
    ["../../../outside/precious", 1, "0" * 64],
    ["0" * 32, 1, "../../outside/precious"],
    ["0" * 32, 1, "0" * 63],
    ["0" * 32, -1, "0" * 64],
    ["lock", 1, "0" * 64, True],
    *TYPES,
)

OPERATION: dict[str, tuple[Any, ...]] = {
    "notebook": (0, -1, 2**70, "1", None),
    "kind": ("chmod", "", None, 1),
    "path": (*PATHS, None, 1),
    "to": (*PATHS, 1),
    "folder": ("yes", None, 1),
    "file": ("x", 1.5),
    "exists": ("x", 1),
    "content": STAGED,
    "fields": ({"path": "x"}, {"title": 1}, {"properties": "x"}, {"title": LONG}, "x"),
    "initial": ({"hash": "x"}, {"description": []}, "x"),
    "reset": ("x", None),
    "version": ("x", 1.5),
    "member": ("x", 1.5),
    "changes": ("x", [["a"]], [[1, 2]], [["../outside/precious", "../outside/precious"]]),
}
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "folder": (
        "/",
        "/etc",
        "{outside}",
        "{data}",
        "{link}",
        "..",
        "",
        "relative",
        "a\0b",
        "{root}/" + LONG[:300],
        1,
        None,
    ),
    "operation": ("remove", "", None),
    "paths": (["/etc"], ["{outside}"], ["{link}"], ["{inside}"], [1], "x"),
    "collection": ("../../../x", "..", ".", "", "a/b", "a\0", "a\n", "x" * 65, None, 1),
    "choice": ({"types": ["nonsense"]}, {"languages": ["klingon"]}, {"include": ["[" * 2_000]}, 1),
    "cutting": ({"size": 0}, {"size": 10**9}, {"overlap": -1}, {"size": 16, "overlap": 16}, 1),
    "watching": ({"debounce": 0}, {"debounce": -1}, {"on": "x"}, 1),
    "metadata_file": ("/etc/passwd", "{outside}/precious", "{link}/precious", "{inside}", "..", 1),
    "force": ("x", None),
    "source": ("x", None),
}
EMBEDDERS = (
    *("openai:m@http://elsewhere/", "sentence-transformers:/tmp/x", "nonsense", "", "OPENAI:m@h"),
    *(None, 1, ["wordllama"]),
)
ITEM: dict[str, tuple[Any, ...]] = {
    "queue_id": (None, 1),
    "item_type": ("program", "", None, 1),
    "op": ("run", "scan", "", None, 1),
    "tenant_id": ("", None, 1),
    "collection": ("", None, 1),
    "branch": (1, []),
    "payload": (
        *({"file_path": one} for one in ("/etc/passwd", "{outside}/precious", "{link}/precious")),
        *(
            {"file_path": one}
            for one in (
                "relative",
                "",
                "{data}/x",
                1,
                "{root}/../outside/precious",
                "{root}/" + LONG[:300],
            )
        ),
        *(None, {}, "x", []),
    ),
    "metadata": ("x", []),
}
HOSTILE: dict[str, dict[str, Any]] = {
    **{f"notebooks.{kind}": {"operation": OPERATION} for kind in KINDS},
    "indexing.run": {"parameters": PARAMETERS},
    "entries.embed": {"ids": ([], [""], [1], [LONG], "x", None)},
    "entries.sync": {"payload": ({"x": 1}, "x", None)},
    "entries.reembed": {
        "payload": ({"x": 1}, {"entity_type": 1}, {"entity_type": "nonsense"}, None)
    },
    "entries.import": {
        "payload": (
            *(
                {"file": one}
                for one in ("../../x", "/etc/passwd", "a\0b", "0" * 32 + ".csv/../x", 1)
            ),
            *({}, {"rows": [1]}, {"rows": [], "file": "x"}, {"rows": [{}], "mode": "x"}, None),
        )
    },
    "entries.rebuild": {"payload": (*({"embedder": one} for one in EMBEDDERS), {}, None)},
    "ingest.item": ITEM,
}
"""Values that no route takes, for every task and each parameter, and each field of a Struct."""


def tasks(folder: Path) -> dict[str, Any]:
    return {name: task for app in APPS for name, task in registered(app, folder).tasks.items()}


def test_every_task_and_each_of_its_parameters_is_covered(tmp_path: Path) -> None:
    found = tasks(tmp_path)
    assert HOSTILE.keys() == found.keys()
    for name, task in found.items():
        parameters = inspect.signature(inspect.unwrap(task.handler), eval_str=True).parameters
        assert HOSTILE[name].keys() == parameters.keys(), name
        for parameter, values in HOSTILE[name].items():
            kind = parameters[parameter].annotation
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                assert values.keys() == set(kind.__struct_fields__), (name, parameter)
                assert all(values.values())
            else:
                assert values


# The world outside of all applications


class Outside:
    """Files that no job may touch, a link to them, and what is allowed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.outside = folder / "outside"
        for one in (self.root, self.outside, folder / "data"):
            one.mkdir(exist_ok=True)
        (self.outside / "precious").write_text("precious")
        (self.root / "link").symlink_to(self.outside)
        (self.root / "inside").symlink_to(self.root / "elsewhere")
        self.names = {
            "{inside}": str(self.root / "inside"),
            "{outside}": str(self.outside),
            "{data}": str(folder / "data"),
            "{link}": str(self.root / "link"),
            "{root}": str(self.root),
        }

    def spelled(self, value: Any) -> Any:
        """A hostile value with the paths of this folder."""
        text = json.dumps(value)
        for name, path in self.names.items():
            text = text.replace(name, path)
        return json.loads(text)

    def check(self) -> None:
        assert [one.name for one in self.outside.iterdir()] == ["precious"]
        assert (self.outside / "precious").read_text() == "precious"


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


async def put(app: Penstock, task: str, queue: str, arguments: Mapping[str, Any]) -> int:
    """A job in the store, by other means than a route."""
    payload = json.dumps(arguments)
    (job,) = await app.enqueue_many([NewJob(task=task, queue=queue, payload=payload)])
    return int(job.id)


def check_refused(job: Job, given: object) -> None:
    """It has failed for good, at once, with a sentence."""
    assert job.state is State.FAILED, (given, job)
    assert job.attempt == 1, (given, job)
    assert (job.error or "").strip(), given


# Notebooks


VALID: dict[str, dict[str, Any]] = {
    "create": {"path": "new", "folder": True, "exists": True},
    "update": {"path": "there.md", "fields": {"title": "t"}},
    "move": {"path": "there.md", "to": "elsewhere.md"},
    "delete": {"path": "there.md"},
    "sync": {},
    "commit": {},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_hostile_operation_changes_nothing(
    kind: str, tmp_path: Path, outside: Outside
) -> None:
    async with serving_notebooks(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data") as api:
        await api.create("there.md", "words")
        await api.work()
        (api.root / "link").symlink_to(outside.outside)
        git = (api.root / ".git" / "config").read_text()
        given: dict[int, tuple[str, Any]] = {}
        for field, values in OPERATION.items():
            for value in values:
                operation = {"notebook": 1, "kind": kind, **VALID[kind], field: value}
                arguments = {"operation": operation}
                number = await put(api.app, f"notebooks.{kind}", "notebooks", arguments)
                given[number] = field, value
        for path in ("link/precious", "link"):
            operation = {"notebook": 1, "kind": kind, **VALID[kind], "path": path}
            if kind in ("create", "update"):
                await put(api.app, f"notebooks.{kind}", "notebooks", {"operation": operation})
        await asyncio.wait_for(api.work(), 120)
        for job_id, (field, value) in given.items():
            job = await api.app.get(job_id)
            if job.state is not State.DONE:
                check_refused(job, (field, value))
            else:  # of a sync, what is no path is passed by, and a sync of no notebook does nothing
                assert kind == "sync", (field, value, job)
                assert field in ("changes", "notebook"), (field, value)
        for job_id in given:  # they are shown, or not known here, but no list fails
            shown = await api.client.get(f"/api/v1/events/{job_id}")
            assert shown.status_code in (200, 404), shown.text
        assert api.disk()["there.md"] == "words"
        assert (api.root / ".git" / "config").read_text() == git
    outside.check()


# Indexing


def nested(values: Mapping[str, tuple[Any, ...]], base: Mapping[str, Any]) -> Iterator[Any]:
    for field, each in values.items():
        for value in each:
            yield {**base, field: value}


def test_hostile_parameters_are_refused_before_anything_is_read(outside: Outside) -> None:
    settings = indexing.Settings(project_root=str(outside.root), embedder="nonsense")
    app = Penstock("memory://")
    places = indexing.assemble(app, settings, outside.folder / "data").places
    decode = app.tasks["indexing.run"].arguments.decode
    refused = InvalidJob, OutOfBounds, ConfigurationError, FolderMissing
    assert set(refused[1:]) <= set(app.tasks["indexing.run"].permanent)
    good = {"folder": str(outside.root)}
    check_arguments(decode(json.dumps({"parameters": good}))["parameters"], places)
    for parameters in nested(PARAMETERS, good):
        for operation in ("index", "add"):
            given = outside.spelled({"operation": operation, **parameters})
            with pytest.raises(refused):
                check_arguments(decode(json.dumps({"parameters": given}))["parameters"], places)
    outside.check()


async def test_hostile_jobs_are_listed_like_others(tmp_path: Path) -> None:
    app = Penstock("memory://")
    application = indexing.install(app, indexing.Settings(), tmp_path)
    for parameters in (*nested(PARAMETERS, {"folder": "x"}), None):
        await put(app, "indexing.run", "indexing", {"parameters": parameters})
    await put(app, "indexing.run", "indexing", {})
    transport = httpx.ASGITransport(app=Service(app, [application]))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        listed = await client.get("/index/jobs", params={"limit": 100})
        assert listed.status_code == 200, listed.text
        first = await client.get("/index/jobs/job_1")
        assert first.status_code == 200, first.text


def test_folder_that_was_stored_by_a_hostile_job_keeps_no_list_from_being_read(
    tmp_path: Path,
) -> None:
    with Files(tmp_path) as files:
        files.ask(Parameters(folder="/good"))
        files.ask(
            Parameters(folder="/bad", collection="../x", watching=Watching(on=True, debounce=1))
        )
    found = {one.path: one.watched for one in known_folders(tmp_path)}
    assert found == {"/good": False, "/bad": False}


# Entries


@asynccontextmanager
async def some_entries(folder: Path) -> AsyncIterator[tuple[entries.Entries, list[str]]]:
    """Entries with a row, and which embedders were opened."""
    opened: list[str] = []

    def opening(configuration: str) -> Any:
        opened.append(configuration)
        return Letters()

    settings = entries.Settings(embedder="letters", retry_delay=0)
    async with Penstock(f"sqlite:///{folder}/jobs.db") as app:
        made = entries.Entries(app, folder / "entries", settings=settings, open_embedder=opening)
        await made.prepare()
        made.register()
        try:
            yield made, opened
        finally:
            made.close()


@pytest.mark.parametrize("task", [name for name in HOSTILE if name.startswith("entries.")])
async def test_hostile_jobs_of_entries_open_no_embedder_and_no_file(
    task: str, tmp_path: Path, outside: Outside
) -> None:
    queue = "entries" if task == "entries.embed" else "entries-operations"
    async with some_entries(tmp_path) as (made, opened):
        for parameter, values in HOSTILE[task].items():
            for value in values:
                job = await put(made.penstock, task, queue, {parameter: value})
                await asyncio.wait_for(work_off(made), 60)
                check_refused(await made.penstock.get(job), value)
        assert opened == []
    outside.check()


async def test_rebuild_goes_over_to_what_the_settings_name(tmp_path: Path) -> None:
    async with some_entries(tmp_path) as (made, _):
        made.settings = msgspec.structs.replace(made.settings, embedders=("others",))
        for embedder in ("others", "minilm", "letters"):
            payload = {"payload": {"embedder": embedder}}
            job = await put(made.penstock, "entries.rebuild", "entries-operations", payload)
            await asyncio.wait_for(work_off(made), 60)
            assert (await made.penstock.get(job)).state is State.DONE


# Ingest


async def test_hostile_items_read_nothing_elsewhere(outside: Outside) -> None:
    async with bench(outside.root) as table:
        await table.service.prepare()
        outside.names["{data}"] = str(outside.root / "data")
        file = table.write("good.md", "good words")
        good = {
            "queue_id": "q",
            "item_type": "file",
            "op": "ingest",
            "tenant_id": "shop",
            "collection": "docs",
            "branch": "main",
            "payload": {"file_path": file},
            "metadata": {},
        }
        for given in nested(ITEM, good):
            job = await put(table.app, "ingest.item", "ingest", outside.spelled(given))
            await asyncio.wait_for(Worker(table.app, queues=["ingest"]).run(until_empty=True), 60)
            check_refused(await table.app.get(job), given)
        assert table.chunks() == {}
    outside.check()


# Paths in requests

ODD_PATHS = {
    "long name": "{root}/" + "x" * 300,
    "long name elsewhere": "/" + "x" * 300,
    "long name below a folder": "{root}/" + "x" * 300 + "/y",
    "long path": "{root}/" + "x/" * 2_020,
    "nul": "{root}/a\0b",
    "loop": "{root}/loop",
    "below a loop": "{root}/loop/x",
    "below a file": "{root}/file.md/x",
    "home of nobody": "~nobody-of-that-name/x",
}


def requests_with(path: str) -> Iterator[tuple[str, str, Any]]:
    """Every request that names a path of the machine."""
    yield "POST", "/api/v1/ingest", {"path": path}
    yield "POST", "/api/v1/ingest", {"project": path}
    yield "POST", "/api/v1/ingest", {"library": "x", "source": path}
    yield "POST", "/api/v1/ingest", {"library": "x", "source": f"file://{path}"}
    for kind, field in (("file", "file_path"), ("folder", "folder_path")):
        item = {"item_type": kind, "op": "ingest", "tenant_id": "x", "collection": "x"}
        yield "POST", "/api/v1/queue/items", {**item, "payload": {field: path}}
    yield "POST", "/api/v1/ingest/search", {"query": "x", "under": path}
    yield "POST", "/index", {"folder_path": path}
    yield "POST", "/index", {"folder_path": "{root}", "folder_metadata_file": path}
    yield "POST", "/index/add", {"paths": [path]}
    yield "POST", "/query", {"query": "x", "file_paths": [path]}
    yield "DELETE", "/index/folders", {"folder_path": path}
    yield "POST", "/api/v1/notebooks", {"name": "x", "path": path}


@pytest.mark.parametrize("name", ODD_PATHS)
async def test_odd_path_in_a_request_is_no_failure_of_the_server(
    name: str, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    (outside.root / "loop").symlink_to(outside.root / "loop")
    (outside.root / "file.md").write_text("words")
    monkeypatch.chdir(outside.root)
    monkeypatch.setenv("HOME", str(outside.root))
    service = served(outside.folder / "data", f"sqlite:///{outside.folder}/jobs.db")
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        for method, url, body in requests_with(ODD_PATHS[name]):
            answer = await client.request(method, url, json=outside.spelled(body))
            assert answer.status_code < 500, (method, url, body, answer.text)

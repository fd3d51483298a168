"""The routes of indexing, without a worker, so that jobs stay pending."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock, State
from penstock.apps.indexing import Settings, install, routes
from penstock.apps.indexing.files import LOCK
from penstock.apps.kit import Packages, locked
from penstock.apps.kit.sentences import INTERNAL
from penstock.leases import Cancelled, Done, Failed, Outcome
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from tests.apps.indexing.support import write
from tests.contract.support import STORES

REPORT = '{"total_chunks":3}'


class Api:
    """Sends the requests of a client."""

    def __init__(self, client: httpx.AsyncClient, app: Penstock, project: Path) -> None:
        self.client = client
        self.app = app
        self.project = project

    async def __call__(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = await self.client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def index(self, folder: str = "docs", how: str = "", **fields: Any) -> Any:
        return await self("POST", f"/index/{how}", {"folder_path": folder, **fields}, status=202)

    async def refused(self, folder: str = "docs", how: str = "", **fields: Any) -> str:
        body = {"folder_path": folder, **fields}
        answer = await self("POST", f"/index/{how}", body, status=400)
        assert answer.keys() <= {"detail", "field"}
        return str(answer["detail"])

    async def settle(self, outcome: Outcome) -> None:
        """Settle the oldest job with this outcome."""
        (job,) = await self.app.leases.claim(worker="w", queues=["indexing"])
        await self.app.leases.settle([(job, outcome)])


@asynccontextmanager
async def served(url: str, project: Path, **settings: Any) -> AsyncIterator[Api]:
    app = Penstock(url)
    chosen = Settings(project_root=str(project), **settings)
    service = Service(app, [install(app, chosen, project.parent / "data")])
    gate = Authenticator(app, open_without_tokens=True)
    service.guard(gate)
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        gate.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield Api(client, app, project)


@pytest.fixture
def project(folder: Path) -> Path:
    return write(folder, {"docs/a.md": "alpha", "code/b.py": "beta"})


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, project: Path, tmp_path: Path) -> AsyncIterator[Api]:
    async with served(STORES[request.param](tmp_path), project) as api:
        yield api


@pytest.fixture
async def one(project: Path) -> AsyncIterator[Api]:
    """On one store, for tests that do not depend on it."""
    async with served("memory://", project) as api:
        yield api


# Asking for jobs


async def test_request_is_accepted_with_all_that_clients_read(api: Api) -> None:
    first = await api.index()
    second = await api.index("code", include_code=True)
    assert first == {
        "job_id": "job_1",
        "status": "pending",
        "message": "Job job_1 queued, 1 of 1",
        "queue_position": 1,
        "queue_length": 1,
        "dedupe_hit": False,
    }
    assert (second["queue_position"], second["queue_length"]) == (2, 2)


async def test_path_means_the_same_with_and_without_its_slash(api: Api) -> None:
    for path in ("/index", "/index/"):
        answer = await api.client.post(path, json={"folder_path": "docs"})
        assert answer.status_code == 202
    for path in ("/index/jobs", "/index/jobs/", "/index/folders", "/health/status/", "/health/"):
        assert (await api.client.get(path)).status_code == 200


async def test_duplicate_gets_the_same_job_while_it_waits_or_runs(api: Api) -> None:
    first = await api.index()
    again = await api.index()
    assert (again["job_id"], again["dedupe_hit"]) == (first["job_id"], True)
    assert again["message"] == "Duplicate: job job_1 already pending"
    absolute = await api.index(str(api.project / "docs"))
    assert absolute["dedupe_hit"]
    (job,) = await api.app.leases.claim(worker="w", queues=["indexing"])
    running = await api.index()
    assert running["message"] == "Duplicate: job job_1 already running"
    await api.app.leases.settle([(job, Done(REPORT))])
    assert not (await api.index())["dedupe_hit"]


@pytest.mark.parametrize("how", ["?force=true", ""])
async def test_force_makes_another_job(one: Api, how: str) -> None:
    await one.index()
    answer = await one.index(how=how, force=not how)
    assert (answer["job_id"], answer["dedupe_hit"]) == ("job_2", False)


async def test_other_parameters_are_another_job(one: Api) -> None:
    ids = [
        (await one.index(**fields))["job_id"]
        for fields in (
            {}, {"include_code": True}, {"chunk_size": 256}, {"exclude_patterns": ["x"]},
            {"collection": "other"}, {"watch_mode": "auto"}, {"include_types": ["python"]},
        )
    ]  # fmt: skip
    assert len(set(ids)) == 7


async def test_queue_is_full_at_its_limit_and_a_duplicate_still_gets_its_job(
    api: Api,
) -> None:
    write(api.project, {f"many/{n}/a.md": "a" for n in range(101)})
    answers = await asyncio.gather(
        *(api.client.post("/index/", json={"folder_path": f"many/{n}"}) for n in range(101))
    )
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [202] * 100 + [429]
    (full,) = [answer for answer in answers if answer.status_code == 429]
    assert full.headers["Retry-After"] == "1"
    assert "its limit is 100 pending jobs" in full.json()["detail"]
    accepted = next(n for n, answer in enumerate(answers) if answer.status_code == 202)
    assert (await api.index(f"many/{accepted}"))["dedupe_hit"]
    listed = await api("GET", "/index/jobs/?limit=20")
    assert (len(listed["jobs"]), listed["pending"], listed["total"]) == (20, 100, 100)


async def test_adding_takes_files_and_folders(one: Api) -> None:
    answer = await one("POST", "/index/add", {"paths": ["docs/a.md", "code"]}, status=202)
    job = await one("GET", f"/index/jobs/{answer['job_id']}")
    assert (job["operation"], job["folder_path"]) == ("add", str(one.project))
    folder = await one("POST", "/index/add", {"folder_path": "docs"}, status=202)
    assert folder["queue_position"] == 2
    await one("POST", "/index/add", {"paths": []}, status=400)
    await one("POST", "/index/add", {"paths": ["none.md"]}, status=400)


async def test_dry_run_tells_what_would_be_done_and_does_nothing(one: Api) -> None:
    write(one.project, {"docs/b.md": "x" * 5_000_001})
    answer = await one.index(dry_run=True)
    assert answer["message"] == "Dry run: 1 files would be indexed, 1 skipped"
    assert (await one("GET", "/index/jobs/"))["total"] == 0


# What is refused


async def test_folders_outside_of_the_project_are_refused(one: Api, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"a.md": "a"})
    (one.project / "link").symlink_to(outside)
    for folder in (str(outside), "../outside", "link", "/"):
        assert "PENSTOCK_ALLOW_EXTERNAL_PATHS" in await one.refused(folder)
    detail = await one.refused(str(outside), "?allow_external=true")
    assert "set PENSTOCK_ALLOW_EXTERNAL_PATHS=true on the server" in detail


async def test_setting_alone_lets_folders_outside_of_the_project_be_indexed(
    project: Path, tmp_path: Path
) -> None:
    outside = write(tmp_path / "outside", {"a.md": "a", "about.json": "{}"})
    file = str(outside / "about.json")
    async with served("memory://", project, allow_external_paths=True) as api:
        for how in ("", "?allow_external=false", "?force=false&allow_external=true"):
            await api.index(str(outside), how, folder_metadata_file=file)
        await api("POST", "/index/add", {"paths": [str(outside / "a.md")]}, status=202)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"folder_path": "none"}, "none does not exist"),
        ({"folder_path": "docs/a.md"}, "not a folder"),
        ({"folder_path": "do\0cs"}, "NUL"),
        ({"folder_path": "x" * 4_000}, "cannot be indexed"),
        ({"injector_script": "x.py"}, "does not run code from requests"),
        ({"generate_summaries": True}, "no language model"),
        ({"supported_languages": ["klingon"]}, "choose from"),
        ({"include_types": ["films"]}, "choose from"),
        ({"chunk_size": 64, "chunk_overlap": 40}, "half of chunk_size"),
        ({"folder_metadata_file": "none.json"}, "none.json does not exist"),
        ({"include_patterns": ["a["], "exclude_patterns": ["!"]}, "exclude_patterns"),
    ],
)
async def test_wrong_field_is_refused_with_what_is_wrong(
    one: Api, fields: dict[str, Any], said: str
) -> None:
    assert said in await one.refused(**fields)


async def test_servers_own_folder_is_not_indexed(project: Path) -> None:
    write(project.parent, {"data/indexing/a.md": "a"})
    async with served("memory://", project, allow_external_paths=True) as api:
        detail = await api.refused(str(project.parent / "data"), "?allow_external=true")
        assert "belongs to the server" in detail


async def test_unknown_field_is_named(one: Api) -> None:
    answer = await one("POST", "/index/", {"folder_path": "docs", "colour": 1}, status=422)
    assert answer["field"] == "colour"


async def test_without_the_packages_the_routes_say_what_is_missing(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PACKAGES", Packages("indexing", ("no_such_package",)))
    for method, path, body in (
        ("POST", "/index/", {"folder_path": "docs"}),
        ("POST", "/query/", {"query": "a"}),
    ):
        answer = await one(method, path, body, status=501)
        assert "pip install 'penstock[indexing]'" in answer["detail"]
    assert (await one("GET", "/health/status"))["total_chunks"] == 0


# Looking at jobs


async def test_list_has_all_that_clients_read(api: Api) -> None:
    await api.index()
    await api.index("code")
    await api.settle(Failed("OSError: no\n\nwhere", permanent=True))
    listed = await api("GET", "/index/jobs/?limit=20")
    assert [job["id"] for job in listed["jobs"]] == ["job_2", "job_1"]
    counts = {name: listed[name] for name in ("total", "pending", "running", "completed", "failed")}
    assert counts == {"total": 2, "pending": 1, "running": 0, "completed": 0, "failed": 1}
    job = listed["jobs"][1]
    assert job["job_id"] == job["id"]
    assert (job["status"], job["source"], job["progress_percent"]) == ("failed", "manual", 0.0)
    assert (job["folder_path"], job["error"]) == (str(api.project / "docs"), "no")
    assert job["enqueued_at"].endswith("Z")
    assert job["started_at"].endswith("Z")
    page = await api("GET", "/index/jobs/?limit=1&offset=1")
    assert [job["id"] for job in page["jobs"]] == ["job_1"]


async def test_detail_has_all_that_clients_read(api: Api) -> None:
    await api.index()
    waiting = await api("GET", "/index/jobs/job_1")
    assert waiting["message"] == "it is ready; no free worker has claimed it yet"
    await api.settle(Done(REPORT))
    job = await api("GET", "/index/jobs/job_1")
    assert (job["status"], job["progress_percent"], job["total_chunks"]) == ("done", 100.0, 3)
    assert job["finished_at"] == job["completed_at"] is not None
    assert job["message"].startswith("it finished at")
    assert job["result"] == {"total_chunks": 3}
    assert job["execution_time_ms"] >= 0


ERRORS = [
    (Failed("TimeoutError: it ran longer than 7200 s", permanent=True), "Timeout after 7200s"),
    (
        Failed("OSError: [Errno 5] Bad disk: '/srv/penstock/a.db'\n\nTraceback …"),
        "Bad disk: 'a.db'",
    ),
    (Failed("KeyError: 'x'\n\nTraceback (most recent call last): …"), INTERNAL),
    (Failed("a.report.NothingIndexed: /srv/docs is empty", permanent=True), "docs is empty"),
]


@pytest.mark.parametrize(("outcome", "shown"), ERRORS)
async def test_error_is_one_sentence_for_people(one: Api, outcome: Outcome, shown: str) -> None:
    await one.index()
    await one.settle(outcome)
    job = await one("GET", "/index/jobs/job_1")
    assert (job["error"], job["message"]) == (shown, shown)
    assert (await one("GET", "/index/jobs"))["jobs"][0]["error"] == shown
    assert isinstance(outcome, Failed)
    assert (await one.app.get(1)).error == outcome.error  # the traceback stays


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("the lease of worker a:1 ran out", "Max retries (1) exceeded after restart"),
        ("the child process was killed by SIGKILL", "Max retries (1) exceeded after restart"),
        ("OSError: no\n\nwhere", "Max retries (1) exceeded: no"),
        ("a.report.NothingIndexed: empty", "empty"),
    ],
)
async def test_job_without_retries_left_says_so(project: Path, error: str, shown: str) -> None:
    async with served("memory://", project, max_retries=1, retry_delay=0) as api:
        await api.index()
        for _ in range(2):
            await api.settle(Failed(error))
        job = await api("GET", "/index/jobs/job_1")
        assert (job["status"], job["error"]) == ("failed", shown)


async def test_unique_beginning_of_an_id_is_enough(one: Api) -> None:
    for n in range(1, 13):
        await one.index(chunk_size=100 + n)
    assert (await one("GET", "/index/jobs/job_1"))["id"] == "job_1"
    assert (await one("GET", "/index/jobs/12"))["id"] == "job_12"
    await one.app.cancel(1)
    await one.app.delete(1)
    several = await one("GET", "/index/jobs/job_1", status=404)
    assert "several jobs start" in several["detail"]
    for n in (10, 11):
        await one.app.cancel(n)
        await one.app.delete(n)
    assert (await one("GET", "/index/jobs/job_1"))["id"] == "job_12"
    for unknown in ("job_99", "job_x", "job_", "job_01", "x", "9" * 60):
        await one("GET", f"/index/jobs/{unknown}", status=404)


async def test_jobs_of_others_are_not_shown(one: Api) -> None:
    other = one.app.task("other", lambda: None, queue="indexing")
    job = await other.enqueue()
    await one("GET", f"/index/jobs/job_{job.id}", status=404)
    await one("DELETE", f"/index/jobs/job_{job.id}", status=404)
    assert (await one("GET", "/index/jobs/"))["jobs"] == []


# Cancelling


async def test_waiting_job_is_cancelled_at_once(api: Api) -> None:
    await api.index()
    answer = await api("DELETE", "/index/jobs/job_1")
    assert (answer["status"], answer["job_id"]) == ("cancelled", "job_1")
    assert (await api("GET", "/index/jobs/job_1"))["status"] == "cancelled"
    assert (await api("DELETE", "/index/jobs/job_1"))["status"] == "already_cancelled"


async def test_running_job_is_asked_to_stop(api: Api) -> None:
    await api.index()
    (job,) = await api.app.leases.claim(worker="w", queues=["indexing"])
    for _ in range(2):
        answer = await api("DELETE", "/index/jobs/job_1")
        assert answer["status"] == "cancellation_requested"
    assert (await api("GET", "/index/jobs/job_1"))["cancel_requested"]
    await api.app.leases.settle([(job, Cancelled())])
    assert (await api("GET", "/index/jobs/job_1"))["status"] == "cancelled"


@pytest.mark.parametrize("outcome", [Done(REPORT), Failed("no", permanent=True)])
async def test_job_that_has_ended_is_not_cancelled(one: Api, outcome: Outcome) -> None:
    await one.index()
    await one.settle(outcome)
    answer = await one("DELETE", "/index/jobs/job_1", status=409)
    assert "cannot be cancelled" in answer["detail"]
    await one("DELETE", "/index/jobs/job_7", status=404)


# Order


async def test_jobs_of_a_collection_wait_for_each_other_and_others_do_not(api: Api) -> None:
    await api.index()
    await api.index("code")
    await api.index(collection="other")
    jobs = await api.app.leases.claim(worker="w", limit=10, queues=["indexing"])
    assert [job.id for job in jobs] == [1, 3]
    await api.app.leases.settle([(jobs[0], Done(REPORT))])
    (job,) = await api.app.leases.claim(worker="w", queues=["indexing"])
    assert job.id == 2


# Collections


async def test_reset_is_refused_while_a_job_runs(api: Api, tmp_path: Path) -> None:
    await api.index()
    (job,) = await api.app.leases.claim(worker="w", queues=["indexing"])
    await api("DELETE", "/index/", status=409)
    await api.app.leases.settle([(job, Done(REPORT))])
    assert (await api("DELETE", "/index/"))["status"] == "completed"
    with locked(tmp_path / "data" / "indexing" / "default" / LOCK):  # a job is about to begin
        await api("DELETE", "/index/?collection=default", status=409)
        await api("DELETE", "/index/", status=409)


async def test_unknown_folder_cannot_be_removed(one: Api) -> None:
    await one("DELETE", "/index/folders/", {"folder_path": "docs"}, status=404)
    assert await one("GET", "/index/folders/") == {"folders": [], "total": 0}


# Searching


async def test_unknown_mode_is_refused_and_nothing_is_found_in_nothing(one: Api) -> None:
    for mode in ("graph", "multi"):
        answer = await one("POST", "/query/", {"query": "a", "mode": mode}, status=400)
        assert "choose from vector, semantic, bm25, hybrid" in answer["detail"]
    found = await one("POST", "/query/", {"query": "a"})
    assert (found["results"], found["total_results"]) == ([], 0)


# Health


async def test_status_answers_from_memory_also_when_the_store_is_gone(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> Any:
        raise AssertionError("the store was asked")

    for name in ("count", "find", "progress"):
        monkeypatch.setattr(Penstock, name, broken)
    for _ in range(3):
        answer = await one.client.get("/health/status")
        assert answer.status_code == 200
        assert answer.json()["indexing_in_progress"] is False


async def test_health_tells_the_version_that_clients_compare(one: Api) -> None:
    health = await one("GET", "/health/")
    assert health["status"] == "healthy"
    assert tuple(map(int, health["version"].split("."))) >= (10, 2, 0)
    assert health["penstock"] != health["version"]


async def test_states_have_a_name_for_clients() -> None:
    from penstock.apps.indexing.shapes import STATUSES

    assert STATUSES.keys() == set(State)

"""Jobs over HTTP: enqueue, list, get, and act on one of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from penstock import Job, NewJob, Penstock, RetryPolicy, State
from penstock.cli.output import plain
from penstock.core.migration_lock import MigrationLock, MigrationPhase
from penstock.core.progress import Line
from penstock.core.secrets import Secrets
from penstock.core.workers import WorkerInfo
from penstock.engine.task import announcement
from penstock.jobs import Progress
from penstock.leases import Done, Failed, Report, Snoozed
from penstock.server import search
from penstock.server.app import Service
from tests.contract.support import SECOND, ManualClock
from tests.server.support import Api

WHOLE = {
    "task": "mail.send",
    "args": {"to": ["a", {"b": None}], "n": 12345678901234567890, "ü": 0.1},
    "queue": "mail",
    "priority": 9,
    "delay": 1.5,
    "key": "k",
    "dedupe": "d",
    "scope": "pending",
    "tags": ["x", "y"],
    "retry": {"attempts": 7, "delay": 1, "factor": 1, "max_delay": 2, "jitter": 0},
    "timeout": 10,
    "lease": 20,
    "correlation": "c",
    "tenant": "t",
    "throttle": "th",
    "on_failure": "run",
}


async def add(app: Penstock, n: int = 1, **options: Any) -> list[Job]:
    new = NewJob(**{"task": "t", "payload": "{}", **options})
    return await app.enqueue_many([new] * n)


async def claim(app: Penstock, worker: str = "w") -> Job:
    [job] = await app.leases.claim(worker=worker)
    return job


# Enqueueing


async def test_job_for_a_store_that_has_moved_is_put_off(api: Api, app: Penstock) -> None:
    lock = MigrationLock(phase=MigrationPhase.LEFT, peer=1, place="sqlite:///there.db")
    assert await app.store.set_migration_lock(lock, expected=None)
    answer = await api("POST", "/jobs", WHOLE, status=503)
    assert "have moved to sqlite:///there.db; nothing was changed" in answer["detail"]
    assert (await api("GET", "/jobs"))["jobs"] == []


async def test_job_is_stored_with_all_its_options(api: Api, app: Penstock) -> None:
    answer = await api("POST", "/jobs", WHOLE, status=201)
    job = await app.get(answer["id"])
    assert {**answer, "duplicate": None} == {**_plain(job), "duplicate": None}
    assert answer["duplicate"] is False
    assert job.args == WHOLE["args"]
    assert (job.queue, job.priority, job.key, job.dedupe) == ("mail", 9, "k", "d")
    assert (job.tags, job.correlation, job.tenant, job.throttle) == (("x", "y"), "c", "t", "th")
    assert job.run_at - job.enqueued_at == 1.5 * SECOND
    assert (job.timeout, job.lease_time) == (10 * SECOND, 20 * SECOND)
    assert (job.retry.attempts, job.retry.delay, job.retry.jitter) == (7, SECOND, 0)


def _plain(job: Job) -> dict[str, Any]:
    """Return a job as the command prints it: the same names, the same values."""
    told = plain(job)
    for name in ("enqueued_at", "run_at", "started_at", "finished_at", "expires_at"):
        if told[name] is not None and told[name].endswith(".000000Z"):
            told[name] = told[name].replace(".000000", "")
    return told  # type: ignore[no-any-return] # an answer as JSON


async def test_task_alone_is_enough(api: Api, app: Penstock) -> None:
    answer = await api("POST", "/jobs", {"task": "anything"}, status=201)
    job = await app.get(answer["id"])
    plain_job = NewJob(task="anything", payload="{}")
    assert (job.args, job.queue, job.retry) == ({}, plain_job.queue, plain_job.retry)
    assert (job.lease_time, job.priority) == (plain_job.lease, plain_job.priority)


async def test_what_is_left_out_is_as_a_live_worker_has_announced_it(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    task = app.task(
        "send", lambda: None, queue="mail", priority=7, version=2, aliases=["mail"],
        timeout=9 * SECOND, lease=8 * SECOND, retry=RetryPolicy(attempts=4, delay=SECOND),
        delay=7 * SECOND, key="k", tags=["red"], tenant="ada", throttle="smtp",
    )  # fmt: skip
    announced = (announcement(task, "send"), announcement(task, "mail"))
    await app.store.heartbeat([WorkerInfo(name="w", host="h", seen_at=clock.now, tasks=announced)])
    first = await api("POST", "/jobs", {"task": "mail"}, status=201)
    other = {"task": "send", "queue": "other"}
    second = await api("POST", "/jobs/batch", {"jobs": [other]}, status=201)
    expected = await task.enqueue()
    for sent, queue in ((first, "mail"), (second["jobs"][0], "other")):
        job = await app.get(sent["id"])
        assert (job.task, job.task_version, job.queue, job.priority) == ("send", 2, queue, 7)
        assert (job.retry, job.timeout, job.lease_time) == (
            expected.retry,
            expected.timeout,
            expected.lease_time,
        )
        assert (job.run_at, job.key, job.tags) == (clock.now + 7 * SECOND, "k", ("red",))
        assert (job.tenant, job.throttle) == ("ada", "smtp")
    own = {"task": "send", "run_at": "2031-01-01T00:00:00Z", "tags": ["blue"], "key": "l"}
    job = await app.get((await api("POST", "/jobs", own, status=201))["id"])
    assert (job.run_at.year, job.tags, job.key, job.tenant) == (2031, ("blue",), "l", "ada")


async def test_answer_warns_of_a_task_that_nobody_has_announced(api: Api) -> None:
    client = api.client
    one = await client.post("/api/v1/jobs", json={"task": 'no"body'})
    assert one.headers["warning"] == "199 - \"no live worker has announced the task 'no'body'\""
    many = await client.post(
        "/api/v1/jobs/batch", json={"jobs": [{"task": f"t{n}"} for n in range(5)]}
    )
    assert many.status_code == 201
    assert many.headers["warning"].endswith("'t0', 't1', 't2' and 2 more\"")


async def test_answer_does_not_warn_if_a_live_worker_may_run_any_task(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    await app.store.heartbeat([WorkerInfo(name="w", host="h", seen_at=clock.now, tasks=None)])
    one = await api.client.post("/api/v1/jobs", json={"task": "t"})
    many = await api.client.post("/api/v1/jobs/batch", json={"jobs": [{"task": "t"}]})
    for answer in (one, many):
        assert answer.status_code == 201
        assert "warning" not in answer.headers


async def test_what_is_given_as_none_is_none_whatever_a_worker_has_announced(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    task = app.task(
        "send", lambda: None, timeout=9 * SECOND, delay=7 * SECOND, key="k", tags=["red"],
        tenant="ada", throttle="smtp",
    )  # fmt: skip
    announced = (announcement(task, "send"),)
    await app.store.heartbeat([WorkerInfo(name="w", host="h", seen_at=clock.now, tasks=announced)])
    names = ("timeout", "delay", "key", "tenant", "throttle")
    body: dict[str, Any] = {"task": "send", "tags": [], **dict.fromkeys(names)}
    job = await app.get((await api("POST", "/jobs", body, status=201))["id"])
    assert (job.timeout, job.run_at, job.key) == (None, clock.now, None)
    assert (job.tags, job.tenant, job.throttle) == ((), None, None)


async def test_duplicate_is_answered_with_the_job_that_is_there(api: Api) -> None:
    first = await api("POST", "/jobs", {"task": "t", "dedupe": "d"}, status=201)
    again = await api("POST", "/jobs", {"task": "t", "dedupe": "d"}, status=200)
    assert (again["id"], again["duplicate"]) == (first["id"], True)


async def test_superseding_job_replaces_the_pending_one(api: Api, app: Penstock) -> None:
    old = await api("POST", "/jobs", {"task": "t", "key": "k"}, status=201)
    await api("POST", "/jobs", {"task": "t", "key": "k", "supersede": True}, status=201)
    assert (await app.get(old["id"])).state is State.SUPERSEDED


async def test_full_queue_is_answered_with_429(api: Api, app: Penstock) -> None:
    await app.limits.queue("default", 0)
    answer = await api.client.post("/api/v1/jobs", json={"task": "t"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", ""),
        ("task", "x" * 201),
        ("task", 5),
        ("args", [1]),
        ("args", "text"),
        ("args", None),
        ("queue", ""),
        ("priority", 11),
        ("priority", -1),
        ("priority", 5.5),
        ("delay", -1),
        ("delay", 1e12),
        ("delay", "soon"),
        ("run_at", "2030-01-01T00:00:00"),
        ("run_at", "tomorrow"),
        ("key", ""),
        ("key", "k" * 1001),
        ("dedupe", 1),
        ("scope", "all"),
        ("tags", ["x"] * 51),
        ("tags", "x"),
        ("timeout", 0),
        ("lease", 0),
        ("correlation", ""),
        ("tenant", ""),
        ("parent", 0),
        ("parent", 2**63),
        ("after", [0]),
        ("after", [99]),
        ("on_failure", "ignore"),
        ("supersede", "yes"),
        ("throttle", ""),
        ("unknown", 1),
    ],
)
async def test_wrong_field_of_a_new_job_is_named(
    api: Api, app: Penstock, field: str, value: Any
) -> None:
    named = await api.refused("POST", "/jobs", {"task": "t", field: value})
    assert named.startswith(field)
    assert await app.find() == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"task": "t", "delay": 1, "run_at": "2030-01-01T00:00:00Z"}, 422),
        ({"task": "t", "supersede": True}, 422),
        ({"task": "t", "retry": {"attempts": 0}}, 422),
        ({"task": "t", "retry": {"pause": 1}}, 422),
        ({"task": "a\nb"}, 422),
        ({"task": "t", "args": {"a": "x" * 1_000_001}}, 413),
        ([], 422),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    api: Api, app: Penstock, body: Any, status: int
) -> None:
    await api.refused("POST", "/jobs", body, status)
    assert await app.find() == []


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_times_at_the_ends_of_the_calendar_do_no_harm(api: Api, at: str) -> None:
    answer = await api.client.post("/api/v1/jobs", json={"task": "t", "run_at": at})
    assert answer.status_code == 422, answer.text
    await api("GET", "/jobs", params={"before": at})
    await api("GET", "/history", params={"since": at, "step": 3600})
    await api("GET", "/history", params={"until": at})


# Batches


async def test_batch_is_stored_whole_and_has_a_status(api: Api, app: Penstock) -> None:
    answer = await api(
        "POST",
        "/jobs/batch",
        {"jobs": [{"task": "a"}, {"task": "b"}], "correlation": "team/1", "ordered": True},
        status=201,
    )
    assert [job["task"] for job in answer["jobs"]] == ["a", "b"]
    assert answer["correlation"] == "team/1"
    assert (await claim(app)).id == answer["jobs"][0]["id"]
    assert await app.leases.claim(worker="w") == []  # the second waits for the first
    status = await api("GET", "/batches/team/1")
    assert (status["status"], status["total"]) == ("running", 2)
    assert (status["states"]["running"], status["states"]["pending"]) == (1, 1)
    await api.refused("GET", "/batches/other", status=404)


async def test_jobs_of_a_call_follow_each_other_by_place(api: Api) -> None:
    jobs = [{"task": "a", "correlation": "own"}, {"task": "b", "follows": [0]}]
    answer = await api("POST", "/jobs/batch", {"jobs": jobs}, status=201)
    first, second = answer["jobs"]
    assert (first["correlation"], second["correlation"]) == ("own", None)
    assert second["needs"] == 1
    detail = await api("GET", f"/jobs/{second['id']}")
    assert detail["waits_for"] == [first["id"]]


@pytest.mark.parametrize(
    "body",
    [
        {"jobs": []},
        {"jobs": [{"task": "t"}] * 1001},
        {"jobs": [{"task": "t"}, {"task": ""}]},
        {"jobs": [{"task": "t"}, {"task": "t", "follows": [1]}]},
        {"jobs": [{"task": "t"}, {"task": "t", "after": [99]}]},
        {"jobs": [{"task": "t"}, {"task": "t", "args": 5}]},
        {"jobs": [{"task": "t", "correlation": "a"}], "correlation": "b"},
        {"jobs": [{"task": "t"}], "correlation": ""},
        {"jobs": [{"task": "t"}], "ordered": 1},
        {"jobs": [{"task": "t"}], "more": 1},
    ],
)
async def test_batch_with_anything_wrong_stores_nothing(api: Api, app: Penstock, body: Any) -> None:
    await api.refused("POST", "/jobs/batch", body)
    assert await app.find() == []


# Listing


async def test_filters_narrow_the_list(api: Api, app: Penstock, clock: ManualClock) -> None:
    [parent] = await add(app, queue="q")
    await app.leases.settle([(await claim(app), Failed("no such host", permanent=True))])
    clock.advance(SECOND)
    middle = clock.now
    clock.advance(SECOND)
    options: dict[str, Any] = {"key": "k", "tags": ("a", "b"), "correlation": "c", "tenant": "n"}
    [child] = await add(app, task="other", parent=parent.id, **options)

    async def ids(**wanted: Any) -> list[int]:
        page = await api("GET", "/jobs", params=wanted)
        return [job["id"] for job in page["jobs"]]

    assert await ids() == [child.id, parent.id]
    assert await ids(newest_first="false") == [parent.id, child.id]
    assert await ids(state="failed") == [parent.id]
    assert await ids(state="failed,pending") == [child.id, parent.id]
    assert await ids(state="done") == []
    assert await ids(queue="q") == [parent.id]
    assert await ids(task="other") == [child.id]
    assert await ids(key="k") == [child.id]
    assert await ids(tags="b,z") == [child.id]
    assert await ids(correlation="c") == [child.id]
    assert await ids(tenant="n") == [child.id]
    assert await ids(parent=parent.id) == [child.id]
    assert await ids(error="such host") == [parent.id]
    assert await ids(before=middle.isoformat()) == [parent.id]
    assert await ids(since=middle.isoformat()) == [child.id]
    assert await ids(since=clock.now.isoformat(), state="failed") == []
    for text, found in {"othe": child, "b": child, "such host": parent}.items():
        assert await ids(text=text) == [found.id]
    assert await ids(cancel_requested="true") == []
    assert await ids(key="null") == []
    await claim(app)
    await app.cancel(child.id)
    assert await ids(cancel_requested="true") == [child.id]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "late"),
        ("state", ","),
        ("queue", ""),
        ("queue", "x" * 201),
        ("task", ""),
        ("key", ""),
        ("tags", ","),
        ("correlation", ""),
        ("tenant", ""),
        ("parent", "x"),
        ("parent", "0"),
        ("cancel_requested", "maybe"),
        ("error", ""),
        ("before", "2030-01-01T00:00:00"),
        ("before", "yesterday"),
        ("since", "2030-01-01T00:00:00"),
        ("text", ""),
        ("after", "0"),
        ("after", str(2**63)),
        ("newest_first", "perhaps"),
        ("limit", "0"),
        ("limit", "1001"),
        ("limit", "many"),
        ("order", "asc"),
    ],
)
async def test_wrong_parameter_of_a_list_is_named(api: Api, name: str, value: str) -> None:
    answer = await api.client.get("/api/v1/jobs", params={name: value})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == name


async def pages(api: Api, **wanted: Any) -> list[list[int]]:
    found: list[list[int]] = []
    after = None
    while True:
        params = wanted | ({} if after is None else {"after": after})
        page = await api("GET", "/jobs", params=params)
        found.append([job["id"] for job in page["jobs"]])
        if (after := page["after"]) is None:
            return found


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_hold_every_job_once(api: Api, app: Penstock, newest_first: bool) -> None:
    jobs = [job.id for job in await add(app, 130)]
    wanted = jobs[::-1] if newest_first else jobs
    for limit in (1, 7, 50, 65, 130, 1000):
        found = await pages(api, limit=limit, newest_first=str(newest_first).lower())
        assert [job for page in found for job in page] == wanted
        assert len(found) == -(-130 // limit)


async def test_no_job_is_left_out_or_doubled_while_others_come_and_go(
    api: Api, app: Penstock
) -> None:
    there = [job.id for job in await add(app, 60)]
    doomed = there[5::10]
    for job_id in doomed:
        await app.cancel(job_id)
    seen: list[int] = []
    after: int | None = there[-1] + 1
    while after is not None:
        page = await api("GET", "/jobs", params={"limit": 9, "after": after})
        seen += [job["id"] for job in page["jobs"]]
        after = page["after"]
        await add(app, 3)  # in front of what is read
        if doomed:
            await app.delete(doomed.pop())  # where it will be read, or was read
    assert len(seen) == len(set(seen))
    assert set(there) - set(there[5::10]) <= set(seen) <= set(there)


async def test_page_of_large_jobs_ends_early(
    api: Api, app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_PAGE_BYTES", 100_000)
    monkeypatch.setattr(search, "_PORTION", 2)
    payload = f'{{"text":"{"x" * 40_000}"}}'
    jobs = [job.id for job in await add(app, 9, payload=payload)]
    assert await pages(api, limit=8) == [jobs[:-4:-1], jobs[-4:-7:-1], jobs[-7:-10:-1]]


@pytest.mark.parametrize("newest_first", [True, False])
async def test_search_looks_at_so_many_jobs_and_says_where_to_go_on(
    api: Api, app: Penstock, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(search, "_STRETCHES", (3, 5))
    monkeypatch.setattr(search, "TIMEOUT", 0.0)
    jobs = [job.id for job in await add(app, 30)]
    [wanted] = await add(app, task="rare")
    order = [*jobs, wanted.id, *(job.id for job in await add(app, 7))]
    order = order[::-1] if newest_first else order
    turn = order.index(wanted.id) // 8
    for filters in ({"text": "rare"}, {"task": "rare"}, {"text": "rare", "state": "pending"}):
        found = await pages(api, **filters, newest_first=str(newest_first).lower())
        assert found == [[wanted.id] if n == turn else [] for n in range(5)]
    assert await pages(api, parent=7) == [[]]  # an index tells
    assert await pages(api, state="failed", text="rare") == [[]]  # they are few, as is known


async def test_full_page_of_a_search_goes_on_behind_its_last_job(
    api: Api, app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_STRETCHES", (4, 5))
    jobs = [job.id for job in await add(app, 20, queue="q")]
    found = await pages(api, queue="q", limit=3)
    assert [one for page in found for one in page] == jobs[::-1]
    assert max(map(len, found)) == 3


@pytest.mark.parametrize(
    "filters",
    [
        {"task": "rare"},
        {"queue": "rare"},
        {"tenant": "rare"},
        {"key": "rare"},
        {"text": "rare"},
        {"task": "rare", "state": "pending"},
        {"task": "rare", "tags": "one,two"},
        {"since": "1970-01-01T00:00:00Z", "text": "rare", "newest_first": "false"},
    ],
)
async def test_only_match_is_on_the_first_page_however_far_back_it_is(
    api: Api, app: Penstock, monkeypatch: pytest.MonkeyPatch, filters: dict[str, str]
) -> None:
    monkeypatch.setattr(search, "_STRETCHES", (3, 5))
    await add(app, 30)
    [wanted] = await add(app, task="rare", queue="rare", tenant="rare", key="rare", tags=("one",))
    await add(app, 40)
    page = await api("GET", "/jobs", params={**filters, "limit": 1})
    assert [job["id"] for job in page["jobs"]] == [wanted.id]


async def test_match_is_found_behind_those_that_fit_by_a_hidden_secret_alone(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_STRETCHES", (7, 11))
    monkeypatch.setattr(search, "_PORTION", 4)
    [wanted] = await add(app, payload='{"to":"swordfish"}')
    await add(app, 60, payload='{"to":"ada","password":"swordfish"}')
    app.connection.secrets = Secrets(["password"])
    service = Service(app, [])
    transport = httpx.ASGITransport(app=service)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        page = await Api(client)("GET", "/jobs", params={"text": "fish", "limit": 1})
    assert [job["id"] for job in page["jobs"]] == [wanted.id]
    assert page["after"] is None


async def test_nobody_can_search_for_what_is_hidden(app: Penstock) -> None:
    payload = '{"to":"ada","password":"swordfish"}'
    [job] = await add(app, payload=payload)
    app.connection.secrets = Secrets(["password"])
    transport = httpx.ASGITransport(app=Service(app, []))
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        for text, found in {"fish": [], "ada": [job.id], "password": [job.id]}.items():
            page = await Api(client)("GET", "/jobs", params={"text": text})
            assert [one["id"] for one in page["jobs"]] == found


# Looking


async def test_job_is_shown_with_all_that_is_known(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    [job] = await add(app, payload='{"a":1}')
    await add(app, parent=job.id)
    first = await claim(app, "one")
    await app.leases.start([first])
    clock.advance(SECOND)
    await app.leases.settle([(first, Failed("boom"))])
    clock.advance(timedelta(hours=1))
    await app.set_priority(job.id, 9)
    second = await claim(app, "two")
    at = clock.now
    lines = tuple(Line(0, at, "INFO", f"line {n}", 2) for n in range(150))
    progress = Progress(1, 4, "a.png", at, at)
    await app.leases.report([Report(lease=second.lease, progress=progress, lines=lines)])
    found = await api("GET", f"/jobs/{job.id}")
    assert (found["state"], found["args"], found["worker"]) == ("running", {"a": 1}, "two")
    assert found["explanation"]["reason"] == "running"
    assert found["progress"]["fraction"] == 0.25
    assert [entry["event"] for entry in found["log"]] == [
        *("enqueued", "claimed", "started", "failed", "reprioritised", "claimed")
    ]
    one, two = found["attempts"]
    assert (one["worker"], one["outcome"], one["duration"], one["error"]) == (
        *("one", "failed", 1.0, "boom"),
    )
    assert (two["worker"], two["outcome"], two["token"]) == ("two", None, second.token)
    assert [line["text"] for line in found["lines"]] == [f"line {n}" for n in range(50, 150)]
    assert found["children"]["pending"] == 1
    assert found["waits_for"] == []


async def test_result_and_detail_are_shown_as_they_are(api: Api, app: Penstock) -> None:
    [job] = await add(app)
    await app.leases.settle([(await claim(app), Done('{"n":[1]}', detail='{"code":200}'))])
    found = await api("GET", f"/jobs/{job.id}")
    assert found["result"] == {"n": [1]}
    assert found["log"][-1]["detail"] == {"code": 200}
    assert found["attempts"][0]["outcome"] == "done"


async def test_log_and_lines_come_in_pages(api: Api, app: Penstock) -> None:
    [job] = await add(app)
    for _ in range(3):
        await app.leases.settle([(await claim(app), Snoozed())])
    held = await claim(app)
    lines = tuple(Line(0, datetime(2030, 1, 1, tzinfo=UTC), "INFO", str(n), 1) for n in range(5))
    await app.leases.report([Report(lease=held.lease, lines=lines)])
    for path, name, whole in (("log", "log", 8), ("lines", "lines", 5)):
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = await api("GET", f"/jobs/{job.id}/{path}?limit=3&after={after}")
            seen += [one["id"] for one in page[name]]
            after = page["after"]
        assert seen == sorted(set(seen))
        assert len(seen) == whole


async def test_explanation_says_why_a_job_is_not_running(api: Api, app: Penstock) -> None:
    first, second = await add(app, 2, key="k")
    found = await api("GET", f"/jobs/{second.id}/explain")
    assert (found["reason"], found["blocked_by"]) == ("blocked", first.id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/log"),
        ("GET", "/lines"),
        ("GET", "/explain"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("POST", "/reset"),
        ("POST", "/reprioritise?priority=1"),
        ("DELETE", ""),
    ],
)
async def test_unknown_job_is_not_found_and_a_wrong_id_refused(
    api: Api, method: str, path: str
) -> None:
    await api.refused(method, f"/jobs/99{path}", status=404)
    for wrong in ("0", "-1", "x", "1.5", str(2**63), "9" * 5000):
        assert await api.refused(method, f"/jobs/{wrong}{path}") == "job_id"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("log?after=-1", "after"),
        ("log?limit=0", "limit"),
        ("log?limit=1001", "limit"),
        ("lines?after=x", "after"),
        ("lines?limit=x", "limit"),
        ("lines?more=1", "more"),
    ],
)
async def test_wrong_page_is_refused(api: Api, app: Penstock, path: str, field: str) -> None:
    [job] = await add(app)
    assert await api.refused("GET", f"/jobs/{job.id}/{path}") == field


# Steering


async def test_job_is_cancelled_and_run_again(api: Api, app: Penstock) -> None:
    [job] = await add(app)
    answer = await api("POST", f"/jobs/{job.id}/cancel?reason=not+needed")
    assert answer["state"] == "cancelled"
    assert (await app.log(job.id))[-1].reason == "not needed"
    assert await api.refused("POST", f"/jobs/{job.id}/cancel", status=409) is None
    answer = await api("POST", f"/jobs/{job.id}/retry?reason=after+all")
    assert answer["state"] == "pending"
    assert (await app.log(job.id))[-1].reason == "after all"


async def test_running_job_is_taken_from_its_worker(api: Api, app: Penstock) -> None:
    [job] = await add(app)
    held = await claim(app)
    await api.refused("POST", f"/jobs/{job.id}/retry", status=409)
    assert (await api("POST", f"/jobs/{job.id}/reset"))["state"] == "pending"
    assert await app.leases.settle_held([(held, Done())]) == [None]


async def test_job_gets_another_priority(api: Api, app: Penstock) -> None:
    first, second = await add(app, 2)
    answer = await api("POST", f"/jobs/{second.id}/reprioritise?priority=9&reason=urgent")
    assert answer["priority"] == 9
    assert (await claim(app)).id == second.id
    await api.refused("POST", f"/jobs/{second.id}/reprioritise?priority=1", status=409)
    for wrong in ("", "?priority=11", "?priority=x", "?priority=1.5"):
        path = f"/jobs/{first.id}/reprioritise{wrong}"
        assert await api.refused("POST", path) == "priority"


async def test_only_a_finished_job_is_removed(api: Api, app: Penstock) -> None:
    [job] = await add(app)
    await api.refused("DELETE", f"/jobs/{job.id}", status=409)
    await app.cancel(job.id)
    assert (await api("DELETE", f"/jobs/{job.id}"))["id"] == job.id
    await api.refused("GET", f"/jobs/{job.id}", status=404)


@pytest.mark.parametrize("verb", ["cancel", "retry", "reset"])
async def test_wrong_reason_is_refused(api: Api, app: Penstock, verb: str) -> None:
    [job] = await add(app)
    for wrong in ("reason=", f"reason={'x' * 1001}"):
        assert await api.refused("POST", f"/jobs/{job.id}/{verb}?{wrong}") == "reason"
    assert await api.refused("POST", f"/jobs/{job.id}/{verb}?why=1") == "why"

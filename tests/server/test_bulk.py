"""Bulk actions over HTTP: by filter, with a dry run."""

from typing import Any

import pytest

from penstock import Job, JobQuery, NewJob, Penstock, State
from penstock.leases import Failed
from tests.server.support import Api

VERBS = ["cancel", "retry", "reprioritise", "delete"]


def body(verb: str, **fields: Any) -> dict[str, Any]:
    extra = {"priority": 9} if verb == "reprioritise" else {}
    return {"dry_run": False, **extra, **fields}


@pytest.fixture
async def jobs(app: Penstock) -> list[Job]:
    """A failed, a cancelled and a pending job in each of two queues."""
    for queue in ("a", "b"):
        await app.enqueue_many(
            [NewJob(task="t", payload="{}", queue=queue, tags=("x",)) for _ in range(3)]
        )
        [first] = await app.leases.claim(worker="w", queues=[queue])
        await app.leases.settle([(first, Failed(f"no {queue}", permanent=True))])
        await app.cancel(first.id + 1)
    return await app.find(JobQuery(newest_first=False))


CHANGED = {"cancel": {"pending"}, "retry": {"failed"}, "reprioritise": {"pending"}} | {
    "delete": {"failed", "cancelled"}
}


@pytest.mark.parametrize("verb", VERBS)
async def test_only_what_fits_is_changed(
    api: Api, app: Penstock, jobs: list[Job], verb: str
) -> None:
    meant = [job for job in jobs if job.queue == "a" and job.state in CHANGED[verb]]
    path, filter_ = f"/jobs/bulk/{verb}", {"queue": "a"}
    counted = await api("POST", path, body(verb, filter=filter_, dry_run=True))
    assert counted == {
        "dry_run": True,
        "matched": len(meant),
        "changed": 0,
        "skipped": 0,
        "after": None,
        "up_to": max(job.id for job in jobs),
    }
    assert await app.find(JobQuery(newest_first=False)) == jobs
    done = await api("POST", path, body(verb, filter=filter_))
    assert done == {**counted, "dry_run": False, "changed": len(meant)}
    now = {job.id: job for job in await app.find()}
    assert {job.id for job in jobs if now.get(job.id) != job} == {job.id for job in meant}


async def test_every_field_of_a_filter_counts(api: Api, app: Penstock, jobs: list[Job]) -> None:
    async def matched(**filter_: Any) -> int:
        answer = await api("POST", "/jobs/bulk/retry", body("retry", dry_run=True, filter=filter_))
        return int(answer["matched"])

    assert await matched(queue="a") == 1
    assert await matched(state=["failed", "cancelled"]) == 4
    assert await matched(error="no b") == 1
    assert await matched(tags=["x", "y"]) == 2
    assert await matched(tags=["y"]) == 0
    assert await matched(task="t", queue="b") == 1
    assert await matched(key="k") == 0
    assert await matched(correlation="c") == 0
    assert await matched(tenant="n") == 0
    assert await matched(parent=1) == 0
    assert await matched(before="2029-01-01T00:00:00Z") == 0
    assert await matched(since="2029-01-01T00:00:00Z") == await matched(task="t") > 0
    assert await matched(since="2099-01-01T00:00:00Z") == 0
    assert await matched(text="no b") == 1


async def test_reason_is_kept_in_the_log(api: Api, app: Penstock, jobs: list[Job]) -> None:
    await api("POST", "/jobs/bulk/cancel", body("cancel", filter={"task": "t"}, reason="moved"))
    [job] = await app.find(JobQuery(queue="b", limit=1))
    assert (await app.log(job.id))[-1].reason == "moved"


@pytest.mark.parametrize("verb", VERBS)
async def test_every_job_is_meant_only_if_that_is_said(
    api: Api, app: Penstock, jobs: list[Job], verb: str
) -> None:
    path = f"/jobs/bulk/{verb}"
    assert await api.refused("POST", path, body(verb)) == "filter"
    assert await api.refused("POST", path, body(verb, filter={})) == "filter"
    assert await api.refused("POST", path, body(verb, all=False)) == "filter"
    assert await app.find(JobQuery(newest_first=False)) == jobs
    done = await api("POST", path, body(verb, all=True))
    assert done["changed"] == sum(job.state in CHANGED[verb] for job in jobs)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dry_run": None}, "dry_run"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"all": 1}, "all"),
        ({"filter": {"states": ["failed"]}}, "filter.states"),
        ({"filter": {"state": ["late"]}}, "filter.state[0]"),
        ({"filter": {"state": []}}, "filter.state"),
        ({"filter": {"state": "failed"}}, "filter.state"),
        ({"filter": {"queue": ""}}, "filter.queue"),
        ({"filter": {"task": 1}}, "filter.task"),
        ({"filter": {"key": ""}}, "filter.key"),
        ({"filter": {"tags": "x"}}, "filter.tags"),
        ({"filter": {"correlation": ""}}, "filter.correlation"),
        ({"filter": {"tenant": ""}}, "filter.tenant"),
        ({"filter": {"parent": 0}}, "filter.parent"),
        ({"filter": {"error": ""}}, "filter.error"),
        ({"filter": {"before": "2030-01-01T00:00:00"}}, "filter.before"),
        ({"more": 1}, "more"),
    ],
)
async def test_wrong_field_is_named_and_nothing_changes(
    api: Api, app: Penstock, jobs: list[Job], fields: dict[str, Any], named: str
) -> None:
    sent = body("cancel", **{"filter": {"queue": "a"}, **fields})
    assert await api.refused("POST", "/jobs/bulk/cancel", sent) == named
    assert await app.find(JobQuery(newest_first=False)) == jobs


async def test_what_the_verb_does_not_say_is_refused(api: Api, jobs: list[Job]) -> None:
    missing = {"filter": {"queue": "a"}}
    for verb in VERBS:
        whole = body(verb, **missing)
        del whole["dry_run"]
        assert await api.refused("POST", f"/jobs/bulk/{verb}", whole) == "dry_run"
    sent = body("cancel", **missing)
    assert await api.refused("POST", "/jobs/bulk/reprioritise", sent) == "priority"
    sent = body("delete", filter={"state": ["pending"]})
    assert await api.refused("POST", "/jobs/bulk/delete", sent) is None


async def test_unfinished_jobs_are_never_removed(api: Api, app: Penstock, jobs: list[Job]) -> None:
    await api("POST", "/jobs/bulk/delete", body("delete", all=True))
    assert {job.state for job in await app.find()} == {State.PENDING}


@pytest.mark.parametrize("verb", VERBS)
async def test_work_is_done_in_parts_that_the_caller_asks_for(
    api: Api, app: Penstock, verb: str
) -> None:
    await app.enqueue_many([NewJob(task="many", payload="{}")] * 25)
    if verb in ("retry", "delete"):
        await app.bulk(JobQuery(task="many")).cancel()
    state = {"retry": ["cancelled"]}.get(verb)
    filter_ = {"task": "many", **({"state": state} if state else {})}
    counted = await api("POST", f"/jobs/bulk/{verb}", body(verb, filter=filter_, dry_run=True))
    assert counted["matched"] == 25
    parts: list[int] = []
    after = None
    while after is not None or not parts:
        # Those that come meanwhile fit as well, and are left alone.
        [late] = await app.enqueue_many([NewJob(task="many", payload="{}")])
        if verb in ("retry", "delete"):
            await app.cancel(late.id)
        asked = {"limit": 10, "after": after, "up_to": counted["up_to"]}
        done = await api("POST", f"/jobs/bulk/{verb}", body(verb, filter=filter_, **asked))
        assert done["up_to"] == counted["up_to"]
        parts.append(done["changed"])
        after = done["after"]
    assert [n for n in parts if n] == [10, 10, 5]


async def test_place_in_the_work_needs_a_limit(api: Api) -> None:
    for field in ("after", "up_to"):
        wrong = body("retry", filter={"task": "t"}, **{field: 7})
        assert await api.refused("POST", "/jobs/bulk/retry", wrong) == field
    for limit in (0, 100_001, "x"):
        wrong = body("retry", filter={"task": "t"}, limit=limit)
        assert await api.refused("POST", "/jobs/bulk/retry", wrong) == "limit"

"""Queues over HTTP: counts, limits, pause, resume, drain."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from penstock import NewJob, Penstock
from penstock.leases import Done
from penstock.server.app import Service
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.environment import SOON
from tests.server.support import Api

NONE = dict.fromkeys(("pending", "running", "done", "failed", "cancelled", "superseded"), 0)


async def add(app: Penstock, **options: Any) -> None:
    await app.enqueue_many([NewJob(**{"task": "t", "payload": "{}", **options})])


async def test_queue_tells_how_many_jobs_it_has_and_how_old_they_are(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    assert await api("GET", "/queues") == {"queues": [], "after": None}
    await add(app, queue="mail")
    clock.advance(1.5 * SECOND)
    await add(app, queue="mail", key="k")
    await add(app, queue="mail", key="k")
    await add(app, queue="mail", delay=HOUR)
    await add(app, queue="other", delay=HOUR)
    found = await api("GET", "/queues")
    assert [queue["name"] for queue in found["queues"]] == ["mail", "other"]
    mail = await api("GET", "/queues/mail")
    assert mail == found["queues"][0]
    assert mail == {
        "name": "mail",
        "paused": False,
        "paused_until": None,
        "max_pending": None,
        "concurrency": None,
        "rate": None,
        "promote_after": None,
        "states": {**NONE, "pending": 4},
        "waiting": {"ready": 2, "scheduled": 1, "blocked": 1},
        "oldest_ready_age": 1.5,
    }
    assert found["queues"][1]["oldest_ready_age"] is None


async def test_unknown_queue_is_not_found(api: Api) -> None:
    await api.refused("GET", "/queues/mail", status=404)


@pytest.mark.parametrize("name", ["a/b", "a b", "ü", "a%b", "pause", "x/pause"])
async def test_name_may_have_anything_printable_in_it(api: Api, app: Penstock, name: str) -> None:
    await add(app, queue=name)
    path = f"/queues/{quote(name, safe='')}"
    assert (await api("GET", path))["name"] == name
    assert (await api("POST", f"{path}/pause"))["paused"] is True
    assert (await api("PATCH", path, {"concurrency": 2}))["concurrency"] == 2
    assert (await api("POST", f"{path}/drain"))["status"] == "paused"
    assert [queue.name for queue in await app.queues.list()] == [name]


async def test_pause_may_end_by_itself(api: Api, clock: ManualClock) -> None:
    paused = await api("POST", "/queues/mail/pause?duration=90")
    assert paused["paused"] is True
    assert datetime.fromisoformat(paused["paused_until"]) == clock.now + timedelta(seconds=90)
    clock.advance(HOUR)
    found = await api("GET", "/queues/mail")
    assert (found["paused"], found["paused_until"]) == (False, None)
    for wrong in ("0", "-1", "soon"):
        await api.refused("POST", f"/queues/mail/pause?duration={wrong}", status=422)


async def test_limits_are_set_kept_and_lifted(api: Api, app: Penstock) -> None:
    limits = {
        "max_pending": 10,
        "concurrency": 2,
        "rate": {"count": 5, "seconds": 1.5},
        "promote_after": 60.0,
    }
    found = await api("PATCH", "/queues/mail", limits)
    assert {name: found[name] for name in limits} == limits
    [queue] = await app.queues.list()
    assert queue.rate == (5, timedelta(seconds=1.5))
    assert queue.promote_after == timedelta(minutes=1)
    found = await api("PATCH", "/queues/mail", {"concurrency": None, "promote_after": 5})
    assert {name: found[name] for name in limits} == {
        **limits,
        "concurrency": None,
        "promote_after": 5.0,
    }
    ages = {"promote_after": [300.0, 900.0]}
    found = await api("PATCH", "/queues/mail", ages)
    assert found["promote_after"] == ages["promote_after"]
    assert (await app.queues.list())[0].promote_after == (
        timedelta(minutes=5),
        timedelta(minutes=15),
    )
    found = await api("PATCH", "/queues/mail", dict.fromkeys(limits))
    assert {found[name] for name in limits} == {None}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"max_pending": -1}, "max_pending"),
        ({"max_pending": "x"}, "max_pending"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"rate": 5}, "rate"),
        ({"rate": {"count": 0, "seconds": 1}}, "rate.count"),
        ({"rate": {"count": 1, "seconds": 0}}, "rate.seconds"),
        ({"rate": {"count": 1}}, "rate.seconds"),
        ({"promote_after": 0}, "promote_after"),
        ({"promote_after": 1e12}, "promote_after"),
        ({"promote_after": []}, "promote_after"),
        ({"promote_after": [0]}, "promote_after[0]"),
        ({"paused": True}, "paused"),
    ],
)
async def test_wrong_limit_is_named(api: Api, app: Penstock, body: Any, field: str | None) -> None:
    assert await api.refused("PATCH", "/queues/mail", body) == field
    assert await app.queues.list() == []


async def test_wrong_name_is_refused(api: Api, app: Penstock) -> None:
    for name in ("x" * 201, "a%1Fb"):
        for method, path, body in (
            ("POST", "/pause", None),
            ("POST", "/resume", None),
            ("PATCH", "", {"concurrency": 1}),
        ):
            await api.refused(method, f"/queues/{name}{path}", body)
    assert await app.queues.list() == []


async def test_paused_queue_starts_nothing_until_it_is_resumed(api: Api, app: Penstock) -> None:
    await add(app)
    assert (await api("POST", "/queues/default/pause"))["paused"] is True
    assert await app.leases.claim(worker="w") == []
    assert (await api("POST", "/queues/default/resume"))["paused"] is False
    assert len(await app.leases.claim(worker="w")) == 1


async def test_drain_waits_for_what_is_there(api: Api, app: Penstock) -> None:
    await add(app)
    [job] = await app.leases.claim(worker="w")
    draining = asyncio.create_task(api("POST", "/queues/default/drain"))
    await app.leases.settle([(job, Done())])
    answer = await asyncio.wait_for(draining, SOON)
    assert (answer["status"], answer["remaining"]) == ("drained", 0)


async def test_drain_ends_with_its_time(api: Api, app: Penstock) -> None:
    await add(app)
    answer = await api("POST", "/queues/default/drain?timeout=0")
    assert (answer["status"], answer["remaining"]) == ("timeout", 1)
    for wrong in ("-1", "3601", "x", ""):
        path = f"/queues/default/drain?timeout={wrong}"
        assert await api.refused("POST", path) == "timeout"


async def test_drain_ends_when_the_server_stops(api: Api, app: Penstock, service: Service) -> None:
    await add(app)
    draining = asyncio.create_task(api("POST", "/queues/default/drain", status=503))
    service.begin_shutdown()
    assert "shutting down" in (await asyncio.wait_for(draining, SOON))["detail"]


async def test_queues_are_listed_in_pages(api: Api, app: Penstock) -> None:
    for n in range(7):
        await add(app, queue=f"q{n}")
    await add(app, queue="mail")
    seen: list[list[str]] = []
    after: str | None = None
    while True:
        page = await api(
            "GET", "/queues", params={"limit": 3, **({"after": after} if after else {})}
        )
        seen.append([queue["name"] for queue in page["queues"]])
        assert all(queue["states"]["pending"] == 1 for queue in page["queues"])
        after = page["after"]
        if after is None:
            break
    assert seen == [["mail", "q0", "q1"], ["q2", "q3", "q4"], ["q5", "q6"]]
    page = await api("GET", "/queues", params={"name": "ai"})
    assert [queue["name"] for queue in page["queues"]] == ["mail"]
    assert await api.refused("GET", "/queues?limit=1001") == "limit"
    assert await api.refused("GET", "/queues?after=") == "after"


async def test_summary_has_what_all_queues_have(
    api: Api, app: Penstock, clock: ManualClock
) -> None:
    await add(app, queue="a")
    clock.advance(1.5 * SECOND)
    await add(app, queue="b", delay=HOUR)
    await app.queues.pause("b")
    assert await api("GET", "/summary") == {
        "queues": 2,
        "paused": 1,
        "states": {**NONE, "pending": 2},
        "waiting": {"ready": 1, "scheduled": 1, "blocked": 0},
        "oldest_ready_age": 1.5,
    }


async def test_queue_is_removed_with_its_limits_and_its_pause(api: Api, app: Penstock) -> None:
    await api("PATCH", "/queues/mail", {"concurrency": 2})
    await api("POST", "/queues/mail/pause")
    gone = await api("DELETE", "/queues/mail")
    assert (gone["name"], gone["paused"], gone["concurrency"]) == ("mail", True, 2)
    assert await app.queues.list() == []
    await api.refused("DELETE", "/queues/mail", status=404)


async def test_queue_with_unfinished_jobs_is_not_removed(api: Api, app: Penstock) -> None:
    await api("POST", "/queues/mail/pause")
    await add(app, queue="mail")
    said = await api("DELETE", "/queues/mail", status=409)
    assert "1 unfinished" in said["detail"]
    assert [queue.paused for queue in await app.queues.list()] == [True]


async def test_job_of_one_queue_too_many_is_refused_with_429(api: Api, app: Penstock) -> None:
    await app.limits.queues(1)
    await add(app, queue="mail")
    body = {"task": "t", "queue": "other"}
    said = await api("POST", "/jobs", body, status=429)
    assert "limit of 1" in said["detail"]
    assert [queue.name for queue in await app.queues.list()] == ["mail"]

"""Schedules over HTTP."""

from datetime import timedelta

import pytest

from penstock import NewJob, Penstock
from tests.server.support import Api


@pytest.fixture
async def nightly(app: Penstock) -> None:
    job = NewJob(task="report", payload='{"a":1}', queue="reports")
    await app.schedules.put(
        "nightly", job, cron="0 2 * * *", timezone="Europe/Berlin", overlap=False
    )


@pytest.mark.usefixtures("nightly")
async def test_schedules_are_listed(api: Api, app: Penstock) -> None:
    await app.schedules.put(
        "often", NewJob(task="t", payload="{}"), every=timedelta(minutes=5), missed="all"
    )
    nightly, often = (await api("GET", "/schedules"))["schedules"]
    assert nightly == {
        "name": "nightly",
        "task": "report",
        "queue": "reports",
        "spec": "At 02:00 every day",
        "cron": "0 2 * * *",
        "every": None,
        "timezone": "Europe/Berlin",
        "missed": "once",
        "overlap": False,
        "declared": False,
        "paused": False,
        "next": "2030-01-01T01:00:00Z",
        "last": None,
        "last_job": None,
    }
    assert (often["every"], often["cron"], often["missed"]) == (300.0, None, "all")


@pytest.mark.usefixtures("nightly")
async def test_schedule_is_run_now_but_not_beside_itself(api: Api) -> None:
    job = await api("POST", "/schedules/nightly/run", status=201)
    assert (job["task"], job["args"], job["duplicate"]) == ("report", {"a": 1}, False)
    again = await api("POST", "/schedules/nightly/run", status=200)
    assert (again["id"], again["duplicate"]) == (job["id"], True)


@pytest.mark.usefixtures("nightly")
async def test_schedule_is_paused_and_resumed(api: Api, app: Penstock) -> None:
    assert (await api("POST", "/schedules/nightly/pause"))["paused"] is True
    assert [one.paused for one in await app.schedules.list()] == [True]
    assert (await api("POST", "/schedules/nightly/resume"))["paused"] is False


@pytest.mark.parametrize("verb", ["run", "pause", "resume"])
async def test_unknown_schedule_is_not_found(api: Api, verb: str) -> None:
    await api.refused("POST", f"/schedules/none/{verb}", status=404)
    assert await api.refused("POST", f"/schedules/{'x' * 201}/{verb}") == "name"

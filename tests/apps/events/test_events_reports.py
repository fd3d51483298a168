"""Reports about events that a worker has, had, or never had."""

from pathlib import Path
from typing import Any

import pytest

from penstock.apps.events import Settings
from tests.apps.events.support import ALICE, BOB, Api, served, without

EXHAUSTED = {"error": "Max retries exceeded", "retry_count": 3, "max_retries": 3}


async def held(api: Api, worker: str = ALICE, **fields: Any) -> dict[str, Any]:
    await api.publish(**fields)
    return await api.pick(worker=worker)


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("action", ["complete", "fail"])
async def test_repeated_report_is_answered_as_before_and_logged_once(
    api: Api, action: str, by_token: bool
) -> None:
    event = await held(api)
    said: dict[str, Any] = {"status_code": 7, "execution_time_ms": 5}
    if by_token:
        said["token"] = event["token"]
    if action == "fail":
        said["error_message"] = "no"
    first = await api.say(action, event["id"], **said)
    before = await api.look(event["id"])
    api.after(60)
    again = await api.say(action, event["id"], **said)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert first.status_code == 200
    assert await api.look(event["id"]) == before


@pytest.mark.parametrize("by_token", [True, False])
async def test_last_failure_is_stored_and_then_answered(api: Api, by_token: bool) -> None:
    event = await held(api, retry_delay=0)
    for _ in range(2):
        assert (await api.say("fail", event["id"])).status_code == 200
        event = await api.pick()
    token = {"token": event["token"]} if by_token else {}
    for _ in range(3):
        answer = await api.say("fail", event["id"], status_code=500, **token)
        assert (answer.status_code, answer.json()) == (400, EXHAUSTED)
        api.after(1)
    after = await api.look(event["id"])
    assert (after["status"], after["retry_count"], after["next_retry_at"]) == ("FAILED", 3, None)
    assert [line["action"] for line in after["logs"]] == ["PICKED", "FAILED"] * 3
    assert await api.nothing_for()


async def test_each_attempt_of_one_worker_is_recorded(api: Api) -> None:
    event = await held(api, retry_delay=0)
    first = await api.say("fail", event["id"], token=event["token"], error_message="one")
    api.after(10)
    again = await api.pick()
    assert again["token"] > event["token"]
    second = await api.say("fail", event["id"], token=again["token"], error_message="two")
    assert first.json() != second.json()
    assert await api.actions(event["id"]) == ["PICKED", "FAILED", "PICKED", "FAILED"]
    replay = await api.say("fail", event["id"], token=event["token"], error_message="one")
    assert replay.json() == first.json()
    replay = await api.say("fail", event["id"], token=again["token"], error_message="two")
    assert replay.json() == second.json()
    assert len(await api.actions(event["id"])) == 4


async def test_earlier_failure_does_not_answer_for_a_lost_attempt(api: Api) -> None:
    event = await held(api, retry_delay=0)
    await api.say("fail", event["id"])
    await api.pick()
    api.after(31)
    assert await api.app.leases.reclaim() == 1
    assert (await api.say("fail", event["id"])).status_code == 409


async def test_repeated_report_reaches_another_server(tmp_path: Path) -> None:
    """The first process still remembers the lease."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url) as one, served(url, clock=one.clock) as other:
        event = await held(one)
        first = await other.say("complete", event["id"], token=event["token"])
        again = await one.say("complete", event["id"], token=event["token"])
        assert (first.status_code, first.json()) == (again.status_code, again.json())
        assert await one.actions(event["id"]) == ["PICKED", "COMPLETED"]
        late = await one.say("fail", event["id"], token=event["token"])
        assert late.status_code == 409


@pytest.mark.parametrize("action", ["complete", "fail", "start", "heartbeat", "release"])
async def test_worker_without_a_token_is_known_to_every_server(tmp_path: Path, action: str) -> None:
    """Also to a process that remembers an earlier lease of the same worker."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url) as one, served(url, clock=one.clock) as other:
        event = await held(one)
        one.after(31)
        assert await other.app.leases.reclaim() == 1
        assert (await other.pick())["id"] == event["id"]
        assert (await one.say(action, event["id"])).status_code == 200
        assert (await one.say(action, event["id"], token=event["token"])).status_code == 409
        assert (await one.actions(event["id"])).count("REFUSED") == 1


@pytest.mark.parametrize("action", ["complete", "fail", "start", "heartbeat", "release"])
async def test_only_the_holder_is_heard(api: Api, action: str) -> None:
    event = await held(api)
    answer = await api.say(action, event["id"], BOB)
    assert answer.status_code == 409
    assert answer.json() == {
        "detail": f"event {event['id']} is not held by {BOB}; discard its result"
    }
    stale = await api.say(action, event["id"], ALICE, token=event["token"] - 1)
    assert stale.status_code == 409
    borrowed = await api.say(action, event["id"], BOB, token=event["token"])
    assert borrowed.status_code == 409
    after = await api.look(event["id"])
    assert after["status"] == "PROCESSING"
    assert [line["action"] for line in after["logs"]] == ["PICKED", *["REFUSED"] * 3]
    assert (await api.say("complete", event["id"], token=event["token"])).status_code == 200


@pytest.mark.parametrize("action", ["complete", "fail", "start", "heartbeat", "release"])
async def test_nobody_holds_what_was_never_picked(api: Api, action: str) -> None:
    event = await api.publish()
    assert (await api.say(action, event["id"])).status_code == 409
    assert (await api.say(action, event["id"], token=0)).status_code == 409
    assert (await api.look(event["id"]))["status"] == "PENDING"


@pytest.mark.parametrize("action", ["complete", "fail", "start", "heartbeat", "release", "reset"])
async def test_unknown_event(api: Api, action: str) -> None:
    answer = await (
        api.post("/events/4711/reset") if action == "reset" else api.say(action, 4711, token=3)
    )
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is no event 4711"})
    assert (await api.get("/events/4711")).status_code == 404


async def test_job_of_another_kind_is_no_event(api: Api) -> None:
    api.app.task("other", lambda: None)
    job = await api.app.tasks["other"].enqueue()
    for answer in (
        await api.get(f"/events/{job.id}"),
        await api.say("complete", job.id),
        await api.say("start", job.id),
        await api.post(f"/events/{job.id}/reset"),
    ):
        assert answer.status_code == 404
    assert (await api.get("/events")).json()["total"] == 0


async def test_lease_runs_out_and_the_old_holder_is_refused(api: Api) -> None:
    event = await held(api)
    api.after(29)
    assert await api.app.leases.reclaim() == 0
    api.after(2)
    assert await api.app.leases.reclaim() == 1
    after = await api.look(event["id"])
    assert (after["status"], after["retry_count"]) == ("PENDING", 1)
    assert after["logs"][-1]["action"] == "EXPIRED"
    taken = await api.pick(worker=BOB)
    assert taken["token"] > event["token"]
    for action in ("complete", "fail", "heartbeat", "start", "release"):
        late = await api.say(action, event["id"], ALICE, token=event["token"])
        assert late.status_code == 409, action
    assert (await api.say("complete", event["id"], BOB)).status_code == 200
    assert (await api.look(event["id"]))["status"] == "COMPLETED"


@pytest.mark.parametrize("action", ["heartbeat", "start"])
async def test_lease_is_prolonged(api: Api, action: str) -> None:
    event = await held(api)
    for _ in range(3):
        api.after(29)
        answer = await api.say(action, event["id"], token=event["token"])
        assert answer.status_code == 200
        assert await api.app.leases.reclaim() == 0
    api.after(31)
    assert await api.app.leases.reclaim() == 1


async def test_heartbeat(api: Api) -> None:
    event = await held(api)
    api.after(10)
    assert (await api.say("heartbeat", event["id"])).json() == {
        "event_id": event["id"],
        "worker_id": ALICE,
        "token": event["token"],
        "lease_expires_at": "2025-12-24T10:30:40Z",
        "cancel_requested": False,
    }
    assert await api.actions(event["id"]) == ["PICKED"]
    await api.app.cancel(event["id"])
    assert (await api.say("heartbeat", event["id"])).json()["cancel_requested"] is True


async def test_release_gives_an_event_back_without_using_up_an_attempt(api: Api) -> None:
    event = await held(api)
    answer = await api.say("release", event["id"], token=event["token"])
    assert answer.json() == {"event_id": event["id"], "worker_id": ALICE, "status": "PENDING"}
    again = await api.pick(worker=BOB)
    assert (again["id"], again["retry_count"]) == (event["id"], 0)
    assert await api.actions(event["id"]) == ["PICKED", "RELEASED", "PICKED"]


async def test_reset_of_a_held_event(api: Api) -> None:
    event = await held(api)
    api.after(5)
    answer = await api.post(f"/events/{event['id']}/reset?reason=worker_timeout")
    assert answer.status_code == 200
    shown = await api.look(event["id"])
    assert answer.json() == without(shown, "logs")
    assert (shown["status"], shown["retry_count"]) == ("PENDING", 0)
    assert shown["updated_at"] == "2025-12-24T10:30:05Z"
    assert (shown["logs"][-1]["action"], shown["logs"][-1]["reason"]) == ("RESET", "worker_timeout")
    assert (await api.say("complete", event["id"])).status_code == 409
    assert (await api.say("complete", event["id"], token=event["token"])).status_code == 409
    assert (await api.pick(worker=BOB))["id"] == event["id"]
    assert (await api.say("complete", event["id"], token=event["token"])).status_code == 409
    assert (await api.say("complete", event["id"], BOB)).status_code == 200


async def test_reset_of_a_failed_event_gives_it_all_its_attempts(api: Api) -> None:
    event = await held(api, max_retries=1)
    assert (await api.say("fail", event["id"])).status_code == 400
    after = (await api.post(f"/events/{event['id']}/reset")).json()
    assert (after["status"], after["retry_count"], after["next_retry_at"]) == ("PENDING", 0, None)
    assert (await api.pick())["retry_count"] == 0


async def test_reset_clears_the_time_of_the_retry(api: Api) -> None:
    event = await held(api)
    await api.say("fail", event["id"])
    after = (await api.post(f"/events/{event['id']}/reset")).json()
    assert after["next_retry_at"] is None
    assert (await api.pick())["id"] == event["id"]


async def test_event_has_its_own_retries(api: Api) -> None:
    event = await held(api, retry_delay=0.5, max_retries=2)
    answer = await api.say("fail", event["id"])
    assert answer.json()["next_retry_at"] == "2025-12-24T10:30:01Z"  # never too early
    api.after(0.5)
    assert (await api.pick())["max_retries"] == 2
    assert (await api.say("fail", event["id"])).json() == {
        "error": "Max retries exceeded",
        "retry_count": 2,
        "max_retries": 2,
    }


async def test_server_has_its_own_times() -> None:
    async with served("memory://", Settings(retry_delay=7, lease=2)) as api:
        event = await held(api)
        assert (await api.say("heartbeat", event["id"])).json()["lease_expires_at"].endswith(":02Z")
        answer = await api.say("fail", event["id"])
        assert answer.json()["next_retry_at"] == "2025-12-24T10:30:07Z"


async def test_reports_of_several_events_are_answered_one_by_one(api: Api) -> None:
    await api.publish(max_retries=1)
    await api.publish()
    await api.publish()
    mine = [(await api.pick())["id"] for _ in range(2)]
    other = (await api.pick(worker=BOB))["id"]
    answer = await api.post(
        "/events/fail",
        json={
            "worker_id": ALICE,
            "events": [{"id": one, "error_message": "no"} for one in (*mine, other, 4711)],
        },
    )
    assert answer.status_code == 200
    assert answer.json()["events"] == [
        {
            "event_id": mine[0],
            "status": 400,
            "detail": "Max retries exceeded",
            "retry_scheduled": False,
        },
        {
            "event_id": mine[1],
            "status": 200,
            "retry_scheduled": True,
            "next_retry_at": "2025-12-24T10:35:00Z",
        },
        {
            "event_id": other,
            "status": 409,
            "detail": f"event {other} is not held by {ALICE}; discard its result",
        },
        {"event_id": 4711, "status": 404, "detail": "there is no event 4711"},
    ]


async def test_event_that_is_reported_twice_in_one_call_is_logged_once(api: Api) -> None:
    event = await held(api)
    body = {"worker_id": ALICE, "events": [{"id": event["id"]}] * 2}
    answer = await api.post("/events/complete", json=body)
    assert [one["status"] for one in answer.json()["events"]] == [200, 200]
    again = await api.post("/events/complete", json=body)
    assert again.json() == answer.json()
    assert await api.actions(event["id"]) == ["PICKED", "COMPLETED"]


async def test_failed_event_is_completed_by_nobody(api: Api) -> None:
    event = await held(api, max_retries=1)
    await api.say("fail", event["id"])
    assert (await api.say("complete", event["id"])).status_code == 409
    assert (await api.look(event["id"]))["status"] == "FAILED"


async def test_least_that_can_be_said(api: Api) -> None:
    event = await held(api)
    assert (await api.say("complete", event["id"])).json() == {
        "event_id": event["id"],
        "worker_id": ALICE,
        "action": "COMPLETED",
        "created_at": "2025-12-24T10:30:00Z",
    }

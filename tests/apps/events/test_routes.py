"""The documented examples: requests and answers, verbatim except for IDs."""

from typing import Any

from tests.apps.events.support import ALICE, BOB, Api, without

EMAIL: dict[str, Any] = {
    "title": "Send Email Notification",
    "description": "Send welcome email to new user",
    "tags": "email,priority-high,notification",
    "payload": {
        "user_id": 12345,
        "email": "user@example.com",
        "template": "welcome",
        "variables": {"name": "Alice", "signup_date": "2025-12-24"},
    },
}
SUBSCRIBE = f"/events/subscribe?tags=email,notification&worker_id={BOB}"
SUCCESS = {"worker_id": BOB, "execution_time_ms": 1250, "status_code": 200}
TIMEOUT = "Connection timeout: mail server unreachable. Will retry."
FAILURE = {
    "worker_id": BOB,
    "execution_time_ms": 5000,
    "status_code": 500,
    "error_message": TIMEOUT,
}
BEFORE = {
    **EMAIL,
    "status": "PENDING",
    "retry_count": 0,
    "max_retries": 3,
    "next_retry_at": None,
    "created_at": "2025-12-24T10:30:00Z",
    "updated_at": "2025-12-24T10:30:00Z",
}


async def publish(api: Api) -> int:
    return int((await api.post("/events", json=EMAIL)).json()["id"])


async def test_publish(api: Api) -> None:
    answer = await api.post("/events", json=EMAIL)
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    event = answer.json()
    assert isinstance(event["id"], int)
    assert without(event, "id") == BEFORE
    assert await api.look(event["id"]) == {**event, "logs": []}


async def test_subscribe(api: Api) -> None:
    event = await publish(api)
    api.at("10:30:45")
    answer = await api.get(SUBSCRIBE)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert without(answer.json(), "token") == {
        "id": event,
        "title": EMAIL["title"],
        "tags": EMAIL["tags"],
        "status": "PROCESSING",
        "payload": EMAIL["payload"],
        "retry_count": 0,
        "max_retries": 3,
        "created_at": "2025-12-24T10:30:00Z",
    }
    assert isinstance(answer.json()["token"], int)


async def test_subscribe_finds_nothing(api: Api) -> None:
    answer = await api.get(SUBSCRIBE)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["cache-control"] == "no-store"
    assert "content-type" not in answer.headers


async def test_complete(api: Api) -> None:
    event = await publish(api)
    api.at("10:30:45")
    await api.get(SUBSCRIBE)
    api.at("10:31:15")
    answer = await api.post(f"/events/{event}/complete", json=SUCCESS)
    assert answer.status_code == 200
    assert answer.json() == {
        "event_id": event,
        "worker_id": BOB,
        "action": "COMPLETED",
        "status_code": 200,
        "execution_time_ms": 1250,
        "created_at": "2025-12-24T10:31:15Z",
    }


async def test_fail_with_a_retry(api: Api) -> None:
    event = await publish(api)
    await api.get(SUBSCRIBE)
    api.at("10:31:15")
    answer = await api.post(f"/events/{event}/fail", json=FAILURE)
    assert answer.status_code == 200
    assert answer.json() == {
        "event_id": event,
        "worker_id": BOB,
        "action": "FAILED",
        "status_code": 500,
        "error_message": TIMEOUT,
        "execution_time_ms": 5000,
        "retry_scheduled": True,
        "next_retry_at": "2025-12-24T10:36:15Z",
        "created_at": "2025-12-24T10:31:15Z",
    }
    after = await api.look(event)
    assert without(after, "id", "logs") == {
        **BEFORE,
        "retry_count": 1,
        "next_retry_at": "2025-12-24T10:36:15Z",
        "updated_at": "2025-12-24T10:31:15Z",
    }


async def test_fail_for_the_last_time(api: Api) -> None:
    event = await publish(api)
    for _ in range(3):
        await api.get(SUBSCRIBE)
        answer = await api.post(f"/events/{event}/fail", json=FAILURE)
        api.after(300)
    assert answer.status_code == 400
    assert answer.json() == {"error": "Max retries exceeded", "retry_count": 3, "max_retries": 3}
    after = await api.look(event)
    assert (after["status"], after["retry_count"], after["next_retry_at"]) == ("FAILED", 3, None)
    assert await api.actions(event) == ["PICKED", "FAILED"] * 3
    assert (await api.get(SUBSCRIBE)).status_code == 204


async def test_details_with_the_log(api: Api) -> None:
    event = await publish(api)
    api.at("10:30:45")
    await api.get(SUBSCRIBE)
    api.at("10:31:15")
    await api.post(f"/events/{event}/complete", json=SUCCESS)
    shown = (await api.get(f"/events/{event}?include_logs=true")).json()
    picked, completed = shown["logs"]
    assert picked["id"] < completed["id"]
    assert without(shown, "logs") == {
        "id": event,
        **BEFORE,
        "status": "COMPLETED",
        "updated_at": "2025-12-24T10:31:15Z",
    }
    assert [without(line, "id") for line in shown["logs"]] == [
        {"worker_id": BOB, "action": "PICKED", "created_at": "2025-12-24T10:30:45Z"},
        {
            "worker_id": BOB,
            "action": "COMPLETED",
            "status_code": 200,
            "execution_time_ms": 1250,
            "created_at": "2025-12-24T10:31:15Z",
        },
    ]
    assert (await api.get(f"/events/{event}")).json() == without(shown, "logs")
    assert (await api.get(f"/events/{event}?include_logs=false")).json() == without(shown, "logs")


async def test_list(api: Api) -> None:
    api.at("10:25:00")
    payment = await api.publish(title="Process Payment", tags="payment,priority-high")
    api.at("10:30:00")
    email = await publish(api)
    api.at("10:31:00")
    await api.pick("payment")
    await api.say("fail", payment["id"])
    await api.get(SUBSCRIBE)
    api.at("10:31:15")
    await api.post(f"/events/{email}/complete", json=SUCCESS)
    assert (await api.get("/events?limit=10")).json() == {
        "events": [
            {
                "id": email,
                "title": "Send Email Notification",
                "status": "COMPLETED",
                "tags": "email,priority-high,notification",
                "retry_count": 0,
                "created_at": "2025-12-24T10:30:00Z",
                "updated_at": "2025-12-24T10:31:15Z",
            },
            {
                "id": payment["id"],
                "title": "Process Payment",
                "status": "PENDING",
                "tags": "payment,priority-high",
                "retry_count": 1,
                "next_retry_at": "2025-12-24T10:36:00Z",
                "created_at": "2025-12-24T10:25:00Z",
                "updated_at": "2025-12-24T10:31:00Z",
            },
        ],
        "total": 2,
        "limit": 10,
        "offset": 0,
    }


async def test_lifecycle_with_one_retry(api: Api) -> None:
    event = await publish(api)
    api.at("10:30:45")
    await api.pick("email", ALICE)
    api.at("10:30:46")
    started = await api.say("start", event, ALICE)
    api.at("10:30:54")
    unavailable = "Service unavailable, will retry"
    await api.say(
        "fail", event, ALICE, status_code=503, error_message=unavailable, execution_time_ms=8000
    )
    api.at("10:35:53")
    assert await api.nothing_for("email", BOB)
    api.at("10:36:10")
    picked = await api.pick("email", BOB)
    assert picked["retry_count"] == 1
    assert (await api.look(event))["next_retry_at"] is None
    api.at("10:36:25")
    await api.post(f"/events/{event}/complete", json=SUCCESS)
    assert started.json() == {
        "event_id": event,
        "worker_id": ALICE,
        "action": "STARTED",
        "created_at": "2025-12-24T10:30:46Z",
    }
    assert [without(line, "id") for line in (await api.look(event))["logs"]] == [
        {"worker_id": ALICE, "action": "PICKED", "created_at": "2025-12-24T10:30:45Z"},
        {"worker_id": ALICE, "action": "STARTED", "created_at": "2025-12-24T10:30:46Z"},
        {
            "worker_id": ALICE,
            "action": "FAILED",
            "status_code": 503,
            "error_message": unavailable,
            "execution_time_ms": 8000,
            "created_at": "2025-12-24T10:30:54Z",
        },
        {"worker_id": BOB, "action": "PICKED", "created_at": "2025-12-24T10:36:10Z"},
        {
            "worker_id": BOB,
            "action": "COMPLETED",
            "status_code": 200,
            "execution_time_ms": 1250,
            "created_at": "2025-12-24T10:36:25Z",
        },
    ]


async def test_one_process_publishes_and_another_consumes(api: Api) -> None:
    payload = {"report_type": "sales", "month": "2025-12"}
    report = {"title": "Batch Report Generation", "tags": "reporting,batch", "payload": payload}
    event = (await api.post("/events", json=report)).json()
    assert event["description"] is None
    picked = await api.get("/events/subscribe?tags=reporting&worker_id=worker-03:9100")
    assert (picked.json()["id"], picked.json()["status"]) == (event["id"], "PROCESSING")
    api.after(15)
    done = {"worker_id": "worker-03:9100", "execution_time_ms": 15000, "status_code": 200}
    assert (await api.post(f"/events/{event['id']}/complete", json=done)).status_code == 200
    assert (await api.look(event["id"]))["status"] == "COMPLETED"
    nothing = await api.get("/events/subscribe?tags=payment&worker_id=worker-04:9101")
    assert (nothing.status_code, nothing.content) == (204, b"")

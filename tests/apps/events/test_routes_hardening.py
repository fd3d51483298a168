"""Malformed requests: every answer has the same shape, and none is a server error."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from httpx import Response

from penstock.web import bodies
from penstock.web.openapi import ProblemBody
from tests.apps.events.support import ALICE, Api, served

EVENT = {"title": "t", "tags": "a"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(f"sqlite:///{tmp_path}/jobs.db") as api:
        yield api


def assert_problem(answer: Response, *statuses: int) -> dict[str, Any]:
    """Check that a request is refused with one of these statuses, in the common shape."""
    assert answer.status_code in statuses, answer.text
    problem = answer.json()
    assert set(problem) <= set(ProblemBody.__struct_fields__)
    assert isinstance(problem["detail"], str)
    return dict(problem)


async def send(api: Api, body: bytes, path: str = "/events", **headers: str) -> Response:
    given = {"content-type": "application/json", **headers}
    return await api.post(path, content=body, headers=given)


def event(payload: bytes) -> bytes:
    return b'{"title": "t", "tags": "a", "payload": ' + payload + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"title": "t", "tags": "a",}',
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf{}",
        b'{"title": "\xff", "tags": "a"}',
        b'{"title": "\\ud800", "tags": "a"}',
        b'{"title": "t\x00", "tags": "a"}',
        event(b'"\xff"'),
        event(b'{"\xc3\x28": 1}'),
        event(b'"\\ud800"'),
        event(b"NaN"),
        event(b"Infinity"),
        event(b"01"),
        event(b"[" * 100_000 + b"]" * 100_000),
        event(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 100_000,
        b'{"events": ' + b"[" * 100_000,
    ],
)
async def test_what_is_not_json(api: Api, body: bytes) -> None:
    for path in ("/events", "/events/batch", "/events/subscribe", "/events/1/complete"):
        assert_problem(await send(api, body, path), 400, 422)
    assert_problem(await send(api, b"{", "/events"), 400)


@pytest.mark.parametrize("levels", [201, 250, 500, 900, 950, 980, 990, 1_000, 2_000])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_deep_payload_is_refused(api: Api, levels: int, begin: bytes, end: bytes) -> None:
    answer = await send(api, event(begin * levels + b"1" + end * levels))
    assert_problem(answer, 400, 422)


async def test_payload_may_be_deep_and_wide(api: Api) -> None:
    deep = json.loads("[" * 200 + "]" * 200)
    wide = [{"a": ['[[[{{{"\\']}] * 1_000
    for payload in (deep, wide):
        shown = await api.publish(payload=payload)
        assert shown["payload"] == payload
        assert (await api.pick())["payload"] == payload


@pytest.mark.parametrize(
    "payload",
    [
        "-1e-999",
        "9" * 400,
        '{"a": 1, "a": 2}',
        '"\\u0000"',
        '"\\ud83d\\ude00"',
        "null",
        "[]",
        '""',
        "0.10000000000000000000001",
    ],
)
async def test_payload_comes_back_as_it_was_sent(api: Api, payload: str) -> None:
    published = await send(api, event(payload.encode()))
    assert published.status_code == 201, published.text
    assert f'"payload":{payload}' in published.text
    picked = await api.get("/events/subscribe", params={"tags": "a", "worker_id": ALICE})
    assert f'"payload":{payload}' in picked.text
    looked = await api.get(f"/events/{published.json()['id']}")
    assert f'"payload":{payload}' in looked.text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"title": ""}, "title"),
        ({"title": "t" * 1_001}, "title"),
        ({"title": 1}, "title"),
        ({"title": None}, "title"),
        ({"description": "d" * 20_001}, "description"),
        ({"priority": 11}, "priority"),
        ({"priority": 2**70}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"max_retries": 0}, "max_retries"),
        ({"max_retries": "3"}, "max_retries"),
        ({"retry_delay": -1}, "retry_delay"),
        ({"retry_delay": 1e300}, "retry_delay"),
        ({"delay": -0.1}, "delay"),
        ({"key": ""}, "key"),
        ({"key": "a\0b"}, "key"),
        ({"dedupe": "\0"}, "dedupe"),
        ({"dedupe": "d" * 1_001}, "dedupe"),
        ({"nonsense": 1}, "nonsense"),
        ({"status": "COMPLETED"}, "status"),
    ],
)
async def test_wrong_field_is_named(api: Api, fields: dict[str, Any], field: str) -> None:
    answer = await api.post("/events", json={**EVENT, **fields})
    assert assert_problem(answer, 422)["field"] == field
    batch = await api.post("/events/batch", json={"events": [EVENT, {**EVENT, **fields}]})
    assert field in assert_problem(batch, 422)["detail"]
    assert (await api.get("/events")).json()["total"] == 0


async def test_missing_field_is_named(api: Api) -> None:
    assert assert_problem(await api.post("/events", json={"tags": "a"}), 422)["field"] == "title"
    answer = await api.get("/events/subscribe?tags=a")
    assert assert_problem(answer, 422)["field"] == "worker_id"
    answer = await api.post("/events/1/complete", json={})
    assert assert_problem(answer, 422)["field"] == "worker_id"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"worker_id": ""}, "worker_id"),
        ({"worker_id": "w\0"}, "worker_id"),
        ({"worker_id": "w" * 201}, "worker_id"),
        ({"token": 2**64}, "token"),
        ({"token": -(2**64)}, "token"),
        ({"token": "1"}, "token"),
        ({"status_code": 2**64}, "status_code"),
        ({"execution_time_ms": -1}, "execution_time_ms"),
        ({"execution_time_ms": 1e300}, "execution_time_ms"),
        ({"error_message": "e" * 100_001}, "error_message"),
    ],
)
async def test_wrong_field_of_a_report_is_named(
    api: Api, fields: dict[str, Any], field: str
) -> None:
    await api.publish()
    picked = await api.pick()
    answer = await api.say("fail", picked["id"], **{"worker_id": ALICE, **fields})
    assert assert_problem(answer, 422)["field"] == field
    one = {"id": picked["id"], **fields}
    if "worker_id" not in fields:
        many = await api.post("/events/fail", json={"worker_id": ALICE, "events": [one]})
        assert field in assert_problem(many, 422)["field"]
    assert await api.actions(picked["id"]) == ["PICKED"]


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64, 10**400])
async def test_id_out_of_range(api: Api, number: int) -> None:
    assert assert_problem(await api.get(f"/events/{number}"), 422)["field"] == "event_id"
    assert_problem(await api.say("complete", number), 422)
    body = {"worker_id": ALICE, "events": [{"id": number}]}
    assert_problem(await api.post("/events/complete", json=body), 422)


@pytest.mark.parametrize(
    "path",
    [
        "/events/abc",
        "/events/1.5",
        "/events/1e3",
        "/events/%31%20",
        "/events/%00",
        "/events/%ff",
        "/events/..%2f..%2fetc%2fpasswd",
        "/events/%2e%2e",
        "/events/1;drop",
        "/events/1%0d%0aX:1",
        "/events//1",
        "//events/1",
        "/events/1//",
        "/events/1/../2",
        "/Events",
        "/events/1/nonsense",
        "/%65vents/x",
        "/events/" + "9" * 7_000,
        "/events/%D9%A1",
    ],
)
async def test_strange_path(api: Api, path: str) -> None:
    assert_problem(await api.get(path), 404, 405, 422)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=" + "9" * 400, "limit"),
        ("offset=-1", "offset"),
        ("offset=1.5", "offset"),
        ("status=DONE", "status"),
        ("status=", "status"),
        ("nonsense=1", "nonsense"),
        ("limit[]=1", "limit[]"),
    ],
)
async def test_wrong_parameter_is_named(api: Api, query: str, field: str) -> None:
    assert assert_problem(await api.get(f"/events?{query}"), 422)["field"] == field


@pytest.mark.parametrize("query", ["limit=1&limit=2", "tags=%ff", "tags=%00", "tags=%ed%a0%80"])
async def test_parameters_that_cannot_be_read(api: Api, query: str) -> None:
    assert_problem(await api.get(f"/events?{query}"), 422)


async def test_parameters_have_a_length(api: Api) -> None:
    assert_problem(await api.get("/events?tags=" + "a" * 8_001), 414)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", ""]
)
async def test_body_is_sent_as_json(api: Api, kind: str) -> None:
    answer = await send(api, json.dumps(EVENT).encode(), **{"content-type": kind})
    assert_problem(answer, 415)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
async def test_json_has_several_names(api: Api, kind: str) -> None:
    answer = await send(api, json.dumps(EVENT).encode(), **{"content-type": kind})
    assert answer.status_code == 201


@pytest.mark.parametrize(("size", "status"), [(1_000_000, 201), (1_000_001, 413), (3_000_000, 413)])
async def test_payload_has_a_size(api: Api, size: int, status: int) -> None:
    answer = await send(api, event(b'"' + b"x" * (size - 2) + b'"'))
    assert answer.status_code == status
    if status == 413:
        assert_problem(answer, 413)


async def endless(piece: bytes) -> AsyncIterator[bytes]:
    while True:
        yield piece


async def test_endless_body_is_cut(api: Api) -> None:
    assert_problem(await api.post("/events", content=endless(b"[" * 10_000)), 413)


async def test_slow_body_is_cut(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    monkeypatch.setattr(bodies, "BODY_TIME", 0.01)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"title": '
        await asyncio.Event().wait()

    assert_problem(await api.post("/events", content=slow()), 408)


@pytest.mark.parametrize(
    "headers",
    [
        [("x-junk", "\x7f\xff")],
        [("x-junk", "j" * 60_000)],
        [("authorization", "\xff")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
        [("cookie", "a=b; " * 1_000)],
        [("accept", "text/html")],
        [("accept-encoding", "gzip")],
        [("range", "bytes=0-1")],
        [("if-none-match", "*")],
        [("x-http-method-override", "DELETE")],
        [("expect", "200-ok")],
    ],
)
async def test_junk_in_headers_changes_nothing(
    api: Api, headers: Sequence[tuple[str, str]]
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    assert (await api.get("/events", headers=raw)).status_code == 200


async def test_compressed_body_is_not_taken_for_json(api: Api) -> None:
    assert_problem(await send(api, b"\x1f\x8b\x08\x00", **{"content-encoding": "gzip"}), 400)


# Methods and slashes


PATHS: dict[str, Callable[[Api, str], Awaitable[Response]]] = {
    "publish": lambda api, slash: api.post(f"/events{slash}", json=EVENT),
    "batch": lambda api, slash: api.post(f"/events/batch{slash}", json={"events": [EVENT]}),
    "list": lambda api, slash: api.get(f"/events{slash}?limit=1"),
    "details": lambda api, slash: api.get(f"/events/1{slash}"),
    "subscribe": lambda api, slash: api.get(f"/events/subscribe{slash}?tags=z&worker_id=w"),
    "reset": lambda api, slash: api.post(f"/events/1/reset{slash}?reason=r"),
}


@pytest.mark.parametrize("path", PATHS)
async def test_path_is_served_with_and_without_its_last_slash(api: Api, path: str) -> None:
    await api.publish()
    answers = [await PATHS[path](api, slash) for slash in ("", "/")]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].status_code in (200, 201, 204)


@pytest.mark.parametrize("action", ["start", "heartbeat", "release", "complete", "fail"])
async def test_action_is_served_with_its_last_slash(api: Api, action: str) -> None:
    await api.publish()
    picked = await api.pick()
    answer = await api.post(f"/events/{picked['id']}/{action}/", json={"worker_id": ALICE})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/events", "GET, HEAD, POST"),
        ("/events/", "GET, HEAD, POST"),
        ("/events/1/complete", "POST"),
    ],
)
async def test_methods_of_a_path(api: Api, path: str, methods: str) -> None:
    wrong = await api.client.request("DELETE", path)
    assert_problem(wrong, 405)
    assert wrong.headers["allow"] == methods
    asked = await api.client.options(path)
    assert (asked.status_code, asked.content) == (204, b"")
    assert asked.headers["allow"] == methods
    assert not [name for name in asked.headers if name.startswith("access-control")]


async def test_head_picks_nothing(api: Api) -> None:
    await api.publish()
    answer = await api.client.head(f"/events/subscribe?tags=a&worker_id={ALICE}")
    assert answer.status_code == 405
    assert (await api.client.head("/events")).status_code == 200
    assert (await api.get("/events?status=PENDING")).json()["total"] == 1

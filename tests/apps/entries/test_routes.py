"""The routes of entries."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock
from penstock.apps.entries import Entries, Settings, install, routes
from penstock.server.app import Service
from penstock.tokens import Access
from penstock.web.problems import Problem
from penstock.web.routes import Call
from tests.apps.entries.support import Api, assert_index_equals_rows, experience, work_off

TEA = {"entity_type": "experience", "category_code": "A", "data": experience("Tea")}


async def test_entry_is_written_read_changed_found_and_deleted(api: Api, entries: Entries) -> None:
    written = await api.entries("write", TEA)
    one = written["entry_id"]
    assert (written["success"], written["embedding_status"]) == (True, "pending")
    assert written["entry"]["embedding_status"] == "pending"
    assert written["entry"]["data"] == experience("Tea")
    await work_off(entries)
    read = await api.entries("read", {"entity_type": "experiences", "ids": [one, "nobody"]})
    assert (read["entry_id"], read["count"], read["missing"]) == (one, 1, ["nobody"])
    assert read["entry"]["embedding_status"] == "embedded"
    changed = await api.entries(
        "update",
        {
            "entity_type": "experience",
            "category_code": "A",
            "entry_id": one,
            "updates": {"title": "Coffee", "category_code": "B"},
            "version": 1,
        },
    )
    assert (changed["entry"]["version"], changed["entry"]["category_code"]) == (2, "B")
    assert changed["entry"]["embedding_status"] == "pending"
    await work_off(entries)
    found = await api.entries("search", {"query": "Coffee\n\ndo it", "category_code": "B"})
    assert [(hit["entry_id"], round(hit["score"], 3)) for hit in found["results"]] == [(one, 1)]
    nothing = await api.entries("search", {"query": "Coffee", "min_score": 0.999})
    assert nothing["results"] == []
    listed = await api.entries("list", {"entity_type": "experience", "limit": 1})
    assert [each["id"] for each in listed["entries"]] == [one]
    assert (await api.entries("list", {"after": listed["next"]}))["entries"] == []
    assert await api.entries("delete", {"entry_id": one}) == {
        "success": True, "ids": [one], "count": 1,
    }  # fmt: skip
    await work_off(entries)
    await api.entries("read", {"ids": [one]}, status=404)
    await assert_index_equals_rows(entries)


async def test_skill_is_another_name_for_manual(api: Api) -> None:
    data = {"title": "Cars", "content": "wheels"}
    made = await api.entries(
        "write", {"entity_type": "skill", "category_code": "A", "data": data, "entry_id": "S-1"}
    )
    assert made["entry"]["entity_type"] == "manual"
    for name in ("skill", "manual", "skills"):
        assert (await api.entries("read", {"entity_type": name, "ids": ["S-1"]}))["count"] == 1
    await api.entries("read", {"entity_type": "experience", "ids": ["S-1"]}, status=404)
    status = await api("GET", "/admin/queue/status")
    assert status["queue"]["pending"] == {"experiences": 0, "manuals": 1, "total": 1}


REFUSED = [
    ("write", {**TEA, "entity_type": "thing"}, 422, "entity_type"),
    ("write", {**TEA, "category_code": "a b"}, 422, "category_code"),
    ("write", {**TEA, "data": {**experience("x"), "colour": 1}}, 422, "data.colour"),
    ("write", {**TEA, "colour": 1}, 422, "colour"),
    ("write", {**TEA, "entry_id": "E-1"}, 409, None),
    ("update", {"entry_id": "nobody", "updates": {"title": "x"}}, 404, None),
    ("update", {"entry_id": "E-1", "updates": {"title": "x"}, "category_code": "B"}, 404, None),
    ("update", {"entry_id": "E-1", "updates": {"title": "x"}, "version": 9}, 409, None),
    ("update", {"entry_id": "E-1", "updates": {"category_code": 1}}, 422, "updates.category_code"),
    ("update", {"entry_id": "E-1", "updates": {}}, 422, "updates"),
    ("read", {"ids": []}, 422, "ids"),
    ("delete", {}, 422, "ids"),
    ("delete", {"ids": ["E-1"], "category_code": "B"}, 404, None),
    ("list", {"embedding_status": "done"}, 422, "embedding_status"),
    ("search", {"query": ""}, 422, "query"),
]


async def test_what_cannot_be_done_is_refused_with_its_field(api: Api) -> None:
    await api.entries("write", {**TEA, "entry_id": "E-1"})
    for verb, body, status, field in REFUSED:
        problem = await api.entries(verb, body, status)
        assert problem.get("field") == field, (verb, body, problem)
        assert problem["detail"]


async def test_queue_is_paused_drained_and_resumed(api: Api, entries: Entries) -> None:
    assert await api.queue("pause") == {"status": "paused", "in_flight": 0}
    await api.entries("write", TEA)
    drained = await api.queue("drain", timeout=3_600)
    assert (drained["status"], drained["remaining"], drained["paused"]) == ("paused", 1, True)
    for wrong in ({"timeout": 0}, {"timeout": 3601}, {"colour": 1}):
        await api.queue("drain", 422, **wrong)
    assert (await api.queue("resume"))["status"] == "resumed"
    await work_off(entries)
    held = await api.queue("drain", hold="true")
    assert (held["status"], held["remaining"], held["paused"]) == ("drained", 0, True)
    status = await api("GET", "/admin/queue/status")
    assert status["queue"]["paused"]
    assert status["queue"]["embedded"]["total"] == 1
    assert status["workers"]["total_jobs_succeeded"] == 1
    assert (status["workers"]["num_workers"], status["workers"]["workers"]) == (1, [])
    assert status["workers"]["status"] == "paused"
    await api.queue("resume")
    assert (await api("GET", "/admin/queue/status"))["workers"]["status"] == "idle"


async def test_failed_and_stale_rows_are_counted_by_type(api: Api, entries: Entries) -> None:
    await api.entries("write", {**TEA, "data": experience("poison")})
    await work_off(entries)
    status = await api("GET", "/admin/queue/status")
    assert status["queue"]["failed"] == {"experiences": 1, "manuals": 0, "total": 1}
    counted = {"experiences": 1, "manuals": 0, "total": 1}
    assert await api.queue("retry-failed") == {"retried": counted}
    await entries.penstock.leases.claim(worker="slow", queues=["entries"])
    status = await api("GET", "/admin/queue/status")
    assert status["queue"]["processing"]["total"] == 1
    assert await api.queue("requeue-stale") == {
        "requeued": {**counted, "experiences": 0, "total": 0}
    }
    assert await api.queue("requeue-stale", threshold_minutes=0) == {"requeued": counted}
    await api.queue("requeue-stale", 422, threshold_minutes=-1)


def test_queue_and_operations_are_for_administrators() -> None:
    application = install(Penstock("memory://"), Settings())
    access = {route.declared.path: route.declared.access for route in application.routes}
    admin = {path for path, one in access.items() if one is Access.ADMIN}
    queue = {path for path in access if path.startswith("/admin/")}
    assert admin == queue | {"/api/v1/operations/{operation}", "/api/v1/entries/import"}
    assert len(queue) == 6
    reading = {path for path, one in access.items() if one is Access.READ}
    last = {path.rpartition("/")[2] for path in reading}
    assert last == {"read", "list", "search", "export", "{job_id}"}


@pytest.mark.parametrize("url", ["memory://", "journal"])
async def test_store_without_tables_keeps_nothing_else_from_working(
    url: str, tmp_path: Path
) -> None:
    url = f"journal:///{tmp_path}/journal" if url == "journal" else url
    async with Penstock(url) as app:
        application = install(app, Settings(), tmp_path)
        service = Service(app, [application])
        async with application.running(), application.working():
            transport = httpx.ASGITransport(app=service)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                answer = await client.post("/api/v1/entries/write", json=TEA)
    assert answer.status_code == 503
    assert "SQLite or PostgreSQL" in answer.json()["detail"]


@pytest.mark.parametrize("announced", [True, False])
async def test_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    monkeypatch.setattr(routes, "FILE_LIMIT", 10)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"123456", "more_body": True}

    headers = [(b"content-length", b"11")] if announced else []
    call = Call({"headers": headers}, receive, "", lambda: None)
    with pytest.raises(Problem, match="larger than 10 bytes"):
        await routes.save_body(tmp_path / "file", call)

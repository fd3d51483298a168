"""Requests of the public client of entries, with exactly the fields that it sends."""

from typing import Any

import pytest

from penstock.apps.entries import Entries
from tests.apps.entries.support import Api, assert_index_equals_rows, experience, work_off

SKILL = {"name": "brew-tea", "description": "When somebody is thirsty", "content": "Boil water."}
MORE = {
    "license": "MIT",
    "compatibility": "any kettle",
    "metadata": {"level": 1},
    "allowed_tools": ["kettle"],
    "model": "large",
}


async def write(api: Api, kind: str, data: dict[str, Any]) -> str:
    body = {"entity_type": kind, "category_code": "HOME", "data": data}
    made: str = (await api.entries("write", body))["entry_id"]
    return made


async def update(api: Api, kind: str, one: str, updates: dict[str, Any], **more: Any) -> Any:
    body = {
        "entity_type": kind,
        "category_code": "HOME",
        "entry_id": one,
        "updates": updates,
        "force_contextual": False,
        **more,
    }
    return await api.entries("update", body)


@pytest.mark.parametrize("force", [False, True])
async def test_update_takes_the_flag_that_every_client_sends(api: Api, force: bool) -> None:
    one = await write(api, "experience", {**experience("Tea"), "section": "useful"})
    changes = {"section": "contextual", "context": {"where": "kitchen"}}
    changed = await update(api, "experience", one, changes, force_contextual=force)
    assert changed["success"]
    assert changed["entry"]["data"]["section"] == "contextual"


async def test_entries_are_read_by_ids_by_query_and_by_category(api: Api, entries: Entries) -> None:
    tea = await write(api, "experience", experience("Tea"))
    coffee = await write(api, "experience", experience("Coffee"))
    await work_off(entries)
    kind = {"entity_type": "experience"}
    by_id = await api.entries("read", {**kind, "ids": [tea], "fields": ["playbook"]})
    assert [one["id"] for one in by_id["entries"]] == [tea]
    query = {**kind, "query": "Coffee\n\ndo it", "limit": 1, "snippet_len": 320}
    found = await api.entries("read", query)
    assert [one["id"] for one in found["entries"]] == [coffee] == [found["entry_id"]]
    listed = await api.entries("read", {**kind, "category_code": "HOME", "session_id": "s-1"})
    assert {one["id"] for one in listed["entries"]} == {tea, coffee}
    assert (await api.entries("read", {**kind, "category_code": "HOME", "limit": 1}))["count"] == 1
    none = await api.entries("read", {"entity_type": "skill", "category_code": "HOME"})
    assert (none["entries"], none["count"], none["entry"], none["entry_id"]) == ([], 0, None, None)
    problem = await api.entries("read", kind, status=422)
    assert problem["field"] == "ids"


async def test_skill_keeps_the_fields_that_newer_clients_send(api: Api, entries: Entries) -> None:
    one = await write(api, "skill", {**SKILL, **MORE})
    read = await api.entries("read", {"entity_type": "skill", "ids": [one]})
    assert read["entry"]["data"] == {**SKILL, **MORE}
    changed = await update(api, "skill", one, {"description": "When it is cold", "model": None})
    assert changed["entry"]["data"]["description"] == "When it is cold"
    assert "model" not in changed["entry"]["data"]
    await work_off(entries)
    text = "brew-tea\n\nWhen it is cold\n\nBoil water."
    (hit,) = (await api.entries("search", {"query": text, "entity_type": "manual"}))["results"]
    assert (hit["entry_id"], round(hit["score"], 3)) == (one, 1)
    await assert_index_equals_rows(entries)


async def test_entry_has_one_spelling_of_its_title(api: Api) -> None:
    one = await write(api, "manual", {"title": "Tea", "summary": "Hot", "content": "Boil."})
    changed = await update(api, "skill", one, {"name": "brew-tea", "description": "Hot drink"})
    assert changed["entry"]["data"] == {
        "name": "brew-tea", "description": "Hot drink", "content": "Boil.",
    }  # fmt: skip
    both = {"entity_type": "skill", "category_code": "HOME", "data": {**SKILL, "title": "Tea"}}
    assert "means the same" in (await api.entries("write", both, 422))["detail"]
    nameless = {**both, "data": {"content": "x"}}
    problem = await api.entries("write", nameless, 422)
    assert problem["detail"] == "data.title: is required, or name"


async def test_operations_have_the_names_that_clients_use(api: Api, entries: Entries) -> None:
    await write(api, "experience", experience("poison"))
    await work_off(entries)
    path = "/api/v1/operations"
    payload = {"payload": {"retry_failed": True, "max_count": 10}}
    synced = await api("POST", f"{path}/sync-embeddings", payload, status=202)
    await api("POST", f"{path}/sync", {"payload": {}}, status=409)
    await work_off(entries)
    ended = await api("GET", f"{path}/jobs/{synced['job_id']}")
    assert (ended["status"], ended["result"]["entries_requeued"]) == ("succeeded", 1)
    rebuilt = await api("POST", f"{path}/rebuild-index", {"payload": {}}, status=202)
    await work_off(entries)
    assert (await api("GET", f"{path}/jobs/{rebuilt['job_id']}"))["status"] == "succeeded"


async def test_workers_are_paused_drained_and_resumed_as_an_import_script_does(api: Api) -> None:
    await api.queue("pause")
    await api.queue("drain", timeout=300)
    status = await api("GET", "/admin/queue/status")
    active = sum(status["queue"][name]["total"] for name in ("pending", "processing"))
    assert active == 0
    await api.queue("resume")
    assert (await api.queue("drain", timeout=300))["status"] == "drained"

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.notebooks.support import Api, served, working


async def test_change_based_on_an_old_version_is_refused_with_both(api: Api) -> None:
    accepted = await api.create("a.md", "one")
    await api.work()
    place = f"/files/{accepted['file_id']}"
    await api.on("PUT", place, {"content": "two", "version": 1})
    late = await api.on("PUT", place, {"content": "three"}, headers={"If-Match": '"1"'})
    await api.work()
    event = await api.event(late)
    assert event["status"] == "failed"
    assert "at version 2" in event["error_message"]
    refused = await api.on("DELETE", f"{place}?version=1", status=409)
    assert (refused["expected_version"], refused["version"]) == (1, 2)
    assert api.disk() == {"a.md": "two"}


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        ({"op": "move"}, "to"),
        ({"op": "move", "to": None}, "to"),
        ({"op": "move", "to": "b.md", "content": "x"}, "content"),
        ({"op": "move", "to": "b.md", "properties": {}}, "properties"),
        ({"op": "move", "to": "b.md", "version": 1}, "version"),
        ({"op": "create", "to": "b.md"}, "to"),
        ({"op": "create", "version": 1}, "version"),
        ({"op": "create", "folder": True, "content": "x"}, "content"),
        ({"op": "create", "folder": True, "title": "x"}, "title"),
        ({"op": "update", "to": "b.md", "content": "x"}, "to"),
        ({"op": "update", "folder": True}, "folder"),
        ({"op": "delete", "content": "x"}, "content"),
        ({"op": "delete", "to": "b.md"}, "to"),
        ({"op": "delete", "title": "x"}, "title"),
        ({"op": "delete", "folder": True, "version": 1}, "version"),
        ({"op": "delete", "colour": "red"}, "colour"),
        ({"op": "copy"}, "op"),
        ({}, "op"),
    ],
)
async def test_operation_of_a_batch_takes_only_what_it_means(
    one: Api, operation: dict[str, Any], field: str
) -> None:
    await one.create("a.md", "one")
    await one.work()
    body = {"operations": [{"op": "delete", "path": "a.md"}, {"path": "a.md", **operation}]}
    answer = await one.on("POST", "/batch", body, status=422)
    assert answer["field"] == f"operations[1].{field}"
    assert answer["field"] in answer["detail"]
    await one.work()
    assert one.disk() == {"a.md": "one"}


async def test_null_in_an_operation_of_a_batch_is_the_same_as_nothing(one: Api) -> None:
    empty = dict.fromkeys(["to", "content", "content_base64", "title", "description", "version"])
    operations: list[dict[str, Any]] = [
        {**empty, "op": "create", "path": "a.md", "content": "a"},
        {**empty, "op": "move", "path": "a.md", "to": "b.md"},
        {**empty, "op": "update", "path": "b.md", "content": "b", "folder": False},
        {**empty, "op": "create", "path": "f", "folder": True},
        {**empty, "op": "move", "path": "f", "to": "g", "folder": True},
        {**empty, "op": "delete", "path": "g", "folder": True},
        {**empty, "op": "create", "path": "c.md"},
        {**empty, "op": "delete", "path": "c.md"},
    ]
    batch = await one.on("POST", "/batch", {"operations": operations})
    await one.work()
    found = await one("GET", f"/events/correlation/{batch['correlation_id']}")
    assert (found["status"], one.disk()) == ("completed", {"b.md": "b"})


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../x", "a/../../x", "/../x", "//x", ".git/config", "a/.GIT/hooks/x", ".git "),
        *(".penstock/lock", "a\0b", "a\nb", "", "/", "x" * 256, "a/" * 1_100 + "b", "\ud800"),
    ],
)
async def test_hostile_path_is_refused(one: Api, path: str) -> None:
    body = b'{"path": ' + _json(path) + b"}"
    headers = {"content-type": "application/json"}
    for place in ("/files", "/folders"):
        answer = await one.client.post(
            f"/api/v1/notebooks/garden{place}", content=body, headers=headers
        )
        assert answer.status_code in (400, 422), answer.text
    assert one.disk() == {}


async def test_binary_and_large_contents_come_and_go(one: Api) -> None:
    data = bytes(range(256)) * 10_000
    async with working(one):
        file = await one.on("PUT", "/content?path=a.bin&sync=true", content=data, status=200)
        text = base64.b64encode(data[:300]).decode()
        await one.on("POST", "/files?sync=true", {"path": "b", "content_base64": text}, status=200)
    assert file["size"] == len(data)
    answer = await one.client.get(f"/api/v1/notebooks/garden/files/{file['id']}/content")
    assert answer.content == data
    assert answer.headers["content-security-policy"]
    assert (one.root / "b").read_bytes() == data[:300]


async def test_content_over_the_limit_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", max_file_size=10) as api:
        await api.on("PUT", "/content?path=a", content=b"x" * 11, status=413)
        await api.on("POST", "/files", {"path": "a", "content": "x" * 11}, status=413)

        async def unannounced() -> AsyncIterator[bytes]:
            yield b"x" * 11

        await api.on("PUT", "/content?path=a", content=unannounced(), status=413)
        assert not list((api.root / ".penstock/staged").iterdir())


async def test_sync_answers_with_the_file_or_with_what_went_wrong(one: Api) -> None:
    async with working(one):
        body = {"path": "a.md", "content": "one"}
        file = await one.on("POST", "/files?sync=true", body, status=200)
        assert file["version"] == 1
        await one.on("POST", "/files?sync=true", body, status=409)
        await one.on("DELETE", "/folders/none?sync=true", status=404)


def _json(text: str) -> bytes:
    return json.dumps(text).encode()


async def test_path_of_too_many_names_is_refused(one: Api) -> None:
    refused = await one.on("POST", "/files", {"path": "a/" * 1_000 + "b"}, status=422)
    assert "has more than 100 names" in refused["detail"]
    assert await one.paths() == []

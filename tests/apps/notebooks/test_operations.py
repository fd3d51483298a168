"""Operations on files and folders, through the routes."""

import asyncio
import base64
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import ConfigurationError, Penstock, Transaction
from penstock.apps.notebooks import Settings, install, tables
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.placing import Placer
from penstock.core.lifecycle import Failed, Snoozed
from penstock.server.app import Service
from penstock.server.gate import Gatekeeper
from tests.apps.notebooks.serving import Api, served, working
from tests.apps.notebooks.support import git


async def test_file_lives_from_its_creation_to_its_end(api: Api) -> None:
    accepted = await api.create("/notes/tea.md", "# Tea", title="Tea", properties={"cups": 2})
    assert accepted["status"] == "pending"
    assert accepted["path"] == "notes/tea.md"
    place = f"/files/{accepted['file_id']}"
    await api.on("GET", place, status=404)
    await api.work()
    file = await api.on("GET", place)
    assert (file["title"], file["properties"], file["version"]) == ("Tea", {"cups": 2}, 1)
    assert file["content_type"] == "text/markdown"
    await api.on("PUT", place, {"content": "# Green tea", "description": "hot"})
    await api.on("PATCH", f"{place}/move", {"path": "drinks/tea.md"})
    await api.work()
    file = await api.on("GET", place)
    assert (file["path"], file["title"], file["description"]) == ("drinks/tea.md", "Tea", "hot")
    assert api.disk() == {"drinks/tea.md": "# Green tea"}
    deleted = await api.on("DELETE", place)
    await api.work()
    assert await api.status(deleted) == "completed"
    assert api.disk() == {}
    assert await api.paths() == []


async def test_folder_moves_and_goes_as_a_whole(api: Api) -> None:
    for name in ("a", "b/c"):
        await api.create(f"old/{name}.md", name)
    await api.create("old2.md", "beside")
    await api.work()
    (api.root / "old" / "unknown.bin").write_bytes(b"?")
    (api.root / "old" / "empty").mkdir()
    moved = await api.on("PATCH", "/folders/old", {"path": "/new/place"})
    assert moved["file_count"] == 2
    assert moved["correlation_id"]
    await api.work()
    assert (await api("GET", f"/events/correlation/{moved['correlation_id']}"))["completed"] == 1
    assert await api.paths() == ["new/place/a.md", "new/place/b/c.md", "old2.md"]
    assert (api.root / "new/place/unknown.bin").exists()
    assert (api.root / "new/place/empty").is_dir()
    await api("POST", "/events/commit", {}, status=202)
    await api.work()
    assert git(api.root, "ls-files").split() == [
        *("new/place/a.md", "new/place/b/c.md", "new/place/unknown.bin", "old2.md")
    ]
    await api.on("DELETE", "/folders/new/place")
    await api("POST", "/events/commit", {}, status=202)
    await api.work()
    await api("POST", "/events/commit", {}, status=202)
    await api.work()
    assert api.disk() == {"old2.md": "beside"}
    assert git(api.root, "ls-files").split() == ["old2.md"]
    assert await api.paths() == ["old2.md"]


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


async def test_edit_that_nobody_has_seen_is_not_overwritten_by_a_change_of_a_version(
    one: Api,
) -> None:
    accepted = await one.create("a.md", "one")
    await one.work()
    (one.root / "a.md").write_text("edited")
    late = await one.on("PUT", f"/files/{accepted['file_id']}", {"content": "two", "version": 1})
    await one.work()
    assert await one.status(late) == "failed"
    assert one.disk() == {"a.md": "edited"}


async def test_edit_that_is_overwritten_is_in_history(one: Api) -> None:
    accepted = await one.create("a.md", "one")
    await one.work()
    (one.root / "a.md").write_text("edited")
    await one.on("PUT", f"/files/{accepted['file_id']}", {"content": "two"})
    await one.work()
    await one("POST", "/events/commit", {}, status=202)
    await one.work()
    assert one.disk() == {"a.md": "two"}
    contents = [
        git(one.root, "show", f"{commit}:a.md")
        for commit in git(one.root, "log", "--format=%H", "--", "a.md").split()
    ]
    assert contents[0] == "two"
    assert "edited" in contents


async def test_batch_stops_at_the_first_failure(api: Api) -> None:
    await api.create("taken.md")
    await api.work()
    batch = await api.on(
        "POST",
        "/batch",
        {
            "operations": [
                {"op": "create", "path": "a.md", "content": "a"},
                {"op": "move", "path": "a.md", "to": "b.md"},
                {"op": "create", "path": "taken.md"},
                {"op": "delete", "path": "b.md"},
                {"op": "create", "path": "c.md"},
            ]
        },
    )
    ids = [event["event_id"] for event in batch["events"]]
    assert ids == list(range(ids[0], ids[0] + 5))
    await api.work()
    found = await api("GET", f"/events/correlation/{batch['correlation_id']}")
    assert [event["status"] for event in found["events"]] == [
        *("completed", "completed", "failed", "cancelled", "cancelled")
    ]
    assert (found["status"], found["total"], found["failed"]) == ("failed", 5, 1)
    assert sorted(api.disk()) == ["b.md", "taken.md"]


async def test_batch_with_a_hostile_path_stores_nothing(one: Api) -> None:
    operations = [{"op": "create", "path": "a.md"}, {"op": "create", "path": "../b.md"}]
    await one.on("POST", "/batch", {"operations": operations}, status=422)
    await one.work()
    assert one.disk() == {}
    assert (await one("GET", "/events/metrics"))["pending"] == 0


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


async def test_pending_operations_are_superseded_by_the_pair_rules(api: Api) -> None:
    created = await api.create("a.md", "one", title="A")
    place = f"/files/{created['file_id']}"
    first = await api.on("PUT", place, {"content": "two"})
    second = await api.on("PUT", place, {"content": "three", "description": "last"})
    assert [await api.status(one) for one in (created, first, second)] == [
        *("superseded", "superseded", "pending")
    ]
    await api.work()
    file = await api.on("GET", place)
    assert (file["version"], file["title"], file["description"]) == (1, "A", "last")
    assert api.disk() == {"a.md": "three"}
    assert not list((api.root / ".penstock/staged").iterdir())


async def test_operation_that_has_begun_is_not_superseded(api: Api) -> None:
    created = await api.create("a.md", "one")
    (begun,) = await api.app.claim(worker="first", queues=["notebooks"])
    updated = await api.on("PUT", f"/files/{created['file_id']}", {"content": "two"})
    assert await api.status(created) == "processing"
    assert (await api.event(updated))["type"] == "update"
    await api.app.settle([(begun, Snoozed(timedelta(0)))])
    await api.work()
    assert await api.status(created) == "completed"
    assert api.disk() == {"a.md": "two"}


async def test_create_and_delete_come_to_nothing_and_delete_and_create_to_an_update(
    api: Api,
) -> None:
    created = await api.create("a.md", "one")
    await api.on("DELETE", f"/files/{created['file_id']}")
    await api.work()
    assert api.disk() == {}
    created = await api.create("b.md", "one", title="B")
    await api.work()
    deleted = await api.on("DELETE", f"/files/{created['file_id']}")
    again = await api.create("b.md", "two")
    assert again["file_id"] == created["file_id"]
    await api.work()
    assert [await api.status(one) for one in (deleted, again)] == ["superseded", "completed"]
    assert (await api.event(again))["type"] == "update"
    file = await api.on("GET", f"/files/{again['file_id']}")
    assert (file["title"], file["version"]) == (None, 2)


async def test_move_is_a_barrier(api: Api) -> None:
    created = await api.create("a.md", "one")
    place = f"/files/{created['file_id']}"
    moved = await api.on("PATCH", f"{place}/move", {"path": "b.md"})
    updated = await api.on("PUT", place, {"content": "two"})
    again = await api.create("a.md", "other")
    assert updated["path"] == "b.md"
    await api.work()
    for one in (created, moved, updated, again):
        assert await api.status(one) == "completed"
    assert api.disk() == {"a.md": "other", "b.md": "two"}


async def test_move_of_a_folder_is_a_barrier(api: Api) -> None:
    created = await api.create("old/a.md", "one")
    await api.on("PATCH", "/folders/old", {"path": "new"})
    await api.on("PUT", "/content?path=old/a.md", content="two")
    assert await api.status(created) == "pending"
    await api.work()
    assert api.disk() == {"new/a.md": "one", "old/a.md": "two"}


async def test_file_is_followed_through_moves_of_folders_that_wait(api: Api) -> None:
    created = await api.create("x/y/a.md", "one")
    await api.work()
    await api.on("PATCH", "/folders/x", {"path": "z"})
    await api.on("PATCH", "/folders/z/y", {"path": "w"})
    updated = await api.on("PUT", f"/files/{created['file_id']}", {"content": "two"})
    assert updated["path"] == "w/a.md"
    await api.work()
    assert api.disk() == {"w/a.md": "two"}


@pytest.mark.parametrize("folder", [False, True])
async def test_move_that_was_killed_before_it_was_noted_is_recognised(
    api: Api, folder: bool
) -> None:
    created = await api.create("old/a.md", "one")
    await api.work()
    source, target = ("old", "new") if folder else ("old/a.md", "new.md")
    place = "/folders/old" if folder else f"/files/{created['file_id']}/move"
    moved = await api.on("PATCH", place, {"path": target})
    (killed,) = await api.app.claim(worker="killed", queues=["notebooks"])
    with Tree(api.root).beginning(killed.id):
        (api.root / source).rename(api.root / target)
    await api.app.settle([(killed, Failed("killed"))])
    await api.work()
    assert await api.status(moved) == "completed"
    file = await api.on("GET", f"/files/{created['file_id']}")
    assert file["path"] == ("new/a.md" if folder else "new.md")
    await api.check_agreement()


async def test_folder_that_was_never_there_is_not_taken_for_moved_or_deleted_after_a_kill(
    api: Api,
) -> None:
    await api.create("new/a.md", "one")
    await api.work()
    moved = await api.on("PATCH", "/folders/old", {"path": "new"})
    deleted = await api.on("DELETE", "/folders/gone")
    for killed in await api.app.claim(worker="killed", queues=["notebooks"], limit=2):
        await api.app.settle([(killed, Failed("killed"))])
    await api.work()
    (api.root / "taken").mkdir()
    refused = await api.on("PATCH", "/folders/new", {"path": "taken"})
    await api.work()
    for accepted in (moved, deleted, refused):
        assert await api.status(accepted) == "failed"
    assert list((api.root / ".penstock/staged").iterdir()) == []


async def test_folder_whose_deletion_was_killed_before_it_was_noted_is_deleted(api: Api) -> None:
    await api.on("POST", "/folders", {"path": "old"})
    await api.work()
    deleted = await api.on("DELETE", "/folders/old")
    (killed,) = await api.app.claim(worker="killed", queues=["notebooks"])
    with Tree(api.root).beginning(killed.id):
        (api.root / "old").rmdir()
    await api.app.settle([(killed, Failed("killed"))])
    await api.work()
    assert await api.status(deleted) == "completed"
    assert list((api.root / ".penstock/staged").iterdir()) == []


async def test_operation_by_path_is_on_the_file_that_is_there_then(api: Api) -> None:
    await api.create("a.md", "one")
    await api.work()
    for batch in (
        [{"op": "delete", "path": "a.md"}],
        [{"op": "create", "path": "a.md", "content": "two"}],
        [{"op": "update", "path": "a.md", "content": "three"}],
        [{"op": "move", "path": "a.md", "to": "b.md"}, {"op": "delete", "path": "b.md"}],
    ):
        accepted = await api.on("POST", "/batch", {"operations": batch})
    await api.work()
    place = f"/events/correlation/{accepted['correlation_id']}"
    assert (await api("GET", place))["completed"] == 2
    assert api.disk() == {}


async def test_file_is_followed_through_moves_of_its_own_batch(api: Api) -> None:
    operations = [
        {"op": "create", "path": "a.md", "content": "one"},
        {"op": "move", "path": "a.md", "to": "b.md"},
    ]
    batch = await api.on("POST", "/batch", {"operations": operations})
    number = batch["events"][0]["file_id"]
    updated = await api.on("PUT", f"/files/{number}", {"content": "two"})
    assert updated["path"] == "b.md"
    await api.work()
    assert api.disk() == {"b.md": "two"}
    assert (await api.on("GET", f"/files/{number}"))["version"] == 3


async def test_delete_takes_away_what_kept_a_create_from_succeeding(api: Api) -> None:
    first = await api.create("a.md", "one")
    await api.create("a.md", "two")  # it would fail
    await api.on("DELETE", f"/files/{first['file_id']}")
    await api.work()
    assert api.disk() == {}
    assert await api.paths() == []


async def test_later_operation_waits_while_an_earlier_one_is_retried(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True, True]
    place = Placer.place

    def failing(self: Placer, *args: Any, **options: Any) -> Any:
        if fails and args[1] == "a.md":
            fails.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return place(self, *args, **options)

    monkeypatch.setattr(Placer, "place", failing)
    created = await one.create("a.md", "one")
    moved = await one.on("PATCH", f"/files/{created['file_id']}/move", {"path": "b.md"})
    async with working(one):
        event = await one("GET", f"/events/{moved['event_id']}/wait")
    assert event["status"] == "completed"
    assert (await one.event(created))["retry_count"] == 2
    assert one.disk() == {"b.md": "one"}


async def test_name_that_cannot_exist_fails_at_once(one: Api) -> None:
    await one.create("a", "a file")
    await one.work()
    below = await one.create("a/b.md")
    moved = await one.on("PATCH", "/folders/nowhere", {"path": "x"})
    await one.work()
    for accepted in (below, moved):
        event = await one.event(accepted)
        assert (event["status"], event["retry_count"]) == ("failed", 1)


async def test_names_that_other_systems_take_for_the_same_are_refused(one: Api) -> None:
    await one.create("Tea/Green.md")
    await one.work()
    for path in ("Tea/green.md", "tea/black.md"):
        accepted = await one.create(path)
        await one.work()
        assert "ignore case" in (await one.event(accepted))["error_message"]
    await one.check_agreement()


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


async def test_links_and_devices_are_not_followed(one: Api, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (one.root / "out").symlink_to(outside)
    (one.root / "link.md").symlink_to(outside / "secret")
    os.mkfifo(one.root / "pipe")
    for path in ("out/x.md", "link.md", "pipe"):
        written = await one.on("PUT", f"/content?path={path}", content=b"mine")
        await one.work()
        assert await one.status(written) == "failed"
    assert [one.name for one in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert await one.paths() == []


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


async def test_disk_that_is_full_loses_nothing(one: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    created = await one.create("a.md", "one")
    await one.work()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        large = {"content": "2" * 100_000}
        answer = await one.on("PUT", f"/files/{created['file_id']}", large, status=503)
        assert "No space left" in answer["detail"]
    assert one.disk() == {"a.md": "one"}
    assert not list((one.root / ".penstock/staged").iterdir())
    await one.check_agreement()


async def test_sync_answers_with_the_file_or_with_what_went_wrong(one: Api) -> None:
    async with working(one):
        body = {"path": "a.md", "content": "one"}
        file = await one.on("POST", "/files?sync=true", body, status=200)
        assert file["version"] == 1
        await one.on("POST", "/files?sync=true", body, status=409)
        await one.on("DELETE", "/folders/none?sync=true", status=404)


async def test_wait_answers_when_the_operation_ends(one: Api) -> None:
    accepted = await one.create("a.md")
    waiting = f"/events/{accepted['event_id']}/wait"
    late = await one("POST", f"{waiting}?timeout=0.01", status=408)
    assert late["event"]["status"] == "pending"
    answer = asyncio.create_task(one("GET", f"{waiting}?timeout=30"))
    await one.work()
    assert (await answer)["status"] == "completed"
    await one.app.pause("notebooks")
    accepted = await one.create("b.md")
    await one.app.cancel(accepted["event_id"])
    assert (await one("GET", f"/events/{accepted['event_id']}/wait"))["status"] == "cancelled"


async def test_history_content_and_diff_of_a_file(one: Api) -> None:
    created = await one.create("a.md", "one\n")
    place = f"/files/{created['file_id']}"
    for change in (None, {"content": "two\n"}):
        if change:
            await one.on("PUT", place, change)
        await one.work()
        await one("POST", "/events/commit", {"notebook": "garden"}, status=202)
        await one.work()
    commits = (await one.on("GET", f"{place}/history"))["commits"]
    assert [commit["path"] for commit in commits] == ["a.md", "a.md"]
    old = await one.client.get(
        f"/api/v1/notebooks/garden{place}/content?commit={commits[1]['commit']}"
    )
    assert old.text == "one\n"
    assert "-one\n+two" in (await one.on("GET", f"{place}/diff"))["diff"]
    first = await one.on("GET", f"{place}/diff?until={commits[1]['commit']}")
    assert (first["since"], first["diff"].endswith("@@ -0,0 +1 @@\n+one\n")) == (None, True)
    await one.on("GET", f"{place}/diff?until=abcdef", status=404)
    await one.on("GET", f"{place}/content?commit=--output=x", status=404)


async def test_history_is_that_of_the_file_and_not_of_its_path(one: Api) -> None:
    lines = [f"line {n}\n" for n in range(20)]
    created = await one.create("a.md", "".join(lines))
    other = await one.create("b.md", "another file\n")
    place = f"/files/{created['file_id']}"
    await committed(one)
    await one.on("DELETE", f"/files/{other['file_id']}")
    await committed(one)
    await one.on("PATCH", f"{place}/move", {"path": "b.md"})
    await committed(one)
    await one.on("PUT", place, {"content": "".join([*lines[:-1], "the end\n"])})
    await committed(one)
    found = (await one.on("GET", f"{place}/history"))["commits"]
    assert [commit["path"] for commit in found] == ["b.md", "b.md", "a.md"]
    first, last = found[-1]["commit"], found[0]["commit"]
    behind = await one.on("GET", f"{place}/history?after={last}&limit=5")
    assert behind["commits"] == found[1:]
    there = f"/api/v1/notebooks/garden{place}/content?commit={first}"
    assert (await one.client.get(there)).text == "".join(lines)
    diff = (await one.on("GET", f"{place}/diff?since={first}&until={last}"))["diff"]
    assert [
        line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in "+++---"
    ] == [*("-line 19", "+the end")]
    whole = (await one.on("GET", "/history"))["commits"]
    assert len(whole) == 4
    assert {commit["commit"] for commit in found} < {commit["commit"] for commit in whole}
    assert (await one.on("GET", f"/history?after={last}&limit=1"))["commits"] == whole[1:2]


async def committed(api: Api) -> None:
    await api.work()
    await api("POST", "/events/commit", {"notebook": "garden"}, status=202)
    await api.work()


async def test_what_changed_during_a_commit_is_left_for_the_next(api: Api) -> None:
    def work(tx: Transaction) -> tuple[list[str], list[str]]:
        tables.add_uncommitted(tx, 1, ["a.md", "b.md"])
        committed, change = tables.uncommitted(tx, 1)
        tables.add_uncommitted(tx, 1, ["b.md", "c.md"])
        tables.forget_uncommitted(tx, 1, change, {}, retried=True)
        return list(committed), list(tables.uncommitted(tx, 1)[0])

    assert await api.app.transact(work) == (["a.md", "b.md"], ["b.md", "c.md"])


async def test_commit_comes_at_so_many_paths(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", commit_paths=3) as api:
        for n in range(3):
            await api.create(f"{n}.md")
        await api.work()
        assert git(api.root, "log", "--format=%s").split("\n")[0]
        assert git(api.root, "ls-files").split() == ["0.md", "1.md", "2.md"]
        await api.create("3.md")
        await api.work()
    assert git(tmp_path / "data/notebooks/garden", "ls-files").split()[-1] == "3.md"  # at the end


async def test_folder_with_files_becomes_a_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "papers"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/a.md").write_text("a")
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", allowed=str(tmp_path / "mine")) as api:
        body = {"name": "papers", "path": str(folder), "git": False}
        await api("POST", "/notebooks", body, status=201)
        await api.work()
        await api.work()
        (file,) = (await api("GET", "/notebooks/papers/files"))["files"]
        assert file["path"] == "deep/a.md"
        for refused in (tmp_path, tmp_path / "other", "/", "relative"):
            await api("POST", "/notebooks", {"name": "x", "path": str(refused)}, status=422)
        inside = {"name": "x", "path": str(folder / "deep")}
        await api("POST", "/notebooks", inside, status=409)
        await api("DELETE", "/notebooks/papers", status=204)
        await api.work()
        await api("GET", "/notebooks/papers", status=404)
        assert (folder / "deep/a.md").exists()


async def test_notebook_that_is_there_already_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "roses/red").mkdir(parents=True)
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", allowed=str(tmp_path)) as one:
        await one("POST", "/notebooks", {"name": "roses", "path": f"{home}/roses"}, status=201)
        await one.work()
        refused = await one("POST", "/notebooks", {"name": "red roses"}, status=422)
        assert "'red roses' is no name of a notebook: letters" in refused["detail"]
        await one("PATCH", "/notebooks/roses", {"name": "../roses"}, status=422)
        for body, said in (
            ({"name": "garden"}, f"there is a notebook 'garden' already, in {one.root}"),
            ({"name": "a", "path": f"{home}/roses"}, "is notebook 'roses' already"),
            ({"name": "a", "path": f"{home}/roses/red"}, "is inside of notebook 'roses'"),
            ({"name": "a", "path": str(home)}, "has notebook 'roses' inside"),
        ):
            assert said in (await one("POST", "/notebooks", body, status=409))["detail"]


async def test_notebook_that_was_removed_can_be_added_again(one: Api) -> None:
    await one.create("a.md", "one")
    await one.work()
    await one("DELETE", "/notebooks/garden", status=204)
    await one.work()
    body = {"name": "again", "path": str(one.root)}
    made = await one("POST", "/notebooks", body, status=201)
    await one.work()
    files = (await one("GET", "/notebooks/again/files"))["files"]
    assert [file["path"] for file in files] == ["a.md"]
    assert files[0]["notebook_id"] == made["id"]


async def test_settings_count_at_once_in_every_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as one, other_process(url, tmp_path) as other:
        await one.create("a.md", "one")
        await one.work()
        own = {"author": "Rose <rose@example.org>", "commit_interval": 0, "watch": True}
        changed = await other("PATCH", "/notebooks/garden", {"settings": own})
        assert changed["watched"] is True
        await one.work()  # what waited for the old interval does not wait any more
        assert git(one.root, "log", "--format=%an %ae") == "Rose rose@example.org\n"
        await one.create("b.md", "two")
        await one.work()
        assert git(one.root, "ls-files").split() == ["a.md", "b.md"]
        async with working(one):
            (one.root / "c.md").write_text("of a person")
            await known(one, "c.md")
        (watching,) = (task for task in asyncio.all_tasks() if "Watcher.run" in repr(task))
        await other("PATCH", "/notebooks/garden", {"settings": {"watch": False}})
        await one.work()
        await asyncio.wait([watching], timeout=30)
        assert watching.cancelled()


async def known(api: Api, path: str) -> None:
    """Wait until a file that somebody has put there is known."""
    seen = 0
    async with asyncio.timeout(30):
        while path not in await api.paths():
            seen = await api.app.wait(seen, 1)


@asynccontextmanager
async def other_process(url: str, folder: Path) -> AsyncIterator[Api]:
    """A process of the same server that serves requests and has no notebook."""
    app = Penstock(url)
    service = Service(app, [install(app, Settings(watch=False), folder / "data")])
    gate = Gatekeeper(app, open_without_tokens=True)
    service.guard(gate)
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        gate.running(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield Api(client, app, folder / "data")


async def test_second_server_on_a_notebook_is_refused(one: Api, tmp_path: Path) -> None:
    other = Penstock(f"sqlite:///{tmp_path}/other.db")
    data = tmp_path / "data"
    application = install(other, Settings(watch=False), data)
    async with other, application.running():
        async with application.working():
            pass
        same = install(Penstock(one.app.url), Settings(watch=False), data)
        async with same.running():
            with pytest.raises(ConfigurationError, match="another server works on notebook"):
                async with same.working():
                    pass


async def test_store_without_tables_answers_why(tmp_path: Path) -> None:
    app = Penstock("memory://")
    application = install(app, Settings(), tmp_path)
    service = Service(app, [application])
    transport = httpx.ASGITransport(app=service)
    async with (
        service.running(),
        application.working(),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        for path in ("/api/v1/notebooks", "/api/v1/events/metrics"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "SQLite or PostgreSQL" in answer.json()["detail"]


def _json(text: str) -> bytes:
    return json.dumps(text).encode()


async def test_path_of_too_many_names_is_refused(one: Api) -> None:
    refused = await one.on("POST", "/files", {"path": "a/" * 1_000 + "b"}, status=422)
    assert "has more than 100 names" in refused["detail"]
    assert await one.paths() == []

"""Operations on files and folders, through the routes."""

import errno
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.notebooks import tables
from penstock.apps.notebooks.disk.placement import Placer
from penstock.apps.notebooks.disk.tree import Tree
from penstock.core.lifecycle import Failed
from penstock.tables import Transaction
from tests.apps.notebooks.support import Api, git, served, working
from tests.contract.support import ManualClock


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


@pytest.mark.parametrize("folder", [False, True])
async def test_move_that_was_killed_before_it_was_noted_is_recognised(
    api: Api, folder: bool
) -> None:
    created = await api.create("old/a.md", "one")
    await api.work()
    source, target = ("old", "new") if folder else ("old/a.md", "new.md")
    place = "/folders/old" if folder else f"/files/{created['file_id']}/move"
    moved = await api.on("PATCH", place, {"path": target})
    (killed,) = await api.app.leases.claim(worker="killed", queues=["notebooks"])
    with Tree(api.root).started(killed.id):
        (api.root / source).rename(api.root / target)
    await api.app.leases.settle([(killed, Failed("killed"))])
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
    for killed in await api.app.leases.claim(worker="killed", queues=["notebooks"], limit=2):
        await api.app.leases.settle([(killed, Failed("killed"))])
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
    (killed,) = await api.app.leases.claim(worker="killed", queues=["notebooks"])
    with Tree(api.root).started(killed.id):
        (api.root / "old").rmdir()
    await api.app.leases.settle([(killed, Failed("killed"))])
    await api.work()
    assert await api.status(deleted) == "completed"
    assert list((api.root / ".penstock/staged").iterdir()) == []


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


async def test_what_changed_during_a_commit_is_left_for_the_next(api: Api) -> None:
    def work(tx: Transaction) -> tuple[list[str], list[str]]:
        tables.add_uncommitted(tx, 1, ["a.md", "b.md"])
        committed, change = tables.uncommitted(tx, 1)
        tables.add_uncommitted(tx, 1, ["b.md", "c.md"])
        tables.forget_uncommitted(tx, 1, change, {}, retried=True)
        return list(committed), list(tables.uncommitted(tx, 1)[0])

    assert await api.app.transaction(work) == (["a.md", "b.md"], ["b.md", "c.md"])


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


async def test_commit_that_fails_forgets_no_path(tmp_path: Path, clock: ManualClock) -> None:
    url, data = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data"
    async with served(url, data, clock=clock) as api:
        await api.create("a.md", "1")
        await api.work()
        lock = api.root / ".git/index.lock"
        lock.touch()
        await api.commit()
        assert (await api("GET", "/events/metrics"))["uncommitted"] == {"garden": 1}
        assert str(lock) in (await api("GET", "/notebooks/garden"))["git_problem"]
        lock.unlink()
        clock.advance(timedelta(hours=2))
        await api.work()
        assert (await api("GET", "/events/metrics"))["uncommitted"] == {}
        assert git(api.root, "ls-files").split() == ["a.md"]

"""Writes that come together: in order, durable, and ended in one transaction."""

import asyncio
import errno
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from penstock import JobQuery, StoreError
from penstock.apps.notebooks.disk import files
from penstock.apps.notebooks.disk.placement import Placer
from penstock.apps.notebooks.disk.scan import Difference, scan
from penstock.apps.notebooks.disk.tree import Facts, Staged, Tree
from penstock.apps.notebooks.disk.watcher import Watcher
from penstock.apps.notebooks.errors import Transient
from penstock.apps.notebooks.operations import maintenance
from penstock.apps.notebooks.operations.operation import correlation_of
from penstock.apps.notebooks.paths import DisjointPaths
from tests.apps.notebooks.support import (
    DEADLINE,
    Api,
    FileTable,
    files_of,
    flushes,
    git,
    place,
    served,
    serving,
    wait_until_quiet,
)
from tests.environment import SOON


async def created(api: Api, *paths: str) -> Any:
    """A batch that makes these files, each with its path as its content."""
    operations = [{"op": "create", "path": path, "content": path} for path in paths]
    return await api.on("POST", "/batch", {"operations": operations})


async def statuses(api: Api, batch: Any) -> list[str]:
    found = await api("GET", f"/events/correlation/{batch['correlation_id']}")
    return [event["status"] for event in found["events"]]


class Places:
    """Which paths were written to, in their order; the first time at some of them fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failing: str) -> None:
        self.paths: list[str] = []
        failures = list(failing)
        place = Placer.place

        def placed(placer: Placer, staged: Staged, path: str, **options: Any) -> Facts:
            self.paths.append(path)
            if path in failures:
                failures.remove(path)
                raise Transient("not now")
            return place(placer, staged, path, **options)

        monkeypatch.setattr(Placer, "place", placed)


async def test_many_files_are_noted_in_few_transactions(api: Api) -> None:
    paths = [f"{n % 3}/{n}.md" for n in range(60)]
    batch = await created(api, *paths)
    await api.work()
    jobs = await api.app.find(
        JobQuery(correlation=correlation_of(batch["correlation_id"]), limit=100)
    )
    assert len({job.finished_at for job in jobs}) < 20
    assert api.disk() == {path: path for path in paths}
    await api.check_agreement()


async def stored(api: Api) -> int:
    """How many contents wait in the table."""
    found: int = await api.app.tables.read(
        lambda tx: tx.execute("SELECT COUNT(*) FROM notebooks_content").fetchone()[0]
    )
    return found


async def test_small_contents_are_stored_with_their_operations(api: Api) -> None:
    await created(api, "a.md", "b.md")
    await api.create("c.md", "one")
    await api.on("PUT", "/content?path=d.md", content=b"sent as it is")
    await api.create("e.md", "large" * 10_000)
    assert await stored(api) == 3
    assert len(list((api.root / ".penstock/staged").iterdir())) == 2
    await api.work()
    assert await stored(api) == 0
    assert list((api.root / ".penstock/staged").iterdir()) == []
    assert api.disk().keys() == {"a.md", "b.md", "c.md", "d.md", "e.md"}


async def test_content_of_an_operation_that_is_replaced_goes_with_it(api: Api) -> None:
    first = await api.create("a.md", "one")
    await api.on("PUT", f"/files/{first['file_id']}", {"content": "two"})
    assert await stored(api) == 1
    await api.on("PUT", f"/files/{first['file_id']}", {"title": "Tea"})
    assert await stored(api) == 1
    await api.work()
    assert api.disk() == {"a.md": "two"}
    assert await stored(api) == 0


async def test_contents_wait_in_the_folder_where_there_is_no_history(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", git=False) as api:
        await api.create("a.md", "one")
        assert await stored(api) == 0
        assert len(list((api.root / ".penstock/staged").iterdir())) == 1


@pytest.mark.parametrize("git", [True, False])
async def test_contents_that_nobody_waits_for_go_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, git: bool
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def waiting(api: Api) -> int:
        return await stored(api) + len(list((api.root / ".penstock/staged").iterdir()))

    async with served(url, tmp_path / "data", git=git) as api:
        await api.create("a.md", "one")
        cancelled = await api.create("b.md", "two")
        await api.app.cancel(cancelled["event_id"])
    async with served(url, tmp_path / "data", git=git) as api:
        assert await waiting(api) == 2  # it may be run again
    monkeypatch.setattr(maintenance, "_ABANDONED", timedelta(0))
    async with served(url, tmp_path / "data", git=git) as api:
        assert await waiting(api) == 1
        await api.work()
        assert api.disk() == {"a.md": "one"}
        assert await waiting(api) == 0
        displaced = api.root / ".penstock/staged/name.displaced"
        displaced.write_text("it may be an edit of a person")
    async with served(url, tmp_path / "data", git=git) as api:
        assert displaced.exists()


async def test_mark_of_a_move_that_was_killed_is_there_after_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setattr(maintenance, "_ABANDONED", timedelta(0))
    async with served(url, tmp_path / "data") as api:
        await api.create("old/a.md", "one")
        await api.work()
        moved = await api.on("PATCH", "/folders/old", {"path": "new"})
        with Tree(api.root).started(moved["event_id"]):
            (api.root / "old").rename(api.root / "new")
        (api.root / ".penstock/staged/begun-77").touch()  # of a job that has ended
    async with served(url, tmp_path / "data") as api:
        assert not (api.root / ".penstock/staged/begun-77").exists()
        await api.work()
        assert await api.status(moved) == "completed"
        assert list((api.root / ".penstock/staged").iterdir()) == []


async def test_content_of_an_operation_that_has_just_failed_is_there_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as api:
        accepted = await api.create("a.md", "one")
        await api.app.transaction(lambda tx: tx.execute("UPDATE notebooks_content SET stored = 0"))
        (api.root / "a.md").write_text("in the way")
        await api.work()
        assert await api.status(accepted) == "failed"
    async with served(url, tmp_path / "data") as api:
        (api.root / "a.md").unlink()
        await api.app.retry(accepted["event_id"])
        await api.work()
        assert api.disk() == {"a.md": "one"}


async def test_disk_that_is_full_when_a_content_is_to_be_written_is_waited_for(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 2
    fsync = os.fsync

    def full(handle: int) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    batch = await created(one, "a.md", "b.md")
    await one.work()
    assert await statuses(one, batch) == ["completed", "completed"]
    assert one.disk() == {"a.md": "a.md", "b.md": "b.md"}


async def test_files_that_cannot_be_written_stop_those_after_them(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one.root / "b.md").write_text("of a person")
    places = Places(monkeypatch)
    batch = await created(one, "a.md", "b.md", "c.md", "d.md")
    await one.work()
    assert await statuses(one, batch) == ["completed", "failed", "cancelled", "cancelled"]
    assert places.paths == ["a.md"]
    assert one.disk() == {"a.md": "a.md", "b.md": "of a person"}


async def test_members_wait_for_one_that_is_tried_again(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(monkeypatch, "b.md", "b.md")
    batch = await created(one, "a.md", "b.md", "c.md", "d.md")
    await one.work()
    assert await statuses(one, batch) == ["completed"] * 4
    assert places.paths == ["a.md", "b.md", "b.md", "b.md", "c.md", "d.md"]


async def test_member_that_was_cancelled_stops_those_after_it(one: Api) -> None:
    batch = await created(one, "a.md", "b.md", "c.md")
    await one.app.cancel(batch["events"][1]["event_id"])
    await one.work()
    assert await statuses(one, batch) == ["completed", "cancelled", "cancelled"]
    assert sorted(one.disk()) == ["a.md"]


async def test_same_path_twice_in_a_batch_keeps_its_order(api: Api) -> None:
    operations = [{"op": "create", "path": "a.md", "content": "0"}]
    operations += [{"op": "update", "path": "a.md", "content": str(n)} for n in range(1, 9)]
    batch = await api.on("POST", "/batch", {"operations": operations})
    await api.work()
    assert await statuses(api, batch) == ["completed"] * 9
    assert api.disk() == {"a.md": "8"}
    assert [file["version"] for file in (await api.on("GET", "/files"))["files"]] == [9]


async def test_names_that_some_systems_take_for_the_same_are_not_written_together(
    one: Api,
) -> None:
    batch = await created(one, "Notes/a.md", "notes/b.md")
    await one.work()
    assert await statuses(one, batch) == ["completed", "failed"]
    assert sorted(one.disk()) == ["Notes/a.md"]


async def test_what_cannot_be_noted_together_is_noted_one_by_one(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await created(one, "a.md", "b.md", "c.md")
    finish_all = one.app.leases.finish_all

    async def finished(ended: Any, **options: Any) -> Any:
        if any(job.id == batch["events"][2]["event_id"] and job.attempt == 1 for job, _ in ended):
            raise StoreError("not this one")
        return await finish_all(ended, **options)

    monkeypatch.setattr(one.app.leases, "finish_all", finished)
    await one.work()
    assert await statuses(one, batch) == ["completed"] * 3
    await one.check_agreement()


def test_paths_that_touch_each_other_are_not_written_side_by_side() -> None:
    paths = DisjointPaths()
    assert paths.add("a/b.md")
    assert paths.add("a/c.md")
    assert not paths.add("a/b.md")  # the same
    assert not paths.add("A/d.md")  # a folder that looks the same
    assert not paths.add("a")  # above
    assert not paths.add("a/b.md/x")  # below
    assert paths.add("a/d/e.md")


@pytest.mark.parametrize("has_call", [True, False])
def test_many_contents_are_staged_with_and_without_the_call_of_the_system(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, *, has_call: bool
) -> None:
    flushed = flushes(monkeypatch, has_call=has_call)
    staged = tree.stage_all([*(str(n).encode() for n in range(20)), None])
    assert [one.size if one else None for one in staged] == [1] * 10 + [2] * 10 + [None]
    assert len(flushed) == (1 if has_call else 21)


def test_contents_are_staged_whole_although_the_system_takes_little_at_a_time(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:3]))
    (staged,) = tree.stage_all([b"ten bytes!"])
    assert staged is not None
    assert Path(tree.place_of(staged.name)).read_bytes() == b"ten bytes!"


def test_contents_that_cannot_be_flushed_leave_nothing_behind(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_syncfs", lambda _: -1)
    with pytest.raises(Exception, match="staged"):
        tree.stage_all([b"x"] * 20)
    assert tree.staged() == []


class Steady(asyncio.Lock):
    """Tells when somebody asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        self.asked.set()
        return await super().acquire()


async def test_folder_that_the_server_moves_is_no_news(tree: Tree) -> None:
    for n in range(5):
        place(tree, tree.stage(b"x"), f"a/{n}.md")
    table, told, steady = FileTable(tree), list[str](), Steady()
    table.look()
    seen = asyncio.Event()

    async def handle(found: list[Difference]) -> None:
        told.extend(one.path for one in found)
        table.apply(found)
        seen.set()

    watcher = Watcher(tree, table, handle, scan_lock=steady)
    watching = asyncio.create_task(watcher.run())
    async with asyncio.timeout(DEADLINE):
        while watcher.scans < 2:
            await asyncio.wait([watching], timeout=0.02)
        async with steady:
            steady.asked.clear()
            tree.move("a", "b")
            (tree.root / "new.md").write_text("of a person")
            await steady.asked.wait()
            table.apply(_moved(table))
        await seen.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert told == ["new.md"]


def _moved(table: FileTable) -> list[Difference]:
    """What the server knows when it has moved a folder."""
    result = scan(table.tree, table, patient=False)
    return [one for one in result.found if one.path != "new.md"]


def test_batches_are_whole_when_the_server_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "penstock-data/notebooks/garden"
    paths = [f"{n % 7}/{n}.md" for n in range(200)]
    with serving(tmp_path) as server:
        httpx.post(f"{server.url}/api/v1/notebooks", json={"name": "garden"})
        operations = [{"op": "create", "path": path, "content": path} for path in paths]
        place = f"{server.url}/api/v1/notebooks/garden/batch"
        batch = httpx.post(place, json={"operations": operations}, timeout=SOON).json()
        for wanted in (1, 120):
            _until(root, wanted)
            server.kill()
            server.start()
        wait_until_quiet(server)
        found = httpx.get(f"{server.url}/api/v1/events/correlation/{batch['correlation_id']}")
        assert [event["status"] for event in found.json()["events"]] == ["completed"] * 200
        assert {path: file.read_text() for path, file in files_of(root)} == {
            path: path for path in paths
        }
        assert sorted(git(root, "ls-files").split()) == sorted(paths)
        assert git(root, "status", "--porcelain") == ""


def _until(root: Path, files: int) -> None:
    """Wait until so many files are in place."""
    deadline = time.monotonic() + SOON
    while len(list(files_of(root))) < files:
        assert time.monotonic() < deadline

"""What others do to the files of a notebook that is served."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.apps.notebooks.support import SAVES, Api, Save, git, served, working
from tests.environment import SOON


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data", watch=True) as api, working(api):
        yield api


async def until(api: Api, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that comes with the end of a job."""
    seen = 0
    async with asyncio.timeout(SOON):
        while not await holds():
            seen = await api.app.wait(seen, 1)


async def test_edits_of_others_become_known_and_keep_ids_and_metadata(api: Api) -> None:
    body = {"path": "a.md", "content": "one", "title": "A"}
    file = await api.on("POST", "/files?sync=true", body, status=200)
    (api.root / "a.md").write_text("edited")
    (api.root / "new").mkdir()
    (api.root / "new/b.md").write_text("b")

    async def are_known() -> bool:
        found = {one["path"]: one for one in (await api.on("GET", "/files"))["files"]}
        return "new/b.md" in found and bool(found["a.md"]["version"] == 2)

    await until(api, are_known)
    (api.root / "a.md").rename(api.root / "new/c.md")

    async def is_moved() -> bool:
        return bool((await api.on("GET", f"/files/{file['id']}"))["path"] == "new/c.md")

    await until(api, is_moved)
    moved = await api.on("GET", f"/files/{file['id']}")
    assert moved["title"] == "A"
    (api.root / "new/b.md").unlink()

    async def is_gone() -> bool:
        return await api.paths() == ["new/c.md"]

    await until(api, is_gone)
    await api("POST", "/events/commit?sync=true", {})
    assert git(api.root, "ls-files").split() == ["new/c.md"]
    assert git(api.root, "status", "--short") == ""
    assert "one" in [
        git(api.root, "cat-file", "blob", line.split()[0])
        for line in git(
            api.root, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)"
        ).splitlines()
        if line.endswith("blob")
    ]  # the content that was overwritten before the commit


def edit_unseen(file: Path, text: str, after: str) -> None:
    """Change a content after a time, and leave everything as it was that can be left so."""
    about = file.stat()
    assert len(text) == about.st_size
    # The clock of the system goes by milliseconds.
    while file.stat().st_ctime <= datetime.fromisoformat(after).timestamp():
        with file.open("r+") as opened:
            opened.write(text)
        os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


async def test_edit_that_keeps_size_and_time_is_told_by_the_system(api: Api) -> None:
    body = {"path": "a.md", "content": "one"}
    file = await api.on("POST", "/files?sync=true", body, status=200)
    edit_unseen(api.root / "a.md", "two", file["updated_at"])

    async def is_known() -> bool:
        return bool((await api.on("GET", f"/files/{file['id']}"))["version"] == 2)

    await until(api, is_known)


async def test_edit_that_keeps_size_and_time_is_found_at_the_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as api:
        file = await api.create("a.md", "one")
        await api.create("b.md", "one")
        await api.work()
        before = (await api.on("GET", f"/files/{file['file_id']}"))["updated_at"]
    edit_unseen(api.root / "a.md", "two", before)
    async with served(url, tmp_path / "data") as api:
        await api.work()
        assert [one["version"] for one in (await api.on("GET", "/files"))["files"]] == [2, 1]
    assert git(api.root, "show", "HEAD:a.md") == "two"


async def test_what_happened_while_nobody_watched_is_found_at_the_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as api:
        await api.create("a.md", "one")
        await api.work()
    (api.root / "a.md").rename(api.root / "b.md")
    (api.root / "c.md").write_text("c")
    async with served(url, tmp_path / "data") as api:
        await api.work()
        assert await api.paths() == ["b.md", "c.md"]
        assert (await api.on("GET", "/files"))["files"][0]["id"] == 1
        await api.check_agreement()
    assert git(api.root, "ls-files").split() == ["b.md", "c.md"]


# Folders and files that leave a link in their place


def move_and_link(source: Path, target: Path) -> None:
    source.rename(target)
    source.symlink_to(target.name)


async def committed(api: Api) -> list[str]:
    await api("POST", "/events/commit?sync=true")
    return git(api.root, "ls-files").splitlines()


async def test_folder_that_moved_and_left_a_link_is_followed_and_committed(api: Api) -> None:
    ids = {}
    for path in ("old/a.md", "old/deep/b.md"):
        body = {"path": path, "content": path, "title": path}
        ids[path] = (await api.on("POST", "/files?sync=true", body, status=200))["id"]
    assert await committed(api) == ["old/a.md", "old/deep/b.md"]
    move_and_link(api.root / "old", api.root / "new")

    async def is_followed() -> bool:
        return await api.paths() == ["new/a.md", "new/deep/b.md"]

    await until(api, is_followed)
    files = (await api.on("GET", "/files"))["files"]
    assert {one["path"].replace("new", "old"): one["id"] for one in files} == ids
    assert {one["path"].replace("new", "old"): one["title"] for one in files} == {p: p for p in ids}
    assert await committed(api) == ["new/a.md", "new/deep/b.md"]


@pytest.mark.parametrize("is_linked", [True, False])
async def test_folder_that_moved_while_nobody_watched_is_followed_by_a_start(
    tmp_path: Path, *, is_linked: bool
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as api:
        await api.create("old/a.md", "one", title="A")
        await api.work()
    (api.root / "old").rename(api.root / "new")
    if is_linked:
        (api.root / "old").symlink_to("new")
    async with served(url, tmp_path / "data") as api:
        await api.work()
        (file,) = (await api.on("GET", "/files"))["files"]
        assert (file["path"], file["id"], file["title"]) == ("new/a.md", 1, "A")
    assert git(api.root, "ls-files").split() == ["new/a.md"]


async def test_file_that_moved_and_left_a_link_keeps_its_id(api: Api) -> None:
    body = {"path": "old.md", "content": "one", "title": "A"}
    file = await api.on("POST", "/files?sync=true", body, status=200)
    move_and_link(api.root / "old.md", api.root / "new.md")

    async def is_followed() -> bool:
        return await api.paths() == ["new.md"]

    await until(api, is_followed)
    moved = await api.on("GET", f"/files/{file['id']}")
    assert (moved["path"], moved["title"]) == ("new.md", "A")


# Files that are edited and moved at once


META = {"title": "A", "description": "about", "properties": {"colour": "red"}}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("target", ["b.md", "sub/a.md"])
async def test_file_that_is_edited_and_moved_at_once_keeps_what_is_said_of_it(
    api: Api, target: str, save: Save
) -> None:
    body = {"path": "a.md", "content": "one", **META}
    file = await api.on("POST", "/files?sync=true", body, status=200)
    (api.root / "sub").mkdir()
    save(api.root / "a.md", "edited")
    (api.root / "a.md").rename(api.root / target)

    async def is_followed() -> bool:
        return await api.paths() == [target]

    await until(api, is_followed)
    moved = await api.on("GET", f"/files/{file['id']}")
    assert (moved["path"], moved["size"]) == (target, len("edited"))
    assert {name: moved[name] for name in META} == META
    assert await committed(api) == [target]


@pytest.mark.parametrize("save", SAVES)
async def test_files_that_are_edited_and_moved_while_nobody_watched_keep_their_ids(
    tmp_path: Path, save: Save
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with served(url, tmp_path / "data") as api:
        for n in range(5):
            await api.create(f"{n}.md", f"content {n}", title=str(n))
        await api.work()
    (api.root / "sub").mkdir()
    for n in range(5):
        save(api.root / f"{n}.md", "edited")
        (api.root / f"{n}.md").rename(api.root / f"sub/{n}.md")
    async with served(url, tmp_path / "data") as api:
        await api.work()
        files = (await api.on("GET", "/files"))["files"]
        assert [(one["path"], one["id"], one["title"]) for one in files] == [
            (f"sub/{n}.md", n + 1, str(n)) for n in range(5)
        ]
        await api.check_agreement()


# What commits say of files that were never committed before


async def subjects(api: Api) -> list[str]:
    """The subjects of all commits, the oldest first."""
    await api("POST", "/events/commit", status=202)
    await api.work()
    return git(api.root, "log", "--reverse", "--format=%s").splitlines()


async def test_first_commit_of_a_file_that_was_overwritten_by_a_person_adds_it(one: Api) -> None:
    await one.create("a.md", "server")
    await one.work()
    (one.root / "a.md").write_text("person")
    assert await subjects(one) == ["Add a.md", "Update a.md"]


async def test_first_commit_of_a_file_that_was_overwritten_by_the_server_adds_it(one: Api) -> None:
    created = await one.create("a.md", "server")
    await one.work()
    (one.root / "a.md").write_text("person")
    await one.on("PUT", f"/files/{created['file_id']}", {"content": "server again"})
    await one.work()
    assert await subjects(one) == ["Add a.md", "Update a.md", "Update a.md"]
    assert git(one.root, "show", "HEAD~:a.md") == "person"


async def scan(api: Api) -> None:
    """Let the server find what others did, without a commit."""
    await api("PATCH", "/notebooks/garden", {"settings": {}})
    await api.work()


async def test_edit_that_is_known_but_not_committed_stays_in_history(one: Api) -> None:
    created = await one.create("a.md", "server")
    await one.work()
    assert await subjects(one) == ["Add a.md"]
    (one.root / "a.md").write_text("person")
    await scan(one)
    assert (await one.on("GET", f"/files/{created['file_id']}"))["version"] == 2
    await one.on("PUT", f"/files/{created['file_id']}", {"content": "server again"})
    await one.on("PUT", f"/files/{created['file_id']}", {"content": "server at last"})
    await one.work()
    assert await subjects(one) == ["Add a.md", "Update a.md", "Update a.md"]
    assert git(one.root, "show", "HEAD~:a.md") == "person"


async def test_edit_that_is_known_but_not_committed_stays_in_history_when_it_is_deleted(
    one: Api,
) -> None:
    for path in ("a.md", "f/b.md"):
        await one.create(path, "server")
    await one.work()
    assert await subjects(one) == ["Add 2 files"]
    for path in ("a.md", "f/b.md"):
        (one.root / path).write_text("person")
    await scan(one)
    await one.on("DELETE", "/files/1")
    await one.on("DELETE", "/folders/f")
    await one.work()
    assert await subjects(one) == ["Add 2 files", "Update 2 files", "Delete 2 files"]
    for path in ("a.md", "f/b.md"):
        assert git(one.root, "show", f"HEAD~:{path}") == "person"


async def test_file_that_was_deleted_before_its_first_commit_is_added_and_deleted(one: Api) -> None:
    await one.create("a.md", "server")
    await one.work()
    (one.root / "a.md").unlink()
    assert await subjects(one) == ["Add a.md", "Delete a.md"]


async def test_file_that_was_moved_before_its_first_commit_is_added_where_it_is(one: Api) -> None:
    created = await one.create("a.md", "server")
    await one.work()
    await one.on("PATCH", f"/files/{created['file_id']}/move", {"path": "b.md"})
    await one.work()
    assert await subjects(one) == ["Add b.md"]


async def test_commit_of_several_overwritten_files_says_what_git_sees(one: Api) -> None:
    await one.create("a.md", "server")
    await one.work()
    assert await subjects(one) == ["Add a.md"]
    await one.on("PUT", "/files/1", {"content": "server again"})
    await one.create("b.md", "server")
    await one.work()
    for name in ("a.md", "b.md"):
        (one.root / name).write_text("person")
    assert await subjects(one) == [
        "Add a.md",
        "Change 2 files: 1 added, 1 updated",
        "Update 2 files",
    ]

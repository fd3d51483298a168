"""One path that git cannot have does not block the others, and it is said which one and why."""

import asyncio
import os
import signal
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import Transient
from penstock.apps.notebooks.registry import OpenNotebook
from penstock.apps.notebooks.repository.commits import Committer
from penstock.apps.notebooks.repository.entries import IndexEntries, split_failures
from penstock.apps.notebooks.repository.location import Location
from penstock.apps.notebooks.tables import Notebook
from tests.apps.notebooks.support import Api, git, opened, protection_for, served, write
from tests.environment import SOON

pytestmark = pytest.mark.usefixtures("home")


async def held(api: Api) -> dict[str, str]:
    shown = await api("GET", "/notebooks/garden")
    assert shown["held_count"] == len(shown["held"])
    return {one["path"]: one["reason"] for one in shown["held"]}


async def test_folder_that_becomes_a_link_does_not_stop_commits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A content that waits for history cannot be asked about behind the link."""
    url, outside = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "outside"
    write(outside, "x.md", "of somebody else")
    async with served(url, tmp_path / "data") as api:
        await api.create("sub/x.md", "of a client")
        await api.work()
        (api.root / "sub").rename(tmp_path / "moved away")
        (api.root / "sub").symlink_to(outside)
        await api.create("other.md", "more")
        await api.commit()
        assert git(api.root, "show", "HEAD:other.md") == "more"
        assert "symbolic link" in (await held(api))["sub/x.md"]
        assert "'sub/x.md' is not committed" in caplog.text
    async with served(url, tmp_path / "data") as api:
        await api.create("third.md", "and more")
        await api.commit()
        assert git(api.root, "show", "HEAD:third.md") == "and more"
        assert list(await held(api)) == ["sub/x.md"]
        (api.root / "sub").unlink()
        (tmp_path / "moved away").rename(api.root / "sub")
        await api.commit()
        assert await held(api) == {}
        assert git(api.root, "show", "HEAD:sub/x.md") == "of a client"
        assert "somebody else" not in git(api.root, "log", "-p", "--all")


async def test_path_that_is_ignored_is_said_and_committed_when_it_no_longer_is(one: Api) -> None:
    rules = await one.create(".gitignore", "*.log\n")
    await one.create("a.log", "1")
    await one.create("a.md", "1")
    await one.commit()
    assert list(await held(one)) == ["a.log"]
    assert "ignore" in (await held(one))["a.log"]
    assert git(one.root, "ls-files").split() == [".gitignore", "a.md"]
    await one.on("PUT", f"/files/{rules['file_id']}", {"content": "*.tmp\n"})
    await one.commit()
    assert await held(one) == {}
    assert git(one.root, "show", "HEAD:a.log") == "1"


async def test_many_held_paths_are_not_looked_at_with_every_commit(
    one: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.apps.notebooks.operations.runner._FEW_HELD", 0)
    rules = await one.create(".gitignore", "*.log\n")
    await one.create("a.log", "1")
    await one.commit()
    write(one.root, ".git/info/exclude", "a.md\n")
    await one.create("a.md", "1")
    await one.commit()
    assert list(await held(one)) == ["a.log", "a.md"]
    write(one.root, ".git/info/exclude", "")
    await one.create("b.md", "1")
    await one.commit()
    assert list(await held(one)) == ["a.log", "a.md"]
    await one.on("PUT", f"/files/{rules['file_id']}", {"content": "\n"})
    await one.commit()
    assert await held(one) == {}
    assert git(one.root, "ls-files").split() == [".gitignore", "a.log", "a.md", "b.md"]


async def test_repository_inside_is_said(one: Api) -> None:
    await one.create("nested/a.md", "1")
    await one.create("b.md", "1")
    await one.work()
    git(one.root, "init", "-q", "nested")
    await one.commit()
    assert await held(one) == {"nested/a.md": "'nested' is another repository"}
    assert git(one.root, "ls-files").split() == ["b.md"]


async def test_held_paths_are_tried_again_although_nobody_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.apps.notebooks.operations.maintenance._SWEEP", 0.05)
    async with served(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data") as api:
        await api.create("nested/a.md", "1")
        await api.work()
        git(api.root, "init", "-q", "nested")
        await api.commit()
        assert list(await held(api)) == ["nested/a.md"]
        (api.root / "nested/.git").rename(tmp_path / "taken away")
        async with asyncio.timeout(SOON):
            while await held(api):
                pass
        assert git(api.root, "ls-files").split() == ["nested/a.md"]


ODD = {
    ".GIT/config": "git has no such name",
    "git~1": "nor this one",
    os.fsdecode(b"\xff\xfe"): "no text",
    "new\nline": "two lines",
    "-x": "an option",
}


def test_names_that_git_refuses_are_held_and_others_are_not(root: Path) -> None:
    for name, content in ODD.items():
        write(root, f"sub/{name}", content)
    write(root, "sub/good.md", "1")
    committer = Committer(opened(root), root)
    made = committer.commit(["sub", "sub/good.md"])
    assert made is not None
    listed = opened(root).git("ls-tree", "-r", "-z", "--name-only", "HEAD").split(b"\0")[:-1]
    assert listed == [b"sub/-x", b"sub/good.md", b"sub/new\nline", b"sub/\xff\xfe"]
    reason = made.skipped["sub"]
    assert "sub/.GIT/config" in reason
    assert "1 more" in reason


def test_filter_that_is_named_while_files_are_read_makes_no_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not run on what was read."""
    stage = Committer._stage

    def named(self: Committer, found: IndexEntries, index: Path) -> None:
        stage(self, found, index)
        write(root, ".gitattributes", "*.bin filter=lfs\n")

    write(root, "a.bin", "large")
    committer = Committer(opened(root), root)
    with monkeypatch.context() as patched:
        patched.setattr(Committer, "_stage", named)
        with pytest.raises(Transient, match="attributes"):
            committer.commit(["a.bin"])
    assert committer.commit(["a.bin"]) is None
    assert "'lfs'" in committer.held.reasons()["a.bin"]


def test_file_below_a_folder_that_cannot_be_read_is_not_deleted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "sub/a", "1")
    write(root, "sub/b", "1")
    committer = Committer(opened(root), root)
    committer.commit(["sub"])
    write(root, "sub/a", "2")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "b" and access(path, mode)
    )
    assert committer.commit(["sub"])
    assert git(root, "ls-tree", "-r", "--name-only", "HEAD").split() == ["sub/a", "sub/b"]
    assert "'sub/b'" in committer.held.reasons()["sub"]


def test_file_that_goes_while_it_is_read_is_found_out(root: Path) -> None:
    """git fails as a whole: it is asked again about halves."""
    bad = {b"3", b"4", b"9"}
    seen: set[bytes] = set()

    def run(paths: Collection[bytes]) -> None:
        if not bad.isdisjoint(paths):
            raise Transient("git failed")
        seen.update(paths)

    paths = [str(n).encode() for n in range(10)]
    assert split_failures(run, paths, lambda: None) == dict.fromkeys(bad, "git failed")
    assert seen == set(paths) - bad

    def unsound() -> None:
        raise Transient("the disk is full")

    with pytest.raises(Transient, match="full"):
        split_failures(run, paths, unsound)


def test_repository_that_cannot_store_anything_holds_nothing_and_fails_as_a_whole(
    root: Path,
) -> None:
    write(root, "a", "1")
    write(root, "b", "1")
    committer = Committer(opened(root), root, patience=0)
    objects = root / ".git/objects"
    objects.rename(root / ".git/elsewhere")
    objects.write_text("no folder")
    with pytest.raises(Transient):
        committer.commit(["a", "b"])
    assert committer.held.reasons() == {}
    objects.unlink()
    (root / ".git/elsewhere").rename(objects)
    assert committer.commit(["a", "b"])


def wait_for_nobody(file: Path) -> None:
    """A pipe: who opens it waits until somebody writes to it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize("name", [".gitignore", ".gitattributes"])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe"])
async def test_pipe_that_git_would_read_holds_what_is_below_it(
    one: Api, tmp_path: Path, name: str, kind: str
) -> None:
    await one.create("sub/old.md", "1")
    await one.commit()
    (one.root / "sub" / name).parent.mkdir(exist_ok=True)
    pipe = one.root / "sub" / name if kind == "pipe" else tmp_path / "pipe"
    wait_for_nobody(pipe)
    if kind != "pipe":
        (one.root / "sub" / name).symlink_to(pipe)
    await one.create("sub/deep/a.md", "1")
    await one.create("sub/b.md", "1")
    await one.create("other.md", "1")
    await one.commit()
    assert git(one.root, "ls-tree", "-r", "--name-only", "HEAD").split() == [
        "other.md",
        "sub/old.md",
    ]
    reasons = await held(one)
    assert sorted(reasons) == ["sub/b.md", "sub/deep/a.md"]
    assert all(name in why and "not a regular file" in why for why in reasons.values())
    (one.root / "sub" / name).unlink()
    await one.commit()
    assert await held(one) == {}
    assert git(one.root, "show", "HEAD:sub/deep/a.md") == "1"


def test_pipe_above_a_joined_notebook_holds_its_paths(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "outer")
    root = tmp_path / "outer/in/notes"
    write(root, "a.md", "1")
    Tree(root).prepare()
    wait_for_nobody(tmp_path / "outer/.gitattributes")
    committer = Committer(opened(root), root)
    assert committer.commit(["a.md"]) is None
    assert "not a regular file" in committer.held.reasons()["a.md"]


@pytest.mark.parametrize("name", ["exclude", "attributes"])
def test_pipe_in_a_repository_is_said(root: Path, name: str) -> None:
    wait_for_nobody(root / ".git/info" / name)
    assert name in (Location.own(root).problem or "")


def test_git_that_hangs_ends_with_the_server(root: Path) -> None:
    wait_for_nobody(root / "pipe")
    running = opened(root).git
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(running.ask, "hash-object", "--", "pipe", timeout=600)
        with (root / "pipe").open("wb"):  # git has opened it, and waits for what is written
            running.end()
            assert hanging.result(60).code == -signal.SIGTERM
    with pytest.raises(Transient, match="has closed the notebook"):
        running("rev-parse")


def test_notebook_that_is_closed_ends_its_git(root: Path) -> None:
    location = Location.own(root)
    row = Notebook(1, "garden", str(root), True, {}, datetime.now(UTC), location)
    notebook = OpenNotebook(row, protection_for(root))
    running = notebook.repository().git
    notebook.close()
    with pytest.raises(Transient, match="has closed the notebook"):
        running("rev-parse")

"""Which repository has the history of a notebook: its own, or one that it is asked to join."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.apps.notebooks.operations import maintenance
from penstock.apps.notebooks.repository import repository
from penstock.apps.notebooks.repository.configuration import Protection
from penstock.apps.notebooks.repository.repository import Repository
from penstock.apps.notebooks.tables import TABLES
from penstock.tables import Tables, Transaction
from tests.apps.notebooks.support import Api, git, served, write
from tests.contract.support import STORES
from tests.environment import SOON

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    """A repository of a person, with a folder in it."""
    top = tmp_path / "project"
    (top / "notes").mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    write(top, "code", "1")
    git(top, "add", "code")
    git(top, "commit", "-qm", "code")
    return top


@asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[Api]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    settings = {"allowed": str(tmp_path), **settings}
    async with served(url, tmp_path / "data", **settings) as api:
        yield api


async def add(api: Api, folder: Path, *, status: int = 201, **fields: Any) -> Any:
    body = {"name": "notes", "path": str(folder), **fields}
    return await api("POST", "/notebooks", body, status=status)


async def create(api: Api, path: str, content: str) -> Any:
    body = {"path": path, "content": content}
    return await api("POST", "/notebooks/notes/files", body, status=202)


async def commit(api: Api) -> None:
    await api.work()
    await api("POST", "/events/commit", {"notebook": "notes"}, status=202)
    await api.work()


async def shown(api: Api) -> Any:
    return await api("GET", "/notebooks/notes")


def subjects(folder: Path) -> list[str]:
    return git(folder, "log", "--format=%s").splitlines()


def held(notebook: Any) -> dict[str, str]:
    return {one["path"]: one["reason"] for one in notebook["held"]}


# A repository of its own


@pytest.mark.parametrize("ignored", [False, True])
async def test_notebook_in_a_larger_repository_has_its_own(
    tmp_path: Path, outer: Path, ignored: bool
) -> None:
    if ignored:
        write(outer, ".gitignore", "notes/\n*.md\n")
    async with serving(tmp_path) as api:
        made = await add(api, outer / "notes")
        assert made["repository"] == {
            "kind": "own",
            "path": str(outer / "notes"),
            "directory": str(outer / "notes/.git"),
        }
        assert made["git"]
        await create(api, "a.md", "of a client")
        await commit(api)
        assert (await shown(api))["held_count"] == 0
    assert subjects(outer) == ["code"]
    assert subjects(outer / "notes") == ["Add a.md"]
    assert git(outer / "notes", "status", "--porcelain") == ""


async def test_folder_that_is_a_repository_is_refused_without_a_choice(
    tmp_path: Path, outer: Path
) -> None:
    async with serving(tmp_path) as api:
        refused = await add(api, outer, status=409)
        assert "join" in refused["detail"]
        assert "git" in refused["detail"]
        assert not (outer / ".penstock").exists()
        assert (await add(api, outer, git=False))["repository"] is None


async def test_notebook_that_is_added_again_keeps_its_history(tmp_path: Path, outer: Path) -> None:
    async with serving(tmp_path) as api:
        await add(api, outer / "notes")
        await create(api, "a.md", "1")
        await commit(api)
        await api("DELETE", "/notebooks/notes", status=204)
        await api.work()
        assert (await add(api, outer / "notes"))["repository"]["kind"] == "own"
    assert subjects(outer / "notes") == ["Add a.md"]


async def test_repository_that_a_person_removed_is_made_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        await api.create("a.md", "1")
        (api.root / ".git").rename(tmp_path / "gone")
        lost = await api("GET", "/notebooks/garden")
        assert (lost["git"], "no longer has a repository" in lost["git_problem"]) == (False, True)
        await api.work()
        await api("POST", "/events/commit", {"notebook": "garden"}, status=202)
        await api.work()
        again = await api("GET", "/notebooks/garden")
        assert (again["git"], again["git_problem"]) == (True, None)
        assert subjects(api.root) == ["Add a.md"]


# Joining


@pytest.mark.parametrize("where", ["", "notes"])
async def test_joining_is_asked_for_and_said(tmp_path: Path, outer: Path, where: str) -> None:
    async with serving(tmp_path) as api:
        made = await add(api, outer / where, repository="join")
        assert made["repository"] == {
            "kind": "joined",
            "path": str(outer),
            "directory": str(outer / ".git"),
        }
        await create(api, "a.md", "of a client")
        await commit(api)
        listed = (await api("GET", "/notebooks"))["notebooks"]
        assert {one["name"]: one["repository"]["kind"] for one in listed} == {
            "garden": "own",
            "notes": "joined",
        }
    path = f"{where}/a.md".lstrip("/")
    assert subjects(outer) == [f"Add {path}", "code"]
    assert git(outer, "show", f"HEAD:{path}") == "of a client"
    assert git(outer, "status", "--porcelain") == ""


async def test_nothing_to_join_is_said(tmp_path: Path, outer: Path) -> None:
    (tmp_path / "alone").mkdir()
    async with serving(tmp_path) as api:
        refused = await add(api, tmp_path / "alone", repository="join", status=422)
        assert "to join" in refused["detail"]
        await add(api, outer, repository="join", git=False, status=422)
        await add(api, outer, repository="other", status=422)


async def test_joined_repository_that_goes_away_is_said_and_waited_for(
    tmp_path: Path, outer: Path
) -> None:
    async with serving(tmp_path) as api:
        await add(api, outer / "notes", repository="join")
        (outer / ".git").rename(outer / "away")
        await create(api, "a.md", "1")
        await commit(api)
        lost = await shown(api)
        assert not lost["git"]
        assert str(outer) in lost["git_problem"]
        (outer / "away").rename(outer / ".git")
    assert subjects(outer) == ["Add notes/a.md", "code"]


async def test_joined_repository_that_is_replaced_by_another_is_not_used(
    tmp_path: Path, outer: Path
) -> None:
    other = tmp_path / "private"
    git(tmp_path, "init", "-q", "private")
    git(other, "commit", "-qm", "private", "--allow-empty")
    async with serving(tmp_path) as api:
        await add(api, outer, repository="join")
        (outer / ".git").rename(tmp_path / "taken away")
        (outer / ".git").symlink_to(other / ".git")
        await create(api, "a.md", "1")
        await commit(api)
        found = await shown(api)
        assert (found["git"], "is no longer" in found["git_problem"]) == (False, True)
        await api("GET", "/notebooks/notes/history", status=404)
    assert subjects(other) == ["private"]


@pytest.mark.parametrize("kind", ["file", "link", "common directory"])
async def test_repository_that_does_not_know_the_folder_cannot_be_joined(
    tmp_path: Path, outer: Path, kind: str
) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    if kind == "file":
        write(folder, ".git", f"gitdir: {outer}/.git\n")
    elif kind == "link":
        (folder / ".git").symlink_to(outer / ".git")
    else:
        write(folder, ".git/HEAD", "ref: refs/heads/main\n")
        write(folder, ".git/commondir", f"{outer}/.git\n")
    async with serving(tmp_path) as api:
        refused = await add(api, folder, repository="join", status=422)
        assert "join" in refused["detail"]


@pytest.mark.parametrize("kind", ["worktree", "submodule", "another format"])
async def test_work_tree_that_its_repository_knows_is_joined(
    tmp_path: Path, outer: Path, kind: str
) -> None:
    if kind == "worktree":
        folder = tmp_path / "second"
        git(outer, "worktree", "add", "-q", "-b", "second", str(folder))
    elif kind == "another format":
        folder = tmp_path / "sha256"
        git(tmp_path, "init", "-q", "--object-format=sha256", str(folder))
        git(folder, "config", "extensions.worktreeConfig", "true")
        git(folder, "commit", "-qm", "code", "--allow-empty")
    else:
        folder = tmp_path / "super/sub"
        git(tmp_path, "init", "-q", "super")
        words = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
        git(tmp_path / "super", *words, str(outer), "sub")
    async with serving(tmp_path) as api:
        assert (await add(api, folder, repository="join"))["repository"]["path"] == str(folder)
        made = await create(api, "a.md", "of a client")
        await commit(api)
        found = await api("GET", f"/notebooks/notes/files/{made['file_id']}/history")
        assert [one["message"] for one in found["commits"]] == ["Add a.md"]
    assert subjects(folder) == ["Add a.md", "code"]
    assert subjects(outer) == ["code"]
    assert git(folder, "status", "--porcelain") == ""


# Filters


def in_worktree(outer: Path) -> None:
    write(outer, ".gitattributes", "# filter=none\n*.bin  filter=shout diff=lfs -text\n")


def in_macro(outer: Path) -> None:
    write(outer, ".gitattributes", "[attr]secret filter=shout\n*.bin secret\n")


def below(outer: Path) -> None:
    write(outer, "notes/deep/er/.gitattributes", "* filter=shout\n")


def in_info(outer: Path) -> None:
    write(outer, ".git/info/attributes", "*.bin filter=shout\n")


def only_committed(outer: Path) -> None:
    in_worktree(outer)
    git(outer, "add", ".gitattributes")
    git(outer, "commit", "-qm", "code")
    (outer / ".gitattributes").unlink()


def in_a_file_that_is_included(outer: Path) -> None:
    write(outer, "shared/attributes", "*.bin filter=shout\n")
    write(outer, "shared/config", f"[core]\n\tattributesFile = {outer}/shared/attributes\n")
    git(outer, "config", "include.path", "../shared/config")


NAMED = [in_worktree, in_macro, below, in_info, only_committed, in_a_file_that_is_included]


@pytest.mark.parametrize("name_it", NAMED)
async def test_repository_whose_attributes_name_a_filter_is_not_joined(
    tmp_path: Path, outer: Path, name_it: Any
) -> None:
    name_it(outer)
    git(outer, "config", "filter.shout.clean", f"touch {tmp_path}/mark; tr a-z A-Z")
    async with serving(tmp_path) as api:
        refused = await add(api, outer / "notes", repository="join", status=422)
        assert "'shout'" in refused["detail"]
        assert "trusted_filters" in refused["detail"]
        assert not (outer / "notes/.penstock").exists()
        assert (await add(api, outer / "notes"))["git"]
    assert not (tmp_path / "mark").exists()


def configured(home: Path, folder: Path, command: str = "tr a-z A-Z") -> None:
    """Let the server's user have the commands of the filter, as `git lfs install` does."""
    file = str(home / ".gitconfig")
    git(folder, "config", "--file", file, "filter.shout.clean", command)
    git(folder, "config", "--file", file, "filter.shout.smudge", "tr A-Z a-z")


async def test_trusted_filter_runs_with_the_commands_of_the_servers_user(
    tmp_path: Path, outer: Path, home: Path
) -> None:
    in_worktree(outer)
    configured(home, outer)
    git(outer, "config", "filter.shout.clean", f"touch {tmp_path}/mark; cat")
    async with serving(tmp_path, trusted_filters="lfs, shout") as api:
        await add(api, outer / "notes", repository="join")
        made = await create(api, "a.bin", "quiet")
        await create(api, "a.md", "plain")
        await commit(api)
        place = f"/api/v1/notebooks/notes/files/{made['file_id']}/content"
        head = git(outer, "rev-parse", "HEAD").strip()
        assert (await api.client.get(f"{place}?commit={head}")).text == "quiet"
    assert git(outer, "cat-file", "blob", "HEAD:notes/a.bin") == "QUIET"
    assert git(outer, "cat-file", "blob", "HEAD:notes/a.md") == "plain"
    assert not (tmp_path / "mark").exists()


async def test_trusted_filter_without_commands_is_said(tmp_path: Path, outer: Path) -> None:
    in_worktree(outer)
    git(outer, "config", "filter.shout.clean", "tr a-z A-Z")
    async with serving(tmp_path, trusted_filters="shout") as api:
        refused = await add(api, outer / "notes", repository="join", status=422)
        assert "filter.shout.clean" in refused["detail"]


def objects(folder: Path) -> str:
    """All that git has, whether a commit has it or not."""
    listed = git(folder, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
    blobs = [line.split()[0] for line in listed if " blob " in line]
    return "".join(git(folder, "cat-file", "blob", blob) for blob in blobs)


@pytest.mark.parametrize("choice", ["own", "join"])
async def test_filter_that_is_named_later_holds_the_paths_it_is_for(
    tmp_path: Path, outer: Path, choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = outer / "notes"
    async with serving(tmp_path) as api:
        await add(api, folder, repository=choice)
        git(outer, "config", "filter.shout.clean", f"touch {tmp_path}/mark; cat")
        await create(api, ".gitattributes", "*.bin filter=shout\n")
        await create(api, "a.bin", "secret")
        await create(api, "a.md", "plain")
        await commit(api)
        found = await shown(api)
        assert (found["git"], found["held_count"]) == (True, 1)
        assert "'shout'" in held(found)["a.bin"]
        assert "'a.bin' is not committed" in caplog.text
        # What a person has overwritten meanwhile waits as well.
        write(folder, "a.bin", "secret of a person")
        await commit(api)
        assert "secret" not in objects(folder)
    async with serving(tmp_path) as api:  # also after a restart
        await commit(api)
        assert list(held(await shown(api))) == ["a.bin"]
        assert "secret" not in objects(folder)
        metrics = await api("GET", "/events/metrics")
        assert metrics["uncommitted"] == {}
        found = (await api("GET", "/notebooks/notes/files?prefix=.gitattributes"))["files"]
        number = found[0]["id"]
        body = {"content": "*.bin -text\n"}
        await api("PUT", f"/notebooks/notes/files/{number}", body, status=202)
        await commit(api)
        assert (await shown(api))["held_count"] == 0
    commits = git(folder, "log", "--reverse", "--format=%H", "--", "a.bin").split()
    assert [git(folder, "show", f"{one}:./a.bin") for one in commits] == [
        *("secret", "secret of a person")
    ]
    assert not (tmp_path / "mark").exists()


async def test_filter_that_fails_holds_its_paths(tmp_path: Path, outer: Path, home: Path) -> None:
    in_worktree(outer)
    configured(home, outer, "false")
    async with serving(tmp_path, trusted_filters="shout") as api:
        await add(api, outer / "notes", repository="join")
        await create(api, "a.bin", "secret")
        await create(api, "a.md", "plain")
        await commit(api)
        assert "clean filter 'shout' failed" in held(await shown(api))["a.bin"]
        assert git(outer, "show", "HEAD:notes/a.md") == "plain"
        configured(home, outer)
    async with serving(tmp_path, trusted_filters="shout") as api:
        await api.work()
        assert (await shown(api))["held_count"] == 0
    assert git(outer, "cat-file", "blob", "HEAD:notes/a.bin") == "SECRET"


# Notebooks of earlier versions


FORMER = Tables(sqlite=TABLES.sqlite[:2], postgres=TABLES.postgres[:2])


async def registered(url: str, **folders: Path) -> None:
    """Have notebooks that an earlier version has added, with a path that is not committed yet."""
    app = Penstock(url)
    await app.tables.prepare("notebooks", FORMER)

    def work(tx: Transaction) -> None:
        for n, (name, folder) in enumerate(folders.items(), start=1):
            folder.mkdir(parents=True, exist_ok=True)
            row = (n, name, str(folder), 1, "{}", 0)
            tx.execute("INSERT INTO notebooks_notebook VALUES (?, ?, ?, ?, ?, ?)", row)
            tx.execute("INSERT INTO notebooks_uncommitted VALUES (?, ?, ?)", (n, "old.md", 0))
            write(folder, "old.md", "not committed yet")
        sql = "UPDATE notebooks_number SET last = ? WHERE name = 'notebook'"
        tx.execute(sql, (len(folders),))

    await app.transaction(work)
    await app.close()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_notebook_that_commits_into_an_outer_repository_is_recorded_as_joined(
    tmp_path: Path, outer: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    url = STORES[store](tmp_path)
    garden = tmp_path / "data/notebooks/garden"
    git(tmp_path, "init", "-q", "-b", "main", str(garden))
    await registered(url, notes=outer / "notes", garden=garden)
    caplog.clear()
    async with served(url, tmp_path / "data") as api:
        kinds = {
            one["name"]: one["repository"]["kind"]
            for one in (await api("GET", "/notebooks"))["notebooks"]
        }
        assert kinds == {"garden": "own", "notes": "joined"}
        await api.work()
        await create(api, "a.md", "1")
        await commit(api)
    assert subjects(outer) == ["Add notes/a.md", "Add notes/old.md", "code"]
    assert subjects(garden) == ["Add old.md"]
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [one for one in said if "joined" in one] == [
        f"notebook notes commits into the repository {outer}, as before: it is recorded as joined"
    ]
    caplog.clear()
    async with served(url, tmp_path / "data"):
        assert "joined" not in caplog.text


async def test_notebook_that_an_outer_repository_ignores_gets_its_own(
    tmp_path: Path, outer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It had no history: every path was ignored."""
    write(outer, ".gitignore", "notes/\n")
    await registered(f"sqlite:///{tmp_path}/jobs.db", notes=outer / "notes")
    async with serving(tmp_path) as api:
        assert (await shown(api))["repository"]["kind"] == "own"
        assert "which ignores it" in caplog.text
        await api.work()
        await create(api, "a.md", "1")
        await commit(api)
    assert subjects(outer / "notes") == ["Add a.md", "Add old.md"]
    assert subjects(outer) == ["code"]


async def test_broken_repository_of_one_notebook_does_not_stop_the_server(
    tmp_path: Path, outer: Path
) -> None:
    async with serving(tmp_path) as api:
        await add(api, outer / "notes", repository="join")
    (outer / ".git/config").write_text("[broken")
    async with serving(tmp_path) as api:
        await create(api, "a.md", "1")
        await api.create("b.md", "1")
        await commit(api)
        assert "config" in (await shown(api))["git_problem"]
        assert (await api("GET", "/notebooks/garden"))["git_problem"] is None
    assert subjects(tmp_path / "data/notebooks/garden") == ["Add b.md"]


# Packing


def object_counts(folder: Path) -> dict[str, int]:
    """Return how many objects are loose and packed, and the number of packs."""
    lines = git(folder, "count-objects", "-v").splitlines()
    found = {name: int(n) for name, n in (line.split(": ") for line in lines)}
    return {name: found[name] for name in ("count", "in-pack", "packs")}


def commit_file(folder: Path, name: str) -> None:
    write(folder, name, name)
    git(folder, "add", name)
    git(folder, "commit", "-qm", name)


def test_loose_objects_are_packed_when_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    made = Repository.make(folder, Protection(tmp_path / "protected"))
    for name in ("a", "b", "c"):
        commit_file(folder, name)
    write(folder, "d", "of no commit")
    unreachable = git(folder, "hash-object", "-w", "d").strip()
    before = object_counts(folder)
    made.pack()
    assert object_counts(folder) == before == {"count": 10, "in-pack": 0, "packs": 0}, "few"

    monkeypatch.setattr(repository, "MANY_OBJECTS", 3)
    made.pack()
    assert object_counts(folder) == {"count": 1, "in-pack": 9, "packs": 1}
    commit_file(folder, "e")
    made.pack()
    assert object_counts(folder) == {"count": 1, "in-pack": 12, "packs": 2}

    commit_file(folder, "f")
    monkeypatch.setattr(repository, "_MANY_PACKS", 2)
    made.pack()
    assert object_counts(folder)["packs"] == 1
    assert git(folder, "cat-file", "blob", unreachable) == "of no commit"
    git(folder, "fsck", "--strict")
    assert subjects(folder) == ["f", "e", "c", "b", "a"]


async def test_server_packs_its_own_repositories_and_not_joined_ones(
    outer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MANY_OBJECTS", 3)
    monkeypatch.setattr(maintenance, "_SWEEP", 0.01)
    monkeypatch.setattr(maintenance, "_PACK", 0.01)
    own = tmp_path / "own"
    own.mkdir()
    before = object_counts(outer)
    async with serving(tmp_path) as api:
        await add(api, outer / "notes", repository="join")
        await add(api, own, name="own")
        await api.work()  # opens both
        for packs in (1, 2):  # after the second round, the first one has seen both
            commit_file(own, str(packs))
            deadline = time.monotonic() + SOON
            while object_counts(own)["packs"] < packs:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
    assert object_counts(outer) == before

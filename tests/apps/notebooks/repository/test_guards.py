"""Nothing that a folder contains is run by git, whatever the server does with it.

Every setting of git that runs a program is planted, one by one, with a program that leaves a mark.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import NotebookError
from penstock.apps.notebooks.repository.commits import Committer, commit_changes
from penstock.apps.notebooks.repository.guards import GUARDS, environment
from penstock.apps.notebooks.repository.history import History
from penstock.apps.notebooks.repository.location import Location
from tests.apps.notebooks.support import (
    ENVIRONMENT,
    Api,
    git,
    opened,
    place,
    served,
    write,
)

pytestmark = pytest.mark.usefixtures("home")

HOOKS = (
    *("pre-commit", "commit-msg", "prepare-commit-msg", "post-commit", "pre-auto-gc"),
    *("post-index-change", "reference-transaction", "post-checkout", "post-rewrite"),
    *("fsmonitor-watchman", "pre-applypatch", "pre-push", "update", "post-merge"),
)


class Trap:
    """A program that leaves a mark, and settings that lead to it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.marks = folder / "marks"
        self.program = self.script(folder / "program")

    def script(self, file: Path) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\necho "$0" >> {self.marks}\n')
        file.chmod(0o755)
        return file

    def hooks(self, folder: Path) -> Path:
        for name in HOOKS:
            self.script(folder / name)
        return folder

    @property
    def is_sprung(self) -> bool:
        return self.marks.exists()

    def value(self, setting: str) -> str:
        """What to plant for a setting."""
        others = {
            "core.hooksPath": str(self.hooks(self.folder / "hooks")),
            "init.templateDir": str(self.hooks(self.folder / "template/hooks").parent),
            "core.worktree": str(self.folder),
            "safe.bareRepository": "all",
            "extensions.partialClone": "evil",
            "remote.*.promisor": "true",
            "remote.*.url": f"ext::{self.program} %S",
            "url.*.insteadOf": "https://",
            "gc.auto": "1",
            "help.autoCorrect": "immediate",
            "diff.submodule": "diff",
            "diff.ignoreSubmodules": "none",
            "submodule.*.update": f"!{self.program}",
            "alias.*": f"!{self.program}",
        }
        if setting in others:
            return others[setting]
        if setting.startswith("protocol."):
            return "always"
        if setting.startswith("include"):
            return str(self.included())
        is_switch = setting.lower().endswith(
            ("sign", "signature", "signatures", "recurse", "auto", "submodules", "annotated")
        )
        return "true" if is_switch else str(self.program)

    def included(self) -> Path:
        file = self.folder / "included"
        for name in ("core.fsmonitor", "filter.evil.clean", "diff.external", "alias.log"):
            git(self.folder, "config", "--file", str(file), name, str(self.program))
        return file


def planted(trap: Trap, directory: Path, setting: str) -> None:
    """Put a setting into the configuration of a repository."""
    name = setting.replace("includeIf.*", "includeIf.gitdir:/").replace("*", "evil")
    config = ("config", "--file", str(directory / "config"))
    git(trap.folder, *config, name, trap.value(setting))
    if setting.startswith("remote."):
        git(trap.folder, *config, "remote.evil.url", trap.value("remote.*.url"))


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "trap")


def everything(tree: Tree) -> None:
    """All that the server does with git."""
    root, repository = tree.root, opened(tree.root)

    def commit(*paths: str) -> None:
        commit_changes(tree, Committer(repository, root, patience=0), paths)

    write(root, "a.md", "line\n" * 20)
    write(root, "sub/b.md", "b")
    commit("a.md", "sub")
    (root / "a.md").rename(root / "moved.md")
    (root / "sub/b.md").unlink()
    place(tree, tree.stage(b"server"), "moved.md")
    write(root, "moved.md", "line\n" * 21)
    commit("a.md", "moved.md", "sub/b.md")
    history = History(repository)
    history.log()
    found = [(one.id, one.path) for one in history.of("moved.md") if one.path is not None]
    for commit_id, path in found:
        history.diff(None, commit_id, path)
        history.content(commit_id, path, limit=999)
    if found:
        history.path_at(found[-1][0], "moved.md")
        history.diff_of(found[-1], found[0])


@pytest.mark.repeats("all of them are planted at once below, and the file is not even read")
@pytest.mark.parametrize("setting", [one.setting for one in GUARDS])
def test_planted_setting_runs_nothing(tree: Tree, root: Path, trap: Trap, setting: str) -> None:
    planted(trap, root / ".git", setting)
    driver = "filter=evil" if "filter" in setting else "diff=evil merge=evil"
    write(root, ".gitattributes", f"* {driver}\n")
    write(root, ".git/info/attributes", f"* {driver}\n")
    everything(tree)
    assert not trap.is_sprung


SPRUNG: dict[str, Iterable[str]] = {
    "core.fsmonitor": ("status",),
    "core.hooksPath": ("commit", "-qm", "x", "--allow-empty"),
    "filter.*.clean": ("add", "--renormalize", "x.evil"),
    "filter.*.smudge": ("cat-file", "--filters", "HEAD:x.evil"),
    "diff.external": ("diff", "HEAD~1", "HEAD"),
    "diff.*.command": ("diff", "HEAD~1", "HEAD"),
    "diff.*.textconv": ("diff", "HEAD~1", "HEAD"),
    "gpg.program": ("commit", "-q", "-S", "-m", "x", "--allow-empty"),
    "include.path": ("status",),
    "includeIf.*.path": ("status",),
    "alias.*": ("evil",),
    "core.editor": ("commit", "--allow-empty"),
    "core.sshCommand": ("ls-remote", "ssh://nowhere.invalid/x.git"),
}


@pytest.mark.parametrize("setting", list(SPRUNG))
def test_trap_works_for_who_runs_git_without_care(root: Path, trap: Trap, setting: str) -> None:
    """So that the tests above show something."""
    for text in ("one\n", "two\n"):
        write(root, "x.evil", text)
        git(root, "add", "x.evil")
        git(root, "commit", "-qm", text)
    planted(trap, root / ".git", setting)
    write(root, ".gitattributes", "* diff=evil filter=evil\n")
    write(root, "x.evil", "three\n")
    subprocess.run(
        ["git", "-C", str(root), *SPRUNG[setting]],  # noqa: S607 - the one that is installed
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert trap.is_sprung


def test_filter_of_a_repository_does_not_run_when_its_history_is_read(
    tree: Tree, root: Path, trap: Trap
) -> None:
    write(root, "a", "as it was")
    made = Committer(opened(root), root).commit(["a"])
    assert made is not None
    for way in ("clean", "smudge", "process"):
        planted(trap, root / ".git", f"filter.*.{way}")
    write(root, ".gitattributes", "* filter=evil\n")
    assert History(opened(root)).content(made.id, "a", limit=99) == (b"as it was", True)
    assert not trap.is_sprung


def test_hooks_of_a_repository_never_run(tree: Tree, root: Path, trap: Trap) -> None:
    trap.hooks(root / ".git/hooks")
    everything(tree)
    assert not trap.is_sprung


def test_configuration_that_is_found_is_not_even_read(tree: Tree, root: Path) -> None:
    """Whatever setting a future git has."""
    repository = opened(root)
    (root / ".git/config").write_text("[broken")
    write(root, "a", "1")
    assert Committer(repository, root).commit(["a"])
    assert len(History(repository).log()) == 1


def test_missing_objects_are_not_fetched(tree: Tree, root: Path, trap: Trap) -> None:
    write(root, "a", "1")
    made = Committer(opened(root), root).commit(["a"])
    assert made is not None
    blob = git(root, "rev-parse", "HEAD:a").strip()
    (root / ".git/objects" / blob[:2] / blob[2:]).unlink()
    git(root, "config", "core.repositoryformatversion", "1")
    for setting in ("extensions.partialClone", "remote.*.promisor", "protocol.ext.allow"):
        planted(trap, root / ".git", setting)
    with pytest.raises(NotebookError):
        History(opened(root)).content(made.id, "a", limit=9)
    assert not trap.is_sprung
    subprocess.run(
        ["git", "-C", str(root), "cat-file", "-p", blob],  # noqa: S607 - the one that is installed
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert trap.is_sprung


def test_environment_of_the_server_leads_to_no_program(
    tree: Tree, root: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        *("GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_SSH", "GIT_EDITOR", "GIT_ASKPASS"),
        *("GIT_PAGER", "GIT_PROXY_COMMAND", "GIT_SEQUENCE_EDITOR", "GIT_TRACE2_EVENT"),
        *("PAGER", "EDITOR", "VISUAL", "SSH_ASKPASS", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR"),
    )
    for name in names:
        monkeypatch.setenv(name, str(trap.program))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(trap.program))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor'='{trap.program}'")
    trap.script(root / "git-lfs")
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    everything(tree)
    assert not trap.is_sprung
    made = environment()
    assert {name for name in names if made.get(name) == str(trap.program)} == set()
    assert all(Path(one).is_absolute() for one in made["PATH"].split(os.pathsep))


def bare_repository(folder: Path, trap: Trap) -> None:
    """Ordinary files that git takes for a repository without a work tree."""
    git(trap.folder, "init", "-q", "--bare", str(folder))
    trap.hooks(folder / "hooks")
    for setting in ("core.fsmonitor", "filter.*.smudge", "filter.*.clean", "diff.external"):
        planted(trap, folder, setting)
    git(folder, "config", "core.bare", "false")
    git(folder, "config", "core.worktree", str(folder))
    write(folder, "info/attributes", "* filter=evil diff=evil\n")


@pytest.mark.parametrize("where", ["", "inside/"])
async def test_planted_bare_repository_is_files(one: Api, trap: Trap, where: str) -> None:
    bare_repository(one.root / where, trap)
    made = await one.create(f"{where}a.md", "of a client")
    await one("POST", "/events/commit", {"notebook": "garden"}, status=202)
    await one.work()
    await one("POST", "/events/commit", {"notebook": "garden"}, status=202)
    await one.work()
    found = (await one.on("GET", f"/files/{made['file_id']}/history"))["commits"]
    assert [entry["message"] for entry in found] == [f"Add {where}a.md"]
    answer = await one.client.get(
        f"/api/v1/notebooks/garden/files/{made['file_id']}/content?commit={found[0]['commit']}"
    )
    assert answer.text == "of a client"
    assert not trap.is_sprung


async def test_everything_is_planted_and_all_is_asked_for(one: Api, trap: Trap) -> None:
    for guard in GUARDS:
        planted(trap, one.root / ".git", guard.setting)
    git(trap.folder, "config", "--file", str(one.root / ".git/config"), "core.bare", "true")
    trap.hooks(one.root / ".git/hooks")
    write(one.root, ".gitattributes", "*.evil filter=evil diff=evil merge=evil\n* diff=evil\n")
    first = await one.create("a.md", "line\n" * 20)
    await one.create("f/x.evil", "secret")
    await one.commit()
    await one.on("PUT", f"/files/{first['file_id']}", {"content": "line\n" * 21})
    await one.on("PATCH", "/folders/f", {"path": "g"})
    await one.work()
    await one.on("PATCH", f"/files/{first['file_id']}/move", {"path": "b.md"})
    await one.commit()
    place = f"/files/{first['file_id']}"
    found = (await one.on("GET", f"{place}/history"))["commits"]
    assert len(found) == 2
    for entry in found:
        url = f"/api/v1/notebooks/garden{place}/content?commit={entry['commit']}"
        assert (await one.client.get(url)).status_code == 200
    assert (await one.on("GET", f"{place}/diff"))["diff"]
    assert (await one.on("GET", "/history"))["commits"]
    await one.on("DELETE", "/folders/g")
    await one.commit()
    assert not trap.is_sprung


@pytest.mark.parametrize("kind", ["file", "link", "common directory"])
async def test_own_repository_that_is_replaced_by_another_is_not_used(
    tmp_path: Path, trap: Trap, kind: str
) -> None:
    """Neither its history is shown, nor is it committed to."""
    other = tmp_path / "private"
    other.mkdir()
    git(other, "init", "-q")
    write(other, "a.md", "private")
    git(other, "add", "a.md")
    git(other, "commit", "-qm", "private")
    planted(trap, other / ".git", "core.fsmonitor")
    async with served(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data") as api:
        made = await api.create("a.md", "of a client")
        await api.commit()
        if kind != "common directory":
            (api.root / ".git").rename(tmp_path / "taken away")
        if kind == "common directory":
            write(api.root, ".git/commondir", f"{other}/.git\n")
        elif kind == "file":
            write(api.root, ".git", f"gitdir: {other}/.git\n")
        else:
            (api.root / ".git").symlink_to(other / ".git")
        await api.create("b.md", "more")
        await api.commit()
        shown = await api("GET", "/notebooks/garden")
        assert not shown["git"]
        assert ".git" in shown["git_problem"]
        await api.on("GET", f"/files/{made['file_id']}/history", status=404)
    assert git(other, "log", "--format=%s").split() == ["private"]
    assert not trap.is_sprung


PLANTED = [
    *("objects", "refs", "refs/heads", "refs/heads/main", "logs", "logs/HEAD", "logs/refs"),
    *("index", "HEAD", "packed-refs", "config", "objects/info", "objects/pack", "objects/ab"),
]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A repository of somebody else, with nothing in it that may change."""
    other = tmp_path / "private"
    other.mkdir()
    git(other, "init", "-q", "--initial-branch=main")
    write(other, "a.md", "private")
    git(other, "add", "a.md")
    git(other, "commit", "-qm", "private")
    git(other, "pack-refs", "--all", "--no-prune")
    (other / ".git/objects/ab").mkdir(exist_ok=True)
    return other


def linked(directory: Path, other: Path, name: str) -> None:
    """Have a name in a repository lead to another one."""
    place = directory / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(other / ".git" / name)


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize("name", [*PLANTED, "alternates"])
async def test_own_repository_with_a_link_into_another_is_not_used(
    one: Api, private: Path, name: str
) -> None:
    made = await one.create("a.md", "of a client")
    await one.commit()
    before = contents_of(private)
    theirs = git(private, "rev-parse", "HEAD").strip()
    if name == "alternates":
        write(one.root, ".git/objects/info/alternates", f"{private}/.git/objects\n")
    else:
        linked(one.root / ".git", private, name)
    content = f"/files/{made['file_id']}/content?commit={theirs}"
    await one.on("GET", content, status=404)
    await one.create("b.md", "more")
    await one.commit()
    shown = await one("GET", "/notebooks/garden")
    assert not shown["git"]
    assert ".git" in shown["git_problem"]
    assert contents_of(private) == before


@pytest.mark.parametrize("name", PLANTED)
async def test_repository_with_a_link_into_another_cannot_be_joined(
    one: Api, private: Path, name: str
) -> None:
    folder = one.root.parent / "planted"
    git(one.root.parent, "init", "-q", "planted")
    git(folder, "commit", "-qm", "first", "--allow-empty")
    linked(folder / ".git", private, name)
    before = contents_of(private)
    asked = {"name": "planted", "path": str(folder), "repository": "join"}
    refused = await one("POST", "/notebooks", asked, status=422)
    assert "join" in refused["detail"]
    assert contents_of(private) == before


def test_links_that_lead_nowhere_else_are_left_alone(root: Path) -> None:
    git(root, "commit", "-qm", "first", "--allow-empty")
    branch = git(root, "symbolic-ref", "HEAD").strip()
    (root / ".git/HEAD").unlink()
    (root / ".git/HEAD").symlink_to(branch)
    (root / ".git/hooks").symlink_to("/nowhere")
    assert Location.own(root).problem is None


def test_link_in_a_folder_that_was_looked_at_long_ago_is_found(root: Path) -> None:
    heads = root / ".git/refs/heads"
    os.utime(heads, (1, 1))
    assert Location.own(root).problem is None
    (heads / "other").symlink_to("/nowhere")
    os.utime(heads, (1, 1))
    assert "other" in (Location.own(root).problem or "")


def test_location_of_a_folder_is_what_git_would_find(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "outer")
    (tmp_path / "outer/in/side").mkdir(parents=True)
    found = Location.enclosing(tmp_path / "outer/in/side")
    assert found == Location(tmp_path / "outer", tmp_path / "outer/.git", is_joined=True)
    (tmp_path / "outer/in/.git").mkdir()  # no repository
    assert Location.enclosing(tmp_path / "outer/in/side") == found

"""`penstock notebook`, on a server that runs; and what people and the server do to one folder."""

import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import cli
from tests.apps.notebooks.support import files_of, git, write
from tests.cli.support import COMMAND, Process, started

SETTINGS = """
[notebooks]
commit_interval = 0.5
scan_interval = 3600
author = "Gardener <gardener@example.org>"
"""


class Server:
    """A server with notebooks, and commands on it."""

    def __init__(self, url: str, data: Path, process: Process) -> None:
        self.url = url
        self.data = data
        self.process = process

    def __call__(self, *words: str, code: int = 0, stdin: str | bytes | None = None) -> str:
        result = CliRunner().invoke(cli, ["notebook", *words, "--url", self.url], input=stdin)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    def json(self, *words: str, stdin: str | bytes | None = None) -> Any:
        return json.loads(self(*words, "--json", stdin=stdin))

    def add(self, name: str) -> Path:
        self("add", name)
        return self.data / "notebooks" / name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("data")
    config = data / "penstock.toml"
    config.write_text(SETTINGS)
    words = ("serve", "--port", "0", "--data", str(data), "--apps", "notebooks", "--json")
    with started([*COMMAND, *words, "--config", str(config)], data) as process:
        url = json.loads(process.wait_for('"url"'))["url"]
        yield Server(url, data, process)


def eventually(is_so: Callable[[], bool], tries: int = 600) -> None:
    """Wait until something is the case that nobody tells."""
    for _ in range(tries):
        if is_so():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to that")


def test_files_are_written_moved_listed_and_removed(server: Server) -> None:
    root = server.add("garden")
    assert "garden" in server("list")
    assert server("list", "garden") == "There are no files.\n"
    assert server("write", "garden", "notes/tea.md", stdin="# Tea\n") == (
        "Wrote notes/tea.md, version 1.\n"
    )
    binary = bytes(range(256))
    made = server.json("write", "garden", "blob", stdin=binary)
    assert made["hash"] == hashlib.sha256(binary).hexdigest()
    assert (root / "blob").read_bytes() == binary
    assert server("mv", "garden", "notes/tea.md", "notes/green.md").startswith("Moved")
    server("mv", "garden", "notes", "archive")
    assert [one["path"] for one in server.json("list", "garden")["files"]] == [
        "archive/green.md",
        "blob",
    ]
    assert "archive/green.md" in server("list", "garden", "--prefix", "arch")
    server("commit", "garden")
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "show", "HEAD:archive/green.md") == "# Tea\n"
    assert "Gardener" in server("log", "garden", "archive/green.md")
    assert server.json("log", "garden", "archive/green.md")["commits"]
    assert "Gardener" in server("log", "garden")
    assert server.json("log", "garden")["commits"]
    server("rm", "garden", "blob")
    assert "recursive" in server("rm", "garden", "archive", code=3)
    server("rm", "garden", "archive", "-r")
    assert server.json("list", "garden")["files"] == []


def test_wrong_version_and_missing_names_are_said(server: Server) -> None:
    server.add("strict")
    server("write", "strict", "a", stdin="1")
    server("write", "strict", "a", "--version", "1", stdin="2")
    assert "version" in server("write", "strict", "a", "--version", "1", stdin="3", code=4)
    assert "no" in server("list", "nowhere", code=3)
    assert "b" in server("log", "strict", "b", code=3)
    server("write", "strict", "../x", stdin="x", code=2)
    assert "there is already a notebook 'strict'" in server("add", "strict", code=4)


def test_repository_that_is_joined_and_paths_that_are_not_committed_are_shown(
    server: Server,
) -> None:
    top = server.data / "notebooks"
    git(server.data, "init", "-q", "notebooks")
    try:
        (top / "within").mkdir()
        assert f"in the repository {top}" in server("add", "within", "--join")
        server("add", "apart")
        server("add", "plain", "--no-git")
        listed = {line.split()[1]: line.split()[2] for line in server("list").splitlines()[1:]}
        assert (listed["within"], listed["apart"], listed["plain"]) == ("joined", "yes", "no")
        server("write", "apart", ".gitattributes", stdin="*.bin filter=lfs\n")
        server("write", "apart", "a.bin", stdin="large")
        told = server("commit", "apart")
        assert "apart: a.bin is not committed: attributes name the filter 'lfs'" in told
        assert "apart: 1 path left out of commits" in server("list")
        shown = server("show", "apart")
        assert "a.bin is not committed" in shown
        assert str(top / "apart") in shown
        assert server.json("show", "apart")["held_count"] == 1
    finally:
        shutil.rmtree(top / ".git")
    assert "missing" in server("show", "within")
    assert "no longer has a repository" in server("list")
    assert "is already a repository" in _refused(server)


def _refused(server: Server) -> str:
    folder = server.data / "notebooks/theirs"
    folder.mkdir()
    git(folder, "init", "-q")
    return server("add", "theirs", code=4)


def test_watching_shows_what_is_done_by_whomever(server: Server) -> None:
    root = server.add("seen")
    words = ("notebook", "watch", "seen", "--url", server.url)
    with started([*COMMAND, *words], server.data) as watch:
        watch.wait_for("Watching seen")
        server("write", "seen", "a", stdin="1")
        assert "update a" in watch.wait_for("a")
        write(root, "b", "of a person")
        assert "1 changed by other programs" in watch.wait_for("sync")


def edit(root: Path, old: str, new: str) -> None:
    """With vim where it is installed, or as it does."""
    vim = ["vim", "-u", "NONE", "-N", "-es", "-c", f"%s/{old}/{new}/", "-c", "wq", "note.md"]
    if shutil.which("vim"):
        subprocess.run(vim, cwd=root, check=True, timeout=60)
        return
    text = (root / "note.md").read_text()
    (root / "note.md").rename(root / "note.md~")
    write(root, "note.md", text.replace(old, new))
    (root / "note.md~").unlink()


def test_person_and_server_change_one_folder(server: Server) -> None:
    """The later wins, the earlier is in history; all three agree in the end."""
    root = server.add("shared")
    server("write", "shared", "note.md", stdin="old\n")
    server("commit", "shared")
    number = server.json("list", "shared")["files"][0]["id"]
    sed = shutil.which("sed") or "sed"
    subprocess.run([sed, "-i", "s/old/new/", "note.md"], cwd=root, check=True, timeout=60)
    eventually(lambda: _known(server, "shared") == _disk(root))
    edit(root, "new", "newer")
    eventually(lambda: _known(server, "shared") == _disk(root))
    (root / "sub").mkdir()
    (root / "note.md").rename(root / "sub/moved.md")
    eventually(lambda: list(_known(server, "shared")) == ["sub/moved.md"])
    assert server.json("list", "shared")["files"][0]["id"] == number
    server("write", "shared", "sub/moved.md", stdin="of the server\n")
    write(root, "sub/moved.md", "of a person\n")
    server("write", "shared", "sub/moved.md", stdin="of the server again\n")
    eventually(lambda: git(root, "status", "--porcelain") == "")
    history = git(root, "log", "-p", "--all")
    for line in ("of a person", "of the server", "of the server again"):
        assert f"+{line}\n" in history
    assert git(root, "show", "HEAD:sub/moved.md") == "of the server again\n"
    assert _known(server, "shared") == _disk(root)
    git(root, "fsck", "--strict")


def test_checkout_and_mass_copy_are_followed(server: Server, tmp_path: Path) -> None:
    root = server.add("busy")
    for n in range(200):
        write(tmp_path, f"source/{n % 10}/{n}.md", f"note {n}\n")
    shutil.copytree(tmp_path / "source", root / "copy")
    eventually(lambda: _known(server, "busy") == _disk(root))
    eventually(lambda: git(root, "status", "--porcelain") == "")
    first = git(root, "rev-parse", "HEAD").strip()
    server("write", "busy", "copy/0/0.md", stdin="changed\n")
    server("rm", "busy", "copy/1", "-r")
    server("commit", "busy")
    git(root, "checkout", "-q", "-b", "old", first)
    eventually(lambda: _known(server, "busy") == _disk(root))
    assert len(_disk(root)) == 200
    git(root, "checkout", "-q", "main")
    eventually(lambda: _known(server, "busy") == _disk(root))
    assert len(_disk(root)) == 180
    eventually(lambda: git(root, "status", "--porcelain") == "")


def _known(server: Server, notebook: str) -> dict[str, str]:
    return {one["path"]: one["hash"] for one in server.json("list", notebook)["files"]}


def _disk(root: Path) -> dict[str, str]:
    return {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files_of(root)}

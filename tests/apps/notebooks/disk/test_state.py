"""Nothing that is planted in a state folder has the server read or write outside of it."""

from pathlib import Path

import pytest

from penstock.apps.notebooks.disk.backups import Backups
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.repository.commits import Committer
from tests.apps.notebooks.support import Api, git, opened, served, write

pytestmark = pytest.mark.usefixtures("home")

SECRET = "of somebody else\n"
LARGE = "x" * 20_000
STATE_FILES = [".gitignore", "lock", "brought.half", "brought", ".gitignore.half", "mark"]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text(SECRET)
    return file


def text_of(file: Path) -> str:
    return file.read_text()


def marker_name(path: str, tmp_path: Path) -> str:
    """What the server calls a path in its state folder."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return Path(Backups(str(folder)).spot(path, 0)).name.partition("-")[0]


def planted(folder: Path, victim: Path, tmp_path: Path) -> None:
    """A state folder as a clone can carry it."""
    state = folder / ".penstock"
    mark = marker_name("leak.md", tmp_path)
    for name in ("kept", "staged", "trash"):
        (state / name).mkdir(parents=True)
    for name in STATE_FILES:
        (state / name).symlink_to(victim)
    (state / "kept/half").symlink_to(victim)
    (state / f"kept/{mark}-0-{'a' * 64}").symlink_to(victim)
    write(state, f"kept/{mark}.path", "leak.md")
    write(state, "trash/plain", "a file")
    (state / "trash/link").symlink_to(victim)
    write(folder, "leak.md", "now")


async def test_state_folder_that_comes_with_a_folder_is_put_aside(
    tmp_path: Path, victim: Path
) -> None:
    folder = tmp_path / "data/notebooks/notes"
    planted(folder, victim, tmp_path)
    mark = mark_of_planted(folder)
    write(folder, f".penstock/kept/{mark}-1-{'b' * 64}", "never written by the server")
    async with served(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "data") as api:
        await api("POST", "/notebooks", {"name": "notes", "path": str(folder)}, status=201)
        await api("POST", "/notebooks/notes/files", {"path": "b", "content": LARGE}, status=202)
        await api.commit("notes")
        assert (folder / "b").read_text() == LARGE
    assert (folder / f".penstock/aside/kept/{mark}.path").read_text() == "leak.md"
    assert text_of(victim) == SECRET
    told = git(folder, "log", "-p", "--all")
    assert SECRET.strip() not in told
    assert "never written" not in told


def mark_of_planted(folder: Path) -> str:
    (note,) = (folder / ".penstock/kept").glob("*.path")
    return note.stem


async def test_link_that_is_planted_in_a_known_state_folder_is_not_followed(
    tmp_path: Path, victim: Path
) -> None:
    """What a pull can do while the server is not running."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    folder = tmp_path / "data/notebooks/notes"
    async with served(url, tmp_path / "data") as api:
        await api("POST", "/notebooks", {"name": "notes", "path": str(folder)}, status=201)
        await api.work()
    state = folder / ".penstock"
    mark = marker_name("leak.md", tmp_path)
    for name in STATE_FILES:
        (state / name).unlink(missing_ok=True)
        (state / name).symlink_to(victim)
    (state / "kept/half").symlink_to(victim)
    (state / f"kept/{mark}-0-{'a' * 64}").symlink_to(victim)
    write(state, f"kept/{mark}.path", "leak.md")
    write(folder, "leak.md", "now")
    write(state, "trash/plain", "a file")
    async with served(url, tmp_path / "data") as api:
        await api("POST", "/notebooks/notes/files", {"path": "b", "content": LARGE}, status=202)
        await api.commit("notes")
        assert git(folder, "show", "HEAD:b") == LARGE
    assert text_of(victim) == SECRET
    assert SECRET.strip() not in git(folder, "log", "-p", "--all")


async def test_link_that_is_planted_while_the_server_works_is_not_followed(
    one: Api, victim: Path
) -> None:
    state = one.root / ".penstock"
    for name in ("kept/half", "brought.half", "brought"):
        (state / name).symlink_to(victim)
    await one.create("large.md", LARGE)
    await one.work()
    await one("POST", "/events/commit", {"notebook": "garden"}, status=202)
    await one.work()
    assert git(one.root, "show", "HEAD:large.md") == LARGE
    assert text_of(victim) == SECRET


def test_content_that_becomes_a_link_after_it_was_put_aside_is_not_committed(
    tree: Tree, root: Path, victim: Path
) -> None:
    write(root, "a.md", "earlier")
    tree.remove("a.md")
    (kept,) = tree.backups.of("a.md")
    Path(kept.file).unlink()
    Path(kept.file).symlink_to(victim)
    with pytest.raises(Exception, match="vanished while it was read"):
        Committer(opened(root), root).commit(["a.md"], [{"a.md": kept}])
    assert git(root, "count-objects").startswith("0 objects")


@pytest.mark.parametrize("option", ["--index-output={}", "--prefix=x"])
def test_note_of_somebody_else_is_no_option_of_git(root: Path, victim: Path, option: str) -> None:
    write(root, ".penstock/brought", f"{option.format(victim)} HEAD")
    write(root, "a.md", "1")
    Committer(opened(root), root).commit(["a.md"])
    write(root, ".penstock/brought", f"{option.format(victim)} HEAD")
    write(root, "a.md", "2")
    assert Committer(opened(root), root).commit(["a.md"])
    assert text_of(victim) == SECRET


@pytest.mark.parametrize("path", ["../outside", "/etc/x", ".penstock/lock", "a/.git/config", "b"])
def test_note_of_a_path_that_the_server_cannot_have_made_is_ignored(
    tree: Tree, tmp_path: Path, path: str
) -> None:
    mark = marker_name("a" if path == "b" else path, tmp_path)
    write(tree.root, f".penstock/kept/{mark}.path", path)
    write(tree.root, f".penstock/kept/{mark}-0-{'a' * 64}", "content")
    assert tree.backups.displaced() == {}


async def test_content_that_waits_for_history_is_kept_when_a_notebook_is_added_again(
    one: Api,
) -> None:
    await one.create("a.md", "of a client")
    await one.work()
    write(one.root, "a.md", "of a person")
    before = sorted(one.name for one in (one.root / ".penstock/kept").iterdir())
    await one("DELETE", "/notebooks/garden", status=204)
    await one.work()
    await one("POST", "/notebooks", {"name": "garden"}, status=201)
    assert not (one.root / ".penstock/aside").exists()
    assert sorted(one.name for one in (one.root / ".penstock/kept").iterdir()) == before

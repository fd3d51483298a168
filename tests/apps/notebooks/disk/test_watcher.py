import asyncio
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk import scan as scan_module
from penstock.apps.notebooks.disk import watcher as module
from penstock.apps.notebooks.disk.scan import ChangeKind, Difference
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.disk.watcher import Watcher
from tests.apps.notebooks.support import DEADLINE, FileTable, git, place, watching, write


@pytest.fixture
def table(tree: Tree) -> FileTable:
    return FileTable(tree)


@pytest.fixture
def root(tree: Tree) -> Path:
    return tree.root


@pytest.fixture(autouse=True)
def _ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK", 100)


def run(root: Path, *words: str, stdin: str = "") -> None:
    subprocess.run(
        words,
        cwd=root,
        input=stdin,
        text=True,
        check=True,
        capture_output=True,
        timeout=60,
    )


def vim(root: Path) -> None:
    run(root, "vim", "-u", "NONE", "-N", "-es", "-c", "%s/old/new/", "-c", "wq", "note.md")


def vim_with_backup(root: Path) -> None:
    backup = "set backup writebackup backupcopy=no swapfile"
    run(root, *("vim", "-u", "NONE", "-N", "-es", "-c", backup), "-c", "%s/old/new/", *WRITE_QUIT)


WRITE_QUIT = ("-c", "wq", "note.md")


def sed(root: Path) -> None:
    run(root, "sed", "-i", "s/old/new/", "note.md")


def ed(root: Path) -> None:
    run(root, "ed", "-s", "note.md", stdin=",s/old/new/\nw\nq\n")


def perl(root: Path) -> None:
    run(root, "perl", "-pi", "-e", "s/old/new/", "note.md")


def in_place(root: Path) -> None:
    write(root, "note.md", "new\n")


def draft_and_rename(root: Path) -> None:
    """As rsync and many editors do."""
    write(root, ".note.md.Xa3b1Q", "new\n")
    (root / ".note.md.Xa3b1Q").replace(root / "note.md")


def removed_and_made_again(root: Path) -> None:
    (root / "note.md").rename(root / "note.md~")
    write(root, "note.md", "new\n")
    (root / "note.md~").unlink()


def rsync(root: Path) -> None:
    write(root.parent, "source/note.md", "new\n")
    run(root, "rsync", "--checksum", "-a", f"{root.parent}/source/", ".")


# What every machine has, and of real programs those that this one has.
PROGRAMS = {"vim": (vim, vim_with_backup), "sed": (sed,), "ed": (ed,), "perl": (perl,)}
PROGRAMS["rsync"] = (rsync,)
EDITORS = [
    *(in_place, draft_and_rename, removed_and_made_again),
    *(edit for name, edits in PROGRAMS.items() if shutil.which(name) for edit in edits),
]


@pytest.mark.parametrize("edit", EDITORS, ids=lambda edit: edit.__name__)
async def test_edit_is_told_as_one_change_of_the_same_file(
    table: FileTable, root: Path, edit: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it does not matter how slow the machine is between the steps of an editor.
    monkeypatch.setattr(scan_module, "SETTLE", 1.0)
    write(root, "note.md", "old\n")
    table.look()
    before = table.ids()
    async with watching(table) as watch:
        await asyncio.to_thread(edit, root)
        await watch.until_known("note.md", "new\n")
    told = [(one.kind, one.path) for one in watch.told if one.kind is not ChangeKind.TOUCHED]
    assert told == [("modified", "note.md")]
    assert table.told() == []
    assert table.ids()["note.md"] == before["note.md"]


async def test_moves_by_others_keep_ids(table: FileTable, root: Path) -> None:
    for n in range(30):
        write(root, f"a/{n % 3}/{n}.md", f"note {n}")
    write(root, "single", "alone")
    table.look()
    before = table.ids()
    async with watching(table) as watch:
        (root / "a").rename(root / "b")
        (root / "single").rename(root / "moved")
        await watch.until(lambda: len(watch.told) == 31)
    assert {one.kind for one in watch.told} == {ChangeKind.MOVED}
    expected = {path.replace("a/", "b/", 1): one for path, one in before.items()}
    expected["moved"] = expected.pop("single")
    assert table.ids() == expected


async def test_checkout_of_another_branch(table: FileTable, root: Path) -> None:
    git(root, "init", "-q", "-b", "main")
    for n in range(20):
        write(root, f"{n}", f"main {n}")
    git(root, "add", ".")
    git(root, "commit", "-qm", "main")
    git(root, "checkout", "-qb", "other")
    for n in range(10):
        write(root, f"{n}", f"other {n}")
    for n in range(10, 15):
        (root / f"{n}").unlink()
    write(root, "new", "new")
    git(root, "add", ".")
    git(root, "commit", "-qm", "other")
    git(root, "checkout", "-q", "main")
    table.look()
    async with watching(table) as watch:
        await asyncio.to_thread(git, root, "checkout", "-q", "other")
        await watch.until(lambda: len(watch.told) >= 16)
        counts = Counter(one.kind for one in watch.told)
        assert counts == {ChangeKind.MODIFIED: 10, ChangeKind.DELETED: 5, ChangeKind.CREATED: 1}
        await asyncio.to_thread(git, root, "checkout", "-q", "main")
        await watch.until(lambda: len(watch.told) >= 32)
    assert table.told() == []


async def test_tree_that_is_copied_is_seen_whole(
    table: FileTable, root: Path, tmp_path: Path
) -> None:
    for n in range(1_000):
        write(tmp_path, f"source/{n % 10}/{n % 100}/{n}.md", f"note {n}")
    async with watching(table) as watch:
        await asyncio.to_thread(shutil.copytree, tmp_path / "source", root / "copy")
        await watch.until(lambda: len(table.files) == 1_000)
    assert Counter(one.kind for one in watch.told) == {ChangeKind.CREATED: 1_000}


async def test_folder_with_something_new_is_looked_at_again(
    table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells of a folder, and misses what comes into it before it is watched."""
    monkeypatch.setattr(module, "_SOON", 3_600)
    monkeypatch.setattr(Watcher, "_concerns", lambda _self, _change, path: path.endswith("/new"))
    async with watching(table) as watch:
        apply = watch.watcher._handle

        async def more_comes(found: list[Difference]) -> None:
            if len(table.files) == 0:
                write(root, "new/missed", "2")
            await apply(found)

        watch.watcher._handle = more_comes
        write(root, "new/seen", "1")
        await watch.until_known("new/missed", "2")


async def test_writes_of_the_server_are_not_told(table: FileTable, root: Path, tree: Tree) -> None:
    async with watching(table) as watch:
        for n in range(50):
            facts = await asyncio.to_thread(place, tree, tree.stage(b"ours"), f"sub/{n}")
            table.put(f"sub/{n}", facts)
        write(root, "theirs", "x")
        await watch.until_known("theirs", "x")
        write(root, "end", "")
        await watch.until_known("end", "")
    assert {one.path for one in watch.told} == {"theirs", "end"}


async def test_change_that_waits_to_be_known_is_told_once(table: FileTable, root: Path) -> None:
    async with watching(table, is_slow=True) as watch:
        write(root, "a", "1")
        await watch.until(lambda: watch.told)
        write(root, "b", "1")
        await watch.until(lambda: len(watch.told) == 2)
        watch.watcher._hints.add("a")  # as the system does, more often than needed
        write(root, "c", "1")
        await watch.until(lambda: len(watch.told) == 3)
    assert sorted(one.path for one in watch.told) == ["a", "b", "c"]


async def test_deletion_is_told_again_for_a_file_that_came_back(
    table: FileTable, root: Path, tree: Tree
) -> None:
    write(root, "a", "1")
    table.look()
    async with watching(table) as watch:
        (root / "a").unlink()
        await watch.until(lambda: "a" not in table.files)
        table.put("a", await asyncio.to_thread(place, tree, tree.stage(b"2"), "a"))
        (root / "a").unlink()
        await watch.until(lambda: "a" not in table.files)


async def test_file_that_never_rests_is_told_all_the_same(
    table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SCANS", 3)
    async with watching(table) as watch, asyncio.TaskGroup() as group:

        async def keep_writing() -> None:
            while not watch.told:
                with (root / "log").open("a") as file:
                    file.write("line\n")
                await asyncio.wait([asyncio.ensure_future(watch.changed.wait())], timeout=0.02)

        group.create_task(keep_writing())
        await watch.until(lambda: watch.told)


async def test_what_nobody_told_is_found_by_the_clock(
    table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watcher, "_concerns", lambda *_: False)  # every hint is lost
    monkeypatch.setattr(module, "_ROOT_CHECK", 0.05)
    watch_all = Watcher.__init__

    def quickly(self: Watcher, *args: object, **options: object) -> None:
        watch_all(self, *args, period=0.05)  # type: ignore[arg-type] # as they came

    monkeypatch.setattr(Watcher, "__init__", quickly)
    async with watching(table) as watch:
        write(root, "a", "1")
        await watch.until_known("a", "1")


async def test_burst_that_may_be_incomplete_makes_it_look_at_all(
    table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BURST", 0)  # how many come at once depends on the machine
    monkeypatch.setattr(module, "_SOON", 3_600)
    monkeypatch.setattr(Watcher, "_concerns", lambda _self, _change, path: "/lost" not in path)
    async with watching(table) as watch:
        looks = watch.watcher.scans
        for n in range(40):
            write(root, f"lost/{n}", f"{n}")
            write(root, f"seen/{n}", f"{n}")
        await watch.until(lambda: len(table.files) == 80)
        assert watch.watcher.scans > looks


async def test_notebook_that_is_removed_is_said_and_waited_for(
    table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_ROOT_CHECK", 0.05)
    monkeypatch.setattr(module, "_BACK_OFF", 0.05)
    write(root, "a", "1")
    table.look()
    async with watching(table) as watch:
        away = await asyncio.to_thread(root.rename, root.with_name("away"))
        async with asyncio.timeout(DEADLINE):
            while watch.watcher.problem is None:
                await asyncio.wait([asyncio.ensure_future(watch.changed.wait())], timeout=0.02)
        assert "gone" in watch.watcher.problem
        assert [record for record in caplog.records if "gone" in record.getMessage()]
        assert watch.told == []
        write(away, "b", "2")
        away.rename(root)
        await watch.until_known("b", "2")
        assert [one.path for one in watch.told] == ["b"]
        write(root, "c", "3")
        await watch.until_known("c", "3")


async def test_change_whose_handling_failed_is_told_again(
    tree: Tree, table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACK_OFF", 0.05)
    calls: list[list[str]] = []
    done = asyncio.Event()

    async def handle(found: list[Difference]) -> None:
        calls.append([one.path for one in found])
        if len(calls) == 1:
            raise ValueError("the store is away")
        table.apply(found)
        done.set()

    write(root, "a", "1")
    task = asyncio.create_task(Watcher(tree, table, handle).run())
    async with asyncio.timeout(DEADLINE):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert calls == [["a"], ["a"]]


async def test_system_that_tells_nothing_is_asked_again_and_again(
    table: FileTable, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when there are more folders than it can watch."""

    async def awatch(watched: str, **_: object) -> AsyncIterator[set[tuple[object, str]]]:
        if watched:
            raise OSError(28, "no space left for watches")
        yield set()

    monkeypatch.setattr("watchfiles.awatch", awatch)
    monkeypatch.setattr(module, "_BACK_OFF", 0.05)
    monkeypatch.setattr(module, "_ROOT_CHECK", 0.05)
    async with watching(table) as watch:
        write(root, "a", "1")
        await watch.until_known("a", "1")
        assert "watches" in str(watch.watcher.problem)
    assert len(caplog.records) == 1

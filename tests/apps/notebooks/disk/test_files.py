import os
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk import files
from penstock.apps.notebooks.disk import scan as scan_module
from penstock.apps.notebooks.disk.files import creation_time
from penstock.apps.notebooks.disk.tree import Tree
from tests.apps.notebooks.support import FileTable, save_in_place, write


def test_birth_of_a_file_stays_whatever_is_done_to_it(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    born = creation_time(str(file))
    assert born is not None
    assert abs(born - file.stat().st_ctime) < 5
    file.write_text("two")
    os.utime(file, (1, 1))
    moved = file.rename(tmp_path / "b")
    assert creation_time(str(moved)) == born


def test_birth_of_nothing_is_not_known(tmp_path: Path) -> None:
    assert creation_time(str(tmp_path / "nothing")) is None


def test_system_may_not_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    monkeypatch.setattr(files, "_statx", lambda *_: -1)
    known = getattr(file.stat(), "st_birthtime", None)
    assert creation_time(str(file)) == known
    monkeypatch.setattr(files, "_statx", None)
    assert creation_time(str(file)) == known


def test_inode_counts_without_it_if_both_changes_are_near(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "creation_time", lambda _: None)
    table = FileTable(tree)
    for n in range(3):
        write(tree.root, f"old/{n}.md", f"content {n}")
    table.look()
    for n in range(3):
        save_in_place(tree.root / f"old/{n}.md", f"something else {n}")
        (tree.root / f"old/{n}.md").rename(tree.root / f"new {n}.md")
    assert table.told("new 0.md", "new 1.md", "old") == [
        ("deleted", "old/2.md"),
        ("moved", "new 0.md"),
        ("moved", "new 1.md"),
    ]
    write(tree.root, "old/a.md", "content")
    table.look()
    (tree.root / "old/a.md").rename(tree.root / "b.txt")
    save_in_place(tree.root / "b.txt", "something else")
    earlier = (tree.root / "b.txt").stat().st_ctime - 60
    os.utime(tree.root / "old", (earlier, earlier))
    assert table.told("b.txt", "old") == [("created", "b.txt"), ("deleted", "old/a.md")]

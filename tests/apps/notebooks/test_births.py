import os
from pathlib import Path

import pytest

from penstock.apps.notebooks import births, reconciling
from penstock.apps.notebooks.births import birth_of
from penstock.apps.notebooks.files import Tree
from tests.apps.notebooks.shelf import Shelf
from tests.apps.notebooks.support import save_in_place, write


def test_birth_of_a_file_stays_whatever_is_done_to_it(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    born = birth_of(str(file))
    assert born is not None
    assert abs(born - file.stat().st_ctime) < 5
    file.write_text("two")
    os.utime(file, (1, 1))
    moved = file.rename(tmp_path / "b")
    assert birth_of(str(moved)) == born


def test_birth_of_nothing_is_not_known(tmp_path: Path) -> None:
    assert birth_of(str(tmp_path / "nothing")) is None


def test_system_may_not_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    monkeypatch.setattr(births, "_statx", lambda *_: -1)
    known = getattr(file.stat(), "st_birthtime", None)
    assert birth_of(str(file)) == known
    monkeypatch.setattr(births, "_statx", None)
    assert birth_of(str(file)) == known


def test_inode_counts_without_it_if_both_changes_are_near(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "birth_of", lambda _: None)
    shelf = Shelf(tree)
    for n in range(3):
        write(tree.root, f"old/{n}.md", f"content {n}")
    shelf.look()
    for n in range(3):
        save_in_place(tree.root / f"old/{n}.md", f"something else {n}")
        (tree.root / f"old/{n}.md").rename(tree.root / f"new {n}.md")
    assert shelf.told("new 0.md", "new 1.md", "old") == [
        ("deleted", "old/2.md"),
        ("moved", "new 0.md"),
        ("moved", "new 1.md"),
    ]
    write(tree.root, "old/a.md", "content")
    shelf.look()
    (tree.root / "old/a.md").rename(tree.root / "b.txt")
    save_in_place(tree.root / "b.txt", "something else")
    earlier = (tree.root / "b.txt").stat().st_ctime - 60
    os.utime(tree.root / "old", (earlier, earlier))
    assert shelf.told("b.txt", "old") == [("created", "b.txt"), ("deleted", "old/a.md")]

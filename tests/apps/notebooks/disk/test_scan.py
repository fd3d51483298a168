import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apps.notebooks.disk.scan import SETTLE, ChangeKind, scan
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import Transient
from tests.apps.notebooks.support import (
    SAVES,
    FileTable,
    Save,
    deep_in,
    place,
    save_as_another,
    save_in_place,
    write,
)


@pytest.fixture
def table(tree: Tree) -> FileTable:
    return FileTable(tree)


@pytest.fixture
def root(tree: Tree) -> Path:
    return tree.root


def test_what_others_have_done_is_told_once(table: FileTable, root: Path) -> None:
    write(root, "a", "1")
    write(root, "b/c", "2")
    assert table.told() == [("created", "a"), ("created", "b/c")]
    assert table.told() == []
    write(root, "a", "changed")
    (root / "b/c").unlink()
    assert table.told() == [("deleted", "b/c"), ("modified", "a")]
    assert table.told() == []


def test_own_writes_are_recognised_by_their_content(table: FileTable, tree: Tree) -> None:
    table.put("a", place(tree, tree.stage(b"ours"), "a"))
    assert table.told() == []
    assert table.told("a") == []


def test_same_content_with_another_time_is_a_touch(table: FileTable, root: Path) -> None:
    write(root, "a", "1")
    table.look()
    os.utime(root / "a", ns=(1, 1))
    assert table.told() == [("touched", "a")]
    assert table.told() == []


def test_edit_that_left_size_and_time_alone_is_found_when_named(
    table: FileTable, root: Path
) -> None:
    write(root, "a", "1")
    table.look()
    about = (root / "a").stat()
    write(root, "a", "2")
    os.utime(root / "a", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert table.told("a") == [("modified", "a")]


def test_moved_file_keeps_its_id(table: FileTable, root: Path) -> None:
    write(root, "a", "content")
    write(root, "other", "x")
    table.look()
    before = table.ids()
    (root / "sub").mkdir()
    (root / "a").rename(root / "sub/b")
    assert table.told() == [("moved", "sub/b")]
    assert table.ids() == {"sub/b": before["a"], "other": before["other"]}


def test_moved_folder_keeps_ids_also_of_equal_and_empty_files(table: FileTable, root: Path) -> None:
    for n in range(20):
        write(root, f"old/{n % 3}/{n}", "same" if n % 2 else "")
    table.look()
    before = table.ids()
    (root / "old").rename(root / "new")
    assert {what for what, _ in table.told("old", "new")} == {"moved"}
    assert table.ids() == {path.replace("old", "new"): one for path, one in before.items()}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("target", ["b.md", "sub/a.md", "sub/b.md"])
def test_file_that_is_edited_and_moved_before_a_look_keeps_its_id(
    table: FileTable, root: Path, target: str, save: Save
) -> None:
    write(root, "a.md", "content")
    write(root, "sub/other.md", "x")
    table.look()
    before = table.ids()
    save(root / "a.md", "something else")
    (root / "a.md").rename(root / target)
    assert table.told() == [("moved", target)]
    assert table.ids() == {target: before["a.md"], "sub/other.md": before["sub/other.md"]}


@pytest.mark.parametrize("save", SAVES)
def test_file_that_is_moved_and_edited_before_a_look_keeps_its_id(
    table: FileTable, root: Path, save: Save
) -> None:
    write(root, "a.md", "content")
    table.look()
    before = table.ids()
    (root / "a.md").rename(root / "b.md")
    save(root / "b.md", "something else")
    assert table.told("a.md", "b.md") == [("moved", "b.md")]
    assert table.ids() == {"b.md": before["a.md"]}


def test_several_files_that_are_edited_and_moved_keep_their_ids(
    table: FileTable, root: Path
) -> None:
    for n in range(9):
        write(root, f"old/{n}.md", f"content {n}")
    table.look()
    before = table.ids()
    for n in range(9):
        SAVES[n % 3](root / f"old/{n}.md", f"something else {n}")
    (root / "old/0.md").rename(root / "in place.md")
    (root / "old").rename(root / "new")
    assert {what for what, _ in table.told()} == {"moved"}
    assert table.ids() == {
        "in place.md" if path == "old/0.md" else path.replace("old", "new"): number
        for path, number in before.items()
    }


def test_files_that_are_edited_in_place_and_renamed_are_known_by_their_inodes(
    table: FileTable, root: Path
) -> None:
    for n in range(5):
        write(root, f"{n}.md", f"content {n}")
    table.look()
    before = table.ids()
    for path, known in table.files.items():
        table.files[path] = known._replace(at=known.at + 1)  # they were known for a while
    for n in range(5):
        save_in_place(root / f"{n}.md", f"something else {n}")
        (root / f"{n}.md").rename(root / f"new {n}.md")
    assert table.told() == [("moved", f"new {n}.md") for n in range(5)]
    assert table.ids() == {f"new {path}": number for path, number in before.items()}


def test_file_that_got_the_inode_of_another_is_a_new_one(table: FileTable, root: Path) -> None:
    write(root, "a.md", "content")
    table.look()
    (root / "a.md").unlink()
    write(root, "b.txt", "something else")
    about = (root / "b.txt").stat()
    earlier = about.st_ctime - 1
    table.files["a.md"] = table.files["a.md"]._replace(
        inode=about.st_ino, at=earlier, mtime_ns=int(earlier * 1e9)
    )
    assert table.told() == [("created", "b.txt"), ("deleted", "a.md")]


def test_file_that_came_long_after_another_went_is_a_new_one(table: FileTable, root: Path) -> None:
    write(root, "sub/a.md", "content")
    keep = (root / "sub/a.md").open()  # so that its inode is not given to the next
    table.look()
    (root / "sub/a.md").unlink()
    write(root, "a.md", "something else")
    earlier = (root / "a.md").stat().st_ctime - 3
    os.utime(root / "sub", (earlier, earlier))
    assert table.told() == [("created", "a.md"), ("deleted", "sub/a.md")]
    keep.close()


def test_moves_that_cannot_be_told_apart_are_not_guessed(table: FileTable, root: Path) -> None:
    for name in ("a.md", "b.md"):
        write(root, name, name)
    table.look()
    for name in ("a.md", "b.md"):
        save_as_another(root / name, "something else")
        (root / name).rename(root / f"new {name}")
        write(root, f"new {name}", name * 9)
    assert [what for what, _ in table.told()] == ["created", "created", "deleted", "deleted"]


def test_one_of_several_files_that_arrive_is_not_taken_for_the_one_that_went(
    table: FileTable, root: Path
) -> None:
    write(root, "a.md", "content")
    table.look()
    keep = (root / "a.md").open()  # so that its inode is not given to the next
    (root / "a.md").unlink()
    write(root, "b.md", "first")
    first = written = max(root.stat().st_mtime, (root / "b.md").stat().st_ctime)
    while written <= first + SETTLE:  # the next one comes while the first is at rest
        write(root, ".penstock/c.md", "second")
        written = (root / ".penstock/c.md").stat().st_ctime
    (root / ".penstock/c.md").rename(root / "c.md")
    os.utime(root, (first, first))
    early = scan(table.tree, table, now=written + SETTLE / 2)
    assert [(one.kind, one.path) for one in early.found] == [
        (ChangeKind.CREATED, "b.md"),
        (ChangeKind.DELETED, "a.md"),
    ]
    assert early.unsettled == {"c.md"}
    keep.close()


@pytest.mark.parametrize("name", ["b.md", "sub/a.md"])
def test_file_is_not_deleted_while_one_that_may_be_it_is_still_written(
    table: FileTable, root: Path, name: str
) -> None:
    write(root, "a.md", "content")
    write(root, "sub/other.txt", "x")
    table.look()
    save_as_another(root / "a.md", "half of")
    (root / "a.md").rename(root / name)
    gone = root.stat().st_mtime
    written = (root / name).stat().st_ctime
    while written <= gone + SETTLE:  # it goes on after the move
        write(root, name, "half of something")
        written = (root / name).stat().st_ctime
    early = scan(table.tree, table, now=written + SETTLE / 2)
    assert (early.found, early.unsettled) == ([], {"a.md", name})
    late = scan(table.tree, table, now=written + SETTLE * 2)
    assert [(one.kind, one.path) for one in late.found] == [(ChangeKind.MOVED, name)]


def test_folder_that_moved_and_left_a_link_in_its_place_keeps_ids(
    table: FileTable, root: Path
) -> None:
    for path in ("old/a.md", "old/deep/b.md"):
        write(root, path, path)
    table.look()
    before = table.ids()
    (root / "old").rename(root / "new")
    (root / "old").symlink_to("new")
    assert table.told() == [("moved", "new/a.md"), ("moved", "new/deep/b.md")]
    assert table.ids() == {path.replace("old", "new"): one for path, one in before.items()}


@pytest.mark.parametrize("looked_at", ["", "new.md"])
def test_file_that_moved_and_left_a_link_in_its_place_keeps_its_id(
    table: FileTable, root: Path, looked_at: str
) -> None:
    write(root, "old.md", "content")
    table.look()
    (root / "old.md").rename(root / "new.md")
    (root / "old.md").symlink_to("new.md")
    assert table.told(looked_at) == [("moved", "new.md")]


def test_copy_that_lost_its_original_keeps_the_id(table: FileTable, root: Path) -> None:
    write(root, "a", "content")
    table.look()
    shutil.copy(root / "a", root / "b")
    (root / "a").unlink()
    assert table.told() == [("moved", "b")]


def test_copy_is_a_new_file(table: FileTable, root: Path) -> None:
    write(root, "a", "content")
    table.look()
    shutil.copy(root / "a", root / "b")
    assert table.told() == [("created", "b")]


def test_source_of_a_move_is_found_although_it_was_not_looked_at(
    table: FileTable, root: Path
) -> None:
    write(root, "far/a", "content")
    table.look()
    (root / "far/a").rename(root / "b")
    assert table.told("b") == [("moved", "b")]


def test_empty_files_are_not_taken_for_each_other(table: FileTable, root: Path) -> None:
    write(root, "a", "")
    keep = (root / "a").open()  # so that its inode is not given to the next
    table.look()
    (root / "a").unlink()
    write(root, "b", "")
    assert table.told() == [("created", "b"), ("deleted", "a")]
    keep.close()


def test_move_over_another_file(table: FileTable, root: Path) -> None:
    write(root, "a", "from a")
    write(root, "b", "from b")
    table.look()
    before = table.ids()
    (root / "a").replace(root / "b")
    assert table.told() == [("deleted", "a"), ("modified", "b")]
    assert table.ids() == {"b": before["b"]}


def test_what_has_just_changed_is_left_for_another_look(table: FileTable, root: Path) -> None:
    write(root, "a", "1")
    now = (root / "a").stat().st_ctime
    early = scan(table.tree, table, now=now + SETTLE / 2)
    assert (early.found, early.unsettled) == ([], {"a"})
    late = scan(table.tree, table, now=now + SETTLE * 2)
    assert [one.path for one in late.found] == ["a"]
    table.apply(late.found)
    (root / "a").unlink()
    now = root.stat().st_mtime
    early = scan(table.tree, table, now=now + SETTLE / 2)
    assert (early.found, early.unsettled) == ([], {"a"})
    late = scan(table.tree, table, now=now + SETTLE * 2)
    assert [one.kind for one in late.found] == [ChangeKind.DELETED]


def test_file_that_is_away_for_a_moment_is_not_taken_for_moved(
    table: FileTable, root: Path
) -> None:
    write(root, "sub/a", "1")
    table.look()
    shutil.copy(root / "sub/a", root / "b")
    (root / "sub/a").unlink()
    later = (root / "b").stat().st_ctime + 10  # the copy is written, the original just went away
    os.utime(root / "sub", (later, later))
    early = scan(table.tree, table, now=later + SETTLE / 2)
    assert early.found == []
    assert early.unsettled == {"sub/a", "b"}


@pytest.mark.parametrize(
    "path", [".git/config", "sub/.git/x", ".penstock/x", "a~", ".a.swp", "sub/.#a", "#a#", "4913"]
)
def test_what_is_nobodys_business_is_left_alone(table: FileTable, root: Path, path: str) -> None:
    write(root, path, "x")
    assert table.told() == []
    assert table.told(path) == []


def test_links_and_devices_are_no_files(table: FileTable, root: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/secret", "x")
    (root / "link").symlink_to(tmp_path / "outside/secret")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe")
    assert table.told() == []
    assert table.told("folder/secret", "link", "pipe", "loop") == []


def test_file_that_becomes_a_link_or_a_folder_is_gone(table: FileTable, root: Path) -> None:
    write(root, "a", "1")
    write(root, "b", "2")
    write(root, "c/d", "3")
    table.look()
    (root / "a").unlink()
    (root / "a").symlink_to("b")
    (root / "b").unlink()
    write(root, "b/x", "4")
    shutil.rmtree(root / "c")
    write(root, "c", "5")
    assert table.told() == [
        ("created", "b/x"),
        ("created", "c"),
        ("deleted", "a"),
        ("deleted", "b"),
        ("deleted", "c/d"),
    ]


def test_names_that_a_notebook_cannot_have_are_said(table: FileTable, root: Path) -> None:
    (root / "line\nbreak").write_text("x")
    Path(os.fsdecode(os.fsencode(root) + b"/not-utf8-\xff")).write_text("x")
    result = table.look()
    assert result.found == []
    assert set(result.refused.values()) == {"contains control characters", "is not UTF-8"}


@pytest.mark.parametrize(
    ("depth", "reason"),
    [
        (100, "has more than 100 names"),
        (1_200, "is longer than 2,048 bytes"),
        (3_000, "is too deep for the system"),
    ],
)
def test_deep_folders_are_said_and_hide_nothing_else(
    table: FileTable, root: Path, depth: int, reason: str
) -> None:
    with deep_in(root, depth):
        write(root, "d/a", "1")
        write(root, "z", "1")
        result = table.look()
    assert sorted(one.path for one in result.found) == ["d/a", "z"]
    ((path, why),) = result.refused.items()
    assert path.startswith("d/d/d")
    assert why == reason


def test_notebook_that_is_gone_has_not_lost_its_files(table: FileTable, root: Path) -> None:
    write(root, "a", "1")
    table.look()
    root.rename(root.with_name("away"))
    with pytest.raises(Transient, match="gone"):
        table.look()
    root.mkdir()  # where it was mounted
    with pytest.raises(Transient, match="gone"):
        table.look()


NAMES = st.sampled_from(["a", "b", "c", "d/a", "d/b", "e/f/a", "e/f/b"])
FOLDERS = st.sampled_from(["d", "e", "e/f", "g", "d/h"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.sampled_from(["", "1", "22", "333"])),
    st.tuples(st.just("remove"), NAMES, st.just("")),
    st.tuples(st.just("move"), NAMES, NAMES),
    st.tuples(st.just("move"), FOLDERS, FOLDERS),
    st.tuples(st.just("look"), NAMES, st.just("")),
)


def do(root: Path, step: str, path: str, other: str) -> None:
    """What a person does; what cannot be done is not."""
    try:
        if step == "write":
            write(root, path, other)
        elif step == "remove":
            (root / path).unlink()
        elif step == "move":
            (root / other).parent.mkdir(parents=True, exist_ok=True)
            (root / path).rename(root / other)
    except OSError:
        pass


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=15))
def test_whatever_others_do_is_known_after_a_look(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        table = FileTable(Tree(root).prepare())
        for step, path, other in steps:
            if step == "look":
                table.look()
            else:
                do(root, step, path, other)
        table.look()
        disk = {
            str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in root.rglob("*")
            if file.is_file() and ".penstock" not in file.parts
        }
        assert table.hashes() == disk
        assert len(set(table.ids().values())) == len(disk)
        assert table.told() == []

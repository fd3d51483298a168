import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk import files, placement
from penstock.apps.notebooks.disk.placement import Placer
from penstock.apps.notebooks.disk.tree import Staged, TooLarge, Tree, mime_type
from penstock.apps.notebooks.errors import (
    Exists,
    Missing,
    PathRefused,
    Permanent,
    Transient,
    from_os_error,
)
from tests.apps.notebooks.support import deep_in, place


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def written(tree: Tree, path: str, content: bytes, known: bytes | None = None) -> None:
    place(tree, tree.stage(content), path, known=None if known is None else digest(known))


def kept(tree: Tree, path: str) -> list[bytes]:
    return [one.read() for one in tree.backups.of(path)]


def test_placed_content_is_there_with_its_facts(tree: Tree) -> None:
    facts = place(tree, tree.stage(b"hello"), "a/b/c.md")
    assert (tree.root / "a/b/c.md").read_bytes() == b"hello"
    assert facts == tree.facts("a/b/c.md")
    assert facts.hash == digest(b"hello")
    assert tree.staged() == []


def test_placing_twice_changes_nothing(tree: Tree) -> None:
    staged = tree.stage(b"new")
    first = place(tree, staged, "a.md")
    assert place(tree, staged, "a.md") == first
    assert kept(tree, "a.md") == [b"new"]


def test_placing_again_after_somebody_edited_what_was_placed_leaves_the_edit(tree: Tree) -> None:
    staged = tree.stage(b"new")
    place(tree, staged, "a.md")
    (tree.root / "a.md").write_bytes(b"later")
    assert place(tree, staged, "a.md").hash == staged.hash
    assert (tree.root / "a.md").read_bytes() == b"later"


def test_content_that_is_gone_is_permanent(tree: Tree) -> None:
    with pytest.raises(Missing, match="content"):
        place(tree, Staged("nothing", 3, digest(b"new")), "a.md")


def test_edit_that_nobody_knows_of_is_kept_when_overwritten(tree: Tree) -> None:
    written(tree, "a.md", b"one")
    (tree.root / "a.md").write_bytes(b"of a person")
    written(tree, "a.md", b"two", known=b"one")
    assert kept(tree, "a.md") == [b"one", b"of a person", b"two"]
    tree.backups.drop(tree.backups.of("a.md"))
    assert list((tree.root / ".penstock/kept").iterdir()) == []


def test_of_own_writes_only_the_last_is_kept(tree: Tree) -> None:
    written(tree, "a.md", b"one")
    written(tree, "a.md", b"two", known=b"one")
    written(tree, "a.md", b"three", known=b"two")
    assert kept(tree, "a.md") == [b"three"]
    tree.backups.drop(tree.backups.of("a.md"))
    assert list((tree.root / ".penstock/kept").iterdir()) == []


def test_nothing_is_kept_unless_asked_for(tree: Tree) -> None:
    (tree.root / "a.md").write_bytes(b"of a person")
    place(tree, tree.stage(b"new"), "a.md", keep=False)
    assert kept(tree, "a.md") == []


def test_edit_in_place_does_not_reach_what_is_kept(tree: Tree) -> None:
    written(tree, "a.md", b"one")
    with (tree.root / "a.md").open("r+b") as file:
        file.write(b"ONE")
    assert kept(tree, "a.md") == [b"one"]


# Copies that share a file


def written_together(tree: Tree, *paths: str, size: int = 10) -> None:
    with Placer(tree) as placer:
        for path in paths:
            placer.place(tree.stage(path.encode() * size), path)


def shared(tree: Tree) -> list[Path]:
    return list((tree.root / ".penstock/kept").iterdir())


def test_copies_of_contents_that_are_written_together_are_in_one_file(tree: Tree) -> None:
    written_together(tree, "a", "b/c", "d")
    assert len(shared(tree)) == 1
    for backups in (tree.backups, Tree(tree.root).backups):
        for path in ("a", "b/c", "d"):
            assert [one.read() for one in backups.of(path)] == [path.encode() * 10]
    assert tree.backups.displaced() == {}


def test_copy_of_a_large_content_has_a_file_of_its_own(tree: Tree) -> None:
    written_together(tree, "a", "b", size=100_000)
    assert len(shared(tree)) == 2
    assert kept(tree, "b") == [b"b" * 100_000]


def test_copy_that_was_let_go_is_not_found_again(tree: Tree) -> None:
    written_together(tree, "a", "b", "c")
    tree.backups.drop(tree.backups.of("b"))
    tree.backups.drop(tree.backups.of("b"))
    for backups in (tree.backups, Tree(tree.root).backups):
        assert [path for path in "abc" if backups.of(path)] == ["a", "c"]
    tree.backups.drop([*tree.backups.of("a"), *tree.backups.of("c")])
    assert shared(tree) == []


def test_copies_are_found_although_all_others_went_while_it_was_written(tree: Tree) -> None:
    with Placer(tree) as placer:
        placer.place(tree.stage(b"one"), "a")
        tree.backups.drop(tree.backups.of("a"))
        placer.place(tree.stage(b"two"), "b")
        assert kept(tree, "b") == [b"two"]
    assert kept(Tree(tree.root), "b") == [b"two"]
    tree.backups.drop(tree.backups.of("b"))
    assert shared(tree) == []


def test_copy_that_a_crash_cut_off_is_not_there(tree: Tree) -> None:
    written_together(tree, "a", "b", "c")
    (file,) = shared(tree)
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        backups = Tree(tree.root).backups
        found = [one.read() for path in "abc" for one in backups.of(path)]
        assert found == [path.encode() * 10 for path in "abc"[: len(found)]]
        assert file.exists() == bool(found)


def test_copies_before_a_damaged_one_are_found(tree: Tree) -> None:
    written_together(tree, "a", "b", "c")
    (file,) = shared(tree)
    whole = file.read_bytes()
    at = whole.index(b"+", 1)
    file.write_bytes(whole[:at] + b"\xff" * 20 + whole[at + 20 :])
    backups = Tree(tree.root).backups
    assert [path for path in "abc" if backups.of(path)] == ["a"]
    assert backups.next_number("b") == 0


def test_copy_that_does_not_fit_on_the_disk_leaves_the_others(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half(handle: int, content: memoryview) -> int:
        if len(content) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, content[:-49])

    with Placer(tree) as placer:
        placer.place(tree.stage(b"one"), "a")
        staged = tree.stage(b"two")
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", half)
            with pytest.raises(Transient):
                placer.place(staged, "b")
        placer.place(staged, "b")
    assert [kept(tree, "a"), kept(tree, "b")] == [[b"one"], [b"two"]]
    again = Tree(tree.root)
    assert [kept(again, "a"), kept(again, "b")] == [[b"one"], [b"two"]]


def test_mode_of_a_file_survives(tree: Tree) -> None:
    script = tree.root / "run.sh"
    script.write_bytes(b"old")
    script.chmod(0o755)
    written(tree, "run.sh", b"new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o755


def test_content_over_the_limit_leaves_nothing(tree: Tree) -> None:
    with tree.upload(limit=5) as staging:
        staging.write(b"123")
        with pytest.raises(TooLarge):
            staging.write(b"456")
    with tree.upload() as staging:
        staging.write(b"given up")
    assert tree.staged() == []


def test_name_of_255_bytes_can_be_written_moved_and_removed(tree: Tree) -> None:
    name, other = "x" * 255, "é" * 127
    written(tree, name, b"long")
    tree.move(name, f"{other}/{name}")
    assert tree.facts(f"{other}/{name}").size == 4
    assert tree.remove(f"{other}/{name}")


def test_move_of_a_folder_takes_everything_along(tree: Tree) -> None:
    written(tree, "a/b/c.md", b"x")
    (tree.root / "a/empty").mkdir()
    tree.move("a", "new/place")
    assert (tree.root / "new/place/b/c.md").read_bytes() == b"x"
    assert (tree.root / "new/place/empty").is_dir()
    assert not (tree.root / "a").exists()


def test_move_never_replaces(tree: Tree) -> None:
    written(tree, "a.md", b"a")
    written(tree, "b.md", b"b")
    with pytest.raises(Exists):
        tree.move("a.md", "b.md")
    with pytest.raises(Missing):
        tree.move("c.md", "d.md")
    tree.make_folder("f")
    with pytest.raises(Permanent):
        tree.move("f", "f/g")
    assert (tree.root / "b.md").read_bytes() == b"b"


def test_removed_edit_that_nobody_knows_of_is_kept(tree: Tree) -> None:
    written(tree, "a.md", b"one")
    (tree.root / "a.md").write_bytes(b"of a person")
    assert tree.remove("a.md", committed=digest(b"one"))
    assert kept(tree, "a.md") == [b"one", b"of a person"]
    assert not tree.remove("a.md")
    assert not tree.remove("no/such/file")


def test_removed_file_that_is_known_leaves_nothing(tree: Tree) -> None:
    written(tree, "a.md", b"one")
    assert tree.remove("a.md", committed=digest(b"one"))
    assert kept(tree, "a.md") == []


def test_removed_folder_keeps_only_what_is_not_known(tree: Tree) -> None:
    written(tree, "a/one", b"1")
    (tree.root / "a/two").write_bytes(b"of a person")
    (tree.root / "a/link").symlink_to("/etc/passwd")
    known = {"a/one": digest(b"1")}
    with pytest.raises(Permanent, match="folder"):
        tree.remove("a")
    with pytest.raises(Permanent, match="not a folder"):
        tree.remove_folder("a/one")
    assert tree.remove_folder("a", committed=known.get)
    assert not tree.remove_folder("a")
    assert not (tree.root / "a").exists()
    assert kept(tree, "a/two") == [b"of a person"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


def test_links_are_never_followed(tree: Tree, outside: Path) -> None:
    (tree.root / "out").symlink_to(outside)
    (tree.root / "file").symlink_to(outside / "secret")
    staged = tree.stage(b"new")
    written(tree, "here", b"x")
    for attempt in (
        lambda: tree.open("out/secret"),
        lambda: tree.open("file"),
        lambda: tree.facts("file"),
        lambda: place(tree, staged, "out/new"),
        lambda: place(tree, staged, "file"),
        lambda: tree.make_folder("out/new"),
        lambda: tree.move("here", "out/here"),
        lambda: tree.move("out/secret", "there"),
        lambda: tree.remove("out/secret"),
        lambda: tree.remove_folder("out/x"),
        lambda: tree.look("out/secret"),
    ):
        with pytest.raises(PathRefused, match="symbolic link"):
            attempt()
    assert [file.name for file in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_link_itself_can_be_moved_and_removed(tree: Tree, outside: Path) -> None:
    (tree.root / "out").symlink_to(outside)
    tree.move("out", "link")
    assert tree.remove("link")
    assert (outside / "secret").exists()


def test_state_folder_that_is_a_link_is_refused(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "cloned"
    root.mkdir()
    (root / ".penstock").symlink_to(outside)
    with pytest.raises(PathRefused):
        Tree(root).prepare()


def test_pipe_is_not_waited_for(tree: Tree) -> None:
    os.mkfifo(tree.root / "pipe")
    with pytest.raises(Permanent, match="regular"):
        tree.open("pipe")
    with pytest.raises(Permanent, match="regular"):
        place(tree, tree.stage(b"x"), "pipe")


def test_folder_in_the_way_of_a_file_and_the_other_way_round(tree: Tree) -> None:
    tree.make_folder("a")
    written(tree, "b", b"x")
    with pytest.raises(Exists):
        written(tree, "a", b"x")
    with pytest.raises(Permanent):
        written(tree, "b/c", b"x")


def test_notebook_that_is_gone_may_come_back(tree: Tree) -> None:
    staged = tree.stage(b"x")
    tree.root.rename(tree.root.with_name("away"))
    with pytest.raises(Transient, match="gone"):
        place(tree, staged, "a")
    tree.root.with_name("away").rename(tree.root)
    assert place(tree, staged, "a").size == 1


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, Transient),
        (errno.EDQUOT, Transient),
        (errno.EBUSY, Transient),
        (errno.EINTR, Transient),
        (errno.EIO, Transient),
        (errno.EMFILE, Transient),
        (errno.ENAMETOOLONG, Permanent),
        (errno.EACCES, Permanent),
        (errno.EROFS, Permanent),
        (errno.EXDEV, Permanent),
        (errno.ENOENT, Missing),
        (errno.EEXIST, Exists),
    ],
)
def test_errors_are_sorted_by_whether_they_pass(number: int, kind: type[Exception]) -> None:
    assert type(from_os_error(OSError(number, "why"), "a.md")) is kind


def test_preparing_clears_what_a_crash_left_but_what_jobs_wait_for(tree: Tree) -> None:
    staged = tree.stage(b"x")
    (tree.root / ".penstock/trash/half").mkdir()
    again = Tree(tree.root).prepare()
    assert again.staged() == [staged.name]
    assert list((tree.root / ".penstock/trash").iterdir()) == []


def test_renames_without_the_call_of_the_system(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_renameat2", None)
    test_edit_that_nobody_knows_of_is_kept_when_overwritten(tree)
    tree.remove("a.md")
    test_move_never_replaces(tree)


def test_edit_in_the_last_moment_before_the_rename_is_kept(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tree, "a.md", b"old")
    swap = files.swap

    def edited_first(source: str, staging: int, target: str, folder: int) -> None:
        (tree.root / "draft").write_bytes(b"of a person")
        (tree.root / "draft").replace(tree.root / "a.md")
        swap(source, staging, target, folder)

    monkeypatch.setattr(placement, "swap", edited_first)
    written(tree, "a.md", b"new", known=b"old")
    assert (tree.root / "a.md").read_bytes() == b"new"
    assert b"of a person" in kept(tree, "a.md")


def test_file_that_comes_in_the_last_moment_is_kept(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_new = files.rename_new

    def made_first(source: str, staging: int, target: str, folder: int) -> None:
        (tree.root / "a.md").write_bytes(b"of a person")
        rename_new(source, staging, target, folder)

    monkeypatch.setattr(placement, "rename_new", made_first)
    written(tree, "a.md", b"new")
    assert kept(tree, "a.md") == [b"of a person", b"new"]


def test_folder_that_comes_in_the_last_moment_stays(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tree, "a.md", b"old")
    swap = files.swap

    def made_first(source: str, staging: int, target: str, folder: int) -> None:
        monkeypatch.undo()
        (tree.root / "a.md").unlink()
        (tree.root / "a.md").mkdir()
        swap(source, staging, target, folder)

    monkeypatch.setattr(placement, "swap", made_first)
    staged = tree.stage(b"new")
    with pytest.raises(Exists):
        place(tree, staged, "a.md", known=digest(b"old"))
    assert (tree.root / "a.md").is_dir()
    assert tree.staged() == [staged.name]
    assert kept(tree, "a.md") == [b"old"]


def test_kill_at_any_moment_leaves_the_old_or_the_new_content(tree: Tree) -> None:
    """A process writes in a loop and is killed, several times over."""
    contents = [bytes([65 + n]) * 50_000 for n in range(3)]
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from penstock.apps.notebooks.disk.tree import Tree\n"
        "from penstock.apps.notebooks.disk.placement import Placer\n"
        "tree = Tree(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "n = 0\n"
        "while True:\n"
        "    with Placer(tree) as placer:\n"
        "        placer.place(tree.stage(bytes([65 + n % 3]) * 50_000), 'a.md')\n"
        "    print(n, flush=True)\n"
        "    n += 1\n"
    )
    for wanted in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tree.root)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(wanted * 3 + 2):
                process.stdout.readline()
            process.kill()
        assert (tree.root / "a.md").read_bytes() in contents
        shutil.rmtree(tree.root / ".penstock/kept")
        tree.prepare()


@pytest.mark.parametrize(
    ("path", "head", "expected"),
    [
        ("a.md", b"", "text/markdown"),
        ("a/b.PNG", b"", "image/png"),
        ("a.tar.gz", b"", "application/gzip"),
        ("notes", b"plain", "text/plain"),
        ("notes", "é".encode() * 2_048, "text/plain"),
        ("notes", b"a" + "é".encode() * 2_048, "text/plain"),
        ("blob", b"\0\1", "application/octet-stream"),
        ("blob", b"\xff\xfe\xfd", "application/octet-stream"),
        ("data:,x.png", b"", "image/png"),
    ],
)
def test_mime_type(path: str, head: bytes, expected: str) -> None:
    assert mime_type(path, head) == expected


@pytest.mark.parametrize("depth", [1_200, 3_000])
@pytest.mark.parametrize("keep", [True, False])
def test_deep_folder_is_removed(tree: Tree, depth: int, *, keep: bool) -> None:
    (tree.root / "sub").mkdir()
    (tree.root / "sub/link").symlink_to(tree.root)
    with deep_in(tree.root / "sub", depth):
        assert tree.remove_folder("sub", keep=keep)
    assert [one.name for one in tree.root.iterdir()] == [".penstock"]
    assert not any((tree.root / ".penstock/trash").iterdir())


def test_deep_folder_that_a_crash_has_left_is_cleared(tree: Tree) -> None:
    with deep_in(tree.root / ".penstock/trash", 3_000):
        tree.prepare()
        assert not any((tree.root / ".penstock/trash").iterdir())

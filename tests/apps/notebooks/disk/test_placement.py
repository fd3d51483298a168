"""Contents are put in place, whenever the process dies meanwhile, and nothing is lost."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.notebooks.disk import backups, files, placement
from penstock.apps.notebooks.disk.placement import Placer
from penstock.apps.notebooks.disk.tree import Staged, Tree, stored
from penstock.apps.notebooks.errors import Missing, Transient
from tests.apps.notebooks.support import flushes

OURS = b"of the server"
REMOVED = b"-"
"""An edit that removes the file."""
CHANGES = {"open", "write", "rename", "replace", "unlink", "chmod", "pwrite", "fsync"}


class Died(BaseException):
    """The process is gone."""


class Mortal:
    """Lets so many changes of the disk happen, and none after them."""

    def __init__(self, left: int) -> None:
        self._left = left
        self.is_dead = False

    def __call__(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **options: Any) -> Any:
            if self._left == 0:
                self.is_dead = True
            if self.is_dead:
                raise Died
            self._left -= 1
            return change(*args, **options)

        return changed

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self(found) if name in CHANGES else found

    @contextmanager
    def running(self) -> Iterator[None]:
        """What runs inside the block has this life."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (placement, backups, files):
                patch.setattr(module, "os", self)
            for name in ("swap", "rename_new"):
                patch.setattr(placement, name, self(getattr(files, name)))
            patch.setattr(Tree, "discard", self(Tree.discard))
            with suppress(Died):
                yield


def place(tree: Tree, staged: Staged, known: bytes | None, content: bytes = OURS) -> None:
    """What a run of the operation does."""
    with Placer(tree) as placer:
        placer.prepare({staged.name: content} if staged.is_stored else {})
        digest = None if known is None else stored(known).hash
        placer.place(staged, "a.md", committed=digest)
        placer.flush()


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("second", [None, 1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("edit", [None, b"an edit after the crash", REMOVED])
@pytest.mark.parametrize("before", [None, b"an edit that nobody knows of", b"known"])
def test_whenever_the_process_dies_nothing_is_lost(
    tmp_path: Path,
    before: bytes | None,
    edit: bytes | None,
    second: int | None,
    *,
    is_stored: bool,
) -> None:
    steps, life = 0, Mortal(0)
    while life.is_dead or not steps:
        root = tmp_path / str(steps)
        root.mkdir()
        life = Mortal(steps)
        tree = Tree(root).prepare()
        check_death(tree, life, before, edit, second, is_stored=is_stored)
        steps += 1
    assert steps > 4


def check_death(
    tree: Tree,
    life: Mortal,
    before: bytes | None,
    edit: bytes | None,
    second: int | None,
    *,
    is_stored: bool,
) -> None:
    """After `second` steps the next run dies, too; without it, it gets ready and does no more."""
    file = tree.root / "a.md"
    if before is not None:
        file.write_bytes(before)
    staged = stored(OURS) if is_stored else tree.stage(OURS)
    known = before if before == b"known" else None
    with life.running():
        place(tree, staged, known)
    was_placed = file.exists() and file.read_bytes() == OURS
    if edit == REMOVED:
        file.unlink(missing_ok=True)
    elif edit is not None:
        file.write_bytes(edit)
    if second is not None:
        with Mortal(second).running():
            place(Tree(tree.root), staged, known)
    elif is_stored:
        with Placer(Tree(tree.root)) as placer:
            placer.prepare({staged.name: OURS})
    for _ in range(2):  # once it is done, doing it again changes nothing
        again = Tree(tree.root)
        place(again, staged, known)
        kept = [one.read() for one in again.backups.of("a.md")]
        if was_placed and edit is not None:
            assert (file.read_bytes() if file.exists() else REMOVED) == edit
            assert kept[-1:] == [OURS]
        else:
            assert file.read_bytes() == OURS
            assert edit in (None, REMOVED, *kept[:-1])
        if edit is None or was_placed:
            assert (before in kept[:-1]) == (before not in (None, known))
        assert again.staged() == []


def test_content_that_is_written_again_is_not_taken_for_its_copy(tree: Tree) -> None:
    """What is displaced by the second has its place after all that came before."""
    file = tree.root / "a.md"
    file.write_bytes(OURS)
    place(tree, stored(b"between"), None, b"between")  # puts the edit aside
    file.write_bytes(b"an edit")
    staged, life = stored(OURS), Mortal(0)
    for steps in range(100):
        life = Mortal(steps)
        with life.running():
            place(Tree(tree.root), staged, b"between")
        if file.read_bytes() == OURS:
            break
    again = Tree(tree.root)
    place(again, staged, b"between")
    assert [one.read() for one in again.backups.of("a.md")][-2:] == [b"an edit", OURS]


def test_link_that_was_displaced_is_not_followed(tree: Tree, tmp_path: Path) -> None:
    """The process died when it had put a content where somebody had just put a link."""
    (tmp_path / "secret").write_bytes(b"secret")
    staged = stored(OURS)
    with Placer(tree) as placer:
        placer.prepare({staged.name: OURS})
        placer.place(staged, "a.md")
    Path(tree.place_of(f"{staged.name}.displaced")).symlink_to(tmp_path / "secret")
    place(Tree(tree.root), staged, None)
    assert [one.read() for one in Tree(tree.root).backups.of("a.md")] == [OURS]
    assert tree.staged() == []


def test_content_that_cannot_be_got_ready_fails_alone(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {stored(OURS).name: OURS for _ in range(3)}
    bad = list(contents)[1]
    opened = os.open

    def refused(name: str, *args: Any, **options: Any) -> int:
        if name == bad:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(name, *args, **options)

    with Placer(tree) as placer:
        with monkeypatch.context() as broken:
            broken.setattr(os, "open", refused)
            placer.prepare(contents)
        for name in contents:
            staged = Staged(name, len(OURS), stored(OURS).hash, is_stored=True)
            if name == bad:
                with pytest.raises(Transient, match="No space"):
                    placer.place(staged, name)
            else:
                placer.place(staged, name)
    assert tree.staged() == []


def test_file_that_goes_in_the_last_moment_is_made_again(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree.root / "a.md").write_bytes(b"of a person")
    swap = files.swap

    def gone_first(source: str, staging: int, target: str, folder: int) -> None:
        (tree.root / "a.md").unlink()
        swap(source, staging, target, folder)

    monkeypatch.setattr(placement, "swap", gone_first)
    place(tree, stored(OURS), None)
    assert (tree.root / "a.md").read_bytes() == OURS
    assert tree.staged() == []


def test_content_that_is_gone_is_permanent(tree: Tree) -> None:
    with Placer(tree) as placer, pytest.raises(Missing, match="gone"):
        placer.place(stored(OURS), "a.md")


def test_content_that_is_not_put_in_place_leaves_nothing(tree: Tree) -> None:
    with Placer(tree) as placer:
        placer.prepare({stored(OURS).name: OURS})
        assert len(tree.staged()) == 1
    assert tree.staged() == []


@pytest.mark.parametrize("has_call", [True, False])
@pytest.mark.parametrize("n", [3, 20])
def test_contents_are_on_the_disk_before_they_are_put_in_place(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, n: int, *, has_call: bool
) -> None:
    flushed = flushes(monkeypatch, has_call=has_call)
    with Placer(tree) as placer:
        placer.prepare({str(k): OURS for k in range(n)})
    assert len(flushed) == (1 if has_call and n > files.FEW else n)


def test_disk_that_is_full_is_said(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    staged = stored(OURS)
    with Placer(tree) as placer:
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            placer.prepare({staged.name: OURS})
        with pytest.raises(Transient, match="No space"):
            placer.place(staged, "a.md")
    place(tree, staged, None)
    assert (tree.root / "a.md").read_bytes() == OURS

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.apps.notebooks.disk.backups import Backup
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import Missing, Permanent, Transient
from penstock.apps.notebooks.repository.commits import (
    NOBODY,
    Action,
    CommittedChange,
    Committer,
    Identity,
    commit_changes,
    message,
)
from penstock.apps.notebooks.repository.history import History
from penstock.apps.notebooks.repository.location import Location
from tests.apps.notebooks.support import (
    Changes,
    commit,
    committed,
    deep_in,
    git,
    opened,
    place,
    write,
)

pytestmark = pytest.mark.usefixtures("home")


def show(root: Path, path: str, at: str = "HEAD") -> str:
    return git(root, "show", f"{at}:{path}")


def is_clean(root: Path) -> bool:
    return git(root, "status", "--porcelain") == ""


def count(root: Path) -> int:
    return int(git(root, "rev-list", "--count", "HEAD"))


def test_first_commit_and_those_after_it(root: Path) -> None:
    write(root, "a.md", "one")
    committed(root, "a.md")
    write(root, "a.md", "two")
    write(root, "sub/b.md", "b")
    committed(root, "a.md", "sub/b.md")
    assert (show(root, "a.md"), show(root, "sub/b.md")) == ("two", "b")
    assert is_clean(root)
    assert count(root) == 2
    git(root, "fsck", "--strict")


def test_paths_are_staged_by_whether_they_are_there(root: Path) -> None:
    for name in ("gone", "old", "stays"):
        write(root, name, f"{name}\n" * 20)
    committed(root, "gone", "old", "stays")
    (root / "gone").unlink()
    (root / "old").rename(root / "new")
    made = committed(root, "gone", "old", "new", "never was", "nor/this")
    assert made.changes == [
        CommittedChange(Action.DELETED, "gone"),
        CommittedChange(Action.MOVED, "new", "old"),
    ]
    assert is_clean(root)


def test_no_empty_commit(root: Path) -> None:
    write(root, "a.md", "one")
    committed(root, "a.md")
    assert commit(root, "a.md") is None
    assert commit(root, "nothing") is None
    assert count(root) == 1


def test_no_commit_of_nothing_before_the_first(root: Path) -> None:
    assert commit(root, "nothing") is None


def test_only_the_paths_that_are_named_are_committed(root: Path) -> None:
    write(root, "a.md", "one")
    write(root, "b.md", "other")
    committed(root, "a.md")
    assert git(root, "ls-tree", "--name-only", "HEAD").split() == ["a.md"]


def test_folder_stands_for_all_that_is_and_was_below(root: Path) -> None:
    for n in range(5):
        write(root, f"old/{n}/file", f"{n}\n" * 20)
    committed(root, "old")
    (root / "old").rename(root / "new")
    (root / "new/0/file").unlink()
    made = committed(root, "old", "new")
    assert sorted(one.kind for one in made.changes) == ["deleted", *["moved"] * 4]
    assert is_clean(root)


def test_file_becomes_a_folder_and_a_folder_a_file(root: Path) -> None:
    write(root, "a", "file")
    write(root, "b/c", "in folder")
    committed(root, "a", "b")
    (root / "a").unlink()
    (root / "b/c").unlink()
    (root / "b").rmdir()
    write(root, "a/x", "in folder")
    write(root, "b", "file")
    committed(root, "a", "a/x", "b", "b/c")
    assert (show(root, "a/x"), show(root, "b")) == ("in folder", "file")
    assert is_clean(root)


def test_names_that_look_like_options_and_patterns(root: Path) -> None:
    names = ["-rf", "--all", ":(glob)*", "*", "[a]", ":/x", "!x", "ü\u0301", " ", 'q"q', "a\\b"]
    for name in names:
        write(root, name, "x")
    write(root, "other", "x")
    committed(root, *names)
    tracked = git(root, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")[:-1]
    assert sorted(tracked) == sorted(
        name.removeprefix("/") for name in [*names[:5], ":/x", *names[6:]]
    )
    assert [one.path for one in History(opened(root)).of("-rf")] == ["-rf"]


def test_links_and_modes_are_committed_as_they_are(root: Path) -> None:
    write(root, "run.sh", "#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("/etc/passwd")
    committed(root, "run.sh", "link")
    modes = [line.split()[0] for line in git(root, "ls-tree", "HEAD").splitlines()]
    assert modes == ["120000", "100755"]
    assert show(root, "link") == "/etc/passwd"


def test_nothing_is_committed_from_behind_a_link(root: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/secret", "secret")
    write(root, "sub/secret", "ours")
    committed(root, "sub/secret")
    (root / "sub/secret").unlink()
    (root / "sub").rmdir()
    (root / "sub").symlink_to(tmp_path / "outside")
    committed(root, "sub/secret", "sub")
    assert git(root, "ls-tree", "-r", "--name-only", "HEAD").split() == ["sub"]


def test_ignored_files_stay_out_unless_tracked(root: Path) -> None:
    write(root, "tracked.log", "1")
    committed(root, "tracked.log")
    write(root, ".gitignore", "*.log\nbuild/\n")
    write(root, "tracked.log", "2")
    write(root, "other.log", "1")
    write(root, "build/x", "1")
    committed(root, ".gitignore", "tracked.log", "other.log", "build", "build/x")
    assert git(root, "ls-tree", "-r", "--name-only", "HEAD").split() == [
        ".gitignore",
        "tracked.log",
    ]
    assert show(root, "tracked.log") == "2"


def test_state_folder_is_never_seen_by_git(root: Path) -> None:
    write(root, "a", "x")
    committed(root, "a", ".penstock")
    assert is_clean(root)


def test_attributes_are_obeyed(root: Path, home: Path) -> None:
    """The filter is trusted, and its commands are those of the server's user."""
    shouting(root, home)
    write(root, ".gitattributes", "*.txt eol=crlf\n*.up filter=shout\n")
    (root / "dos.txt").write_bytes(b"a\r\nb\r\n")
    write(root, "x.up", "quiet")
    repository = opened(root, "shout")
    assert Committer(repository, root).commit([".gitattributes", "dos.txt", "x.up"])
    assert repository.git("cat-file", "blob", "HEAD:dos.txt") == b"a\nb\n"
    assert show(root, "x.up") == "QUIET"
    assert is_clean(root)
    assert History(repository).content(_head(root), "x.up", limit=99)[0] == b"quiet"


def shouting(root: Path, home: Path) -> None:
    """Let a filter write everything in capitals, for the server's user and for a person."""
    commands = {"clean": "tr a-z A-Z", "smudge": "tr A-Z a-z"}
    for name, command in commands.items():
        git(root, "config", f"filter.shout.{name}", command)
        git(root, "config", "--file", str(home / ".gitconfig"), f"filter.shout.{name}", command)


def _head(root: Path) -> str:
    return git(root, "rev-parse", "HEAD").strip()


def test_staged_changes_of_others_stay_staged_and_uncommitted(root: Path) -> None:
    for name in ("a", "b", "c"):
        write(root, name, "1\n")
    committed(root, "a", "b", "c")
    write(root, "b", "staged by a person\n")
    git(root, "add", "b")
    write(root, "a", "2\n")
    committed(root, "a")
    assert show(root, "b") == "1\n"
    assert git(root, "status", "--porcelain") == "M  b\n"


def test_part_of_a_file_that_is_staged_stays_staged(root: Path) -> None:
    write(root, "a", "1\n")
    write(root, "b", "1\n")
    committed(root, "a", "b")
    write(root, "a", "staged\n")
    git(root, "add", "a")
    write(root, "a", "staged and more\n")
    write(root, "b", "2\n")
    committed(root, "a", "b")
    assert show(root, "a") == "staged and more\n"
    assert git(root, "show", ":a") == "staged\n"
    assert git(root, "show", ":b") == "2\n"


def test_foreign_commit_in_between_is_built_upon(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a", "1")
    committed(root, "a")
    write(root, "foreign", "x")
    write(root, "a", "2")
    update_index = Committer._update_index
    calls: list[str] = []

    def committed_first(self: Committer, base: str, tree: str) -> None:
        if not calls:
            git(root, "add", "foreign")
            git(root, "commit", "-qm", "of a person")
        calls.append(tree)
        update_index(self, base, tree)

    monkeypatch.setattr(Committer, "_update_index", committed_first)
    committed(root, "a")
    assert len(calls) == 3  # the second takes back the first
    assert git(root, "log", "--format=%s").splitlines() == ["Update a", "of a person", "Add a"]
    assert is_clean(root)


def test_what_a_person_committed_already_is_no_commit(root: Path) -> None:
    write(root, "a", "1")
    committed(root, "a")
    write(root, "a", "2")
    git(root, "commit", "-qam", "of a person")
    assert commit(root, "a") is None


def test_crash_before_head_moves_leaves_changes_staged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a", "1")
    committed(root, "a")
    write(root, "a", "2")

    def dies(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "_is_moved", dies)
        with pytest.raises(KeyboardInterrupt):
            commit(root, "a")
    assert git(root, "status", "--porcelain") == "M  a\n"
    committed(root, "a")
    assert is_clean(root)


def test_what_a_crash_has_left_staged_is_not_taken_for_that_of_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("changed.md", "back.md", "theirs.md"):
        write(root, path, "old")
    commit(root, "changed.md", "back.md", "theirs.md")
    for path in ("changed.md", "back.md", "gone.md"):
        write(root, path, "half way")
    write(root, "theirs.md", "staged by a person")
    git(root, "add", "theirs.md")

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Committer, "_is_moved", killed)
        with pytest.raises(KeyboardInterrupt):
            commit(root, "changed.md", "back.md", "gone.md")
    assert git(root, "diff", "--cached", "--name-only").split() == [
        *("back.md", "changed.md", "gone.md", "theirs.md")
    ]
    write(root, "changed.md", "new")
    write(root, "back.md", "old")
    (root / "gone.md").unlink()
    assert commit(root, "changed.md", "back.md", "gone.md")
    assert git(root, "status", "--porcelain") == "M  theirs.md\n"
    assert git(root, "show", "HEAD:changed.md") == "new"


def test_locked_index_is_waited_for_and_then_named(root: Path) -> None:
    write(root, "a", "1")
    lock = root / ".git/index.lock"
    lock.touch()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 3:
            lock.unlink()

    repository = opened(root)
    with pytest.raises(Transient, match=r"index\.lock"):
        Committer(repository, root, patience=1, clock=lambda: now[0], sleep=sleep).commit(["a"])
    assert lock.exists()
    assert Committer(repository, root, patience=9, clock=lambda: now[0], sleep=sleep).commit(["a"])


def test_index_that_is_locked_in_the_middle_postpones(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a", "1")
    committed(root, "a")
    write(root, "a", "2")
    update_index = Committer._update_index

    def locked_first(self: Committer, base: str, tree: str) -> None:
        (root / ".git/index.lock").touch()
        update_index(self, base, tree)

    monkeypatch.setattr(Committer, "_update_index", locked_first)
    with pytest.raises(Transient, match=r"index\.lock"):
        commit(root, "a")
    assert count(root) == 1


@pytest.mark.parametrize("how", ["merge", "rebase", "cherry-pick", "revert"])
def test_commit_waits_for_the_end_of_what_is_in_progress(root: Path, how: str) -> None:
    write(root, "a", "1\n")
    committed(root, "a")
    write(root, "a", "theirs\n")
    git(root, "checkout", "-qb", "theirs")
    committed(root, "a")
    git(root, "checkout", "-q", "main")
    write(root, "a", "ours\n")
    committed(root, "a")
    conflicting = {
        "merge": ("merge", "theirs"),
        "rebase": ("rebase", "theirs"),
        "cherry-pick": ("cherry-pick", "theirs"),
        "revert": ("revert", "--no-edit", "HEAD~1"),
    }[how]
    with pytest.raises(AssertionError):
        git(root, *conflicting)
    write(root, "b", "new")
    with pytest.raises(Transient, match=how):
        commit(root, "b")
    git(root, conflicting[0], "--abort")
    committed(root, "b")


def test_conflicts_that_are_left_postpone(root: Path) -> None:
    write(root, "a", "1\n")
    committed(root, "a")
    write(root, "a", "stashed\n")
    git(root, "stash", "-q")
    write(root, "a", "2\n")
    committed(root, "a")
    with pytest.raises(AssertionError):
        git(root, "stash", "pop")
    write(root, "b", "new")
    with pytest.raises(Transient, match="conflicts"):
        commit(root, "b")


def test_detached_head_is_committed_to(root: Path) -> None:
    write(root, "a", "1")
    first = committed(root, "a").id
    write(root, "a", "2")
    second = committed(root, "a").id
    git(root, "checkout", "-q", first)
    write(root, "b", "x")
    committed(root, "b")
    assert git(root, "rev-parse", "main").strip() == second
    assert is_clean(root)


def test_submodule_and_nested_repository_are_left_alone(root: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    write(inner, "x", "1")
    git(inner, "add", "x")
    git(inner, "commit", "-qm", "inner")
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    git(root, "commit", "-qm", "submodule")
    git(inner, "init", "-q", str(root / "nested"))
    write(root, "sub/x", "2")
    write(root, "nested/y", "1")
    write(root, "a", "1")
    made = committed(root, "sub/x", "sub", "nested/y", "a")
    assert set(made.skipped) == {"sub/x", "sub", "nested/y"}
    assert [one.path for one in made.changes] == ["a"]
    git(root, "submodule", "deinit", "-f", "sub")
    write(root, "sub/x", "3")
    assert commit(root, "sub/x") is None


def test_repository_in_a_folder_above(tmp_path: Path) -> None:
    top = tmp_path / "project"
    notebook = top / "docs/notes"
    notebook.mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    write(top, "code", "1")
    git(top, "add", "code")
    git(top, "commit", "-qm", "code")
    Tree(notebook).prepare()
    write(notebook, "a", "of the notebook")
    write(top, "code", "2")
    write(top, "a", "not ours")
    committed(notebook, "a")
    assert git(top, "ls-tree", "-r", "--name-only", "HEAD").split() == ["code", "docs/notes/a"]
    assert show(top, "code") == "1"
    (notebook / "a").rename(notebook / "b")
    committed(notebook, "b", "a")
    history = History(opened(notebook))
    assert [one.subject for one in history.log()] == [
        "Move docs/notes/a to docs/notes/b",
        "Add docs/notes/a",
    ]
    assert [one.path for one in history.of("b")] == ["b", "a"]
    with pytest.raises(Missing):
        history.content(_head(top), "../../code", limit=9)


def test_file_that_may_not_be_read_does_not_hold_up_the_others(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "a", "1")
    write(root, "b", "1")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "b" and access(path, mode)
    )
    assert committed(root, "a", "b").skipped == {"b": "it is not readable"}


def test_author(root: Path) -> None:
    def authors() -> list[str]:
        return git(root, "log", "-1", "--format=%an <%ae>%n%cn <%ce>").splitlines()

    write(root, "a", "1")
    committed(root, "a")
    assert authors() == [f"{NOBODY.name} <{NOBODY.email}>"] * 2
    git(root, "config", "user.name", "Configured")
    git(root, "config", "user.email", "c@example.org")
    write(root, "a", "2")
    committed(root, "a")
    assert authors() == ["Configured <c@example.org>"] * 2
    write(root, "a", "3")
    Committer(opened(root), root, author=Identity("Given", "g@example.org")).commit(["a"])
    assert authors() == ["Given <g@example.org>"] * 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([CommittedChange(Action.ADDED, "a b.md")], "Add a b.md\n"),
        ([CommittedChange(Action.MOVED, "b", "a")], "Move a to b\n"),
        ([CommittedChange(Action.UPDATED, "x" * 200)], f"Update a file\n\nUpdate {'x' * 200}\n"),
        (
            [CommittedChange(Action.DELETED, "a"), CommittedChange(Action.DELETED, "b")],
            "Delete 2 files\n\n- Delete a\n- Delete b\n",
        ),
        (
            [CommittedChange(Action.UPDATED, "a"), CommittedChange(Action.ADDED, "b")],
            "Change 2 files: 1 added, 1 updated\n\n- Update a\n- Add b\n",
        ),
    ],
)
def test_message_names_what_changed(changes: list[CommittedChange], text: str) -> None:
    assert message(changes) == text


def test_message_of_many_lists_the_first(root: Path) -> None:
    for n in range(1_200):
        write(root, f"f/{n:04}", f"{n}")
    made = committed(root, "f")
    assert len(made.changes) == 1_200
    text = git(root, "log", "-1", "--format=%B")
    assert text.startswith("Add 1,200 files\n\n- Add f/0000\n")
    assert "- and 1,180 more" in text
    git(root, "fsck", "--strict")


def test_message_of_the_caller(root: Path) -> None:
    write(root, "a", "1")
    assert commit(root, "a", text="-m --amend\n\n# of a person") is not None
    assert git(root, "log", "-1", "--format=%s") == "-m --amend\n"


def test_folder_without_a_repository(tmp_path: Path) -> None:
    assert Location.enclosing(tmp_path) is None


def test_repository_that_git_does_not_trust_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".git/config").write_text("[broken")
    with pytest.raises(Permanent, match="config"):
        opened(root)


def test_commit_that_fails_leaves_everything_for_the_next(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    placed(tree, changes, "a", "1")
    (root / ".git/index.lock").touch()
    with pytest.raises(Transient):
        changes.commit()
    assert len(tree.backups.of("a")) == 1
    (root / ".git/index.lock").unlink()
    assert changes.commit() is not None
    assert tree.backups.of("a") == []
    assert commit_changes(tree, changes.committer, ["a"]) is None


def placed(tree: Tree, changes: Changes, path: str, content: str, known: str | None = None) -> None:
    digest = None if known is None else hashlib.sha256(known.encode()).hexdigest()
    place(tree, tree.stage(content.encode()), path, known=digest)
    changes.add(path)


def contents(root: Path, path: str) -> list[str]:
    """What a file was, commit by commit, the oldest first."""
    commits = git(root, "log", "--reverse", "--format=%H", "--", path).split()
    return [show(root, path, one) for one in commits]


def test_person_overwrites_what_the_server_wrote(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    placed(tree, changes, "a", "server")
    write(root, "a", "person")
    changes.commit()
    assert contents(root, "a") == ["server", "person"]
    assert is_clean(root)
    assert tree.backups.of("a") == []


def test_copy_of_an_unfinished_write_is_left(tree: Tree, root: Path) -> None:
    """It tells, after a crash, that the content was put in place."""
    changes = Changes(tree)
    staged = tree.stage(b"server")
    place(tree, staged, "a")
    changes.add("a")
    assert changes.commit(unfinished=[staged.name]) is not None
    assert [one.staged for one in tree.backups.of("a")] == [staged.name]
    write(root, "a", "person")
    changes.add("a")
    changes.commit()
    assert contents(root, "a") == ["server", "person"]
    assert tree.backups.of("a") == []


def test_copy_that_goes_while_it_is_committed_is_looked_at_again(
    tree: Tree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = Changes(tree)
    placed(tree, changes, "a", "server")
    write(root, "a", "person")
    monkeypatch.setattr(Backup, "read", lambda _: (root / "nowhere").read_bytes())
    with pytest.raises(Transient):
        changes.commit()
    monkeypatch.undo()
    changes.commit()
    assert contents(root, "a") == ["server", "person"]


def test_attributes_are_obeyed_by_what_was_overwritten(tree: Tree, root: Path, home: Path) -> None:
    shouting(root, home)
    write(root, ".gitattributes", "*.up filter=shout\n")
    changes = Changes(tree, "shout")
    changes.add(".gitattributes")
    placed(tree, changes, "x.up", "server")
    write(root, "x.up", "person")
    changes.commit()
    assert contents(root, "x.up") == ["SERVER", "PERSON"]


def test_server_overwrites_what_a_person_wrote(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    placed(tree, changes, "a", "1")
    changes.commit()
    write(root, "a", "person")
    placed(tree, changes, "a", "2", known="1")
    write(root, "a", "person again")
    placed(tree, changes, "a", "3", known="2")
    changes.commit()
    assert contents(root, "a") == ["1", "person", "2", "person again", "3"]


def test_edit_is_in_history_although_the_file_was_deleted(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    placed(tree, changes, "a", "1")
    changes.commit()
    write(root, "a", "person")
    tree.remove("a", committed="something else")
    changes.add("a")
    changes.commit()
    commits = git(root, "log", "--format=%H", "--", "a").split()
    assert show(root, "a", commits[1]) == "person"
    assert git(root, "ls-tree", "HEAD") == ""


def test_own_writes_and_moves_of_one_batch_are_one_commit(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    for n in range(10):
        placed(tree, changes, f"f/{n}", f"content {n}")
    placed(tree, changes, "f/0", "again", known="content 0")
    tree.move("f", "g")
    changes.add("f", "g", *(f"g/{n}" for n in range(10)))
    changes.commit()
    assert count(root) == 1
    assert is_clean(root)


def test_ignored_content_that_was_overwritten_stays_out(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    write(root, ".gitignore", "*.log\n")
    changes.add(".gitignore")
    placed(tree, changes, "x.log", "server")
    write(root, "x.log", "person")
    changes.commit()
    assert git(root, "ls-tree", "--name-only", "HEAD").split() == [".gitignore"]
    assert tree.backups.of("x.log") == []


def test_mode_of_a_script_is_the_same_in_what_it_was_before(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    write(root, "run.sh", "1")
    (root / "run.sh").chmod(0o755)
    placed(tree, changes, "run.sh", "2")
    changes.commit()
    commits = git(root, "log", "--format=%H").split()
    modes = [git(root, "ls-tree", one).split()[0] for one in commits]
    assert modes == ["100755", "100755"]


def test_mode_of_a_script_is_in_history_although_it_was_deleted(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    write(root, "run.sh", "1")
    (root / "run.sh").chmod(0o755)
    tree.remove("run.sh")
    changes.add("run.sh")
    changes.commit()
    commits = git(root, "log", "--format=%H").split()
    assert git(root, "ls-tree", commits[1]).split()[0] == "100755"


def test_file_that_nobody_knew_of_is_in_history_although_its_folder_was_removed(
    tree: Tree, root: Path
) -> None:
    changes = Changes(tree)
    placed(tree, changes, "f/known", "1")
    changes.commit()
    write(root, "f/unknown", "person")
    tree.remove_folder("f", committed={"f/known": hashlib.sha256(b"1").hexdigest()}.get)
    changes.add("f/known")
    changes.commit()
    commits = git(root, "log", "--format=%H").split()
    assert show(root, "f/unknown", commits[1]) == "person"
    assert git(root, "ls-tree", "-r", "HEAD") == ""
    assert tree.backups.displaced() == {}


def test_write_that_is_not_noted_yet_is_left_for_the_next_commit(tree: Tree, root: Path) -> None:
    changes = Changes(tree)
    tree.backups.copy(str(root / ".penstock/.gitignore"), "a", "hash", 1, is_own=True)
    assert changes.commit() is None
    assert len(tree.backups.of("a")) == 1


COMMITS_FOR_EVER = """
import sys
from pathlib import Path
from penstock.apps.notebooks.repository.commits import Committer
from tests.apps.notebooks.support import opened

root = Path(sys.argv[1])
committer = Committer(opened(root), root, patience=30)
n = 0
while True:
    n += 1
    for name in ("a", "b", f"new-{n}"):
        (root / name).write_text(f"{name} {n}")
    committer.commit(["a", "b", f"new-{n}"])
    print(n, flush=True)
"""


def test_kill_at_any_moment_leaves_a_sound_repository(root: Path) -> None:
    write(root, "foreign", "1")
    git(root, "add", "foreign")
    for wanted in (1, 2, 3):
        with subprocess.Popen(
            [sys.executable, "-c", COMMITS_FOR_EVER, str(root)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            for _ in range(wanted):
                assert process.stdout.readline()
            process.kill()
        git(root, "fsck", "--strict")
        names = [file.name for file in root.iterdir() if file.is_file() and file.name != "foreign"]
        Committer(opened(root), root, patience=30).commit(names)
        assert git(root, "status", "--porcelain") == "A  foreign\n"


@pytest.mark.parametrize("depth", [1_200, 3_000])
def test_deep_folder_does_not_stop_a_commit(root: Path, depth: int) -> None:
    with deep_in(root, depth, is_filled=False):
        write(root, "d/a", "1")
        committed(root, "d")
    assert show(root, "d/a") == "1"

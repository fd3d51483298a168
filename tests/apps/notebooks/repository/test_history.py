from pathlib import Path

import pytest

from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.repository.commits import (
    NOBODY,
)
from penstock.apps.notebooks.repository.history import History
from tests.apps.notebooks.support import (
    committed,
    opened,
    write,
)


def test_history_follows_a_file_through_its_moves(root: Path) -> None:
    write(root, "old.md", "line\n" * 20)
    first = committed(root, "old.md")
    (root / "old.md").rename(root / "new.md")
    second = committed(root, "old.md", "new.md")
    write(root, "new.md", "line\n" * 21)
    third = committed(root, "new.md")
    write(root, "other", "x")
    committed(root, "other")
    history = History(opened(root))
    found = history.of("new.md")
    assert [(one.id, one.path) for one in found] == [
        (third.id, "new.md"),
        (second.id, "new.md"),
        (first.id, "old.md"),
    ]
    assert found[0].author == NOBODY.name
    assert found[0].at.tzinfo is not None
    assert [one.id for one in history.of("new.md", limit=1, after=third.id)] == [second.id]
    assert len(history.log(limit=2)) == 2
    assert history.content(first.id[:8], "old.md", limit=10) == (b"line\nline\n", False)
    assert history.content(third.id, "new.md", limit=105) == (b"line\n" * 21, True)


def test_diff_is_bounded(root: Path) -> None:
    write(root, "a", "one\n")
    write(root, "b", "x\n")
    first = committed(root, "a", "b").id
    write(root, "a", "two\n")
    write(root, "b", "y\n" * 50_000)
    second = committed(root, "a", "b").id
    history = History(opened(root))
    whole = history.diff(first, second, "a")
    assert "-one\n+two\n" in whole.text
    assert whole.is_whole
    cut = history.diff(first, second, limit=1_000)
    assert (len(cut.text), cut.is_whole) == (1_000, False)


@pytest.mark.parametrize(
    "text", ["HEAD", "--all", "", "main", "zzzz", "a" * 65, "f" * 40, "HEAD\n"]
)
def test_only_ids_of_commits_are_commits(root: Path, text: str) -> None:
    write(root, "a", "1")
    committed(root, "a")
    history = History(opened(root))
    for read in (
        lambda: history.content(text, "a", limit=9),
        lambda: history.diff(text, text),
        lambda: history.log(after=text),
    ):
        with pytest.raises(Missing):
            read()


def test_file_that_is_not_in_a_commit(root: Path) -> None:
    write(root, "a", "1")
    made = committed(root, "a")
    history = History(opened(root))
    with pytest.raises(Missing):
        history.content(made.id, "b", limit=9)
    assert history.of("b") == []


def test_history_before_the_first_commit_is_empty(root: Path) -> None:
    assert History(opened(root)).log() == []

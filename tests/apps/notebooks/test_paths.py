import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.notebooks.errors import PathRefused, Permanent
from penstock.apps.notebooks.paths import fold, is_within, parents, parse, why_not


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("notes/a.md", "notes/a.md"),
        ("/notes/a.md", "notes/a.md"),
        ("./notes//a.md/", "notes/a.md"),
        ("…/ü ñ.md", "…/ü ñ.md"),
        ("-rf", "-rf"),
        (":(glob)**", ":(glob)**"),
        ("...", "..."),
        ("a\\b", "a\\b"),
        (".gitignore", ".gitignore"),
        ("deep/.penstock/a", "deep/.penstock/a"),
        ("x" * 255, "x" * 255),
        ("a/" * 99 + "b", "a/" * 99 + "b"),
    ],
)
def test_path_of_a_notebook_is_normalised(text: str, path: str) -> None:
    assert parse(text) == path


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", ".", "..", "a/../b", "../a", "a/..", "//etc/passwd"),
        *("a\0b", "a\nb", "\x7f", "a\u0085b", "\ud800", "name\udcff"),
        *("x" * 256, "é" * 128, "a/" * 1_100 + "b", "a/" * 100 + "b"),
        *(".git", ".git/config", "a/.git/hooks/x", ".GIT/config", ".Git", ".git.", ".git "),
        *("git~1/config", "GIT~1", ".g\u200cit/config", ".git::$INDEX_ALLOCATION/config"),
        *(".penstock", ".penstock/staged/x", ".PENSTOCK/x"),
    ],
)
def test_hostile_path_is_refused(text: str) -> None:
    with pytest.raises(PathRefused) as refused:
        parse(text)
    assert isinstance(refused.value, Permanent)


@given(st.text(alphabet=[*string.ascii_letters, ".", "/", "\\", "\0", " ", "é", "\u200c"]))
def test_what_is_accepted_stays_inside_and_is_accepted_again(text: str) -> None:
    try:
        path = parse(text)
    except PathRefused:
        return
    assert parse(path) == path
    assert why_not(path) is None
    assert not {"", ".", "..", ".git"} & set(path.split("/"))


@pytest.mark.parametrize(
    ("one", "other"),
    [("Straße.md", "STRASSE.md"), ("é", "e\u0301"), ("É/a", "e\u0301/A")],
)
def test_names_that_some_system_cannot_tell_apart_have_one_fold(one: str, other: str) -> None:
    assert fold(one) == fold(other)
    assert parse(one) != parse(other)


def test_within_is_by_names_and_not_by_letters() -> None:
    assert is_within("a/b", "a")
    assert is_within("a", "a")
    assert not is_within("ab", "a")
    assert list(parents("a/b/c")) == ["a/b", "a"]

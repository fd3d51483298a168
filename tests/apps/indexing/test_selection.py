"""Which files of a folder are indexed, and why others are not."""

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.indexing.job import Choice
from penstock.apps.indexing.selection import Selection, kind_of
from penstock.vectors import Walk
from tests.apps.indexing.support import write


def walk(
    folder: Path, *, except_folders: tuple[str, ...] = (), **choice: Any
) -> dict[str, str | None]:
    """Return the files found, by path below the folder, each with the reason to skip it."""
    chosen = Choice(**choice)
    walked = Walk(
        str(folder),
        Selection(chosen),
        recursive=chosen.recursive,
        largest=100,
        except_folders=except_folders,
    )
    return {met.path[len(str(folder)) + 1 :]: met.why_not for met in walked}


def test_documents_are_met_and_code_only_when_asked_for(folder: Path) -> None:
    write(folder, {"a.md": "a", "b/c.txt": "c", "d.py": "d", "e.bin": "e", "f.JS": "f"})
    assert list(walk(folder)) == ["a.md", "b/c.txt"]
    assert list(walk(folder, include_code=True)) == ["a.md", "b/c.txt", "d.py", "f.JS"]
    assert list(walk(folder, include_code=True, languages=("python",))) == [
        "a.md", "b/c.txt", "d.py",
    ]  # fmt: skip


def test_presets_name_all_that_is_met(folder: Path) -> None:
    write(folder, {"a.md": "a", "d.py": "d", "f.js": "f"})
    assert list(walk(folder, types=("python",))) == ["d.py"]
    assert list(walk(folder, types=("python", "docs"))) == ["a.md", "d.py"]


def test_patterns_add_and_leave_out(folder: Path) -> None:
    write(folder, {"a.md": "a", "b.cfg": "b", "sub/c.cfg": "c", "sub/d.md": "d", "old/e.md": "e"})
    assert list(walk(folder, include=("*.cfg",), exclude=("old/", "sub/d.*"))) == [
        "a.md", "b.cfg", "sub/c.cfg",
    ]  # fmt: skip


def test_folder_alone_is_met_without_what_is_below(folder: Path) -> None:
    write(folder, {"a.md": "a", "b/c.md": "c"})
    assert list(walk(folder, recursive=False)) == ["a.md"]


def test_what_is_ignored_is_not_met_and_nearer_rules_win(folder: Path) -> None:
    write(
        folder,
        {
            ".gitignore": "*.txt\nbuild/\n/top.md\n",
            "a.txt": "a",
            "top.md": "t",
            "sub/top.md": "t",
            "build/b.md": "b",
            "sub/.gitignore": "!keep.txt\nd.md\n",
            "sub/keep.txt": "k",
            "sub/c.txt": "c",
            "sub/d.md": "d",
            "sub/deep/keep.txt": "k",
            "d.md": "d",
        },
    )
    assert list(walk(folder)) == ["d.md", "sub/deep/keep.txt", "sub/keep.txt", "sub/top.md"]


def test_rules_of_the_repository_around_hold_below(folder: Path) -> None:
    write(folder, {".git/HEAD": "", ".gitignore": "secret.md\n", "docs/secret.md": "s"})
    write(folder, {"docs/a.md": "a"})
    assert list(walk(folder / "docs")) == ["a.md"]


def test_rules_above_a_folder_that_stands_in_no_repository_do_not_count(folder: Path) -> None:
    write(folder, {".gitignore": "*.md\n", "docs/a.md": "a"})
    assert list(walk(folder / "docs")) == ["a.md"]


def test_folders_of_tools_and_of_the_server_are_not_entered(folder: Path) -> None:
    write(folder, {"node_modules/a.md": "a", ".git/b.md": "b", "data/c.md": "c", "d.md": "d"})
    assert list(walk(folder, except_folders=(str(folder / "data"),))) == ["d.md"]


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside", {"secret.md": "s"})
    write(folder, {"a.md": "a", "sub/b.md": "b"})
    (folder / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "round").symlink_to(folder)
    assert walk(folder) == {"a.md": None, "link.md": "symbolic link", "sub/b.md": None}


def test_unfit_files_are_met_with_the_reason(folder: Path) -> None:
    write(folder, {"large.md": "x" * 101, "small.md": "x" * 100})
    os.mkfifo(folder / "pipe.md")
    assert walk(folder) == {
        "large.md": "larger than 100 bytes",
        "pipe.md": "not a regular file",
        "small.md": None,
    }


def test_files_whose_names_are_not_utf_8_are_met_and_skipped(folder: Path) -> None:
    write(folder, {"a.md": "a", ".gitignore": "ignored*\n"})
    names = (b"caf\xe9.md", b"caf\xe9/b.md", b"caf\xe9.bin", b"ignored\xe9.md")
    write(folder, {os.fsdecode(name): "x" for name in names})
    assert walk(folder) == {
        "a.md": None,
        "caf\\xe9.md": "name is not UTF-8",
        "caf\\xe9/b.md": "name is not UTF-8",
    }


def test_changes_that_concern_a_folder(folder: Path) -> None:
    write(folder, {"sub/a.md": "a"})
    walked = Walk(
        str(folder), Selection(Choice()), largest=100, except_folders=(str(folder / "data"),)
    )
    assert walked.wants(f"{folder}/new.md")
    assert walked.may_lead_to(f"{folder}/sub")
    assert walked.may_lead_to(f"{folder}/gone")
    assert walked.may_lead_to(f"{folder}/sub/.gitignore")
    for path in ("a.bin", "data/a.md", ".git/a.md", "gone.bin"):
        assert not walked.wants(f"{folder}/{path}")
        assert not walked.may_lead_to(f"{folder}/{path}")
    assert not walked.wants(f"{folder}2/a.md")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/p/a.md", "doc"),
        ("/p/a.py", "code"),
        ("/p/test_a.py", "test"),
        ("/p/tests/a.py", "test"),
        ("/p/a.spec.ts", "test"),
        ("/p/tests/a.md", "doc"),
    ],
)
def test_kind_of_a_file(path: str, kind: str) -> None:
    assert kind_of(path) == kind

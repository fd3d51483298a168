"""Test reading and walking of files; the walk with real choices is in the tests of indexing."""

import codecs
import os
from pathlib import Path

import pytest

from penstock.vectors import UnreadableFile, Walk, decode_text, parse_patterns, read_file


class Suffix:
    """Selects files by suffix, and leaves out one folder."""

    def wants(self, path: str) -> bool:
        return path.endswith(".md")

    def leaves_out(self, folder: str) -> bool:
        return folder == "skipped"


def test_content_of_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(b"12345")
    assert read_file(str(file), 5) == b"12345"
    with pytest.raises(UnreadableFile, match="larger than 4 bytes"):
        read_file(str(file), 4)


def test_neither_links_nor_pipes_nor_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "a.md")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing", "."):
        with pytest.raises(UnreadableFile):
            read_file(str(tmp_path / name), 100)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve".encode(), "naïve"),
        (codecs.BOM_UTF8 + b"a", "a"),
        ("naïve".encode("utf-16"), "naïve"),
        ("naïve".encode("cp1252"), "naïve"),
        (b"", ""),
    ],
)
def test_text_is_decoded_whatever_its_encoding(content: bytes, text: str) -> None:
    assert decode_text(content) == text


def test_binary_content_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="binary"):
        decode_text(b"\x7fELF\0\0")


def test_invalid_pattern_is_refused() -> None:
    assert parse_patterns(["*.md", "!b.md"]).match_file("a.md")
    with pytest.raises(ValueError, match="!"):
        parse_patterns(["!"])


def test_walk_honours_filters_rules_and_limits(tmp_path: Path) -> None:
    for name in ("a.md", "large.md", "c.txt", "sub/b.md", "sub/ignored.md", "skipped/d.md"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x" * (200 if name == "large.md" else 10))
    (tmp_path / "sub/.gitignore").write_text("ignored.md\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/e.md").write_text("x")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/f.md").write_text("x")
    (tmp_path / "link.md").symlink_to(tmp_path / "a.md")
    walk = Walk(str(tmp_path), Suffix(), largest=100, except_folders=(str(tmp_path / "data"),))
    found = [(Path(one.path).relative_to(tmp_path).as_posix(), one.why_not) for one in walk]
    assert found == [
        ("a.md", None),
        ("large.md", "larger than 100 bytes"),
        ("link.md", "symbolic link"),
        ("sub/b.md", None),
    ]
    shallow = Walk(str(tmp_path), Suffix(), recursive=False, largest=100)
    assert not any("/sub/" in one.path for one in shallow)
    assert walk.wants(str(tmp_path / "sub/new.md"))
    assert not walk.wants(str(tmp_path / "data/new.md"))
    assert walk.may_lead_to(str(tmp_path / "sub/.gitignore"))

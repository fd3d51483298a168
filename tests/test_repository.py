"""What is in the repository: text, and pictures where pictures belong."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = ("docs/images/",)
KINDS = {".png"}


def is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def is_allowed(name: str, content: bytes) -> bool:
    """Whether a file may be in the repository: no binaries but pictures in their folders."""
    is_picture = name.startswith(PICTURES) and Path(name).suffix in KINDS
    return is_picture or is_text(content)


def test_repository_has_no_binary_files_outside_of_its_pictures() -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"],  # noqa: S607 - the one that is installed
        capture_output=True,
        check=True,
    ).stdout.decode()
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    assert names
    assert [name for name in names if not is_allowed(name, (ROOT / name).read_bytes())] == []


@pytest.mark.parametrize(
    ("name", "content", "allowed"),
    [
        ("tool.whl", b"PK\x03\x04\x00", False),
        ("docs/tool.whl", b"PK\x03\x04\x00", False),
        ("docs/images/tool.whl", b"PK\x03\x04\x00", False),
        ("picture.png", b"\x89PNG\r\n\x1a\n", False),
        ("docs/images/picture.png", b"\x89PNG\r\n\x1a\n", True),
        ("notes.md", "größer".encode(), True),
        ("notes.md", "größer".encode("latin-1"), False),
        ("empty.py", b"", True),
    ],
)
def test_only_text_and_pictures_are_allowed(name: str, content: bytes, *, allowed: bool) -> None:
    assert is_allowed(name, content) is allowed

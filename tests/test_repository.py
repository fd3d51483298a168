"""What is in the repository: text, pictures where pictures belong, tests where a reader looks."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = ("docs/images/",)
KINDS = {".png"}
TESTS = ROOT / "tests"
SOURCE = ROOT / "src" / "penstock"


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


# Names


def test_no_class_name_is_used_twice_in_one_layer() -> None:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        *folders, _ = path.relative_to(SOURCE).parts
        layer = "/".join(folders[: 2 if folders[:1] == ["apps"] else 1])
        for line in path.read_text("utf-8").splitlines():
            if (name := re.match(r"class (\w+)", line)) is not None:
                found[layer, name[1]].append(path.name)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


# Where tests lie

PAGE = ROOT / "docs" / "internals" / "tests.md"


def listed(heading: str) -> set[str]:
    """The names in the first column of the table with this heading, on the page about the tests."""
    _, _, rest = PAGE.read_text("utf-8").partition(f"| {heading} | what it tests |\n")
    table, _, _ = rest.partition("\n\n")
    return set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE))


def strays() -> set[str]:
    """The test files that have no module or folder of the source at the mirrored path."""
    found = set()
    across = listed("folder")
    for path in TESTS.rglob("test_*.py"):
        place = path.relative_to(TESTS)
        if place.parts[0] in across:
            continue
        mirrored = SOURCE / place.parent / path.stem.removeprefix("test_")
        if not any(mirrored.with_suffix(suffix).exists() for suffix in ("", ".py", ".sql")):
            found.add(place.as_posix())
    return found


def test_tests_of_a_module_lie_at_the_mirrored_path_or_are_listed() -> None:
    assert strays() == listed("file"), f"move them, or list them in {PAGE.name}"


def test_folders_of_tests_mirror_the_source_or_are_listed() -> None:
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/test_*.py")}
    assert found - {path.name for path in SOURCE.iterdir()} == listed("folder")


def test_no_test_module_imports_from_another() -> None:
    pattern = re.compile(r"^\s*(?:from|import) tests(?:\.\w+)*\.test_", re.MULTILINE)
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if pattern.search(path.read_text("utf-8"))
    }
    assert found == set()

"""Filters that attributes name: which may run, and which paths have to wait because of one.

A filter that may not run is not left out either: what it keeps secret or large would be committed
as it is.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.repository import Repository

_FILE = ".gitattributes"
_NAMES = re.compile(rb"(?:^|\s)filter=(\S+)", re.MULTILINE)
_NONE = frozenset({b"unspecified", b"unset", b"set"})
_LARGEST = 100 * 1024 * 1024
"""Bytes: git ignores attributes in a larger file."""


def refuse_filters(repository: Repository, folder: Path) -> None:
    """Raise `Permanent` if attributes that hold for a folder name a filter that may not run."""
    for where, content in _attributes(repository, folder):
        for name in _NAMES.findall(_uncommented(content)):
            if why := why_not(repository, os.fsdecode(name)):
                raise Permanent(f"{where}: {why}")


def why_not(repository: Repository, name: str) -> str | None:
    """Why a filter may not run; None if it may."""
    if name in repository.filters:
        return None
    if name in repository.protection.trusted:
        return (
            f"attributes name the filter {name!r}, which is trusted, but the git configuration of "
            f"the server's user has no command for it (filter.{name}.clean)"
        )
    return (
        f"attributes name the filter {name!r}, which the server does not trust; "
        "the setting `trusted_filters` of notebooks lists those that may run"
    )


def waiting(repository: Repository, paths: Iterable[bytes], index: Path) -> dict[bytes, str]:
    """Of paths in a repository, those whose attributes name a filter that may not run, and why."""
    lines = b"".join(path + b"\0" for path in sorted(paths))
    if not lines:
        return {}
    answer = repository.git("check-attr", "--stdin", "-z", "filter", stdin=lines, index=index)
    fields = answer.split(b"\0")[:-1]
    found = {}
    for path, name in zip(fields[::3], fields[2::3], strict=True):
        if name not in _NONE and (why := why_not(repository, os.fsdecode(name))):
            found[path] = why
    return found


def _attributes(repository: Repository, folder: Path) -> Iterator[tuple[str, bytes]]:
    """What is in all attributes that hold in a folder, or below it, with where it is."""
    above = [folder, *(one for one in folder.parents if one.is_relative_to(repository.top))]
    files = [one / _FILE for one in above]
    files += [one for one in _below(folder) if one not in files]
    files += [repository.common / "info/attributes", *_of_machine(repository)]
    for file in files:
        if file.is_file() and not (file.name == _FILE and file.is_symlink()):
            with file.open("rb") as opened:
                yield str(file), opened.read(_LARGEST)
    # git reads those that are committed where they are not in the work tree.
    if (head := repository.head()) is not None:
        listed = repository.git("ls-tree", "-r", "-z", "--full-tree", "--name-only", head)
        for path in map(os.fsdecode, listed.split(b"\0")):
            parent = Path(repository.top, path).parent
            holds = parent in above or parent.is_relative_to(folder)
            if path.rpartition("/")[2] == _FILE and holds:
                yield (
                    f"{path} in commit {head[:10]}",
                    repository.git("cat-file", "blob", f"{head}:{path}"),
                )


def _below(folder: Path) -> Iterator[Path]:
    waiting = [str(folder)]
    while waiting:
        where = waiting.pop()
        try:
            with os.scandir(where) as found:
                entries = list(found)
        except OSError:
            continue  # it has gone, or may not be read
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != ".git":
                    waiting.append(entry.path)
            elif entry.name == _FILE:
                yield Path(where, _FILE)


def _of_machine(repository: Repository) -> Iterator[Path]:
    """The attributes of the machine, and those that the configuration names."""
    listed = repository.git.ask("config", "--type=path", "--get", "core.attributesFile")
    if listed.code == 0:
        yield repository.top / os.fsdecode(listed.out).rstrip("\n")
    elif home := os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME"):
        below = "git/attributes" if os.environ.get("XDG_CONFIG_HOME") else ".config/git/attributes"
        yield Path(home, below)
    system = repository.git.ask("var", "GIT_ATTR_SYSTEM")  # git 2.41 and later
    if system.code == 0:
        yield Path(os.fsdecode(system.out).rstrip("\n"))
    yield Path("/etc/gitattributes")


def _uncommented(content: bytes) -> bytes:
    lines = content.splitlines()
    return b"\n".join(line for line in lines if not line.lstrip().startswith(b"#"))

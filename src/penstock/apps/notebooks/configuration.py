"""The configuration that git works with: derived by the server, never the one that it finds.

git reads its configuration from the common directory of a repository. It is given one of the
server's, in the data folder, with a configuration that holds values from an allow-list, and links
to the data of the repository: objects, refs, and whatever else lies there. Hooks are left out.
People who run git in the folder see one repository, with the configuration that they wrote.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks.errors import Permanent, sorting
from penstock.apps.notebooks.git import Answer, Git, Place

_DATA = frozenset(
    {
        *(f"{who}.{what}" for who in ("user", "author", "committer") for what in ("name", "email")),
        "core.attributesfile",
        "core.autocrlf",
        "core.checkroundtripencoding",
        "core.eol",
        "core.excludesfile",
    }
)
"""Values that say who commits, and what files are like. None of them runs anything."""

_OF_REPOSITORY = _DATA | {
    "core.compression",
    "core.filemode",
    "core.ignorecase",
    "core.logallrefupdates",
    "core.loosecompression",
    "core.precomposeunicode",
    "core.repositoryformatversion",
    "core.sharedrepository",
    "core.symlinks",
    "extensions.objectformat",
    "extensions.refstorage",
}
_EXTENSIONS = frozenset(
    f"extensions.{name}"
    for name in (
        *("noop", "objectformat", "partialclone", "preciousobjects", "refstorage"),
        *("relativeworktrees", "worktreeconfig"),
    )
)
"""What the format of a repository may have; without knowing it, nobody may write there."""

_ATTRIBUTES = "core.attributesfile"
_OWN = frozenset({"config", "config.worktree", "hooks"})
"""What is not taken from a repository."""
_ALWAYS = ("info", "packed-refs", "shallow")
"""Linked to before they are there, because git or somebody else makes them later."""
_FILTER = re.compile(r"filter\.(.+)\.(clean|smudge|process)", re.DOTALL)


class Protection(NamedTuple):
    """What the server decides about git."""

    private: Path
    """Where it keeps what git is to read: in the data folder, out of reach of any notebook."""
    trusted: frozenset[str] = frozenset()
    """Filters that may run."""


class Derived(NamedTuple):
    """What git works with in the place of what it would find."""

    common: Path
    filters: frozenset[str]
    """Filters that are trusted, and for which the server's user has commands."""


def derive(protection: Protection, work_tree: Path, directory: Path, common: Path) -> Derived:
    """Write the configuration that git works with; raises `NotebookError`.

    `directory` and `common` are the ones of the repository. Doing it again, also in another
    process, changes nothing unless the repository or the user's configuration has changed.
    """
    own = _own(protection, work_tree, directory)
    found = _found(common, directory)
    values = {name: own[name] for name in _DATA if name in own}
    values |= {name: found[name] for name in _OF_REPOSITORY if name in found}
    filters = {name: commands for name, commands in _filters(own) if name in protection.trusted}
    key = hashlib.sha256(os.fsencode(common)).hexdigest()[:24]
    folder = protection.private / key
    with sorting(str(folder)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _link(folder, common)
        _write(folder / "config", _text(values, filters))
    return Derived(folder, frozenset(filters))


def signature(common: Path, directory: Path) -> tuple[object, ...]:
    """What changes when the configuration of a repository does, or the repository is replaced."""
    return tuple(
        _stat(one) for one in (directory, common / "config", directory / "config.worktree")
    )


def _stat(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    if file.name.startswith("config"):
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return (found.st_ino,)


# Reading


def _own(protection: Protection, work_tree: Path, directory: Path) -> dict[str, str]:
    """The configuration of the machine and of the server's user, for a repository at this place.

    git reads that of a repository as well: it is given an empty one.
    """
    empty = protection.private / "empty"
    with sorting(str(empty)):
        for name in ("objects", "refs"):
            (empty / name).mkdir(parents=True, exist_ok=True)
        _write(empty / "config", "[core]\n\trepositoryformatversion = 0\n")
    git = Git(Place(work_tree, directory, empty), reads_own_files=True)
    answer = git.ask("config", "--includes", "--show-scope", "--list", "-z")
    if answer.code:
        raise Permanent(f"the git configuration of the server's user: {answer.told}")
    fields = answer.out.split(b"\0")[:-1]
    listed = zip(fields[::2], fields[1::2], strict=True)
    return _pairs(entry for scope, entry in listed if scope in (b"system", b"global"))


def _found(common: Path, directory: Path) -> dict[str, str]:
    """The configuration of a repository, without what it includes."""
    values: dict[str, str] = {}
    for file in (common / "config", directory / "config.worktree"):
        if not file.exists():
            continue
        found = _pairs(_listed(file, "--no-includes").split(b"\0")[:-1])
        if any(name.startswith(("include.", "includeif.")) for name in found):
            # What is included stays out, but for what names attributes: a filter that they name
            # must not be overlooked.
            included = _pairs(_listed(file, "--includes").split(b"\0")[:-1])
            found |= {name: included[name] for name in (_ATTRIBUTES,) if name in included}
        values |= found
    unknown = {name for name in values if name.startswith("extensions.")} - _EXTENSIONS
    if unknown and values.get("core.repositoryformatversion", "0") != "0":
        raise Permanent(f"{str(common)!r} has a format that is not known: {', '.join(unknown)}")
    return values


def _listed(file: Path, includes: str) -> bytes:
    answer: Answer = Git(None).ask("config", "--file", str(file), includes, "--list", "-z")
    if answer.code:
        raise Permanent(f"{str(file)!r} cannot be read: {answer.told}")
    return answer.out


def _pairs(entries: Iterable[bytes]) -> dict[str, str]:
    """Names and values as git lists them; of several values of one name the last counts."""
    pairs = {}
    for entry in entries:
        name, is_valued, value = entry.partition(b"\n")
        pairs[os.fsdecode(name)] = os.fsdecode(value) if is_valued else "true"
    return pairs


def _filters(own: Mapping[str, str]) -> Iterable[tuple[str, dict[str, str]]]:
    """The commands of each filter, both ways; a filter that has only one leaves the other as is."""
    commands: dict[str, dict[str, str]] = {}
    for name, value in own.items():
        if (match := _FILTER.fullmatch(name)) and value:
            commands.setdefault(match[1], {})[match[2]] = value
    for name, given in commands.items():
        yield name, ({} if "process" in given else {"clean": "cat", "smudge": "cat"}) | given


# Writing


def _text(values: Mapping[str, str], filters: Mapping[str, Mapping[str, str]]) -> str:
    lines = ["# Derived by Penstock; changes are overwritten."]
    for name, value in sorted({"core.repositoryformatversion": "0", **values}.items()):
        section, _, key = name.partition(".")
        lines += [f"[{section}]", f"\t{key} = {_quoted(value)}"]
    for name, commands in sorted(filters.items()):
        # A filter that fails must not leave a content as it is.
        lines += [f"[filter {_quoted(name)}]", "\trequired = true"]
        lines += [f"\t{key} = {_quoted(value)}" for key, value in sorted(commands.items())]
    return "\n".join([*lines, ""])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


def _link(folder: Path, common: Path) -> None:
    """Have a link to everything that belongs to a repository and runs nothing."""
    with suppress(OSError):  # or git makes it on our side
        (common / "logs").mkdir(exist_ok=True)
    there = {one.name for one in common.iterdir() if one.suffix != ".lock"}
    wanted = (there - _OWN) | set(_ALWAYS)
    for name in wanted:
        link, target = folder / name, common / name
        is_free = link.is_symlink() or not link.exists()
        if is_free and not (link.is_symlink() and link.readlink() == target):
            made = folder / f"{uuid.uuid4().hex}.new"
            made.symlink_to(target)
            made.replace(link)
    for one in folder.iterdir():
        if one.is_symlink() and one.name not in wanted and one.suffix != ".new":
            one.unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    """Have a text in a file, wholly or not at all; nothing happens if it is there already."""
    with suppress(OSError):
        if file.read_bytes() == os.fsencode(text):
            return
    made = file.with_name(f"{uuid.uuid4().hex}.new")
    made.write_bytes(os.fsencode(text))
    made.replace(file)

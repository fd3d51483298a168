"""The git configuration that the server derives, so that git never reads the one in a repository.

Git reads its configuration from the common directory of a repository. The server gives it another
one, in the data folder: with a configuration of allow-listed values, and links to the data of the
repository (objects, refs and the rest). Hooks are left out. People who run git in the folder see
one repository with the configuration they wrote.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks.errors import Permanent, os_errors
from penstock.apps.notebooks.repository.git import Git, GitOutput, Place

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
"""Values that say who commits and what files look like. None of them runs a program."""

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
"""Known extensions of the repository format; writing to a repository with others may damage it."""

_ATTRIBUTES = "core.attributesfile"
_OWN = frozenset({"config", "config.worktree", "hooks"})
"""Names that are not linked."""
_ALWAYS = ("info", "packed-refs", "shallow")
"""Linked even if they do not exist yet, because git may create them later."""
_FILTER = re.compile(r"filter\.(.+)\.(clean|smudge|process)", re.DOTALL)


class Protection(NamedTuple):
    """What the server decides about git."""

    private: Path
    """A folder in the data folder, out of reach of any notebook, for the files that git reads."""
    trusted: frozenset[str] = frozenset()
    """The filters that may run."""


class Derived(NamedTuple):
    """What git uses in place of a repository's own directory."""

    common: Path
    filters: frozenset[str]
    """The trusted filters for which the server's user has configured commands."""


def derive(protection: Protection, work_tree: Path, directory: Path, common: Path) -> Derived:
    """Write the configuration for git; raises `NotebookError`.

    `directory` and `common` are those of the repository. A second call, even in another process,
    changes nothing unless the repository or the user's configuration has changed.
    """
    own = _own(protection, work_tree, directory)
    found = _found(common, directory)
    values = {name: own[name] for name in _DATA if name in own}
    values |= {name: found[name] for name in _OF_REPOSITORY if name in found}
    filters = {name: commands for name, commands in _filters(own) if name in protection.trusted}
    key = hashlib.sha256(os.fsencode(common)).hexdigest()[:24]
    folder = protection.private / key
    with os_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _link(folder, common)
        _write(folder / "config", _text(values, filters))
    return Derived(folder, frozenset(filters))


def signature(common: Path, directory: Path) -> tuple[object, ...]:
    """Return a value that changes when a repository or its configuration is changed or replaced."""
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
    """Return the configuration of the machine and of the server's user for a repository.

    Git would also read the configuration of the repository, so it gets an empty one.
    """
    empty = protection.private / "empty"
    with os_errors(str(empty)):
        for name in ("objects", "refs"):
            (empty / name).mkdir(parents=True, exist_ok=True)
        _write(empty / "config", "[core]\n\trepositoryformatversion = 0\n")
    git = Git(Place(work_tree, directory, empty), reads_own_files=True)
    answer = git.ask("config", "--includes", "--show-scope", "--list", "-z")
    if answer.code:
        raise Permanent(f"the git configuration of the server's user: {answer.stderr}")
    fields = answer.stdout.split(b"\0")[:-1]
    listed = zip(fields[::2], fields[1::2], strict=True)
    return _pairs(entry for scope, entry in listed if scope in (b"system", b"global"))


def _found(common: Path, directory: Path) -> dict[str, str]:
    """Return the configuration of a repository without its includes."""
    values: dict[str, str] = {}
    for file in (common / "config", directory / "config.worktree"):
        if not file.exists():
            continue
        found = _pairs(_listed(file, "--no-includes").split(b"\0")[:-1])
        if any(name.startswith(("include.", "includeif.")) for name in found):
            # Includes are left out, except for a file of attributes: a filter that it names
            # must not be missed.
            included = _pairs(_listed(file, "--includes").split(b"\0")[:-1])
            found |= {name: included[name] for name in (_ATTRIBUTES,) if name in included}
        values |= found
    unknown = {name for name in values if name.startswith("extensions.")} - _EXTENSIONS
    if unknown and values.get("core.repositoryformatversion", "0") != "0":
        raise Permanent(f"{str(common)!r} has an unknown format: {', '.join(unknown)}")
    return values


def _listed(file: Path, includes: str) -> bytes:
    answer: GitOutput = Git(None).ask("config", "--file", str(file), includes, "--list", "-z")
    if answer.code:
        raise Permanent(f"{str(file)!r} cannot be read: {answer.stderr}")
    return answer.stdout


def _pairs(entries: Iterable[bytes]) -> dict[str, str]:
    """Return names and values as git lists them; the last value of a name wins."""
    pairs = {}
    for entry in entries:
        name, is_valued, value = entry.partition(b"\n")
        pairs[os.fsdecode(name)] = os.fsdecode(value) if is_valued else "true"
    return pairs


def _filters(own: Mapping[str, str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield the commands of each filter; a missing direction passes contents through."""
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
        # If a filter fails, git must not store the content unfiltered.
        lines += [f"[filter {_quoted(name)}]", "\trequired = true"]
        lines += [f"\t{key} = {_quoted(value)}" for key, value in sorted(commands.items())]
    return "\n".join([*lines, ""])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


def _link(folder: Path, common: Path) -> None:
    """Link everything that belongs to a repository and runs nothing."""
    with suppress(OSError):  # otherwise git creates it in our folder
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
    """Write a file atomically, unless it already has that text."""
    with suppress(OSError):
        if file.read_bytes() == os.fsencode(text):
            return
    made = file.with_name(f"{uuid.uuid4().hex}.new")
    made.write_bytes(os.fsencode(text))
    made.replace(file)

"""The repository of a notebook: where it is, and whether it is free for a commit.

It is the notebook's own, in its folder; or one of the user's that the notebook has joined, in its
folder or one above. Where it is was decided when the notebook was added, and is stored: what a
folder contains later makes no difference.
"""

import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from penstock.apps.notebooks.configuration import Protection, derive, signature
from penstock.apps.notebooks.errors import Exists, Missing, Passing, Permanent, sorting
from penstock.apps.notebooks.git import Git, Place
from penstock.apps.notebooks.links import link_within
from penstock.apps.notebooks.paths import STATE

_BUSY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}
_LONGEST = 8_192
_COMMIT = re.compile(r"[0-9a-f]{4,64}")
_POINTER = re.compile(r"gitdir: (.+)", re.DOTALL)
_SHARED = "commondir"
_GIT = ".git"
_READ = ("info/exclude", "info/attributes")
_ALTERNATES = "objects/info/alternates"


class Location(NamedTuple):
    """Where a repository is."""

    top: Path
    """Its work tree; the notebook's folder or one above it."""
    directory: Path
    """What belongs to this work tree: HEAD, the index, and what is in progress."""
    is_joined: bool

    @classmethod
    def own(cls, folder: Path) -> Self:
        """The repository that a notebook has for itself."""
        return cls(folder, folder / _GIT, is_joined=False)

    @classmethod
    def enclosing(cls, folder: Path) -> Self | None:
        """The repository that git would find from a folder; None if there is none.

        As git does, it ends where another file system begins, and does not ask what the folder
        itself may be: files that look like a repository without a work tree are files.
        """
        system = folder.stat().st_dev
        for top in (folder, *folder.parents):
            if top.stat().st_dev != system:
                return None
            if (directory := _directory(top)) is not None:
                return cls(top, directory, is_joined=True)
        return None

    @property
    def problem(self) -> str | None:
        """Why there is no repository to work with at this place; None if there is one."""
        found = self.top / _GIT
        if not os.path.lexists(found):
            return f"there is no repository in {str(self.top)!r} any more"
        if not self.is_joined and not stat.S_ISDIR(found.lstat().st_mode):
            return f"{str(found)!r} is not a folder, so that it is another repository"
        if not self.is_joined and os.path.lexists(found / _SHARED):
            return f"{str(found)!r} leads to another repository"
        if _directory(self.top) != self.directory:
            return f"{str(found)!r} is not the repository {str(self.directory)!r} any more"
        if not self.is_joined and os.path.lexists(found / _ALTERNATES):
            return f"{str(found)!r} takes objects from another repository"
        return self._link()

    def _link(self) -> str | None:
        """Why a link keeps the repository from being used; None if there is none."""
        for name in _READ:
            read = self.common / name
            if read.exists() and not read.is_file():
                return f"{str(read)!r} is not a regular file, and git would wait for it"
        for one in sorted({str(self.directory), str(self.common)}):
            if link := link_within(one):
                return f"{link!r} is a link or no file, and may lead to another repository"
        return None

    @property
    def common(self) -> Path:
        """What all work trees of the repository share: objects, refs, configuration."""
        return _common(self.directory)

    def refuse_if_foreign(self) -> None:
        """Raise `Permanent` if the repository does not know of this work tree.

        A file or a link that leads to a repository somewhere else may have been put there to have
        that one read and written.
        """
        found = self.top / _GIT
        if problem := self._link():
            raise Permanent(f"{problem}: it cannot be joined")
        if stat.S_ISDIR(found.lstat().st_mode):
            return
        if found.is_symlink() or self.top not in self._known_trees():
            raise Permanent(
                f"{str(found)!r} leads to {str(self.directory)!r}, which does not name "
                f"{str(self.top)!r} as its work tree: it cannot be joined"
            )

    def _known_trees(self) -> Iterator[Path]:
        """The work trees that the repository names: of `git worktree`, and of a submodule."""
        if pointer := _text(self.directory / "gitdir"):
            yield (self.directory / pointer).parent.resolve()
        config = ("config", "--no-includes", "--file", str(self.directory / "config"))
        tree = os.fsdecode(Git(None).ask(*config, "--get", "core.worktree").out).rstrip("\n")
        if tree:
            yield (self.directory / tree).resolve()


class Repository(NamedTuple):
    """A repository as one notebook sees it."""

    git: Git
    """In its work tree, so that paths are those of the repository."""
    top: Path
    """Its work tree; the notebook's folder or one above it."""
    prefix: str
    """What stands before a notebook's path in the repository: empty, or folders and a slash."""
    directory: Path
    """Where git keeps what belongs to this work tree: HEAD, the index, and what is in progress."""
    common: Path
    """What all work trees of the repository share."""
    filters: frozenset[str]
    """Filters that may run."""
    protection: Protection
    signature: tuple[object, ...]
    """What changes when the repository has to be opened again."""

    @classmethod
    def open(cls, folder: Path, location: Location, protection: Protection) -> Self:
        """The repository at a place, for the notebook in a folder; raises `Passing`."""
        if problem := location.problem:
            raise Passing(problem)
        top, directory, common = location.top, location.directory, location.common
        before = signature(common, directory)
        derived = derive(protection, top, directory, common)
        prefix = "" if folder == top else f"{folder.relative_to(top)}/"
        git = Git(Place(top, directory, derived.common))
        return cls(git, top, prefix, directory, common, derived.filters, protection, before)

    @classmethod
    def make(cls, folder: Path, protection: Protection) -> Self:
        """A new repository in a folder, without hooks or anything else of a template.

        It is made elsewhere and then put in place, so that a crash leaves none that is half made.
        """
        location = Location.own(folder)
        new = folder / STATE / "trash" / uuid.uuid4().hex / _GIT
        with sorting(str(new)):
            new.parent.mkdir(parents=True)
            words = ("init", "--quiet", "--initial-branch=main", "--template=")
            Git(None)(*words, env={"GIT_DIR": str(new)})
            (new / "logs").mkdir(exist_ok=True)
            _note_made(folder, new, protection)
            if os.path.lexists(location.directory):
                raise Exists(f"{str(folder)!r} has a repository already")
            new.rename(location.directory)
            new.parent.rmdir()
        return cls.open(folder, location, protection)

    @property
    def is_current(self) -> bool:
        """Whether its configuration is still the one that it was opened with."""
        return signature(self.common, self.directory) == self.signature

    def head(self) -> str | None:
        """The commit that the next one follows; None before the first."""
        answer = self.git.ask("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        return None if answer.code else answer.out.decode().strip()

    def head_and_tree(self) -> tuple[str | None, str | None]:
        """The commit that the next one follows, and what is in it; None before the first."""
        answer = self.git.ask("rev-parse", "--quiet", "HEAD^{commit}", "HEAD^{tree}")
        if answer.code:
            return None, None
        head, tree = answer.out.decode().split()
        return head, tree

    def commit_named(self, text: str) -> str:
        """The full id of a commit, of at least four of its letters; raises `Missing`."""
        if not _COMMIT.fullmatch(text):
            raise Missing(f"{text[:80]!r} is not the id of a commit")
        answer = self.git.ask("rev-parse", "--quiet", "--verify", f"{text}^{{commit}}")
        if answer.code:
            raise Missing(f"there is no commit {text}")
        return answer.out.decode().strip()

    def refuse_if_busy(self) -> None:
        """Raises `Passing` while a merge or the like is in progress, which a commit would hurt."""
        for name, what in _BUSY.items():
            if (self.directory / name).exists():
                raise Passing(f"{what} is in progress in {str(self.top)!r}: commits wait for it")

    def index_lock(self) -> Path:
        """The file that is there while somebody writes the index."""
        return self.directory / "index.lock"


def was_made(folder: Path, protection: Protection) -> bool:
    """Whether the repository in a folder was made for a notebook: added again, it is its own still.

    That is noted in the data folder, where nothing that a folder contains can pretend it.
    """
    try:
        found = (folder / _GIT).lstat()
    except OSError:
        return False
    return _text(_note_of(folder, protection)) == str(found.st_ino)


def _note_made(folder: Path, directory: Path, protection: Protection) -> None:
    note = _note_of(folder, protection)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(str(directory.lstat().st_ino))


def _note_of(folder: Path, protection: Protection) -> Path:
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]
    return protection.private / "made" / name


def _directory(top: Path) -> Path | None:
    """The directory that `.git` in a folder is, or leads to; None if that is no repository."""
    found = top / _GIT
    try:
        directory = found
        if stat.S_ISREG(found.stat().st_mode):
            pointer = _POINTER.fullmatch(_text(found) or "")
            if pointer is None:
                return None
            directory = top / pointer[1]
        directory = directory.resolve()
        common = _common(directory)
        is_one = os.path.lexists(directory / "HEAD") and (common / "objects").is_dir()
        return directory if is_one and (common / "refs").is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _common(directory: Path) -> Path:
    """What a work tree of `git worktree` shares with the others; raises `ValueError`."""
    if not os.path.lexists(directory / _SHARED):
        return directory
    common = (directory / (_text(directory / _SHARED) or "")).resolve()
    if directory.parent != common / "worktrees":
        raise ValueError(f"{str(directory)!r} is no work tree of {str(common)!r}")
    return common


def _text(file: Path) -> str | None:
    """What is in a small file; None where there is none, or something else."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return None
        with file.open("rb") as opened:
            return os.fsdecode(opened.read(_LONGEST)).strip("\r\n")
    except OSError:
        return None

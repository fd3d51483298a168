"""The repository that a notebook stands in: where it is, and whether it is free for a commit."""

import os
import re
from pathlib import Path
from typing import NamedTuple, Self

from penstock.apps.notebooks.errors import Missing, Passing, Permanent
from penstock.apps.notebooks.git import Git

_BUSY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}
_COMMIT = re.compile(r"[0-9a-f]{4,64}")
_NOWHERE = ("not a git repository", "must be run in a work tree")


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

    @classmethod
    def find(cls, folder: Path, *, hooks: bool = False) -> Self | None:
        """The repository that a folder stands in; None if it stands in none."""
        git = Git(folder, hooks=hooks)
        answer = git.ask("rev-parse", "--show-toplevel", "--absolute-git-dir", "--show-prefix")
        if answer.code:
            if any(words in answer.told for words in _NOWHERE):
                return None
            raise Permanent(f"{str(folder)!r} is no repository to work with: {answer.told}")
        top, directory, prefix = os.fsdecode(answer.out).split("\n")[:3]
        return cls(Git(Path(top), hooks=hooks), Path(top), prefix, Path(directory))

    @classmethod
    def make(cls, folder: Path) -> Self:
        """A new repository in a folder, without hooks or anything else of a template."""
        Git(folder)("init", "--quiet", "--initial-branch=main", "--template=")
        made = cls.find(folder)
        if made is None:
            raise Permanent(f"{str(folder)!r} could not be made a repository")
        return made

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

    def tidy(self) -> None:
        """Pack what has gathered, if it is time for that; may take minutes."""
        self.git(
            *("-c", "gc.auto=6700", "-c", "gc.autoDetach=false"),
            *("gc", "--auto", "--quiet"),
            timeout=3_600,
        )

"""Reads the history of a notebook: commits, a file as it was, what changed between two."""

import secrets
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.git import failed
from penstock.apps.notebooks.repository import Repository

LONGEST_DIFF = 1_000_000
"""Bytes that a diff has at most; the rest is cut off, and it is said so."""

_FAR_BACK = 1_000
_LONGEST_LOG = 16_000_000
_FIELDS = "%H%x00%cI%x00%an%x00%ae%x00%s"
_RENAMES = ("-M", "-l1000")
_PLAIN = ("--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=all")
"""No program makes a difference readable, and no repository inside is looked into."""


class Entry(NamedTuple):
    """A commit in the history of a file or a notebook."""

    id: str
    at: datetime
    author: str
    email: str
    subject: str
    path: str | None
    """Where the file was then; None in the history of the notebook."""


class Diff(NamedTuple):
    """What changed between two commits."""

    text: str
    is_whole: bool


class History:
    """The history of one notebook; reads only what is inside of it."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._git = repository.git

    def log(self, *, limit: int = 50, after: str | None = None) -> list[Entry]:
        """The newest commits of the notebook first; `after` continues behind a commit."""
        return self._entries(limit, after, (), self._repository.prefix or ".")

    def of(self, path: str, *, limit: int = 50, after: str | None = None) -> list[Entry]:
        """The newest commits of a file first, also from before it was moved.

        `after` is a commit of an earlier answer, and `path` then where the file was in it.
        """
        words = ("--follow", *_RENAMES, "--name-status")
        return self._entries(limit, after, words, self._repository.prefix + path)

    def path_at(self, commit: str, path: str) -> str:
        """Where the file that is at a path now was in a commit, followed through its moves."""
        known = [one for one in self.of(path, limit=_FAR_BACK) if one.path is not None]
        where = known[-1].path if known else None
        for one, older in pairwise(known):
            if one.path != older.path and self._is_in(one.id, commit):
                where = one.path
                break
        return where or path

    def _is_in(self, older: str, commit: str) -> bool:
        """Whether a commit is in the history of another, or is the same."""
        newer = self._repository.commit_named(commit)
        return self._git.ask("merge-base", "--is-ancestor", older, newer).code == 0

    def content(self, commit: str, path: str, *, limit: int) -> tuple[bytes, bool]:
        """A file as it was in a commit: at most so many bytes, and whether these are all."""
        where = f"{self._repository.commit_named(commit)}:{self._repository.prefix}{path}"
        answer, is_whole = self._git.head_of("cat-file", "--filters", where, limit=limit)
        if answer.code:
            raise Missing(f"there is no file {path!r} in commit {commit}")
        return answer.out, is_whole

    def diff(
        self, old: str | None, new: str, path: str | None = None, *, limit: int = LONGEST_DIFF
    ) -> Diff:
        """What changed between two commits, in a file or in the whole notebook.

        Without the older one it is what the newer one changed, also if it is the very first.
        """
        commits = [self._repository.commit_named(one) for one in (old, new) if one is not None]
        inside = self._repository.prefix + (path or "") or "."
        compare = ("diff",) if old is not None else ("show", "--format=", "-m", "--first-parent")
        words = (*compare, "--no-color", *_PLAIN, *_RENAMES)
        answer, is_whole = self._git.head_of(*words, *commits, "--", inside, limit=limit)
        if answer.code:
            raise failed("diff", "")
        return Diff(answer.out.decode(errors="replace"), is_whole)

    def diff_of(self, old: tuple[str, str], new: tuple[str, str]) -> Diff:
        """What changed in a file between two commits, each with where the file was in it."""
        names = [
            f"{self._repository.commit_named(commit)}:{self._repository.prefix}{path}"
            for commit, path in (old, new)
        ]
        if any(self._git.ask("cat-file", "-e", name).code for name in names):
            return self.diff(old[0], new[0], new[1])  # it came or went in between
        words = ("diff", "--no-color", *_PLAIN)
        answer, is_whole = self._git.head_of(*words, *names, limit=LONGEST_DIFF)
        if answer.code:
            raise failed("diff", "")
        return Diff(answer.out.decode(errors="replace"), is_whole)

    def _entries(
        self, limit: int, after: str | None, words: tuple[str, ...], inside: str
    ) -> list[Entry]:
        start = self._repository.head() if after is None else self._repository.commit_named(after)
        if start is None:
            return []
        wanted = limit + (after is not None)
        mark = secrets.token_hex(16)  # nobody can have written it into a message
        answer, _ = self._git.head_of(
            *("log", "-z", "--no-show-signature", *_PLAIN, f"--max-count={wanted}"),
            *(f"--format={mark}{_FIELDS}", *words),
            *(start, "--", inside),
            limit=_LONGEST_LOG,
        )
        if answer.code:
            raise failed("log", "")
        told = answer.out.decode(errors="replace").split(mark)[1:]
        found = [_entry(text) for text in told]
        return [self._inside(one) for one in found if one.id != after][:limit]

    def _inside(self, entry: Entry) -> Entry:
        """An entry as the notebook sees it: with its own path, or none from outside of it."""
        prefix = self._repository.prefix
        if entry.path is None or not entry.path.startswith(prefix):
            return entry._replace(path=None)
        return entry._replace(path=entry.path.removeprefix(prefix))


def _entry(text: str) -> Entry:
    commit, at, author, email, subject, *files = text.split("\0")
    names = [name for name in files if name]
    path = names[-1] if len(names) > 1 else None
    return Entry(commit, datetime.fromisoformat(at), author, email, subject, path)

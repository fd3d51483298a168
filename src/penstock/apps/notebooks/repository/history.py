"""Reads the history of a notebook: commits, earlier contents of a file, and differences."""

import secrets
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from penstock.apps.notebooks.errors import Missing
from penstock.apps.notebooks.repository.git import failed
from penstock.apps.notebooks.repository.repository import Repository

LONGEST_DIFF = 1_000_000
"""In bytes; a longer diff is truncated and marked as such."""

_FAR_BACK = 1_000
_LONGEST_LOG = 16_000_000
_FIELDS = "%H%x00%cI%x00%an%x00%ae%x00%s"
_RENAMES = ("-M", "-l1000")
_PLAIN = ("--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=all")
"""Use no program to make differences readable, and do not look into submodules."""


class LogEntry(NamedTuple):
    """A commit in the history of a file or a notebook."""

    id: str
    at: datetime
    author: str
    email: str
    subject: str
    path: str | None
    """The path of the file in that commit; None in the history of the notebook."""


class Diff(NamedTuple):
    """The difference between two commits."""

    text: str
    is_whole: bool


class History:
    """The history of one notebook, limited to its own folder."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._git = repository.git

    def log(self, *, limit: int = 50, after: str | None = None) -> list[LogEntry]:
        """Return the commits of the notebook, newest first; `after` continues after a commit."""
        return self._entries(limit, after, (), self._repository.prefix or ".")

    def of(self, path: str, *, limit: int = 50, after: str | None = None) -> list[LogEntry]:
        """Return the commits of a file, newest first, including those before it was moved.

        `after` is a commit of an earlier answer, and `path` then the path of the file in it.
        """
        words = ("--follow", *_RENAMES, "--name-status")
        return self._entries(limit, after, words, self._repository.prefix + path)

    def page(self, path: str | None, *, limit: int, after: str | None) -> list[LogEntry]:
        """Return commits of the file at a path, or of the notebook; `after` continues a page."""
        if path is None:
            return self.log(limit=limit, after=after)
        if after is not None:
            path = self.path_at(after, path)
        return self.of(path, limit=limit, after=after)

    def path_at(self, commit: str, path: str) -> str:
        """Return where the file that is now at a path was in a commit, following its moves."""
        known = [one for one in self.of(path, limit=_FAR_BACK) if one.path is not None]
        where = known[-1].path if known else None
        for one, older in pairwise(known):
            if one.path != older.path and self._is_in(one.id, commit):
                where = one.path
                break
        return where or path

    def content_of(self, path: str, commit: str, *, limit: int) -> bytes:
        """Return the file that is at a path now as it was in a commit; raises `Missing`."""
        where = self.path_at(commit, path)
        data, is_whole = self.content(commit, where, limit=limit)
        if not is_whole:
            raise Missing(f"{where!r} is larger than {limit:,} bytes in commit {commit}")
        return data

    def changes_of(
        self, path: str, since: str | None, until: str | None
    ) -> tuple[str | None, str, Diff]:
        """Return what changed in a file between two commits, and these; by default in its last.

        The first commit of a file has no predecessor: all of the file is new in it.
        """
        if since is None or until is None:
            known = self.of(path, limit=_FAR_BACK)
            until = until or (known[0].id if known else None)
            older = [n for n, one in enumerate(known) if until and one.id.startswith(until)]
            if until is None or (since is None and not older):
                raise Missing(f"{path!r} has no such commit")
            if since is None and older[0] + 1 < len(known):
                since = known[older[0] + 1].id
        new = self.path_at(until, path)
        if since is None:
            return None, until, self.diff(None, until, new)
        return since, until, self.diff_of((since, self.path_at(since, path)), (until, new))

    def _is_in(self, older: str, commit: str) -> bool:
        """Whether a commit is an ancestor of another, or the same."""
        newer = self._repository.commit_named(commit)
        return self._git.ask("merge-base", "--is-ancestor", older, newer).code == 0

    def content(self, commit: str, path: str, *, limit: int) -> tuple[bytes, bool]:
        """Return at most `limit` bytes of a file as it was in a commit, and whether that is all."""
        where = f"{self._repository.commit_named(commit)}:{self._repository.prefix}{path}"
        answer, is_whole = self._git.head_of("cat-file", "--filters", where, limit=limit)
        if answer.code:
            raise Missing(f"there is no file {path!r} in commit {commit}")
        return answer.stdout, is_whole

    def diff(
        self, old: str | None, new: str, path: str | None = None, *, limit: int = LONGEST_DIFF
    ) -> Diff:
        """Return what changed between two commits, in a file or in the whole notebook.

        Without `old`, return what the newer commit changed, even if it is the first one.
        """
        commits = [self._repository.commit_named(one) for one in (old, new) if one is not None]
        inside = self._repository.prefix + (path or "") or "."
        compare = ("diff",) if old is not None else ("show", "--format=", "-m", "--first-parent")
        words = (*compare, "--no-color", *_PLAIN, *_RENAMES)
        answer, is_whole = self._git.head_of(*words, *commits, "--", inside, limit=limit)
        if answer.code:
            raise failed("diff", "")
        return Diff(answer.stdout.decode(errors="replace"), is_whole)

    def diff_of(self, old: tuple[str, str], new: tuple[str, str]) -> Diff:
        """Return what changed in a file between two commits, given with the file's path in each."""
        names = [
            f"{self._repository.commit_named(commit)}:{self._repository.prefix}{path}"
            for commit, path in (old, new)
        ]
        if any(self._git.ask("cat-file", "-e", name).code for name in names):
            return self.diff(old[0], new[0], new[1])  # it was created or deleted in between
        words = ("diff", "--no-color", *_PLAIN)
        answer, is_whole = self._git.head_of(*words, *names, limit=LONGEST_DIFF)
        if answer.code:
            raise failed("diff", "")
        return Diff(answer.stdout.decode(errors="replace"), is_whole)

    def _entries(
        self, limit: int, after: str | None, words: tuple[str, ...], inside: str
    ) -> list[LogEntry]:
        start = self._repository.head() if after is None else self._repository.commit_named(after)
        if start is None:
            return []
        wanted = limit + (after is not None)
        mark = secrets.token_hex(16)  # cannot occur in a message
        answer, _ = self._git.head_of(
            *("log", "-z", "--no-show-signature", *_PLAIN, f"--max-count={wanted}"),
            *(f"--format={mark}{_FIELDS}", *words),
            *(start, "--", inside),
            limit=_LONGEST_LOG,
        )
        if answer.code:
            raise failed("log", "")
        parts = answer.stdout.decode(errors="replace").split(mark)[1:]
        found = [_log_entry(text) for text in parts]
        return [self._inside(one) for one in found if one.id != after][:limit]

    def _inside(self, entry: LogEntry) -> LogEntry:
        """Return an entry with its path relative to the notebook; None if it is outside."""
        prefix = self._repository.prefix
        if entry.path is None or not entry.path.startswith(prefix):
            return entry._replace(path=None)
        return entry._replace(path=entry.path.removeprefix(prefix))


def _log_entry(text: str) -> LogEntry:
    commit, at, author, email, subject, *files = text.split("\0")
    names = [name for name in files if name]
    path = names[-1] if len(names) > 1 else None
    return LogEntry(commit, datetime.fromisoformat(at), author, email, subject, path)

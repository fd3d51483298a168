"""Commits changed paths of a notebook, next to whatever people do with the same repository.

The tree of a new commit is built in a separate index, from HEAD and the files on disk at the
changed paths. It does not include what others have staged. Then the index of the repository is
updated, and HEAD is moved unless it has moved meanwhile. A crash in between leaves changes that are
staged but not committed, as after `git add`; the next commit includes them.
"""

import hashlib
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks.disk.backups import Backup
from penstock.apps.notebooks.disk.files import is_regular, open_regular, replace_file
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.errors import NotebookError, Transient
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.repository.entries import (
    HeldPaths,
    IndexEntries,
    committable,
    entries,
    leave_out,
    split_failures,
)
from penstock.apps.notebooks.repository.git import failed
from penstock.apps.notebooks.repository.repository import Repository

_TIMEOUT = 600.0
_TRIES = 5
_PROBE = 65_536
_POLL = 0.05
_LONGEST_NOTE = 200
_INDEX_NOTE = re.compile(rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64})")
_MANY = 50
# Git writes larger objects into a pack and others as separate files: 10,000 small files take
# 0.8 s in one pack and 5.4 s as files. It cannot combine this with flushing files together. For a
# few objects, a pack would only be one more place to search.
_INTO_A_PACK = ("-c", "core.bigFileThreshold=0", "-c", "core.fsyncMethod=fsync")


_IGNORING = "Ignoring path"
"""Git's message about names that it refuses, such as `.GIT`; it goes on without them."""


_LISTED = 20
_SUBJECT = 100


class Action(StrEnum):
    """What a commit does to a file."""

    ADDED = "added"
    UPDATED = "updated"
    MOVED = "moved"
    DELETED = "deleted"


class CommittedChange(NamedTuple):
    """One file in a commit; `source` is where a moved one was."""

    kind: Action
    path: str
    source: str | None = None


_VERBS = {
    Action.ADDED: "Add",
    Action.UPDATED: "Update",
    Action.MOVED: "Move",
    Action.DELETED: "Delete",
}


def message(changes: Sequence[CommittedChange]) -> str:
    """Return the message of a commit: one file by name, many by number and kind with a list."""
    if len(changes) == 1:
        subject = _one(changes[0])
        if len(subject) <= _SUBJECT:
            return f"{subject}\n"
        return f"{_VERBS[changes[0].kind]} a file\n\n{subject}\n"
    counts = [(kind, sum(one.kind is kind for one in changes)) for kind in Action]
    kinds = [f"{count:,} {kind}" for kind, count in counts if count]
    verb = "Change"
    if len(kinds) == 1:
        verb, kinds = _VERBS[changes[0].kind], []
    subject = f"{verb} {len(changes):,} files" + (f": {', '.join(kinds)}" if kinds else "")
    lines = [f"- {_one(change)}" for change in changes[:_LISTED]]
    if len(changes) > _LISTED:
        lines.append(f"- and {len(changes) - _LISTED:,} more")
    return "\n".join([subject, "", *lines, ""])


def _one(change: CommittedChange) -> str:
    if change.source is not None:
        return f"Move {change.source} to {change.path}"
    return f"{_VERBS[change.kind]} {change.path}"


def parsed(names: bytes) -> list[CommittedChange]:
    """Parse the output of `git diff-tree -z --name-status`."""
    fields = iter(names.split(b"\0")[:-1])
    changes = []
    for status in fields:
        path = _text(next(fields))
        match status[:1]:
            case b"A":
                changes.append(CommittedChange(Action.ADDED, path))
            case b"D":
                changes.append(CommittedChange(Action.DELETED, path))
            case b"R":
                changes.append(CommittedChange(Action.MOVED, _text(next(fields)), path))
            case b"C":
                changes.append(CommittedChange(Action.ADDED, _text(next(fields))))
            case _:
                changes.append(CommittedChange(Action.UPDATED, path))
    return changes


def _text(path: bytes) -> str:
    """Return a path for display: a message is UTF-8 in one line, old paths may be neither."""
    text = path.decode(errors="replace")
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


class Identity(NamedTuple):
    """The author and committer of a commit."""

    name: str
    email: str


NOBODY = Identity("Penstock", "penstock@localhost")
"""Used where git has no user configured."""


class Commit(NamedTuple):
    """A commit that was made."""

    id: str
    changes: list[CommittedChange]
    skipped: dict[str, str]
    """Changed paths that are not in the commit, with the reason."""


class Committer:
    """Makes the commits of one notebook, one at a time."""

    def __init__(
        self,
        repository: Repository,
        root: Path,
        *,
        author: Identity | None = None,
        patience: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create a committer.

        `author` defaults to the configured user of git. `patience` limits the wait for the index
        lock.
        """
        self._repository = repository
        self._git = repository.git
        self._root = root
        self._author = author
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._index_note = root / STATE / "brought"
        self.held = HeldPaths()
        """The paths that the last commit had to leave out, with the reason."""

    def commit(
        self,
        paths: Collection[str],
        earlier: Sequence[Mapping[str, Backup]] = (),
        text: str | None = None,
    ) -> Commit | None:
        """Commit what is on disk at these paths; None if HEAD already contains it.

        A path that is gone is deleted; a folder covers everything that is or was below it.
        `earlier` are contents that were at paths before and get commits of their own, in this
        order. Raises `Transient` while the index is locked, or during a merge or the like.
        """
        self._repository.refuse_if_busy()
        for _ in range(_TRIES):
            self._wait_for_the_index()
            head, base = self._repository.head_and_tree()
            self.held = HeldPaths()
            with self._own_index(head) as index:
                base = base or self._tree(index)
                self._take_back(base)
                made = self._build(head, base, index, paths, earlier, text=text)
                if made is None or self._is_moved(head, made):
                    self._index_note.unlink(missing_ok=True)
                    return made
        raise Transient(f"HEAD of {str(self._repository.top)!r} keeps moving")

    # Building the commit

    def _build(
        self,
        head: str | None,
        base: str,
        index: Path,
        paths: Collection[str],
        earlier: Sequence[Mapping[str, Backup]],
        *,
        text: str | None,
    ) -> Commit | None:
        before, last = base, head
        taken: set[bytes] = set()
        for contents in earlier:
            taken |= self._put(contents, index)
            tree = self._tree(index)
            if tree != before:
                last = self._commit_tree(tree, last, message(self._changes(before, tree)))
                before = tree
        found = entries(self._repository, self._root, paths, index, self.held)
        self._stage(found, index)
        self._refuse_if_filtered(taken.union(found.there), index)
        tree = self._tree(index)
        if tree != before:
            changes = self._changes(before, tree)
            last = self._commit_tree(tree, last, text or message(changes))
        else:
            changes = []
        if base != tree:
            replace_file(str(self._index_note), f"{base} {tree}".encode())
        self._update_index(base, tree)
        if last is None or last == head:
            return None
        return Commit(last, changes, self.held.reasons())

    @contextmanager
    def _own_index(self, head: str | None) -> Iterator[Path]:
        index = self._root / STATE / f"index-{uuid.uuid4().hex}"
        try:
            self._git("read-tree", head or "--empty", index=index)
            yield index
        finally:
            index.unlink(missing_ok=True)
            index.with_name(f"{index.name}.lock").unlink(missing_ok=True)

    def _stage(self, found: IndexEntries, index: Path) -> None:
        if found.gone:
            lines = [path + b"\0" for path in sorted(found.gone)]
            words = ("update-index", "--force-remove", "-z", "--stdin")
            self._git(*words, stdin=b"".join(lines), index=index)
        if not found.there:
            return

        ignored = []

        def add(paths: Collection[bytes]) -> None:
            settings = _INTO_A_PACK if len(paths) > _MANY else ()
            words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            lines = b"".join(path + b"\0" for path in sorted(paths))
            answer = self._git.ask(*settings, *words, stdin=lines, index=index, timeout=_TIMEOUT)
            if answer.code:
                raise failed("update-index", answer.stderr)
            if _IGNORING in answer.stderr:
                ignored.append(paths)

        prefix = os.fsencode(self._repository.prefix)
        left_out = split_failures(add, found.there, self._refuse_if_unsound)
        if ignored:
            tracked = set(self._git("ls-files", "-z", index=index).split(b"\0"))
            names = found.there.keys() - tracked - left_out.keys()
            left_out |= dict.fromkeys(names, "git refuses such a name")
        for full, why in left_out.items():
            leave_out(found, prefix, full, why)

    def _refuse_if_unsound(self) -> None:
        """Raise `Transient` if git cannot store anything, for example because the disk is full."""
        file = self._repository.common / "objects" / f"tmp_{uuid.uuid4().hex}"
        try:
            file.write_bytes(bytes(_PROBE))
        except OSError as error:
            raise Transient(f"git cannot store anything: {error}") from error
        finally:
            with suppress(OSError):
                file.unlink()

    def _refuse_if_filtered(self, taken: Collection[bytes], index: Path) -> None:
        """Raise `Transient` if a filter was added meanwhile: it has not run on what was staged."""
        if self._repository.held_by_filters(taken, index):
            raise Transient("attributes changed while files were read")

    def _put(self, contents: Mapping[str, Backup], index: Path) -> set[bytes]:
        """Stage earlier contents of paths; return the paths in the repository."""
        lines: dict[bytes, bytes] = {}
        for path in committable(self._repository, self._root, contents, index, self.held):
            backup = contents[path]
            mode = (
                b"100755 " if _is_executable(Path(backup.file), self._root / path) else b"100644 "
            )
            full = self._repository.prefix + path
            try:
                content = backup.read() if backup.is_shared else backup.open()
            except OSError as error:  # the server has overwritten it
                raise Transient(f"a backup of {path!r} vanished while it was read") from error
            try:
                words = ("hash-object", "-w", f"--path={full}", "--stdin")
                with nullcontext() if isinstance(content, bytes) else content:
                    blob = self._git(*words, stdin=content).strip()
            except Transient as error:
                self._refuse_if_unsound()
                self.held.add(path, str(error))
                continue
            lines[os.fsencode(full)] = mode + blob + b"\t" + os.fsencode(full) + b"\0"
        self._git(
            *("update-index", "--replace", "-z", "--index-info"),
            stdin=b"".join(lines.values()),
            index=index,
        )
        return set(lines)

    def _tree(self, index: Path) -> str:
        return self._git("write-tree", index=index, timeout=_TIMEOUT).decode().strip()

    def _changes(self, before: str, tree: str) -> list[CommittedChange]:
        names = self._git("diff-tree", "-r", "-z", "-M", "-l200", "--name-status", before, tree)
        return parsed(names)

    def _commit_tree(self, tree: str, parent: str | None, text: str) -> str:
        parents = ("-p", parent) if parent else ()
        words = ("commit-tree", tree, *parents, "-F", "-")
        if self._author is None:
            configured = ("-c", "user.useConfigOnly=true")
            answer = self._git.ask(*configured, *words, stdin=text.encode())
            if answer.code == 0:
                return answer.stdout.decode().strip()
        author = self._author or NOBODY
        env = {
            "GIT_AUTHOR_NAME": author.name,
            "GIT_AUTHOR_EMAIL": author.email,
            "GIT_COMMITTER_NAME": author.name,
            "GIT_COMMITTER_EMAIL": author.email,
        }
        return self._git(*words, stdin=text.encode(), env=env).decode().strip()

    # The index of the repository, and HEAD

    def _wait_for_the_index(self) -> None:
        lock = self._repository.index_lock()
        until = self._clock() + self._patience
        while lock.exists():
            if self._clock() >= until:
                raise Transient(f"{str(lock)!r} exists; remove it if no git is running")
            self._sleep(_POLL)

    def _update_index(self, base: str, tree: str) -> None:
        """Apply the changes to the index of the repository, except to what others have staged."""
        if base == tree or self._git.ask("read-tree", "-i", "-m", base, tree).code == 0:
            return
        if self._git("ls-files", "--unmerged"):
            raise Transient(f"there are conflicts in {str(self._repository.top)!r}")
        raw = self._git("diff-index", "--cached", "-z", "--name-only", base)
        staged = set(raw.split(b"\0"))
        changed = self._git("diff-tree", "-r", "-z", "--no-renames", base, tree).split(b"\0")[:-1]
        lines = []
        for about, path in zip(changed[::2], changed[1::2], strict=True):
            _, mode, _, blob, _ = about.split(b" ")
            if path not in staged:
                lines.append(mode + b" " + blob + b"\t" + path + b"\0")
        self._git("update-index", "--replace", "-z", "--index-info", stdin=b"".join(lines))

    def _take_back(self, now: str) -> None:
        """Undo an update of the index for a commit that was never completed.

        Otherwise it would look like changes that others have staged, and stay there.
        """
        try:
            with os.fdopen(open_regular(str(self._index_note)), "rb") as file:
                noted = _INDEX_NOTE.fullmatch(file.read(_LONGEST_NOTE))
        except FileNotFoundError:
            return
        except OSError:
            noted = None
        if noted is None:  # a text of somebody else might be an option of git
            self._index_note.unlink()
            return
        base, tree = noted[1].decode(), noted[2].decode()
        if tree != now:
            self._update_index(tree, base)
        self._index_note.unlink()

    def _is_moved(self, head: str | None, made: Commit) -> bool:
        subject = f"commit: {len(made.changes)} files of a notebook"
        answer = self._git.ask("update-ref", "-m", subject, "HEAD", made.id, head or "")
        if answer.code == 0:
            return True
        if self._repository.head() == head:
            raise failed("update-ref", answer.stderr)
        return False  # somebody else has committed: build the commit again on top of that


def _is_executable(*files: Path) -> bool:
    return any(is_regular(str(file)) and file.lstat().st_mode & stat.S_IXUSR for file in files)


def commit_changes(
    tree: Tree,
    committer: Committer,
    paths: Collection[str],
    *,
    own_hash: Callable[[str], str | None] = lambda _: None,
    unfinished: Collection[str] = (),
    text: str | None = None,
) -> Commit | None:
    """Commit changed paths and the backups of what was at them; None if nothing changed.

    `own_hash` returns the hash of a file that is as the server wrote it, without reading it.
    Backups of `unfinished` contents stay: they tell whether those contents were put in place.
    Repeating this after a crash commits nothing twice, because what HEAD contains makes no commit.
    """
    backups = {path: tree.backups.of(path) for path in paths}
    displaced = tree.backups.displaced()
    backups |= {path: found for path, found in displaced.items() if path not in backups}
    backups = {
        path: [one for one in found if one.staged not in unfinished]
        for path, found in backups.items()
    }
    if not backups:
        return None

    def digest_of(path: str) -> str | None:
        return own_hash(path) or _digest(tree, path)

    commit = committer.commit(list(backups), _rounds(backups, digest_of), text)
    held = committer.held.lasting()  # backups of held paths stay until those are committed
    tree.backups.drop([one for path, found in backups.items() if path not in held for one in found])
    return commit


def _digest(tree: Tree, path: str) -> str | None:
    try:
        with tree.open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (NotebookError, OSError):
        return None


def _rounds(
    backups: Mapping[str, Sequence[Backup]], digest_of: Callable[[str], str | None]
) -> list[dict[str, Backup]]:
    """Return the contents that need commits of their own to be in history, one dict per commit."""
    lost: dict[str, list[Backup]] = {}
    for path, found in backups.items():
        digest = digest_of(path) if found else None
        if others := [one for one in found if one.hash != digest]:
            lost[path] = others
    if lost:
        elsewhere = {digest_of(path) for path in backups}
        lost = {
            path: [one for one in found if one.hash not in elsewhere]
            for path, found in lost.items()
        }
    rounds: list[dict[str, Backup]] = []
    for path, found in lost.items():
        for n, one in enumerate(found):
            if n == len(rounds):
                rounds.append({})
            rounds[n][path] = one
    return rounds

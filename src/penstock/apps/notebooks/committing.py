"""Commits changed paths of a notebook, beside whatever people do with the same repository.

The tree of the new commit is put together in an index of our own, from HEAD and what is on the disk
at the changed paths; what others have staged is not in it. Then the index of the repository is
brought along, and HEAD is moved if it has not moved meanwhile. A crash in between leaves changes
that are staged and not committed, as after `git add`; the next commit takes them.
"""

import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks import attributes
from penstock.apps.notebooks.errors import Passing
from penstock.apps.notebooks.git import failed
from penstock.apps.notebooks.keeping import Kept
from penstock.apps.notebooks.messages import Change, message, parsed
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.plain import is_plain, open_plain, replace_file
from penstock.apps.notebooks.repository import Repository
from penstock.apps.notebooks.staging import (
    Entries,
    Held,
    acceptable,
    each,
    entries,
    leave_out,
)

_TIMEOUT = 600.0
_TRIES = 5
_PROBE = 65_536
_LOOK_AGAIN = 0.05
_LONGEST_NOTE = 200
_BROUGHT = re.compile(rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64})")
_MANY = 50
# git writes what is larger than this into a pack, and all else as a file of its own: 10,000 small
# files take 0.8 s in one pack and 5.4 s as files. It cannot do that and flush files together. For a
# few, a pack would be one more place to look at.
_INTO_A_PACK = ("-c", "core.bigFileThreshold=0", "-c", "core.fsyncMethod=fsync")


_IGNORING = "Ignoring path"
"""What git says of names that it refuses, such as `.GIT`; it goes on without them."""


class Author(NamedTuple):
    """Who a commit is by."""

    name: str
    email: str


NOBODY = Author("Penstock", "penstock@localhost")
"""Whose commits they are where nobody is configured."""


class Commit(NamedTuple):
    """A commit that was made."""

    id: str
    changes: list[Change]
    skipped: dict[str, str]
    """Changed paths that are in no commit, and why."""


class Committer:
    """Makes the commits of one notebook; one at a time."""

    def __init__(
        self,
        repository: Repository,
        root: Path,
        *,
        author: Author | None = None,
        patience: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`author` is by default who git is configured for. `patience` is for a locked index."""
        self._repository = repository
        self._git = repository.git
        self._root = root
        self._author = author
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._brought = root / STATE / "brought"
        self.held = Held()
        """The paths of the last commit that git could not have, and why."""

    def commit(
        self,
        paths: Collection[str],
        earlier: Sequence[Mapping[str, Kept]] = (),
        text: str | None = None,
    ) -> Commit | None:
        """Commit what is on the disk at these paths now; None if that is what HEAD has already.

        A path that is gone is deleted, a folder stands for all that is or was below it. `earlier`
        are contents that were at paths before, to be commits of their own, in this order. Raises
        `Passing` while the index is locked, or a merge or the like is in progress.
        """
        self._repository.refuse_if_busy()
        for _ in range(_TRIES):
            self._wait_for_the_index()
            head, base = self._repository.head_and_tree()
            self.held = Held()
            with self._own_index(head) as index:
                base = base or self._tree(index)
                self._take_back(base)
                made = self._made(head, base, index, paths, earlier, text=text)
                if made is None or self._is_moved(head, made):
                    self._brought.unlink(missing_ok=True)
                    return made
        raise Passing(f"HEAD of {str(self._repository.top)!r} moved again and again")

    # Putting together

    def _made(
        self,
        head: str | None,
        base: str,
        index: Path,
        paths: Collection[str],
        earlier: Sequence[Mapping[str, Kept]],
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
            replace_file(str(self._brought), f"{base} {tree}".encode())
        self._bring_along(base, tree)
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

    def _stage(self, found: Entries, index: Path) -> None:
        if found.gone:
            lines = [path + b"\0" for path in sorted(found.gone)]
            removing = ("update-index", "--force-remove", "-z", "--stdin")
            self._git(*removing, stdin=b"".join(lines), index=index)
        if not found.there:
            return

        ignored = []

        def add(paths: Collection[bytes]) -> None:
            settings = _INTO_A_PACK if len(paths) > _MANY else ()
            words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            lines = b"".join(path + b"\0" for path in sorted(paths))
            answer = self._git.ask(*settings, *words, stdin=lines, index=index, timeout=_TIMEOUT)
            if answer.code:
                raise failed("update-index", answer.told)
            if _IGNORING in answer.told:
                ignored.append(paths)

        prefix = os.fsencode(self._repository.prefix)
        left_out = each(add, found.there, self._refuse_if_unsound)
        if ignored:
            tracked = set(self._git("ls-files", "-z", index=index).split(b"\0"))
            names = found.there.keys() - tracked - left_out.keys()
            left_out |= dict.fromkeys(names, "git refuses such a name")
        for full, why in left_out.items():
            leave_out(found, prefix, full, why)

    def _refuse_if_unsound(self) -> None:
        """Raise `Passing` where nothing can be stored, whatever it is: a full disk, or the like."""
        file = self._repository.common / "objects" / f"tmp_{uuid.uuid4().hex}"
        try:
            file.write_bytes(bytes(_PROBE))
        except OSError as error:
            raise Passing(f"git cannot store anything: {error}") from error
        finally:
            with suppress(OSError):
                file.unlink()

    def _refuse_if_filtered(self, taken: Collection[bytes], index: Path) -> None:
        """Raise `Passing` if a filter was named meanwhile: it has not run on what was taken."""
        if attributes.waiting(self._repository, taken, index):
            raise Passing("attributes have changed while files were read")

    def _put(self, contents: Mapping[str, Kept], index: Path) -> set[bytes]:
        """Stage contents that were at paths; answers with the paths in the repository."""
        lines: dict[bytes, bytes] = {}
        for path in acceptable(self._repository, self._root, contents, index, self.held):
            kept = contents[path]
            mode = b"100755 " if _is_executable(Path(kept.file), self._root / path) else b"100644 "
            full = self._repository.prefix + path
            try:
                content = kept.read() if kept.is_shared else kept.open()
            except OSError as error:  # it was overwritten by the server meanwhile
                raise Passing(f"an earlier content of {path!r} went while it was read") from error
            try:
                words = ("hash-object", "-w", f"--path={full}", "--stdin")
                with nullcontext() if isinstance(content, bytes) else content:
                    blob = self._git(*words, stdin=content).strip()
            except Passing as error:
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

    def _changes(self, before: str, tree: str) -> list[Change]:
        names = self._git("diff-tree", "-r", "-z", "-M", "-l200", "--name-status", before, tree)
        return parsed(names)

    def _commit_tree(self, tree: str, parent: str | None, text: str) -> str:
        parents = ("-p", parent) if parent else ()
        words = ("commit-tree", tree, *parents, "-F", "-")
        if self._author is None:
            configured = ("-c", "user.useConfigOnly=true")
            answer = self._git.ask(*configured, *words, stdin=text.encode())
            if answer.code == 0:
                return answer.out.decode().strip()
        author = self._author or NOBODY
        env = {
            "GIT_AUTHOR_NAME": author.name,
            "GIT_AUTHOR_EMAIL": author.email,
            "GIT_COMMITTER_NAME": author.name,
            "GIT_COMMITTER_EMAIL": author.email,
        }
        return self._git(*words, stdin=text.encode(), env=env).decode().strip()

    # The repository's own index, and HEAD

    def _wait_for_the_index(self) -> None:
        lock = self._repository.index_lock()
        until = self._clock() + self._patience
        while lock.exists():
            if self._clock() >= until:
                raise Passing(f"{str(lock)!r} is there; remove it if no git is running")
            self._sleep(_LOOK_AGAIN)

    def _bring_along(self, base: str, tree: str) -> None:
        """Have the changes in the repository's index, but leave what others have staged there."""
        if base == tree or self._git.ask("read-tree", "-i", "-m", base, tree).code == 0:
            return
        if self._git("ls-files", "--unmerged"):
            raise Passing(f"there are conflicts in {str(self._repository.top)!r}")
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
        """Undo in the index what was brought along for a commit that never came.

        Otherwise it would be taken for what others have staged, and stay there.
        """
        try:
            with os.fdopen(open_plain(str(self._brought)), "rb") as file:
                noted = _BROUGHT.fullmatch(file.read(_LONGEST_NOTE))
        except FileNotFoundError:
            return
        except OSError:
            noted = None
        if noted is None:  # a word of somebody else might be an option of git
            self._brought.unlink()
            return
        base, tree = noted[1].decode(), noted[2].decode()
        if tree != now:
            self._bring_along(tree, base)
        self._brought.unlink()

    def _is_moved(self, head: str | None, made: Commit) -> bool:
        subject = f"commit: {len(made.changes)} files of a notebook"
        answer = self._git.ask("update-ref", "-m", subject, "HEAD", made.id, head or "")
        if answer.code == 0:
            return True
        if self._repository.head() == head:
            raise failed("update-ref", answer.told)
        return False  # somebody else has committed: put it together again, on top of that


def _is_executable(*files: Path) -> bool:
    return any(is_plain(str(file)) and file.lstat().st_mode & stat.S_IXUSR for file in files)

import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.apps.notebooks import flushing
from penstock.apps.notebooks.batcher import Pending
from penstock.apps.notebooks.configuration import Protection
from penstock.apps.notebooks.files import Facts, Staged, Tree
from penstock.apps.notebooks.placing import Placer
from penstock.apps.notebooks.repository import Location, Repository

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_AUTHOR_NAME": "Person",
    "GIT_AUTHOR_EMAIL": "person@example.org",
    "GIT_COMMITTER_NAME": "Person",
    "GIT_COMMITTER_EMAIL": "person@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder: Path, *words: str) -> str:
    """What a person does with git."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words],  # noqa: S607 - the one that is installed
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(root: Path, path: str, content: str) -> None:
    """What a person does with an editor that writes in place."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def save_in_place(file: Path, text: str) -> None:
    """What simple editors do, and shells."""
    file.write_text(text)


def save_as_another(file: Path, text: str) -> None:
    """What editors do that never want to have half a file."""
    draft = file.with_name(f"{file.name}.tmp")
    draft.write_text(text)
    draft.replace(file)


def save_with_a_copy(file: Path, text: str) -> None:
    """What vim does."""
    copy = file.with_name(f"{file.name}~")
    file.rename(copy)
    file.write_text(text)
    copy.unlink()


Save = Callable[[Path, str], None]
SAVES: Sequence[Save] = (save_in_place, save_as_another, save_with_a_copy)
"""The ways in which people save a file."""


def protection_for(root: Path, *trusted: str) -> Protection:
    """What a server decides about git, for a notebook that has none."""
    return Protection(root.parent / f"{root.name}-private", frozenset(trusted))


def opened(root: Path, *trusted: str) -> Repository:
    """The repository that a folder is, or lies in, with these filters trusted."""
    location = Location.enclosing(root)
    assert location is not None
    return Repository.open(root, location, protection_for(root, *trusted))


class Noted:
    """Pending paths in memory, as the tables of a store have them."""

    def __init__(self) -> None:
        self.paths: dict[str, Pending] = {}
        self._mark = 0

    def add(self, *paths: str, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        for path in paths:
            self._mark += 1
            since = self.paths[path].since if path in self.paths else at
            self.paths[path] = Pending(path, since, self._mark)

    def all(self) -> Sequence[Pending]:
        return list(self.paths.values())

    def forget(self, committed: Collection[Pending]) -> None:
        for one in committed:
            if self.paths.get(one.path) == one:
                del self.paths[one.path]


def place(
    tree: Tree, staged: Staged, path: str, *, known: str | None = None, keep: bool = True
) -> Facts:
    """Put one content in place, durably."""
    with Placer(tree, keep=keep) as placer:
        facts = placer.place(staged, path, known=known)
        placer.flush()
    return facts


def flushes(monkeypatch: pytest.MonkeyPatch, *, has_call: bool) -> list[int]:
    """What is flushed from now on, on a system that has a call for all, or has not."""
    flushed: list[int] = []

    def flush(handle: int) -> int:
        flushed.append(handle)
        return 0

    monkeypatch.setattr(flushing, "_syncfs", flush if has_call else None)
    monkeypatch.setattr(os, "fsync", flush)
    return flushed

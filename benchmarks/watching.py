"""The watcher of notebooks: how soon it sees many files, and what it costs when nothing happens."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.apps.notebooks.disk.scan import Difference, KnownFile
from penstock.apps.notebooks.disk.tree import Tree
from penstock.apps.notebooks.disk.watcher import Watcher
from penstock.apps.notebooks.paths import is_within
from penstock.apps.notebooks.repository.commits import Committer
from penstock.apps.notebooks.repository.configuration import Protection
from penstock.apps.notebooks.repository.repository import Repository

_DEADLINE = 120.0


class Copied(NamedTuple):
    """What became of files that were copied into a notebook."""

    files: int
    seen: int
    after_start: float
    """Seconds from the start of the copy until all were seen."""
    after_end: float
    """Seconds from its end."""


class _Known:
    """What is known, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, KnownFile] = {}
        self.told = asyncio.Event()

    def below(self, paths: Collection[str]) -> Iterable[KnownFile]:
        if "" in paths:
            return list(self.files.values())
        exact = [self.files[path] for path in paths if path in self.files]
        folders = [path for path in paths if path not in self.files]
        return exact + [
            one for one in self.files.values() if any(is_within(one.path, f) for f in folders)
        ]

    def with_hashes(self, hashes: Collection[str]) -> Iterable[KnownFile]:
        return [one for one in self.files.values() if one.hash in hashes]

    async def handle(self, found: list[Difference]) -> None:
        for one in found:
            if one.facts is not None:
                about = one.facts
                self.files[one.path] = KnownFile(
                    len(self.files), one.path, about.size, about.mtime_ns, about.inode, about.hash
                )
        self.told.set()


@asynccontextmanager
async def _watched(tree: Tree) -> AsyncIterator[_Known]:
    known = _Known()
    watcher = Watcher(tree, known, known.handle)
    task = asyncio.create_task(watcher.run())
    try:
        while watcher.scans < 2:  # the second is when the system tells of changes
            await asyncio.wait([task], timeout=0.05)
        yield known
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _made(folder: Path, files: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(files):
        place = folder / f"{n % 10}" / f"{n % 100}"
        if n < 100:
            place.mkdir(parents=True, exist_ok=True)
        (place / f"{n}.md").write_text(f"# Note {n}\n" + "Some text of a note.\n" * 10)


async def _copied(files: int) -> Copied:
    with tempfile.TemporaryDirectory() as folder:
        source, root = Path(folder, "source"), Path(folder, "notebook")
        _made(source, files)
        _made(root, 0)
        async with _watched(Tree(root).prepare()) as known:
            start = time.perf_counter()
            copying = await asyncio.create_subprocess_exec("cp", "-r", source, root / "copy")
            await copying.wait()
            end = time.perf_counter()
            while len(known.files) < files and time.perf_counter() < end + _DEADLINE:
                known.told.clear()
                await asyncio.wait([asyncio.ensure_future(known.told.wait())], timeout=1)
            now = time.perf_counter()
            return Copied(files, len(known.files), now - start, now - end)


async def _idle(seconds: float, files: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _made(root, files)
        async with _watched(Tree(root).prepare()):
            await asyncio.sleep(3)  # what has just begun is over then
            start, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(seconds)
            return (time.process_time() - used) / (time.perf_counter() - start)


def copied(files: int = 10_000) -> Copied:
    """Copy a tree into a watched notebook."""
    return asyncio.run(_copied(files))


def idle(seconds: float = 30, files: int = 10_000) -> float:
    """The part of a core that a watcher of so many files takes when nothing happens."""
    return asyncio.run(_idle(seconds, files))


def committed(files: int = 10_000) -> tuple[float, float]:
    """Seconds for the commit of so many new files, and for that of their move."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "notebook")
        root.mkdir()
        tree = Tree(root).prepare()
        _made(root / "notes", files)
        committer = Committer(Repository.make(root, Protection(root.parent / "git")), root)
        start = time.perf_counter()
        committer.commit(["notes"])
        middle = time.perf_counter()
        tree.move("notes", "moved")
        committer.commit(["notes", "moved"])
        return middle - start, time.perf_counter() - middle


if __name__ == "__main__":
    seen = copied()
    print(f"{seen.seen:,} of {seen.files:,} copied files seen after {seen.after_start:.1f} s")
    print(f"  {seen.after_end:.1f} s after the end of the copy")
    print(f"idle: {idle():.2%} of a core")
    first, moved = committed()
    print(f"commit of 10,000 files: {first:.1f} s; of their move: {moved:.1f} s")

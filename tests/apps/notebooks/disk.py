"""The files of a notebook as they are on disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its path in the notebook, in order; what git does beside it is left out."""
    for folder, inside, names in os.walk(root):
        # Git makes and removes folders of its own while this looks.
        inside[:] = sorted(name for name in inside if name not in {".git", ".penstock"})
        for name in sorted(names):
            yield str(Path(folder, name).relative_to(root)), Path(folder, name)


@contextmanager
def deep_in(folder: Path, depth: int, *, is_filled: bool = True) -> Iterator[None]:
    """Inside the block, folders `d` in each other, the last with a file: deeper than a path can be.

    They go at the end: Python cannot remove them with its own means.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    if is_filled:
        os.close(os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)
    try:
        yield
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder / "d")], check=True)

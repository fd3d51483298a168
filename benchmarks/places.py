"""Where runs take place: each has an empty place of its own, which is removed after it."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

Fresh = Callable[[], AbstractContextManager[Path]]
"""Makes the place of one run."""

Ground = Callable[[Path], AbstractContextManager[Fresh]]
"""Prepares, below a folder, what all places of a suite need."""


@contextmanager
def folders(below: Path) -> Iterator[Fresh]:
    """Places that are folders and nothing else."""
    yield partial(folder, below)


@contextmanager
def folder(below: Path) -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=below) as name:
        yield Path(name)

"""Where runs take place: each has an empty place of its own."""

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
    """Places that are folders and nothing else, and are removed after their runs."""
    yield partial(folder, below)


@contextmanager
def lasting_folders(below: Path) -> Iterator[Fresh]:
    """The same, and all are removed at the end.

    For minutes after many files were removed ext4 makes new ones slowly, and the next run would be
    measured with that.
    """
    with folder(below) as all_of_them:

        @contextmanager
        def fresh() -> Iterator[Path]:
            yield Path(tempfile.mkdtemp(dir=all_of_them))

        yield fresh


@contextmanager
def folder(below: Path) -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=below) as name:
        yield Path(name)

"""The files of a notebook as they are on disk."""

import os
from collections.abc import Iterator
from pathlib import Path


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its path in the notebook, in order; what git does beside it is left out."""
    for folder, inside, names in os.walk(root):
        # Git makes and removes folders of its own while this looks.
        inside[:] = sorted(name for name in inside if name not in {".git", ".penstock"})
        for name in sorted(names):
            yield str(Path(folder, name).relative_to(root)), Path(folder, name)

"""Which files may be read: those below the folders that the settings name."""

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.apps.ingest.payloads import is_under
from penstock.apps.ingest.writing import Rejected


class Roots:
    """The folders that may be read from, as they really are: links do not lead out of them."""

    def __init__(self, roots: Sequence[str], besides: Path) -> None:
        """`besides` is the folder of what the server keeps; it is never read from."""
        self.roots = tuple(os.path.realpath(root) for root in roots or (str(Path.cwd()),))
        self.besides = os.path.realpath(besides)

    def admit(self, path: str) -> None:
        """Raise `Rejected` for a path that may not be read."""
        real = os.path.realpath(path)
        if any(real == root or is_under(real, root) for root in self.roots):
            if real != self.besides and not is_under(real, self.besides):
                return
            raise Rejected(f"{path} lies in the server's own folder")
        raise Rejected(
            f"{path} lies in none of the folders that may be read: {', '.join(self.roots)}; "
            "PENSTOCK_INGEST_ROOTS names others"
        )

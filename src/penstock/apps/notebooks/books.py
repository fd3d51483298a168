"""Notebooks that this process works on: one process has a notebook at a time."""

import asyncio
import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from penstock.apps.notebooks.errors import Permanent
from penstock.apps.notebooks.files import Tree
from penstock.apps.notebooks.paths import STATE
from penstock.apps.notebooks.tables import Notebook


class Taken(Permanent):
    """Another process works on the notebook."""


class Book:
    """A notebook that this process has for itself."""

    def __init__(self, notebook: Notebook) -> None:
        """Take it; raises `Taken`."""
        self.id = notebook.id
        self.name = notebook.name
        self.git = notebook.git
        self.settings = notebook.settings
        self.tree = Tree(Path(notebook.path)).prepare()
        self._lock = lock(self.tree.root, notebook.name)
        self.committing = asyncio.Lock()

    def close(self) -> None:
        """Let others have it."""
        self._lock.close()


def lock(root: Path, name: str) -> IO[str]:
    """A lock on a notebook, held until it is closed or the process ends; raises `Taken`."""
    file = (root / STATE / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip() or "an unknown process"
        file.close()
        raise Taken(
            f"another server works on notebook {name!r} in {root}: {holder}; stop it, or serve the "
            "notebook there"
        ) from None
    except BaseException:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file

"""Reloading a worker: the files whose changes matter, and the jobs of a process that was stopped.

The files are polled. A library that is notified of changes has threads, and the process that
watches forks: a fork copies the locks that other threads hold at that moment, but not the threads.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.job import Lease
from penstock.core.lifecycle import Snoozed
from penstock.engine.penstock import Penstock

_log = logging.getLogger("penstock.worker")

# Looking for changes takes at most this share of the time.
_SHARE = 0.1
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceFiles:
    """The Python files below a folder, other than hidden ones and those of virtual environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0.0
        self._seen = self._look()

    def changed(self) -> str | None:
        """Return a file that was changed, added or removed since the last look, or None."""
        if time.monotonic() < self._next:
            return None
        before, self._seen = self._seen, self._look()
        different = before.items() ^ self._seen.items()
        return min(path for path, _ in different) if different else None

    def _look(self) -> dict[str, tuple[int, int]]:
        began = time.monotonic()
        found = dict(self._files())
        now = time.monotonic()
        self._next = now + (now - began) / _SHARE
        return found

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, folders, files in os.walk(self._folder):
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [one for one in folders if one not in _SKIPPED and one[0] != "."]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 - thousands of them
                    with suppress(OSError):  # removed meanwhile
                        status = os.stat(path)  # noqa: PTH116 - as above
                        relative = os.path.relpath(path, self._folder)
                        yield relative, (status.st_mtime_ns, status.st_size)


class _Left(msgspec.Struct):
    """The jobs that a process held when it ended."""

    store: str
    leases: list[Lease]


class Handover:
    """Passes the jobs that a process could not stop on to the process that replaces it.

    A process cannot release them itself: its threads may still run them until it has ended. It is
    a file without a name, which processes inherit: it has room for any number of jobs.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the processes live

    def leave(self, store: str, leases: Sequence[Lease]) -> None:
        """Leave these jobs; safe in any thread, as the last act of a process."""
        if leases:
            os.ftruncate(self._file.fileno(), 0)
            os.pwrite(self._file.fileno(), msgspec.json.encode(_Left(store, list(leases))), 0)

    async def release(self) -> None:
        """Return the jobs that were left to their queues; the attempts do not count."""
        descriptor = self._file.fileno()
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        if not text:
            return
        left = msgspec.json.decode(text, type=_Left)
        outcome = Snoozed(reason="the worker was reloaded")
        try:
            async with Penstock(left.store, create=False) as app:
                held = [(lease, outcome) for lease in left.leases]
                settled = await app.leases.settle_held(held, refuse=False)
        except PenstockError as error:
            _log.warning("jobs were not released, and run when their leases expire: %s", error)
            return
        os.ftruncate(descriptor, 0)
        for job in settled:
            if job is not None:
                _log.info("job %d (%s) did not stop in time and is released", job.id, job.task)

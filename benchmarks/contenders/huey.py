"""huey with SqliteHuey and its real consumer, in this process."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from huey import SqliteHuey

from benchmarks.contenders import Handle, Payload

WORKERS = 1
"""Threads contend for SQLite's one write lock. Jobs/s with 1, 2, 3, 4 workers, medians of five
interleaved runs: 10,700, 5,100, 4,600, 4,200 with fsync off; 1,400, 800, 800, 1,000 durable, on a
busy disk, where single runs overlapped."""

POLL_SECONDS = 0.01
"""huey polls; its own default is ten times slower."""


class HueyQueue:
    """Durable: every commit waits for the disk. No bulk call."""

    fsync = True

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "huey.db")
        self._huey = SqliteHuey(filename=self._file, fsync=self.fsync, results=False)
        self._handle: Handle
        self._enough = threading.Event()
        self._noop = self._huey.task(name="noop")(self._run)

    def _run(self, data: Payload) -> None:
        if not self._handle(data):
            self._enough.set()

    def enqueue(self, payload: Payload) -> None:
        self._noop(payload)

    def fill(self, payloads: Sequence[Payload]) -> None:
        quick = SqliteHuey(filename=self._file, fsync=False, results=False)
        noop = quick.task(name="noop")(self._run)
        for payload in payloads:
            noop(payload)
        quick.storage.close()

    def drain(self, handle: Handle) -> None:
        self.serve(handle)

    def serve(self, handle: Handle) -> None:
        self._handle = handle
        self._work(self._enough.wait)

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        self._handle = handle

        def wait() -> None:
            while not is_over():
                time.sleep(POLL_SECONDS)

        self._work(wait)

    def _work(self, wait: Callable[[], object]) -> None:
        consumer = self._huey.create_consumer(
            workers=WORKERS,
            periodic=False,
            initial_delay=POLL_SECONDS,
            max_delay=POLL_SECONDS,
            backoff=1,
        )
        consumer.start()
        wait()
        consumer.stop()

    def close(self) -> None:
        self._huey.storage.close()


class UnsyncedHueyQueue(HueyQueue):
    """Commits without waiting for the disk: a power cut loses acknowledged jobs."""

    fsync = False

"""persist-queue's SQLiteAckQueue: durable, one commit per put, get and ack."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import time
from collections.abc import Sequence
from pathlib import Path

from persistqueue import Empty, SQLiteAckQueue

from benchmarks.contenders import Handle, Payload

POLL_SECONDS = 0.001
"""Its blocking get sees only puts of its own process."""


class PersistQueue:
    """No bulk call."""

    def __init__(self, folder: Path) -> None:
        self._queue = SQLiteAckQueue(str(folder))

    def enqueue(self, payload: Payload) -> None:
        self._queue.put(payload)

    def fill(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._queue.put(payload)

    def drain(self, handle: Handle) -> None:
        self.serve(handle)

    def serve(self, handle: Handle) -> None:
        wanted = True
        while wanted:
            try:
                item = self._queue.get(block=False, raw=True)
            except Empty:
                time.sleep(POLL_SECONDS)
                continue
            wanted = handle(item["data"])
            self._queue.ack(id=item["pqid"])

    def close(self) -> None:
        self._queue.close()

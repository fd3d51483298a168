"""litequeue: one table, `synchronous=NORMAL`, so a power cut may lose acknowledged jobs."""

# ruff: noqa: D102 - the protocols in __init__.py say what the methods do

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from litequeue import LiteQueue

from benchmarks.contenders import Handle, Payload

POLL_SECONDS = 0.001
"""It cannot wait for another process."""

INDEX = """
CREATE INDEX IF NOT EXISTS "Queue_status_message_id_idx" ON "Queue" (status, message_id)
"""
"""Later releases make this index themselves. 0.9, the last for Python 3.11, sorts all ready jobs
at every pop instead: 20,000 jobs drain at 465/s (one run), with the index at 7,700/s."""


class LitequeueQueue:
    """Payloads are text, so it gets a fast JSON codec."""

    def __init__(self, folder: Path) -> None:
        self._queue = LiteQueue(folder / "litequeue.db")
        self._queue.conn.execute(INDEX)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Payload).decode

    def enqueue(self, payload: Payload) -> None:
        self._queue.put(self._encode(payload).decode())

    def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        with self._queue.transaction():
            for payload in payloads:
                self.enqueue(payload)

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_many(payloads)

    def drain(self, handle: Handle) -> None:
        self.serve(handle)

    def serve(self, handle: Handle) -> None:
        wanted: bool | None = True
        while wanted is not False:
            wanted = self._run_one(handle)

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._run_one(handle)

    def _run_one(self, handle: Handle) -> bool | None:
        """Run a job and return what its handler did, or wait a moment if there is none."""
        message = self._queue.pop()
        if message is None:
            time.sleep(POLL_SECONDS)
            return None
        wanted = handle(self._decode(message.data))
        # Later releases want to know which claim is done.
        claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}
        self._queue.done(message.message_id, **claim)
        return wanted

    def close(self) -> None:
        self._queue.close()

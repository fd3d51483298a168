"""Contenders that keep their jobs in Redis, each in the server of its run."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import redis
from benchmarks.contenders import Handle, Payload

Work = Callable[[Payload], None]
"""What a worker calls per job."""


class RedisQueue:
    """A library on Redis; how durable it is depends on the settings of the server alone."""

    settings: Mapping[str, str] = redis.DURABLE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = redis.url_of(folder)
        redis.configure(folder, self.settings)

    def enqueue(self, payload: Payload) -> None:
        raise NotImplementedError

    def work(self, handle: Work, enough: threading.Event) -> None:
        """Run the library's worker; when there is `enough`, return as soon as all is settled."""
        raise NotImplementedError

    def fill(self, payloads: Sequence[Payload]) -> None:
        redis.configure(self.folder, {"appendfsync": "no"})
        for payload in payloads:
            self.enqueue(payload)
        redis.configure(self.folder, self.settings)

    def drain(self, handle: Handle) -> None:
        self.serve(handle)

    def serve(self, handle: Handle) -> None:
        enough = threading.Event()
        lock = threading.Lock()

        def count(payload: Payload) -> None:
            with lock:  # workers may have several threads
                if not handle(payload):
                    enough.set()

        self.work(count, enough)

    def close(self) -> None:
        """Nothing is left open that matters."""

"""Dramatiq with its eight threads and its own middleware; it acknowledges after the handler."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks import redis
from benchmarks.contenders import Handle, Payload
from benchmarks.contenders.redis import RedisQueue, Work

STOP_MILLISECONDS = 10
"""How often idle threads look whether to stop; its default of a second would be timed too."""


class DramatiqQueue(RedisQueue):
    """No bulk call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        logging.getLogger("dramatiq").setLevel(logging.ERROR)
        self._broker = RedisBroker(url=self.url)
        self._handle: Work
        self._noop = dramatiq.actor(self._run, actor_name="noop", broker=self._broker)

    def _run(self, data: Payload) -> None:
        self._handle(data)

    def enqueue(self, payload: Payload) -> None:
        self._noop.send(payload)

    def work(self, handle: Work, enough: threading.Event) -> None:
        self._handle = handle
        worker = dramatiq.Worker(self._broker, worker_timeout=STOP_MILLISECONDS)
        worker.start()
        enough.wait()
        worker.stop()

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        lock = threading.Lock()

        def count(payload: Payload) -> None:
            with lock:
                handle(payload)

        self._handle = count
        worker = dramatiq.Worker(self._broker, worker_timeout=STOP_MILLISECONDS)
        worker.start()
        while not is_over():
            time.sleep(STOP_MILLISECONDS / 1000)
        worker.stop()

    def close(self) -> None:
        self._broker.close()


class SnapshotDramatiqQueue(DramatiqQueue):
    """On Redis as Debian configures it."""

    settings = redis.SNAPSHOTS

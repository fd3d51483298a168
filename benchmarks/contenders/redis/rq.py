"""RQ with its SimpleWorker, which runs jobs in its own process; the default forks for each job."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks import redis
from benchmarks.contenders import Handle, Payload
from benchmarks.contenders.redis import RedisQueue, Work

_handle: list[Work] = []


def noop(data: Payload) -> None:
    """Handle a job: found by its module and name."""
    _handle[0](data)


class RqQueue(RedisQueue):
    """Results are not kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        logging.getLogger("rq").setLevel(logging.ERROR)
        self._redis = Redis.from_url(self.url)
        self._queue = Queue(connection=self._redis)

    def enqueue(self, payload: Payload) -> None:
        self._queue.enqueue(noop, payload, result_ttl=0)

    def work(self, handle: Work, enough: threading.Event) -> None:
        self._work(handle, enough.is_set, burst=False)

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        def count(payload: Payload) -> None:
            handle(payload)

        self._work(count, is_over, burst=True)

    def _work(self, handle: Work, is_over: Callable[[], bool], *, burst: bool) -> None:
        """Work until a job after which it is over; a burst also ends when nothing is left."""
        worker = SimpleWorker([self._queue], connection=self._redis)

        def run(payload: Payload) -> None:
            handle(payload)
            if is_over():
                worker.request_stop(signal.SIGTERM, None)

        _handle[:] = [run]
        worker.work(burst=burst, logging_level="ERROR")

    def close(self) -> None:
        self._redis.close()


class SnapshotRqQueue(RqQueue):
    """On Redis as Debian configures it."""

    settings = redis.SNAPSHOTS

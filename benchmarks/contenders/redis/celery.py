"""Celery with its solo pool, which runs tasks in its own process, acknowledged after they ran."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import logging
import threading
import warnings
from pathlib import Path

from celery import Celery
from celery.worker import state

from benchmarks import redis
from benchmarks.contenders import Payload
from benchmarks.contenders.redis import RedisQueue, Work

PREFETCH = 100
"""Messages that it reserves ahead; its default of four times the concurrency is less."""

_handle: list[Work] = []


def noop(data: Payload) -> None:
    """Handle a task."""
    _handle[0](data)


class CeleryQueue(RedisQueue):
    """Results are not kept, and a running task survives the end of its worker.

    Two workers are not measured: an idle one takes up to a second to stop.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        logging.getLogger("celery").setLevel(logging.CRITICAL)
        self._app = Celery("bench", broker=self.url)
        self._app.conf.update(
            task_ignore_result=True,
            task_acks_late=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_hijack_root_logger=False,
        )
        self._noop = self._app.task(noop, name="noop")

    def enqueue(self, payload: Payload) -> None:
        self._noop.delay(payload)

    def work(self, handle: Work, enough: threading.Event) -> None:
        def run(payload: Payload) -> None:
            handle(payload)
            if enough.is_set():
                state.should_stop = 0  # its loop ends after this task, with this status

        _handle[:] = [run]
        warnings.filterwarnings("ignore", "You're running the worker with superuser")
        state.should_stop = None
        worker = self._app.Worker(
            pool="solo",
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            loglevel="CRITICAL",
            quiet=True,
        )
        worker.start()

    def close(self) -> None:
        self._app.close()


class SnapshotCeleryQueue(CeleryQueue):
    """On Redis as Debian configures it."""

    settings = redis.SNAPSHOTS

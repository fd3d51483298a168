"""Clients of a server that goes away and comes back: they wait, and go on."""

import signal
import threading
from typing import Any

from penstock.core.errors import QueueFull, StoreUnavailable
from penstock.engine import run_sync
from tests.crash.client import Client


def steady_producer(app: Client, options: dict[str, Any]) -> None:
    """Enqueues until it is asked to stop; what was refused is not asked for again."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.is_set():
        jobs = app.some_jobs() if app.rng.random() < 0.3 else [app.any_job()]
        try:
            run_sync(app.enqueue_many(jobs))
        except (QueueFull, StoreUnavailable):
            stopped.wait(0.02)
        stopped.wait(app.rng.uniform(0, 0.02))
    run_sync(app.close())


ROLES = (steady_producer,)

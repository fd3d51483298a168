"""What the server tells Prometheus: the state of the store, and what this process has done.

No question here walks over jobs: depths are kept totals, counters are sums of the log.
"""

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.core.history import BOUNDS, Counters
from penstock.core.job import Counts, Queue
from penstock.core.times import from_micros
from penstock.core.token import Access
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock
from penstock.http.routes import Answer, route
from penstock.server import meter
from penstock.server.exposition import CONTENT_TYPE, Family, Labels, render
from penstock.server.meter import Meter
from penstock.stores.observed import Timing

_BOUNDS = tuple(bound.total_seconds() for bound in BOUNDS)
# A store that answers later than this counts as down; Prometheus itself waits for 10 s.
_PATIENCE = 5.0
_STARTED = time.time()


class Metrics:
    """The route for Prometheus. Samples about this process carry its number as `process`."""

    def __init__(
        self, penstock: Penstock, requests: Meter, timings: Mapping[str, Timing], process: int = 0
    ) -> None:
        self._penstock = penstock
        self._requests = requests
        self._timings = timings
        self._own = {"process": process}

    @route(
        "GET",
        "/metrics",
        Access.READ,
        "Metrics for Prometheus",
        answers={200: "text/plain"},
        any_query=True,  # scrapers add parameters such as `format` or `collect[]`
    )
    async def metrics(self) -> Answer:
        """Depths, ages, counters, durations, workers, store calls and requests, as text."""
        try:
            async with asyncio.timeout(_PATIENCE):
                about_store = await self._about_store()
        except (PenstockError, TimeoutError):
            about_store = []
        up = Family("penstock_store_up", "gauge", "Whether the store answers.")
        up.add(1 if about_store else 0)
        families = [up, *about_store, *self._about_process()]
        return Answer(200, render(families), ((b"content-type", CONTENT_TYPE),))

    async def _about_store(self) -> list[Family]:
        now = from_micros(self._penstock.clock())
        return [
            _depths(await self._penstock.count()),
            _ages(await self._penstock.oldest_ready(), now),
            _paused(await self._penstock.queues()),
            *_history(await self._penstock.counters()),
            *_workers(await self._penstock.workers(), now),
        ]

    def _about_process(self) -> list[Family]:
        info = Family("penstock_info", "gauge", "The version that runs.")
        info.add(1, {"version": version("penstock"), **self._own})
        return [
            info,
            *_store_calls(dict(self._timings), self._own),
            _requests(self._requests, self._own),
            *_process(self._own),
        ]


def _depths(counts: Counts) -> Family:
    family = Family(
        "penstock_jobs", "gauge", "Jobs by queue, state and, when pending, what they wait for."
    )
    for (queue, state, waiting), n in sorted(counts.items(), key=str):
        family.add(n, {"queue": queue, "state": state, "waiting": waiting or ""})
    return family


def _ages(oldest: Mapping[str, datetime], now: datetime) -> Family:
    family = Family(
        "penstock_oldest_ready_seconds", "gauge", "How long the oldest ready job has been due."
    )
    for queue, since in oldest.items():
        family.add(max(0.0, (now - since).total_seconds()), {"queue": queue})
    return family


def _paused(queues: Sequence[Queue]) -> Family:
    family = Family("penstock_queue_paused", "gauge", "Whether a queue is paused.")
    for queue in queues:
        family.add(queue.paused, {"queue": queue.name})
    return family


def _history(counters: Iterable[Counters]) -> tuple[Family, ...]:
    events = Family("penstock_events_total", "counter", "Entries of the log, by queue and event.")
    wait = Family(
        "penstock_job_wait_seconds", "histogram", "How long jobs had been due when claimed."
    )
    run = Family("penstock_job_run_seconds", "histogram", "How long runs took.")
    for one in counters:
        labels = {"queue": one.queue}
        for event, n in one.counts.items():
            events.add(n, {**labels, "event": event})
        for family, spread in ((wait, one.wait), (run, one.run)):
            total = spread.total.total_seconds()
            family.add_histogram(_BOUNDS, spread.buckets, total, labels)
    return events, wait, run


def _workers(workers: Sequence[WorkerInfo], now: datetime) -> tuple[Family, ...]:
    number = Family("penstock_workers", "gauge", "Workers that were heard of lately, or not.")
    silence = Family(
        "penstock_worker_silence_seconds", "gauge", "Since when a worker was not heard of."
    )
    leases = Family("penstock_worker_leases", "gauge", "Jobs that a worker holds.")
    silent = sum(worker.is_silent(now) for worker in workers)
    number.add(len(workers) - silent, {"status": "alive"})
    number.add(silent, {"status": "silent"})
    for worker in workers:
        labels = {"worker": worker.name}
        silence.add(max(0.0, (now - worker.seen_at).total_seconds()), labels)
        leases.add(worker.running, labels)
    return number, silence, leases


def _store_calls(timings: Mapping[str, Timing], own: Labels) -> tuple[Family, Family]:
    calls = Family("penstock_store_call_seconds", "summary", "Calls of the store, by verb.")
    errors = Family(
        "penstock_store_call_errors_total", "counter", "Calls of the store that failed, by verb."
    )
    for verb, timing in sorted(timings.items()):
        labels = {"verb": verb, **own}
        calls.add(timing.seconds, labels, "_sum")
        calls.add(timing.calls, labels, "_count")
        errors.add(timing.errors, labels)
    return calls, errors


def _requests(requests: Meter, own: Labels) -> Family:
    family = Family("penstock_http_request_seconds", "histogram", "Requests by route and status.")
    for (method, path, status), durations in sorted(requests.answered.items()):
        labels = {"method": method, "route": path, "status": status, **own}
        family.add_histogram(meter.BOUNDS, durations.buckets, durations.seconds, labels)
    return family


def _process(own: Labels) -> Iterable[Family]:
    """Under the names that every program uses; what the system does not tell is left out."""
    started = Family("process_start_time_seconds", "gauge", "When the process began, since 1970.")
    started.add(_STARTED, own)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = Family("process_cpu_seconds_total", "counter", "CPU time used.")
    cpu.add(used.ru_utime + used.ru_stime, own)
    memory = Family("process_resident_memory_bytes", "gauge", "Memory in use.")
    files = Family("process_open_fds", "gauge", "Open files and sockets.")
    with contextlib.suppress(OSError):  # only Linux has /proc
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        memory.add(pages * os.sysconf("SC_PAGE_SIZE"), own)
        files.add(len(os.listdir("/proc/self/fd")), own)  # noqa: PTH208 - names alone
    return started, cpu, memory, files

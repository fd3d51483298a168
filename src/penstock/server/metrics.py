"""What the server tells Prometheus: the state of the store, and what this process has done.

No question here walks over jobs: depths are kept totals, counters are sums of the log. Only so many
queues, and workers, are shown by name. A queue that is keeps its series until it is removed; the
others share one, `(other)`, whose counters never fall, because nothing is ever taken out of them.
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
from typing import NamedTuple

from penstock.core.errors import PenstockError
from penstock.core.history import BOUNDS, OTHER_QUEUES, TOGETHER, Counters
from penstock.core.job import Counts, QueueQuery
from penstock.core.times import from_micros
from penstock.core.token import Access
from penstock.core.worker import WorkerInfo
from penstock.engine import Penstock
from penstock.http.routes import Answer, route
from penstock.server import meter
from penstock.server.aside import aside
from penstock.server.exposition import CONTENT_TYPE, Family, Labels, render
from penstock.server.meter import Meter
from penstock.server.survey import Survey
from penstock.stores.observed import Timing

_BOUNDS = tuple(bound.total_seconds() for bound in BOUNDS)
# A store that answers later than this counts as down; Prometheus itself waits for 10 s.
_PATIENCE = 5.0
_STARTED = time.time()
# Workers come and go with their processes.
_NAMED_WORKERS = 100


class Metrics:
    """The route for Prometheus. Samples about this process carry its number as `process`."""

    def __init__(
        self, penstock: Penstock, requests: Meter, timings: Mapping[str, Timing], process: int = 0
    ) -> None:
        self._penstock = penstock
        self._requests = requests
        self._timings = timings
        self._own = {"process": process}
        self._survey = Survey(penstock)
        self._named_workers: set[str] = set()

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
        text = await aside(sum(map(len, families)), lambda: render(families))
        return Answer(200, text, ((b"content-type", CONTENT_TYPE),))

    async def _about_store(self) -> list[Family]:
        """Queues by name, as far as they have a series of their own, and the others together."""
        penstock = self._penstock
        now = from_micros(penstock.clock())
        named = await penstock.store.series()
        others = await self._survey.of_all(named)
        counts = dict(await penstock.count(named))
        oldest = dict(await penstock.oldest_ready(named))
        paused = {one.name: int(one.paused) for one in await penstock.queues(_all_of(named))}
        if others.queues:
            for (state, waiting), n in others.counts.items():
                counts[OTHER_QUEUES, state, waiting] = n
            if others.oldest_ready is not None:
                oldest[OTHER_QUEUES] = others.oldest_ready
            paused[OTHER_QUEUES] = others.paused
        counters = await penstock.counters()
        number = Family("penstock_queues", "gauge", "How many queues there are.")
        number.add(len(named) + others.queues)
        workers = await self._shown_workers(now)

        def families() -> list[Family]:
            return [
                number,
                _depths(counts),
                _ages(oldest, now),
                _paused(paused),
                *_history(counters),
                *_workers(workers),
            ]

        return await aside(len(counts) + len(workers.all), families)

    async def _shown_workers(self, now: datetime) -> "_Workers":
        """Those that have a series of their own, which they keep while they are there."""
        found = await self._penstock.workers()
        names = [worker.name for worker in found]
        kept = self._named_workers.intersection(names)
        new = [name for name in names if name not in kept and name != OTHER_QUEUES]
        self._named_workers = kept.union(new[: max(0, _NAMED_WORKERS - len(kept))])
        return _Workers(found, frozenset(self._named_workers), now)

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


def _paused(paused: Mapping[str, int]) -> Family:
    family = Family(
        "penstock_queue_paused", "gauge", "Whether a queue is paused; of the others, how many are."
    )
    for queue, n in paused.items():
        family.add(n, {"queue": queue})
    return family


def _history(counters: Iterable[Counters]) -> tuple[Family, ...]:
    events = Family("penstock_events_total", "counter", "Entries of the log, by queue and event.")
    wait = Family(
        "penstock_job_wait_seconds", "histogram", "How long jobs had been due when claimed."
    )
    run = Family("penstock_job_run_seconds", "histogram", "How long runs took.")
    for one in counters:
        labels = {"queue": OTHER_QUEUES if one.queue == TOGETHER else one.queue}
        for event, n in one.counts.items():
            events.add(n, {**labels, "event": event})
        for family, spread in ((wait, one.wait), (run, one.run)):
            total = spread.total.total_seconds()
            family.add_histogram(_BOUNDS, spread.buckets, total, labels)
    return events, wait, run


class _Workers(NamedTuple):
    """All workers, and which of them are shown by name."""

    all: Sequence[WorkerInfo]
    named: frozenset[str]
    now: datetime


def _workers(workers: _Workers) -> tuple[Family, ...]:
    number = Family("penstock_workers", "gauge", "Workers that were heard of lately, or not.")
    silence = Family(
        "penstock_worker_silence_seconds", "gauge", "Since when a worker was not heard of."
    )
    leases = Family("penstock_worker_leases", "gauge", "Jobs that a worker holds.")
    silent = sum(worker.is_silent(workers.now) for worker in workers.all)
    number.add(len(workers.all) - silent, {"status": "alive"})
    number.add(silent, {"status": "silent"})
    others: list[WorkerInfo] = []
    for worker in workers.all:
        if worker.name in workers.named:
            labels = {"worker": worker.name}
            silence.add(_silence(worker, workers.now), labels)
            leases.add(worker.running, labels)
        else:
            others.append(worker)
    if others:  # of the others, the longest silence, and the leases of all
        labels = {"worker": OTHER_QUEUES}
        silence.add(max(_silence(worker, workers.now) for worker in others), labels)
        leases.add(sum(worker.running for worker in others), labels)
    return number, silence, leases


def _silence(worker: WorkerInfo, now: datetime) -> float:
    return max(0.0, (now - worker.seen_at).total_seconds())


def _all_of(names: Sequence[str]) -> QueueQuery:
    return QueueQuery(names=tuple(names))


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

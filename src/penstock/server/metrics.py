"""Metrics for Prometheus: the state of the store, and the requests and calls of this process.

No query here visits jobs, except for up to 10,000 of each unknown task: depths are stored totals,
counters are sums of the log. Only a limited number of queues and workers is shown by name. A named
queue keeps its series until it is removed; the others share one, `(other)`, whose counters never
decrease because nothing is taken out of it.

The text format is written by hand because it is this small; a library would add a registry of its
own to the store, which has the numbers already.
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
from typing import Literal, NamedTuple

from penstock.core.errors import PenstockError
from penstock.core.queue import Counts, QueueQuery
from penstock.core.statistics import BOUNDS, OTHER_QUEUES, TOGETHER, Counters
from penstock.core.times import from_micros
from penstock.core.tokens import Access
from penstock.core.workers import WaitingTask, WorkerInfo
from penstock.engine.penstock import Penstock
from penstock.server import request_metrics
from penstock.server.offload import offload
from penstock.server.queues import CachedSummary
from penstock.server.request_metrics import RequestMetrics
from penstock.stores.observed import Timing
from penstock.web.routes import Answer, route

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]

_BOUNDS = tuple(bound.total_seconds() for bound in BOUNDS)
# A store that takes longer counts as down; Prometheus itself waits for 10 s.
_TIMEOUT = 5.0
_STARTED = time.time()
# Every process adds workers of its own.
_NAMED_TASKS = 50
_NAMED_WORKERS = 100


# The text format


class Family:
    """All samples of one metric, with its help and type."""

    def __init__(
        self, name: str, kind: Literal["gauge", "counter", "histogram", "summary"], text: str
    ) -> None:
        self.name = name
        self._lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def add(self, value: float, labels: Labels | None = None, suffix: str = "") -> None:
        """Add a sample."""
        self._lines.append(f"{self.name}{suffix}{_labels(labels or {})} {_number(value)}")

    def add_histogram(
        self, bounds: Sequence[float], buckets: Sequence[int], total: float, labels: Labels
    ) -> None:
        """Add the samples of a histogram; `buckets` has one element more than `bounds`."""
        below = 0
        # Most lines belong to histograms: what they share is formatted once.
        start = f"{self.name}_bucket{_labels(labels)[:-1] or '{'}{',' if labels else ''}le="
        for bound, n in zip((*bounds, float("inf")), buckets, strict=True):
            below += n
            self._lines.append(f'{start}"{_number(bound)}"}} {below}')
        self.add(total, labels, "_sum")
        self.add(below, labels, "_count")

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def __str__(self) -> str:
        return "\n".join(self._lines)


def render(families: Iterable[Family]) -> bytes:
    """Return these families in the text format."""
    return ("\n".join(map(str, families)) + "\n").encode()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


# The metrics


class Metrics:
    """The route for Prometheus. Samples of this process are labelled with its number, `process`."""

    def __init__(
        self,
        penstock: Penstock,
        requests: RequestMetrics,
        timings: Mapping[str, Timing],
        process: int = 0,
    ) -> None:
        self._penstock = penstock
        self._requests = requests
        self._timings = timings
        self._own = {"process": process}
        self._summary = CachedSummary(penstock)
        self._named_workers: set[str] = set()

    @route("GET", "/metrics", Access.READ, produces="text/plain", any_query=True)
    async def metrics(self) -> Answer[bytes]:
        """Get metrics for Prometheus.

        Depths, ages, counters, durations, workers, store calls and requests, in the text format.
        """
        try:
            async with asyncio.timeout(_TIMEOUT):
                about_store = await self._about_store()
        except (PenstockError, TimeoutError):
            about_store = []
        up = Family("penstock_store_up", "gauge", "Whether the store answers.")
        up.add(1 if about_store else 0)
        families = [up, *about_store, *self._about_process()]
        text = await offload(
            self._penstock.runtime, sum(map(len, families)), lambda: render(families)
        )
        return Answer(200, text, ((b"content-type", CONTENT_TYPE),))

    async def _about_store(self) -> list[Family]:
        """Return the metrics of the queues that have a series of their own, and of the others."""
        penstock = self._penstock
        now = from_micros(penstock.clock())
        named = await penstock.store.series()
        others = await self._summary.get(without=named)
        counts = dict(await penstock.count(named))
        oldest = dict(await penstock.queues.oldest_ready(named))
        paused = {one.name: int(one.paused) for one in await penstock.queues.list(_all_of(named))}
        if others.queues:
            for (state, waiting), n in others.counts.items():
                counts[OTHER_QUEUES, state, waiting] = n
            if others.oldest_ready is not None:
                oldest[OTHER_QUEUES] = others.oldest_ready
            paused[OTHER_QUEUES] = others.paused
        counters = await penstock.statistics.counters()
        number = Family("penstock_queues", "gauge", "Number of queues.")
        number.add(len(named) + others.queues)
        workers = await self._shown_workers(now)
        unknown = await penstock.workers.waiting_tasks()

        def families() -> list[Family]:
            return [
                number,
                _depths(counts),
                _ages(oldest, now),
                _paused(paused),
                *_history(counters),
                *_workers(workers),
                _waiting_tasks(unknown),
            ]

        return await offload(self._penstock.runtime, len(counts) + len(workers.all), families)

    async def _shown_workers(self, now: datetime) -> "_Workers":
        """Choose the workers with a series of their own, which they keep while they exist."""
        found = await self._penstock.workers.list()
        names = [worker.name for worker in found]
        kept = self._named_workers.intersection(names)
        new = [name for name in names if name not in kept and name != OTHER_QUEUES]
        self._named_workers = kept.union(new[: max(0, _NAMED_WORKERS - len(kept))])
        return _Workers(found, frozenset(self._named_workers), now)

    def _about_process(self) -> list[Family]:
        info = Family("penstock_info", "gauge", "The version of the server.")
        info.add(1, {"version": version("penstock"), **self._own})
        return [
            info,
            *_store_calls(dict(self._timings), self._own),
            _requests(self._requests, self._own),
            *_process(self._own),
        ]


def _depths(counts: Counts) -> Family:
    family = Family(
        "penstock_jobs", "gauge", "Jobs by queue, state and, if pending, what they wait for."
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
        "penstock_queue_paused", "gauge", "Whether a queue is paused; for (other), how many are."
    )
    for queue, n in paused.items():
        family.add(n, {"queue": queue})
    return family


def _history(counters: Iterable[Counters]) -> tuple[Family, ...]:
    events = Family("penstock_events_total", "counter", "Log entries by queue and event.")
    wait = Family(
        "penstock_job_wait_seconds",
        "histogram",
        "How long jobs had been due when they were claimed.",
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
    """All workers, and the names of those that are shown by name."""

    all: Sequence[WorkerInfo]
    named: frozenset[str]
    now: datetime


def _workers(workers: _Workers) -> tuple[Family, ...]:
    number = Family("penstock_workers", "gauge", "Workers by status: alive or silent.")
    silence = Family(
        "penstock_worker_silence_seconds", "gauge", "Seconds since the last sign of life."
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
    if others:  # the longest silence and all leases of the others
        labels = {"worker": OTHER_QUEUES}
        silence.add(max(_silence(worker, workers.now) for worker in others), labels)
        leases.add(sum(worker.running for worker in others), labels)
    return number, silence, leases


def _waiting_tasks(waiting: Sequence[WaitingTask]) -> Family:
    """Return how many jobs wait for a task; of many tasks, those with the most jobs by name."""
    family = Family(
        "penstock_unknown_task_jobs",
        "gauge",
        "Ready jobs whose task no live worker knows, up to 10000 of each.",
    )
    shown = sorted(waiting, key=lambda one: one.jobs, reverse=True)
    for one in shown[:_NAMED_TASKS]:
        family.add(one.jobs, {"task": one.task, "version": str(one.version)})
    if others := shown[_NAMED_TASKS:]:
        family.add(sum(one.jobs for one in others), {"task": OTHER_QUEUES, "version": ""})
    return family


def _silence(worker: WorkerInfo, now: datetime) -> float:
    return max(0.0, (now - worker.seen_at).total_seconds())


def _all_of(names: Sequence[str]) -> QueueQuery:
    return QueueQuery(names=tuple(names))


def _store_calls(timings: Mapping[str, Timing], own: Labels) -> tuple[Family, Family]:
    calls = Family("penstock_store_call_seconds", "summary", "Store calls by verb.")
    errors = Family("penstock_store_call_errors_total", "counter", "Failed store calls by verb.")
    for verb, timing in sorted(timings.items()):
        labels = {"verb": verb, **own}
        calls.add(timing.seconds, labels, "_sum")
        calls.add(timing.calls, labels, "_count")
        errors.add(timing.errors, labels)
    return calls, errors


def _requests(requests: RequestMetrics, own: Labels) -> Family:
    family = Family("penstock_http_request_seconds", "histogram", "Requests by route and status.")
    for (method, path, status), durations in sorted(requests.answered.items()):
        labels = {"method": method, "route": path, "status": status, **own}
        family.add_histogram(request_metrics.BOUNDS, durations.buckets, durations.seconds, labels)
    return family


def _process(own: Labels) -> Iterable[Family]:
    """Use the names that every program uses; leave out what the system does not report."""
    started = Family(
        "process_start_time_seconds", "gauge", "When the process started, in seconds since 1970."
    )
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

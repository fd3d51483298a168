"""What PostgreSQL makes hard: blocked keys, transactions of others, dead rows. penstock only."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psycopg

from benchmarks import postgres, processes
from benchmarks.contenders import Contender, make_payload, make_payloads
from benchmarks.contenders.penstock import PenstockQueue, open_ours
from benchmarks.scenarios import Figures, Load, Scenario, timed
from benchmarks.scenarios.backlog import CHUNK, build
from benchmarks.scenarios.lines import fill
from benchmarks.scenarios.throughput import drain_rate
from benchmarks.tally import Tally
from penstock import run_sync
from penstock.cli.event_loop import run

_OURS = ("penstock",)
_LAST = 3
_WARM_UP = 1_000
_PRODUCERS = 8
_BEHIND = 2
"""Jobs blocked behind each that can run."""

_SIZES = """
SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid)), sum(n_dead_tup)
FROM pg_stat_user_tables WHERE schemaname = 'jobs'
"""


def keys(contender: Contender, folder: Path, load: Load) -> Figures:
    """Drains with 2 blocked jobs for each that can run, and with none.

    `beside`: jobs without keys beside jobs of 100 held keys, which stay blocked. `chained`: every
    job has a key, three jobs to a key, so each that ends lets the next one run.
    """
    runnable = max(load.backlog // 20, 1)
    warm, plain, beside, chained = (
        open_ours(contender, folder, name) for name in ("warm", "plain", "beside", "chained")
    )
    asyncio.run(build(open_ours(contender, folder, "beside"), "blocked", _BEHIND * runnable))
    for queue in (plain, beside):
        fill(queue, runnable)
    total = (1 + _BEHIND) * runnable
    fill(chained, total, keys=runnable)
    fill(warm, _WARM_UP)
    _drain(warm, _WARM_UP)
    rates = {
        "plain": _drain(plain, runnable),
        "beside": _drain(beside, runnable),
        "chained": _drain(chained, total),
    }
    return {
        **rates,
        "beside_ratio": rates["beside"] / rates["plain"],
        "chained_ratio": rates["chained"] / rates["plain"],
    }


def producers(contender: Contender, folder: Path, load: Load) -> Figures:
    """Single enqueues of eight processes at once: plain jobs, jobs with dedupe keys, with keys."""
    each = max(load.jobs // (8 * _PRODUCERS), 1)
    rates = {kind: _produced(contender, folder, kind, each) for kind in ("plain", "dedupe", "key")}
    return {
        **rates,
        "dedupe_ratio": rates["dedupe"] / rates["plain"],
        "key_ratio": rates["key"] / rates["plain"],
    }


def _produced(contender: Contender, folder: Path, kind: str, each: int) -> float:
    open_ours(contender, folder).close()
    there, go = Tally(folder / f"there-{kind}", _PRODUCERS), Tally(folder / f"go-{kind}", 1)
    with ExitStack() as stack:
        running = [
            stack.enter_context(processes.started(_produce, contender, folder, kind, n, each))
            for n in range(_PRODUCERS)
        ]
        there.wait_for(_PRODUCERS, unless=lambda: any(one.done() for one in running))
        with timed() as watch:
            go.numbers[0] = 1
            for one in running:
                one.result()
    return _PRODUCERS * each / watch.seconds


def _produce(contender: Contender, folder: Path, kind: str, own: int, each: int) -> int:
    """A producer process; each of its jobs has a key of its own."""
    queue = open_ours(contender, folder)
    queue.enqueue(make_payload("warm"))
    Tally(folder / f"there-{kind}", _PRODUCERS).numbers[own] = 1
    Tally(folder / f"go-{kind}", 1).wait_for(1)
    for n, payload in enumerate(make_payloads(each)):
        name = f"{own}-{n}"
        if kind == "plain":
            queue.enqueue(payload)
        elif kind == "key":
            run_sync(queue.task.using(key=name).enqueue(payload))
        else:
            run_sync(queue.task.using(dedupe=name).enqueue(payload))
    queue.close()
    return each


def wal(contender: Contender, folder: Path, load: Load) -> Figures:
    """Bytes of the write-ahead log that a job takes: added in thousands, claimed and settled."""
    queue = open_ours(contender, folder)
    fill(queue, _WARM_UP)
    with timed(folder) as adding:
        fill(queue, load.jobs)
    total = load.jobs + _WARM_UP
    with timed(folder) as running:
        drain_rate(queue, total)
    enqueue, work = (adding.written or 0) / load.jobs, (running.written or 0) / total
    return {"enqueue": enqueue, "run": work, "job": enqueue + work}


def held(contender: Contender, folder: Path, load: Load) -> Figures:
    """Drains before, while and after a foreign transaction is open, so that no row is cleaned up.

    Each figure is the median of the last three drains, each with jobs of its own.
    """
    before = [_drain_some(contender, folder, load) for _ in range(_LAST)]
    during: list[float] = []
    with postgres.held_open(folder):
        deadline = time.monotonic() + load.held_seconds
        while time.monotonic() < deadline or len(during) < _LAST:
            during.append(_drain_some(contender, folder, load))
    after = [_drain_some(contender, folder, load) for _ in range(_LAST)]
    return {
        "before": median(before),
        "during": median(during[-_LAST:]),
        "after": median(after),
        "ratio": median(during[-_LAST:]) / median(before),
        "jobs": load.jobs * len(during),
    }


def bloat(contender: Contender, folder: Path, load: Load) -> Figures:
    """What a million jobs leave behind, added and worked off in portions by one worker."""
    queue = open_ours(contender, folder)
    seconds = run(_churn(queue, load.backlog))
    queue.close()
    with psycopg.connect(postgres.url_of(folder), autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        sizes = connection.execute(_SIZES).fetchone() or (0, 0, 0)
        tables, indexes, dead = (float(size) for size in sizes)
        with timed() as watch:
            connection.execute("VACUUM")
    tenth = max(len(seconds) // 10, 1)
    return {
        "tables": tables / 1e6,
        "indexes": indexes / 1e6,
        "per_job": (tables + indexes) / load.backlog,
        "dead": dead,
        "vacuum": watch.seconds,
        "slower": sum(seconds[-tenth:]) / sum(seconds[:tenth]),
    }


async def _churn(queue: PenstockQueue, jobs: int) -> list[float]:
    """Seconds to work off each portion."""
    payloads = make_payloads(min(CHUNK, jobs))
    seconds = []
    for _ in range(0, jobs, CHUNK):
        await queue.app.enqueue_many([queue.task.new(payload) for payload in payloads])
        start = time.perf_counter()
        await queue.work_until_empty()
        seconds.append(time.perf_counter() - start)
    return seconds


def _drain(queue: PenstockQueue, jobs: int) -> float:
    """Jobs per second."""
    queue.rest()
    return drain_rate(queue, jobs)


def _drain_some(contender: Contender, folder: Path, load: Load) -> float:
    queue = open_ours(contender, folder)
    queue.enqueue_many(make_payloads(load.jobs))
    return _drain(queue, load.jobs)


SCENARIOS = (
    Scenario("keys", keys, _OURS),
    Scenario("wal", wal, _OURS),
    Scenario("producers", producers, _OURS, interleaves=False),
    Scenario("held", held, _OURS, interleaves=False),
    Scenario("bloat", bloat, _OURS, interleaves=False),
)

"""What PostgreSQL makes hard: blocked keys, transactions of others, dead rows. penstock only."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psycopg

from benchmarks import postgres
from benchmarks.contenders import Contender, make_payload, make_payloads
from benchmarks.contenders.penstock import PenstockQueue, open_ours
from benchmarks.scenarios import Figures, Load, Scenario, timed
from benchmarks.scenarios.backlog import CHUNK, build
from benchmarks.scenarios.throughput import drain_rate
from penstock import run_sync

_OURS = ("penstock",)
_LAST = 3
_WARM_UP = 1_000
_BEHIND = 2
"""Jobs blocked behind each that can run."""

_HOLD = """
CREATE TABLE IF NOT EXISTS bystander (id int);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1;
INSERT INTO bystander VALUES (1);
"""

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
        _fill(queue, runnable)
    total = (1 + _BEHIND) * runnable
    _fill(chained, total, keys=runnable)
    _fill(warm, _WARM_UP)
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


def held(contender: Contender, folder: Path, load: Load) -> Figures:
    """Drains before, while and after a foreign transaction is open, so that no row is cleaned up.

    Each figure is the median of the last three drains, each with jobs of its own.
    """
    before = [_drain_some(contender, folder, load) for _ in range(_LAST)]
    during: list[float] = []
    with _transaction(folder):
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
    seconds = asyncio.run(_churn(queue, load.backlog))
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


def _fill(queue: PenstockQueue, jobs: int, keys: int = 0) -> None:
    """Add so many jobs, in portions; with so many keys in turn, or with none."""
    for start in range(0, jobs, CHUNK):
        new = [
            (queue.task.using(key=f"key-{n % keys}") if keys else queue.task).new(
                make_payload(str(n))
            )
            for n in range(start, min(start + CHUNK, jobs))
        ]
        run_sync(queue.app.enqueue_many(new))


def _drain(queue: PenstockQueue, jobs: int) -> float:
    """Jobs per second."""
    queue.rest()
    return drain_rate(queue, jobs)


def _drain_some(contender: Contender, folder: Path, load: Load) -> float:
    queue = open_ours(contender, folder)
    queue.enqueue_many(make_payloads(load.jobs))
    return _drain(queue, load.jobs)


@contextmanager
def _transaction(folder: Path) -> Iterator[None]:
    """Somebody else's, with a snapshot and a write."""
    with psycopg.connect(postgres.url_of(folder), autocommit=True) as connection:
        for statement in _HOLD.split(";")[:-1]:
            connection.execute(statement.encode())
        yield
        connection.execute("COMMIT")


SCENARIOS = (
    Scenario("keys", keys, _OURS),
    Scenario("held", held, _OURS, interleaves=False),
    Scenario("bloat", bloat, _OURS, interleaves=False),
)

"""penstock on both databases beside the queues that people come from, all in one run.

The comparison in the README has its rates from here.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import postgres, redis
from benchmarks.contenders import Contender
from benchmarks.places import Fresh
from benchmarks.scenarios import Load, pickup, throughput
from benchmarks.scenarios.sharing import DRAIN_TWO
from benchmarks.suites import Column, Suite

_HERE = "benchmarks.contenders"


def _on_redis(name: str, title: str, target: str) -> tuple[Contender, Contender]:
    """Return a contender on a durable Redis and on one as Debian configures it."""
    module, package = f"{_HERE}.redis.{name}", name
    return (
        Contender(
            name,
            f"{title}; Redis, fsync always",
            f"{module}:{target}",
            package,
            missing=f"it or {redis.MISSING}",
            program=redis.PROGRAM,
        ),
        Contender(
            f"{name}-snapshots",
            f"{title}; Redis, snapshots (not durable)",
            f"{module}:Snapshot{target}",
            package,
            scenarios=("one-by-one", "drain"),
            missing=f"it or {redis.MISSING}",
            program=redis.PROGRAM,
        ),
    )


CONTENDERS = (
    Contender("penstock", "penstock, SQLite", f"{_HERE}.penstock:PenstockQueue", "penstock"),
    Contender(
        "penstock-postgres",
        "penstock, PostgreSQL",
        f"{_HERE}.postgres.penstock:PostgresQueue",
        "penstock",
    ),
    *_on_redis("celery", "Celery, solo pool", "CeleryQueue"),
    *_on_redis("rq", "RQ, SimpleWorker", "RqQueue"),
    *_on_redis("dramatiq", "Dramatiq, 8 threads", "DramatiqQueue"),
    Contender("huey", "huey, SQLite, fsync", f"{_HERE}.huey:HueyQueue", "huey"),
    Contender(
        "procrastinate",
        "Procrastinate, PostgreSQL",
        f"{_HERE}.postgres.procrastinate:ProcrastinateQueue",
        "procrastinate",
    ),
    Contender(
        "pgqueuer",
        "PgQueuer, PostgreSQL",
        f"{_HERE}.postgres.pgqueuer:PgQueuerQueue",
        "pgqueuer",
    ),
)


@contextmanager
def _servers(below: Path) -> Iterator[Fresh]:
    """Places with a database on a PostgreSQL server and, where it is installed, a Redis server."""
    with postgres.databases(below) as fresh:
        if shutil.which(redis.PROGRAM) is None:
            yield fresh
            return

        @contextmanager
        def both() -> Iterator[Path]:
            with fresh() as place, redis.server(place):
                yield place

        yield both


def _about(place: Path) -> Mapping[str, str]:
    found = dict(postgres.about(place))
    if shutil.which(redis.PROGRAM) is not None:
        found |= redis.about(place)
    return found


SUITE = Suite(
    name="peers",
    ours="penstock",
    contenders=CONTENDERS,
    scenarios=(throughput.ONE_BY_ONE, throughput.DRAIN, DRAIN_TWO, *pickup.SCENARIOS),
    columns=(
        Column("one by one /s", "one-by-one.rate"),
        Column("drain /s", "drain.rate"),
        Column("drain, 2 processes /s", "drain-2.rate"),
        Column("pickup p50 ms", "pickup.p50", "{:.1f}", less_is_better=True),
        Column("pickup p99 ms", "pickup.p99", "{:.1f}", less_is_better=True),
        Column("idle CPU %", "pickup.idle", "{:.1f}", less_is_better=True),
    ),
    details=(),
    bars=(),
    ground=_servers,
    about=_about,
    # Slow ones are stopped after a few seconds; the fast ones need so many jobs.
    load=Load(jobs=10_000, limit_seconds=3.0, drain_seconds=6.0, samples=150, idle_seconds=2.0),
)

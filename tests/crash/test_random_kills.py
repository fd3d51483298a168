"""Kill -9 at random moments, over and over on one store, while producers and workers are at it.

The number of kills is that of the environment variable PENSTOCK_CRASH_ROUNDS, per seed.
"""

import random
import signal
import sqlite3
import time
from pathlib import Path

import psycopg
import pytest

from penstock.engine.penstock import run_sync
from tests import tiers
from tests.crash.client import LEASE, Client, orders
from tests.crash.history import read_store
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import is_postgres, mark_of
from tests.crash.support import ask, assert_promises_kept, client, drain

# On a file, and on PostgreSQL.
KILLS = [
    tiers.amount(60, 200, "PENSTOCK_CRASH_ROUNDS"),
    tiers.amount(30, 60, "PENSTOCK_CRASH_ROUNDS"),
]
CAST = ("producer", "plain_producer", "worker", "worker")
LIMIT = 40


@pytest.mark.timeout(1100 + KILLS[0])
@pytest.mark.parametrize(
    ("folder", "seed"), [("sqlite", 1), ("sqlite", 2), ("postgres", 1)], indirect=["folder"]
)
def test_nothing_is_lost_doubled_or_stuck(seed: int, zygote: Zygote, folder: Path) -> None:
    rng = random.Random(seed)
    with client(folder) as app:
        run_sync(app.limits.queue("limited", LIMIT))
        play(rng, zygote, app)
    drain(zygote, folder)
    assert_promises_kept(folder, f"seed {seed}")
    assert_own_rows_and_jobs_agree(folder)
    with client(folder) as app:
        assert run_sync(app.leases.claim(worker="w", limit=9, tags=["red", "green", "blue"])) == []


def play(rng: random.Random, zygote: Zygote, app: Client) -> None:
    def start(role: str) -> Child:
        return zygote.start(role, app.folder, seed=rng.getrandbits(32))

    actors = [start(role) for role in CAST]
    kills = 0
    while kills < KILLS[is_postgres(app.folder)]:
        time.sleep(rng.uniform(0, 0.06))
        if rng.random() < 0.3:
            run_sync(rng.choice([app.queues.pause, app.queues.resume])("valve"))
        if rng.random() < 0.05:
            oversleep(rng.choice(actors))
        fallen = [rng.randrange(len(CAST))]
        if rng.random() < 0.15:  # all at once, as when the power goes: nobody keeps the file open
            fallen = list(range(len(CAST)))
            run_sync(app.close())
        for n in fallen:
            actors[n].signal(signal.SIGKILL)
        for n in fallen:
            actors[n].die()
        for n in fallen:
            actors[n] = start(CAST[n])
        kills += len(fallen)
    until(lambda: bool(own_rows(app.folder)), "nobody enqueues in a transaction of their own")
    for actor in actors:
        actor.kill()
        actor.die()


def oversleep(actor: Child) -> None:
    """Stop a client for longer than a lease; the others go on, unless it stopped in their way."""
    actor.signal(signal.SIGSTOP)
    time.sleep(1.5 * LEASE.total_seconds())
    actor.signal(signal.SIGCONT)


def assert_own_rows_and_jobs_agree(folder: Path) -> None:
    """What was enqueued in an application's own transaction is there just as its rows are."""
    orders = own_rows(folder)
    jobs = {mark_of(job.payload) for job in read_store(folder).jobs.values()}
    assert orders
    assert orders <= jobs


def own_rows(folder: Path) -> set[str]:
    """The rows of the application; nothing while it has not made its table."""
    try:
        return {mark for (mark,) in ask(folder, f"SELECT mark FROM {orders(folder)}")}  # noqa: S608 - names of our own
    except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
        return set()

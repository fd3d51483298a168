"""Run another program and Penstock workers on one queue, and kill both repeatedly.

To run for minutes:
`PENSTOCK_PROOF_SECONDS=180 pytest tests/apps/ingest/test_unified_queue_programs.py`.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import JobQuery, Penstock, State, run_sync
from penstock.apps.ingest import unified_queue
from penstock.jobs import Event
from tests.apps.ingest.external_program import Database

SECONDS = float(os.environ.get("PENSTOCK_PROOF_SECONDS", "0"))
KILLS = 4
PATIENCE = 120
ROLES = {"producer": "produce", "eater": "consume", "eater2": "consume", "worker": "ours"}


class Processes:
    """The processes of the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.generation = 0

    def start(self, name: str) -> None:
        self.generation += 1
        command = [
            sys.executable,
            "-m",
            "tests.apps.ingest.external_program",
            ROLES[name],
            self.url,
        ]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.running[name] = subprocess.Popen(
                [*command, f"{name}-{self.generation}", str(self.file(name))], stderr=errors
            )

    def file(self, name: str) -> Path:
        return self.folder / name

    def lines(self, name: str) -> list[str]:
        return self.file(name).read_text().splitlines() if self.file(name).exists() else []

    def standing(self) -> dict[str, int]:
        return {name: len(self.lines(name)) for name in ROLES}

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        assert process.poll() is None, (self.folder / f"{name}.err").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def until(
    condition: Callable[[], bool], what: str, more: Callable[[], object] = lambda: ""
) -> None:
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what}; {more()}"
        pause.wait(0.02)


def standing(database: Database) -> object:
    rows = database.run(
        "SELECT status, worker_id, count(*), min(lease_until) FROM unified_queue "
        "GROUP BY status, worker_id"
    ).fetchall()
    locks = (
        []
        if database.is_sqlite
        else database.run(
            "SELECT pid, state, wait_event, left(query, 80), pg_blocking_pids(pid) "
            "FROM pg_stat_activity WHERE datname IS NOT NULL"
        ).fetchall()
    )
    database.connection.commit()
    return rows, locks


def end_leases_of_the_dead(app: Penstock, url: str) -> None:
    """End the leases of killed workers, which would last five minutes."""
    database = Database(url, PATIENCE)
    table = "penstock_job" if database.is_sqlite else "job_active"
    database.run(
        f"UPDATE {table} SET expires_at = started_at WHERE stage = 3 AND worker LIKE 'worker-%'"  # noqa: S608 - names of our own
        if database.is_sqlite
        else f"UPDATE {table} SET expires_at = started_at "  # noqa: S608 - names of our own
        "WHERE stage = 3 AND worker LIKE 'worker-%%'"
    )
    database.connection.commit()
    database.connection.close()
    run_sync(app.leases.reclaim())


def check_history(app: Penstock) -> int:
    """Check that every run of an item has one start and one end, and that one run succeeded."""
    done = 0
    jobs = run_sync(app.find(JobQuery(limit=1_000_000)))
    for start in range(0, len(jobs), 500):
        for record in run_sync(app.archive.records([job.id for job in jobs[start : start + 500]])):
            runs = [e for e in record.log if e.event not in (Event.REFUSED, Event.ENQUEUED)]
            for n, entry in enumerate(runs):
                begins = entry.event is Event.CLAIMED
                assert begins == (n % 2 == 0), record.log
                if not begins:
                    assert entry.token == runs[n - 1].token
            assert record.job.state is State.DONE, record.log
            assert [e.event for e in runs].count(Event.DONE) == 1
            done += 1
    return done


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nothing_is_lost_and_nothing_taken_twice(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    app = Penstock(url)
    run_sync(unified_queue.prepare(app))
    family = Processes(url, tmp_path)
    database = Database(url, PATIENCE)
    try:
        for name in ROLES:
            family.start(name)
        deadline, kills = time.monotonic() + SECONDS, 0
        while kills < KILLS or time.monotonic() < deadline:
            seen = {name: len(family.lines(name)) for name in ROLES}
            until(
                lambda seen=seen: all(  # type: ignore[misc] # bound now
                    len(family.lines(name)) > n + 2 for name, n in seen.items()
                ),
                f"not all went on: {seen}",
                lambda: f"{family.standing()}, {standing(database)}",
            )
            victim = random.choice([*ROLES]) if kills >= KILLS else [*ROLES][kills % 4]
            family.kill(victim)
            if victim == "worker":
                end_leases_of_the_dead(app, url)
            family.start(victim)
            kills += 1
        family.kill("producer")
        acknowledged = set(family.lines("producer"))

        def is_empty() -> bool:
            # A job that lost its worker twice is delayed by up to a lease: too long here.
            table = "penstock_job" if database.is_sqlite else "job_active"
            database.run(f"UPDATE {table} SET run_at = enqueued_at WHERE stage = 1")  # noqa: S608 - names of our own
            found = database.run(
                "SELECT count(*) FROM unified_queue WHERE status IN ('pending', 'in_progress')"
            ).fetchone()[0]
            database.connection.commit()
            return not found

        until(is_empty, "not all came to an end", lambda: standing(database))
    finally:
        family.close()
        for name in ROLES:
            print(name, (tmp_path / f"{name}.err").read_text()[-2000:])  # noqa: T201 - if it fails
    rows = dict(database.run("SELECT queue_id, status FROM unified_queue").fetchall())
    assert acknowledged <= rows.keys()
    assert set(rows.values()) == {"done"}
    assert check_history(app) == len(rows)
    totals = run_sync(app.tables.read(unified_queue.totals))
    assert sum(total.n for total in totals) == len(rows)
    assert {total.status for total in totals} == {"done"}
    for name in ("producer", "eater", "eater2"):
        assert "locked" not in (tmp_path / f"{name}.err").read_text()
    database.connection.close()
    run_sync(app.close())

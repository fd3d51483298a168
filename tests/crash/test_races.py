"""Moments between two statements, found by the random tests and held still here."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import Done
from penstock.engine.penstock import run_sync
from penstock.stores.sqlite.transaction import SqliteReader
from tests.crash.support import assert_promises_kept, client


def test_sweep_continues_when_a_lease_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """One of the expired jobs is settled while the sweep looks at them; it takes back the other."""
    with client(folder) as app, client(folder) as late:
        run_sync(app.enqueue_many([app.new(), app.new()]))
        late_run, _ = run_sync(late.leases.claim(worker=late.connection.actor, limit=2))
        app.offset += 1

        def meanwhile(reading: SqliteReader, ids: Sequence[int]) -> list[Job]:
            monkeypatch.undo()
            run_sync(late.leases.settle([(late.handle(late_run), Done())]))
            return reading.jobs(ids)

        monkeypatch.setattr(SqliteReader, "jobs", meanwhile)
        assert run_sync(app.leases.reclaim()) == 1
    assert_promises_kept(folder, drained=False)


def test_drain_that_sees_the_last_job_end_is_drained(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The last job ends after the backlog was counted: nothing is paused, all is done."""
    with client(folder) as app, client(folder) as worker:
        run_sync(app.enqueue_many([app.new()]))
        (job,) = run_sync(worker.leases.claim(worker=worker.connection.actor))
        count = app.store.backlog

        async def then_it_ends(*args: Any) -> tuple[int, JobId]:
            monkeypatch.undo()
            counted = await count(*args)
            await worker.leases.settle([(worker.handle(job), Done())])
            return counted

        monkeypatch.setattr(app.store, "backlog", then_it_ends)
        assert run_sync(app.queues.drain(timeout=timedelta(seconds=9))).status == "drained"
    assert_promises_kept(folder)

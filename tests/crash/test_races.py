"""Moments between two statements, found by the random tests and held still here."""

from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Job
from penstock.core.lifecycle import Done
from penstock.engine import run_sync
from penstock.stores.sqlite import store
from penstock.stores.sqlite.transaction import jobs
from tests.crash.support import assert_promises_kept, client


def test_sweep_goes_on_when_a_lease_ends_under_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """One of the expired jobs is settled while the sweep looks at them; it takes back the other."""
    with client(folder) as app, client(folder) as late:
        run_sync(app.enqueue_many([app.new(), app.new()]))
        late_run, _ = run_sync(late.claim(worker=late.actor, limit=2))
        app.offset += 1

        def meanwhile(*args: Any) -> list[Job]:
            monkeypatch.undo()
            run_sync(late.settle([(late.handle(late_run), Done())]))
            return jobs(*args)

        monkeypatch.setattr(store, "jobs", meanwhile)
        assert run_sync(app.reclaim()) == 1
    assert_promises_kept(folder, drained=False)

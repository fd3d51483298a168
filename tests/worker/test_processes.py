"""Handlers in child processes: they can be stopped, they can die, and nothing else is harmed."""

import asyncio
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Job, Penstock, State, run_sync
from tests.contract.support import STORES, SECOND
from tests.worker import isolated
from tests.worker.support import eventually, work_off, working

MOMENT = timedelta(seconds=0.2)


@pytest.fixture(params=STORES)
def app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Penstock]:
    """The app of the children, with a store of its own; children never open it."""
    monkeypatch.setattr(isolated.app, "url", STORES[request.param](tmp_path))
    yield isolated.app
    run_sync(isolated.app.close())


async def outcome_of(app: Penstock, deed: str, folder: Path, **options: Any) -> Job:
    job = await isolated.act.using(**options).enqueue(deed, str(folder))
    await work_off(app, concurrency=2, kill_after=MOMENT)
    return await app.get(job.id)


async def test_result_comes_from_another_process(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "nothing", tmp_path)
    assert (job.state, job.error) == (State.DONE, None)
    assert job.result not in (None, os.getpid())

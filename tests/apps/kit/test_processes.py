"""Processes that a server starts, restarts and ends."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import NewJob, Penstock
from penstock.apps.kit import Pool
from tests.apps.kit.support import Message
from tests.environment import SOON

ROOT = Path(__file__).parents[3]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.01)


async def test_processes_start_when_needed_and_restart_and_end_with_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    marks = tmp_path / "marks"
    marks.mkdir()
    asked, needed = asyncio.Event(), False

    async def is_needed() -> bool:
        asked.set()
        return needed

    def started() -> set[int]:
        return {int(one.name) for one in marks.iterdir() if one.read_text()}

    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        module = "tests.apps.kit.support"
        pool = Pool(app, module, Message(str(marks)), 2, is_needed, name="probe")
        async with pool.running():
            await asked.wait()
            assert pool.processes == {}
            needed = True
            await app.enqueue_many([NewJob(task="t", payload="{}")])  # it is asked again
            await until(lambda: len(started()) == 2)
            first = started()
            assert set(pool.processes.values()) == first
            assert {(marks / str(pid)).read_text() for pid in first} == {
                str(min(19, os.nice(0) + 5))
            }
            os.kill(pool.processes[0], signal.SIGKILL)
            await until(lambda: len(started()) == 3)
            await until(lambda: set(pool.processes.values()) <= started())
        assert pool.processes == {}
        for pid in started():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def test_pool_without_workers_starts_nothing(tmp_path: Path) -> None:
    async def is_needed() -> bool:
        pytest.fail("nobody needs to know")

    async with Penstock("memory://") as app:
        pool = Pool(app, "no.such.module", Message(str(tmp_path)), 0, is_needed, name="probe")
        async with pool.running():
            await asyncio.sleep(0)
        assert pool.processes == {}

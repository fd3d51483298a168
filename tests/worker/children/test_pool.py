"""The pool of child processes: reuse, replacement, and errors at the start."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, Context, Penstock
from penstock.engine.task import Isolation
from penstock.leases import Failed
from penstock.worker.children.pool import ChildPool
from tests.contract.support import SECOND, descriptors
from tests.worker.children import isolated
from tests.worker.support import eventually, work_off

MOMENT = timedelta(seconds=0.5)


# Reuse


async def test_child_serves_many_jobs_and_is_replaced_in_time(app: Penstock) -> None:
    jobs = await app.enqueue_many([isolated.worn.new()] * 5)
    await work_off(app, concurrency=1)
    results = [(await app.get(job.id)).returned for job in jobs]
    assert [results.count(pid) for pid in dict.fromkeys(results)] == [2, 2, 1]


async def test_idle_child_is_retired(app: Penstock, serving: Callable[[], list[int]]) -> None:
    pool = ChildPool(app, limit=3, grace=SECOND, idle=MOMENT / 10)
    await pool.prepare()
    await eventually(lambda: asyncio.sleep(0, serving() == []))
    await pool.close()


async def test_idle_child_of_another_kind_makes_room(
    app: Penstock, serving: Callable[[], list[int]]
) -> None:
    pool = ChildPool(app, limit=1, grace=SECOND)
    first = await pool.take(Isolation(recycle=7))
    pool.give_back(first)
    second = await pool.take(Isolation(recycle=8))
    await first.exited
    assert serving() == [second.pid]
    await pool.close()


async def test_child_that_died_idle_is_not_used(app: Penstock) -> None:
    pool = ChildPool(app, limit=1, grace=SECOND)
    first = await pool.take(Isolation())
    pool.give_back(first)
    os.kill(first.pid, signal.SIGKILL)
    await first.exited
    second = await pool.take(Isolation())
    assert second.pid != first.pid
    await pool.close()


async def test_no_descriptor_is_left(app: Penstock, tmp_path: Path) -> None:
    before = descriptors()
    for deed in ("nothing", "kill_itself", "leave"):
        await isolated.act.enqueue(deed, str(tmp_path))
    await isolated.act.using(timeout=MOMENT).enqueue("sleep", str(tmp_path))
    await work_off(app)
    await app.close()
    assert descriptors() <= before


async def test_child_that_ran_out_of_memory_is_replaced(app: Penstock) -> None:
    await isolated.fill.enqueue(300_000_000)
    (job,) = await app.leases.claim(worker="w")
    pool = ChildPool(app, limit=1, grace=SECOND)
    child = await pool.take(Isolation(memory=isolated.MEMORY))
    assert isinstance(await child.run(Context(job)), Failed)
    pool.give_back(child)
    assert (await pool.take(Isolation(memory=isolated.MEMORY))) is not child
    await pool.close()


# Errors


def refused(register: Callable[[Penstock], object]) -> str:
    with pytest.raises(ConfigurationError) as error:
        register(Penstock("memory://"))
    return str(error.value)


def test_options_are_checked() -> None:
    def nothing() -> None: ...

    def with_options(**options: Any) -> str:
        return refused(lambda app: app.task("t", nothing, **options))

    assert 'isolation must be "process" or None' in with_options(isolation="thread")
    assert 'memory need isolation="process"' in with_options(memory=100_000_000)
    assert "memory must be" in with_options(isolation="process", memory=1)
    assert "memory must be" in with_options(isolation="process", memory=1e9)
    assert "recycle must be" in with_options(isolation="process", recycle=0)


async def test_interpreter_that_cannot_be_started_is_an_error(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = descriptors()
    with pytest.raises(ConfigurationError, match=r"could not start: .Errno 2. No such file"):
        await work_off(app)
    await app.close()
    assert descriptors() <= before

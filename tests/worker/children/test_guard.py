"""The guard of child processes."""

import os
import signal
from collections.abc import Callable

import pytest

from penstock import Penstock
from penstock.engine.task import Isolation
from penstock.worker.children.pool import ChildPool
from tests.contract.support import SECOND
from tests.worker.support import are_gone, eventually


async def test_guard_process_that_was_killed_is_replaced(
    app: Penstock, children: Callable[[], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    pool = ChildPool(app, limit=2, grace=SECOND)
    first = await pool.take(Isolation())
    (guard,) = set(children()) - {first.pid}
    os.kill(guard, signal.SIGKILL)
    await eventually(lambda: are_gone([guard]))
    second = await pool.take(Isolation())
    (another,) = set(children()) - {first.pid, second.pid}
    assert another != guard
    assert "starting another" in caplog.text
    await pool.close()

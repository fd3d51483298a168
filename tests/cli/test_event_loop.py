import asyncio
import sys
from pathlib import Path

import pytest
import uvloop

from penstock import Penstock, run_sync
from penstock.cli import event_loop
from tests.cli.support import COMMAND, Shell, started
from tests.environment import SOON

TASKS = """
import asyncio
from penstock import Penstock

app = Penstock("sqlite:///jobs.db")

@app.task
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__
"""


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_loop_is_that_of_uvloop() -> None:
    assert isinstance(event_loop.run(running_loop()), uvloop.Loop)


def test_loop_is_that_of_asyncio_where_uvloop_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert not isinstance(event_loop.run(running_loop()), uvloop.Loop)


def test_worker_runs_on_uvloop(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = Penstock(url)
    app.task("loop", lambda: None)
    job = run_sync(app.enqueue("loop", {}))
    run_sync(app.close())
    shell = Shell(url)
    with started((*COMMAND, "worker", "tasks:app"), tmp_path):
        shell("drain", "--timeout", str(SOON))
    assert shell.json("jobs", str(job.id))["result"] == "uvloop"

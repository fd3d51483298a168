"""How a child process finds the app of its worker, and what happens if it cannot."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import ConfigurationError, NewJob, Penstock
from penstock.jobs import AppFactory
from tests.contract.support import STORES
from tests.environment import SOON
from tests.worker.children import isolated
from tests.worker.support import ONCE, eventually, is_final, work_off, working


async def test_app_without_a_module_is_recreated_by_its_factory(tmp_path: Path) -> None:
    factory = AppFactory("tests.worker.children.isolated:made", "so")
    async with Penstock(STORES["sqlite"](tmp_path), factory=factory) as app:
        app.task("echo", lambda: "here", isolation="process")
        job = await app.enqueue("echo")
        await work_off(app)
        assert (await app.get(job.id)).returned == "so"


async def test_app_without_a_module_is_refused() -> None:
    app = Penstock("memory://")
    app.task("t", lambda: None, isolation="process")
    with pytest.raises(ConfigurationError, match="an app that a child process can import"):
        await work_off(app)


async def test_task_that_the_import_does_not_register_is_refused(app: Penstock) -> None:
    app.task("local", lambda: None, isolation="process")
    try:
        with pytest.raises(ConfigurationError, match="has no task local: a task with isolation"):
            await work_off(app)
    finally:
        del app.tasks["local"]


@pytest.mark.parametrize("app", ["memory"], indirect=True)
async def test_store_in_memory_cannot_be_reached_from_a_child(
    app: Penstock, tmp_path: Path
) -> None:
    job = await isolated.act.enqueue("enqueue", str(tmp_path))
    await work_off(app)
    job = await app.get(job.id)
    assert "in the memory of the worker" in (job.error or "")


async def test_task_that_is_registered_too_late_fails(app: Penstock, tmp_path: Path) -> None:
    first = await isolated.where.enqueue()
    async with working(app):
        await eventually(lambda: is_final(app, first))
        late = app.task("late", lambda: None, isolation="process", retry=ONCE)
        try:
            job = await late.enqueue()
            await eventually(lambda: is_final(app, job))
        finally:
            del app.tasks["late"]
    assert "the child process has no handler called 'late'" in ((await app.get(job.id)).error or "")


SCRIPT = """
import asyncio, os
from penstock import (Penstock, Worker, run_sync)
app = Penstock("sqlite:///jobs.db")

@app.task(isolation="process"OPTIONS)
def where():
    return os.getpid()

def main():
    job = run_sync(where.enqueue())
    asyncio.run(Worker(app).run(until_empty=True))
    result = run_sync(app.get(job.id)).returned
    print(result is not None and result != os.getpid())

"""


def run_script(
    folder: Path, end: str, *, module: bool = False, options: str = ""
) -> "subprocess.CompletedProcess[str]":
    (folder / "script.py").write_text(SCRIPT.replace("OPTIONS", options) + end)
    command = ["-m", "script"] if module else [str(folder / "script.py")]
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


@pytest.mark.parametrize("module", [False, True])
def test_app_of_a_script_is_found(tmp_path: Path, module: bool) -> None:
    ran = run_script(tmp_path, 'if __name__ == "__main__":\n    main()\n', module=module)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


async def test_command_finds_the_app_for_its_children(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("OPTIONS", ""))
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    (job,) = await app.enqueue_many([NewJob(task="where", payload="{}")])
    worker = await asyncio.create_subprocess_exec(
        *[sys.executable, "-W", "error", "-m", "penstock.cli.main", "worker", "script:app"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    await eventually(lambda: is_final(app, job))
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 0
    assert (await app.get(job.id)).returned not in (None, worker.pid)
    await app.close()


def test_memory_limit_too_low_for_the_import_is_an_error(tmp_path: Path) -> None:
    big = 'if __name__ != "__main__":\n    big = bytearray(200_000_000)\nelse:\n    main()\n'
    ran = run_script(tmp_path, big, options=", memory=100_000_000")
    assert ran.returncode == 1
    assert "ConfigurationError: a child process could not start: MemoryError" in ran.stderr


def test_script_that_starts_its_worker_when_imported_is_an_error(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "main()\n")
    assert ran.returncode == 1
    assert "put that under if __name__ == '__main__':" in ran.stderr

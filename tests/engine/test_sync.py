"""Calls from synchronous code: in threads, in a shell, and not inside an event loop."""

import ast
import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobFailed,
    JobQuery,
    NewJob,
    Penstock,
    State,
    Task,
    Worker,
    run_sync,
)
from penstock.client import remote
from penstock.engine.sync import Sync
from penstock.leases import Done
from tests.engine.sync_stub import CLIENT, ENGINE, stub
from tests.environment import SOON
from tests.worker.support import ONCE

SECONDS = timedelta(seconds=SOON)


# What there is


@pytest.mark.parametrize("path", [ENGINE, CLIENT], ids=lambda path: path.parent.name)
def test_stub_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == stub(path), "run python -m tests.engine.sync_stub"


def stubbed(path: Path) -> dict[str, set[str]]:
    """The calls of each class of a stub."""
    return {
        kind.name: {one.name for one in kind.body if isinstance(one, ast.FunctionDef)}
        - {"__init__", "__enter__", "__exit__"}
        for kind in ast.parse(path.read_text("utf-8")).body
        if isinstance(kind, ast.ClassDef)
    }


def test_every_coroutine_of_an_app_its_parts_and_its_tasks_has_a_synchronous_form() -> None:
    app = Penstock("memory://")
    parts = [part for part in vars(app).values() if hasattr(part, "sync")]
    owners: list[Any] = [app, app.bulk(JobQuery()), app.task("t", lambda: None), *parts]
    found = []
    for owner in owners:
        coroutines = {
            name
            for name, value in vars(type(owner)).items()
            if not name.startswith("_")
            and (inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value))
        }
        assert set(dir(owner.sync)) == coroutines
        assert all(callable(getattr(owner.sync, name)) for name in coroutines)
        found.append(coroutines)
    assert len(owners) == 12
    assert sorted(found, key=sorted) == sorted(stubbed(ENGINE).values(), key=sorted)


def test_every_coroutine_of_a_remote_app_has_a_synchronous_form() -> None:
    for name, calls in stubbed(CLIENT).items():
        kind: Any = getattr(remote, name.removeprefix("Sync"))
        own = {one for one in vars(kind) if not one.startswith("_")}
        offered = {one for one in dir(Sync(kind.__new__(kind))) if one in own}
        assert calls == offered


def test_types_of_the_stub_exist() -> None:
    from penstock.engine import sync_calls

    assert sync_calls.SyncPenstock is Sync  # type: ignore[comparison-overlap] # for annotations
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = sync_calls.Other  # type: ignore[attr-defined]


# What it does


def test_calls_return_what_they_would_when_awaited(app: Penstock, greet: Task[[str], str]) -> None:
    job = greet.sync.enqueue("ada")
    assert app.sync.get(job.id) == job
    assert app.sync.find(JobQuery(task="greet")) == [job]
    assert greet.using(priority=9).sync.enqueue("linus").priority == 9
    assert app.queues.sync.pause("default").paused
    assert [queue.name for queue in app.queues.sync.list()] == ["default"]
    assert app.bulk(JobQuery(task="greet")).sync.count() == 2
    assert app.queues.sync.resume("default").paused is False
    [first, _] = sorted(app.leases.sync.claim(worker="w", limit=2), key=lambda one: one.id)
    app.leases.sync.settle([(first, Done('"hello ada"'))])
    assert job.sync.result(timeout=SECONDS) == app.sync.result(job) == "hello ada"
    assert app.sync.get(job.id).state is app.sync.log(job.id)[-1].state is State.DONE


def test_errors_are_those_of_the_call(app: Penstock) -> None:
    @app.task(retry=ONCE)
    def fail() -> int:
        raise KeyError("x")

    with pytest.raises(InvalidJob):
        fail.sync.enqueue(5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        app.sync.find(nothing=1)  # type: ignore[call-arg]
    job = fail.sync.enqueue()
    asyncio.run(Worker(app).run(until_empty=True))
    with pytest.raises(JobFailed, match="KeyError"):
        job.sync.result()


def test_log_is_followed_entry_by_entry(app: Penstock, greet: Task[[str], str]) -> None:
    jobs = [greet.sync.enqueue(name) for name in "abc"]
    tail = app.sync.tail(after=0)
    assert [next(tail).job_id for _ in jobs] == [job.id for job in jobs]
    later = threading.Thread(target=lambda: greet.sync.enqueue("d"))
    later.start()
    assert next(tail).job_id > jobs[-1].id  # waits for it
    later.join()
    assert isinstance(tail, Iterator)
    tail.close()  # type: ignore[attr-defined] # a generator


def test_app_is_opened_and_closed_by_with(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    with app.sync as opened:
        assert opened is app
        [job] = app.sync.enqueue_many([NewJob(task="t", payload="{}")])
    with Penstock(app.url).sync as again:
        assert again.sync.get(job.id) == job
    with pytest.raises(AttributeError), app.queues.sync:  # type: ignore[attr-defined]
        pass


def test_what_is_no_coroutine_is_refused_with_advice(app: Penstock) -> None:
    for name in ("bulk", "task", "queues", "url"):
        with pytest.raises(AttributeError, match=r"is not a coroutine: use it as it is"):
            getattr(app.sync, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = app.sync.nothing  # type: ignore[attr-defined]
    assert "synchronous calls of" in repr(app.sync)


async def test_job_that_no_app_returned_says_so(app: Penstock) -> None:
    await app.enqueue_many([NewJob(task="t", payload="{}")])
    [job] = await app.store.find(JobQuery())
    with pytest.raises(ConfigurationError, match="was not returned by a Penstock"):
        job.sync.result()


def test_threads_share_an_app_and_wait_for_their_results(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    def ask(n: int) -> tuple[Job[int], int]:
        job = double.sync.enqueue(n)
        return job, job.sync.result(timeout=SECONDS)

    worker = Worker(app)
    working = threading.Thread(target=lambda: asyncio.run(worker.run()))
    working.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(60)))
    finally:
        worker.stop()
        working.join(SOON)
    assert [result for _, result in answers] == [2 * n for n in range(60)]
    assert len({job.id for job, _ in answers}) == 60
    app.sync.close()


# Inside an event loop


async def test_event_loop_is_not_blocked_but_told_what_to_do(app: Penstock) -> None:
    task = app.task("t", lambda: None)
    job = await task.enqueue()
    for call, name in (
        (app.sync.find, "find"),
        (task.sync.enqueue, "enqueue"),
        (job.sync.result, "result"),
        (app.queues.sync.list, "list"),
        (app.sync.tail, "tail"),
    ):
        with pytest.raises(
            ConfigurationError,
            match=rf"an event loop runs in this thread.*`await ….{name}\(…\)`.*asyncio.to_thread",
        ):
            call()
    with pytest.raises(ConfigurationError, match="an event loop runs"), app.sync:
        pass
    assert [one.id for one in await app.find()] == [job.id]  # nothing was stored
    assert await asyncio.to_thread(app.sync.find) == [job]


def test_coroutine_that_needs_an_event_loop_is_told_apart() -> None:
    with pytest.raises(ConfigurationError, match=r"other coroutines need asyncio.run"):
        run_sync(asyncio.sleep(0))


# In a shell

SHELL = """\
from penstock import Penstock
app = Penstock("sqlite:///jobs.db")
@app.task
def double(n: int) -> int: return 2 * n

job = double.sync.enqueue(21)
print("states:", [str(one.state) for one in app.sync.find()])
"""


@pytest.mark.parametrize(
    ("shell", "said"),
    [((), "states: ['pending']"), (("-m", "asyncio"), "an event loop runs in this thread")],
    ids=["python", "with-a-loop"],
)
def test_shell_is_answered(shell: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """The plain one gets what it asks for; that of asyncio, and notebooks, are told to await."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", *(shell or ("-i",))],
        input=SHELL,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert said in ran.stdout + ran.stderr
    assert "never awaited" not in ran.stderr

"""What a type checker sees: read by mypy and pyright, and run here so that it stays true.

An expected complaint is a `type: ignore` with its code; both complain about one that is unused.
"""

import ast
import asyncio
import inspect
import json
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type

import msgspec
import pytest

import penstock
from penstock import (
    ConfigurationError,
    Context,
    InvalidJob,
    Job,
    JobQuery,
    NewJob,
    Penstock,
    State,
    Task,
    Worker,
    context,
    run_sync,
)
from penstock.integrations.flask import FlaskJobs
from penstock.integrations.sqlalchemy import AsyncSessionJobs, SessionJobs
from penstock.jobs import Explanation, LogEntry
from penstock.queues import Drained, Queue

app = Penstock("memory://")


@app.task
async def resize(path: str, width: int, *, sharp: bool = False) -> str:
    return f"{path} {width} {sharp}"


@app.task(queue="mail", priority=7)
def send(to: str, at: datetime | None = None) -> int:
    return len(to)


@app.task("named")
def named(n: int) -> None:
    """Registered under a name."""


def plain(n: int) -> float:
    return n / 2


async def coroutine(text: str) -> bytes:
    return text.encode()


registered = app.task("plain", plain, queue="numbers")
registered_coroutine = app.task("coroutine", coroutine)


async def test_enqueue_takes_the_functions_own_parameters() -> None:
    assert_type(await resize.enqueue("a.png", 200), Job[str])
    assert_type(await resize.enqueue("a.png", width=200, sharp=True), Job[str])
    assert_type(await send.enqueue("me"), Job[int])
    assert_type(await registered.enqueue(1), Job[float])
    assert_type(await named.enqueue(1), Job[None])
    assert_type(await registered_coroutine.enqueue("a"), Job[bytes])
    assert_type(resize.new("a.png", 200), NewJob)


async def types_of_integrations(
    jobs: SessionJobs, asynchronous: AsyncSessionJobs, flask: FlaskJobs
) -> None:
    """Only read by type checkers."""
    assert_type(jobs.enqueue(resize, "a.png", 200), Job[str])
    assert_type(await asynchronous.enqueue(resize, "a.png", width=200), Job[str])
    assert_type(flask.enqueue(send.using(priority=9), "me"), Job[int])
    jobs.enqueue(resize, 5, 200)  # type: ignore[arg-type]
    await asynchronous.enqueue(send, "me", "now")  # type: ignore[arg-type]
    flask.enqueue(resize, "a.png")  # type: ignore[call-arg]


async def test_result_has_the_type_that_the_handler_returns() -> None:
    own = Penstock("memory://")

    @own.task
    async def total(prices: list[Decimal]) -> Decimal:
        return sum(prices, Decimal(0))

    @own.task(queue="mail")
    def count(words: list[str]) -> dict[str, int]:
        return dict(Counter(words))

    first, second = await total.enqueue([Decimal("1.10")] * 2), await count.enqueue(["a"])
    await Worker(own).run(until_empty=True)
    price = await first.result()
    assert_type(price, Decimal)
    assert repr(price) == "Decimal('2.20')"
    assert_type(await second.result(), dict[str, int])
    assert_type(await own.get(first.id), Job)
    assert_type(await own.result(first), Decimal)
    assert_type(await own.result(first.id), Any)
    anything: Job[object] = first  # a Job is covariant
    assert anything is first
    await own.close()


async def test_wrong_arguments_are_seen_by_the_type_checker() -> None:
    with pytest.raises(InvalidJob):
        await resize.enqueue("a.png")  # type: ignore[call-arg]
    with pytest.raises(InvalidJob):
        await resize.enqueue("a.png", "wide")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        await resize.enqueue("a.png", 200, True)  # type: ignore[call-arg]
    with pytest.raises(InvalidJob):
        await resize.enqueue("a.png", 200, blurred=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidJob):
        await send.enqueue(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        await registered.enqueue("one")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        named.new()  # type: ignore[call-arg]


async def test_task_keeps_the_type_of_its_function() -> None:
    assert_type(await resize("a.png", 200), str)
    assert_type(send("me"), int)
    assert_type(registered(3), float)
    with pytest.raises(TypeError):
        send()  # type: ignore[call-arg]


async def test_options_keep_the_parameters() -> None:
    urgent = resize.using(priority=9, delay=timedelta(seconds=1), tags=["x"])
    assert_type(await urgent.enqueue("a.png", 200), Job[str])
    with pytest.raises(InvalidJob):
        await urgent.enqueue(200, "a.png")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        await send.using(priority="high").enqueue("me")  # type: ignore[arg-type]


def test_parameters_and_result_are_part_of_the_tasks_type() -> None:
    def wants(task: Task[[int], float]) -> None:
        assert task(2) == 1.0

    wants(registered)
    with pytest.raises(TypeError):
        wants(send)  # type: ignore[arg-type]


def test_bridge_passes_the_type_of_the_answer_on() -> None:
    assert_type(run_sync(send.enqueue("me")), Job[int])
    assert_type(run_sync(app.find()), list[Job])
    assert_type(run_sync(app.queues.pause("mail")), Queue)
    assert_type(run_sync(app.queues.drain("none", timeout=timedelta(0))), Drained)
    assert_type(run_sync(app.explain(1)), Explanation)


def test_synchronous_form_has_the_types_of_the_call() -> None:
    own = Penstock("memory://")

    @own.task
    async def total(prices: list[Decimal]) -> Decimal:
        return sum(prices, Decimal(0))

    @own.task(queue="mail")
    def count(words: list[str]) -> dict[str, int]:
        return dict(Counter(words))

    job = total.sync.enqueue([Decimal("1.10")])
    assert_type(job, Job[Decimal])
    assert_type(count.using(priority=1).sync.enqueue(["a"]), Job[dict[str, int]])
    asyncio.run(Worker(own).run(until_empty=True))
    assert_type(job.sync.result(), Decimal)
    assert_type(own.sync.result(job, timeout=timedelta(1)), Decimal)
    assert_type(own.sync.find(), list[Job])
    assert_type(own.queues.sync.pause("mail"), Queue)
    assert_type(own.bulk(JobQuery()).sync.count(), int)
    assert_type(own.sync.tail(after=0), Iterator[LogEntry])
    with own.sync as opened:
        assert_type(opened, Penstock)
    with pytest.raises(InvalidJob):
        total.sync.enqueue(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        count.sync.enqueue()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        own.sync.bulk  # type: ignore[attr-defined] # noqa: B018 - is not a coroutine
    with pytest.raises(TypeError):
        own.queues.sync.pause()  # type: ignore[call-arg]


def test_context_is_typed() -> None:
    with pytest.raises(LookupError):
        assert_type(context(), Context)


def test_states_and_tags_of_a_query_are_any_collection() -> None:
    assert_type(JobQuery(states=[State.FAILED]).states, frozenset[State] | None)
    assert_type(JobQuery(tags=["a"]).tags, tuple[str, ...])
    failed = frozenset({State.FAILED})
    assert JobQuery(states=[State.FAILED]).states == failed
    assert JobQuery(states={State.FAILED}).states == failed
    assert JobQuery(states=(State.FAILED,)).states == failed
    assert JobQuery(states={State.FAILED: 1}.keys()).states == failed
    assert JobQuery(tags={"a"}).tags == ("a",)
    assert JobQuery(parent=7, after=8, until=9).parent == 7
    with pytest.raises(ConfigurationError, match="states must be a collection of states"):
        JobQuery(states="failed")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="states must be a collection of states"):
        JobQuery(states=["failing"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="tags must be a collection"):
        JobQuery(tags="abc")  # a text is a collection of texts to a type checker


def test_type_checkers_are_told_of_every_field_of_a_query() -> None:
    [query] = ast.parse(textwrap.dedent(inspect.getsource(JobQuery))).body
    [told] = [node for node in ast.walk(query) if getattr(node, "name", "") == "__init__"]
    assert isinstance(told, ast.FunctionDef)
    fields = msgspec.structs.fields(JobQuery)
    assert [one.arg for one in told.args.kwonlyargs] == [one.name for one in fields]
    defaults = [None if one is None else ast.literal_eval(one) for one in told.args.kw_defaults]
    assert defaults == [one.default for one in fields]


async def test_tags_and_ids_of_a_job_are_any_collection() -> None:
    app = Penstock("memory://")
    [first] = await app.enqueue_many([NewJob(task="t", payload="{}", tags=["a", "b"])])
    assert first.tags == ("a", "b")
    second = NewJob(task="t", payload="{}", tags={"a": 1}.keys(), after={first.id})
    third = NewJob(task="t", payload="{}", follows=[0])
    assert (second.tags, second.after, third.follows) == (("a",), (first.id,), (0,))
    assert [job.needs for job in await app.enqueue_many([second, third])] == [1, 1]
    task = app.task("plain", plain)
    assert (await task.using(tags={"x"}, after={first.id}).enqueue(3)).tags == ("x",)
    with pytest.raises(InvalidJob, match="tags must be a collection"):
        NewJob(task="t", payload="{}", tags="abc")
    await app.close()


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_pyright_says_the_same_as_mypy(python: str, tmp_path: Path) -> None:
    """It complains where mypy does, and nowhere else."""
    settings = {
        "include": ["program.py"],
        "extraPaths": [str(Path(penstock.__file__).parents[1])],
        "pythonVersion": python,
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedFunction": "none",  # handlers that are only registered
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(__file__, tmp_path / "program.py")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    complaints = found["generalDiagnostics"]
    assert [(one["range"]["start"]["line"] + 1, one["message"]) for one in complaints] == []

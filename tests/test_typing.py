"""What a type checker sees: read by mypy with the rest, and run here so that it stays true.

An expected complaint is a `type: ignore` with its code; mypy complains about one that is unused.
"""

import ast
import inspect
import textwrap
from datetime import datetime, timedelta
from typing import assert_type

import pytest

from penstock import (
    ConfigurationError,
    Context,
    Drained,
    Explanation,
    InvalidJob,
    Job,
    JobQuery,
    NewJob,
    Penstock,
    Queue,
    State,
    Task,
    context,
    run_sync,
)

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


registered = app.task("plain", plain, queue="numbers")


async def test_enqueue_takes_the_functions_own_parameters() -> None:
    assert_type(await resize.enqueue("a.png", 200), Job)
    assert_type(await resize.enqueue("a.png", width=200, sharp=True), Job)
    assert_type(await send.enqueue("me"), Job)
    assert_type(await registered.enqueue(1), Job)
    assert_type(resize.new("a.png", 200), NewJob)


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
    assert_type(await urgent.enqueue("a.png", 200), Job)
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
    assert_type(run_sync(send.enqueue("me")), Job)
    assert_type(run_sync(app.find()), list[Job])
    assert_type(run_sync(app.pause("mail")), Queue)
    assert_type(run_sync(app.drain("none", timeout=timedelta(0))), Drained)
    assert_type(run_sync(app.explain(1)), Explanation)


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
    with pytest.raises(ConfigurationError, match="states is a collection of states"):
        JobQuery(states="failed")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="states is a collection of states"):
        JobQuery(states=["failing"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="tags must be a collection"):
        JobQuery(tags="abc")  # a text is a collection of texts to a type checker


def test_type_checkers_are_told_of_every_field_of_a_query() -> None:
    [query] = ast.parse(textwrap.dedent(inspect.getsource(JobQuery))).body
    [told] = [node for node in ast.walk(query) if getattr(node, "name", "") == "__init__"]
    assert isinstance(told, ast.FunctionDef)
    assert tuple(one.arg for one in told.args.kwonlyargs) == JobQuery.__struct_fields__
    defaults = [None if one is None else ast.literal_eval(one) for one in told.args.kw_defaults]
    assert tuple(defaults) == JobQuery.__struct_defaults__


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

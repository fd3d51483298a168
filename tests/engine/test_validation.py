"""Jobs that cannot be stored are refused before anything is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    InvalidJob,
    Penstock,
    Task,
)
from penstock.errors import PayloadTooLarge
from tests.contract.support import SECOND, new
from tests.engine.support import add_one

# What cannot be stored

TOO_LATE = timedelta(days=3_000_000)
"""Past the year 9999, where no datetime can follow."""

WRONG: dict[str, dict[str, Any]] = {
    "priority below": {"priority": -1},
    "priority above": {"priority": 11},
    "priority no number": {"priority": "5"},
    "priority fraction": {"priority": 5.0},
    "priority bool": {"priority": True},
    "task empty": {"task": ""},
    "task long": {"task": "x" * 201},
    "task unprintable": {"task": "a\nb"},
    "task surrogate": {"task": "\ud800"},
    "task no text": {"task": 5},
    "queue empty": {"queue": ""},
    "queue long": {"queue": "x" * 201},
    "queue unprintable": {"queue": "\0"},
    "queue no text": {"queue": None},
    "key empty": {"key": ""},
    "key long": {"key": "x" * 1001},
    "key surrogate": {"key": "\ud800"},
    "key nul": {"key": "a\0b"},  # SQLite would take it for "a"
    "key no text": {"key": 5},
    "dedupe empty": {"dedupe": ""},
    "dedupe long": {"dedupe": "x" * 1001},
    "dedupe surrogate": {"dedupe": "\ud800"},
    "dedupe nul": {"dedupe": "a\0b"},
    "dedupe no text": {"dedupe": 5},
    "scope unknown": {"dedupe": "d", "scope": "everything"},
    "tags too many": {"tags": tuple(f"t{n}" for n in range(51))},
    "tag empty": {"tags": ("",)},
    "tag long": {"tags": ("x" * 201,)},
    "tag unprintable": {"tags": ("a\tb",)},
    "tag no text": {"tags": (5,)},
    "delay and run_at": {"delay": SECOND, "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
    "delay negative": {"delay": -SECOND},
    "delay no duration": {"delay": 5},
    "delay endless": {"delay": timedelta.max},
    "delay too late": {"delay": TOO_LATE},
    "run_at naive": {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the point
    "run_at no moment": {"run_at": "tomorrow"},
    "lease zero": {"lease": timedelta(0)},
    "lease negative": {"lease": -SECOND},
    "lease no duration": {"lease": 30},
    "lease endless": {"lease": timedelta.max},
    "lease too late": {"lease": TOO_LATE},
    "timeout zero": {"timeout": timedelta(0)},
    "timeout negative": {"timeout": -SECOND},
    "timeout no duration": {"timeout": 30},
    "timeout endless": {"timeout": timedelta.max},
    "retry no policy": {"retry": 3},
    "payload no text": {"payload": b"{}"},
    "payload no JSON": {"payload": "{"},
    "payload no object": {"payload": "[1]"},
    "payload surrogate": {"payload": '{"a":"\ud800"}'},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_job_that_cannot_be_stored_is_refused_and_nothing_is_stored(
    app: Penstock, wrong: str
) -> None:
    with pytest.raises(InvalidJob):
        await app.enqueue_many([new(), new(**WRONG[wrong])])
    assert await app.find() == []
    assert await app.log() == []


@pytest.mark.parametrize("wrong", [name for name in WRONG if "payload" not in name])
def test_wrong_option_of_a_task_is_refused_at_its_registration(wrong: str) -> None:
    app = Penstock("memory://")
    options = dict(WRONG[wrong])
    name = options.pop("task", "t")
    with pytest.raises(InvalidJob):
        app.task(name, lambda: None, **options)
    assert app.tasks == {}


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 0},
        {"priority": 10},
        {"task": "x" * 200, "queue": "ö" * 200},
        {"key": "x" * 1000, "dedupe": "line\nbreak"},
        {"tags": tuple(f"t{n}" for n in range(50))},
        {"tags": ("twice", "twice")},
        {"delay": timedelta(0)},
        {"run_at": datetime(1999, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(8999, 12, 31, tzinfo=UTC)},
        {"lease": timedelta(microseconds=1), "timeout": timedelta(microseconds=1)},
        {"lease": timedelta(days=365)},
        {"payload": '{"emoji":"\U0001f600","nul":"\\u0000","deep":[[[[]]]]}'},
    ],
    ids=" ".join,
)
async def test_job_at_the_edge_of_what_is_allowed_is_stored_whole(
    app: Penstock, options: dict[str, Any]
) -> None:
    job = await add_one(app, **options)
    assert await app.get(job.id) == job
    for name, value in options.items():
        if name not in ("delay", "lease"):
            assert getattr(job, name) == value


@pytest.mark.parametrize("letter", ["x", "ö", "€", "\U0001f600"])
async def test_payload_limit_counts_bytes(letter: str) -> None:
    app = Penstock("memory://", payload_limit=1000)
    task = app.task("t", lambda text: None)
    room = 1000 - len('{"text":""}')
    fits = letter * (room // len(letter.encode()))
    await task.enqueue(fits)
    with pytest.raises(PayloadTooLarge, match=r"task t: \d+ bytes of JSON, the limit is 1000"):
        await task.enqueue(fits + letter)
    assert len(await app.find()) == 1


async def test_payload_limit_is_a_megabyte_unless_chosen(app: Penstock) -> None:
    task = app.task("t", lambda text: None)
    job = await task.enqueue("x" * 999_980)
    assert (await app.get(job.id)).args == {"text": "x" * 999_980}
    with pytest.raises(PayloadTooLarge):
        await task.enqueue("x" * 1_000_000)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, "x", "more"), {}),
        ((1, "x"), {"other": 1}),
        ((1,), {"n": 1, "text": "x"}),
        ((1,), {"text": 2}),
        (("1", "x"), {}),
        ((1.5, "x"), {}),
        ((None, "x"), {}),
        ((1, None), {}),
        ((1, "x"), {"flag": True, "self": 1}),
        ((1, "x", True), {}),
    ],
)
async def test_arguments_that_do_not_fit_the_handler_are_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    app = Penstock("memory://")

    def handler(n: int, text: str, *, flag: bool = False) -> None:
        raise NotImplementedError

    task: Task[..., None] = app.task("t", handler)
    with pytest.raises(InvalidJob, match="task t"):
        await task.enqueue(*args, **kwargs)
    assert await app.find() == []


@pytest.mark.parametrize(
    "value",
    [
        object(),
        1j,
        lambda: None,
        "\ud800",
        {"key": "\ud800"},
        {("a", "tuple"): 1},
        nested(100_000),
        itself(),
        float("nan"),
        [float("inf")],
        {1, 2},
        b"bytes",
    ],
    ids=[
        "object", "complex", "function", "surrogate", "surrogate inside", "tuple key", "deep",
        "cyclic", "nan", "infinity", "set", "bytes",
    ],
)  # fmt: skip
async def test_argument_that_is_not_json_is_refused(value: object) -> None:
    """Never changed silently into something that is."""
    app = Penstock("memory://")
    task = app.task("t", lambda value: None)
    with pytest.raises(InvalidJob, match="task t"):
        await task.enqueue(value)
    assert await app.find() == []

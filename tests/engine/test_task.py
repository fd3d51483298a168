"""Tasks: registered in any form, called as they are, enqueued with their own arguments."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest

from penstock import ConfigurationError, InvalidJob, NewJob, Penstock, RetryPolicy, Task, run_sync
from penstock.engine.codec import Arguments
from tests.contract.support import HOUR, SECOND

UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Address(msgspec.Struct):
    street: str
    since: date


class Options(TypedDict):
    deep: bool


class Later:
    """A type that JSON cannot hold."""


@pytest.fixture
def app() -> Penstock:
    return Penstock("memory://")


# Registering


def test_bare_decorator_takes_the_functions_name(app: Penstock) -> None:
    @app.task
    def greet(name: str) -> str:
        """Say hello."""
        return f"hello {name}"

    assert isinstance(greet, Task)
    assert (greet.name, greet.is_async, greet.__doc__) == ("greet", False, "Say hello.")
    assert app.tasks == {"greet": greet}


def test_decorator_takes_options_and_a_name(app: Penstock) -> None:
    @app.task("mail.send", queue="mail", priority=7, retry=RetryPolicy(attempts=9))
    async def send() -> None:
        pass

    job = send.new()
    assert (send.name, send.is_async) == ("mail.send", True)
    assert (job.task, job.queue, job.priority, job.retry.attempts) == ("mail.send", "mail", 7, 9)


def test_decorator_with_options_alone_takes_the_functions_name(app: Penstock) -> None:
    @app.task(queue="mail")
    def send() -> None:
        pass

    assert send.new() == NewJob(task="send", payload="{}", queue="mail")


def test_function_is_registered_by_a_call(app: Penstock) -> None:
    def send() -> None:
        pass

    assert app.task("mail.send", send, queue="mail").new().queue == "mail"


async def test_task_is_still_the_function(app: Penstock) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def triple(n: int) -> int:
        return 3 * n

    assert double(2) == 4
    assert double(n="ab") == "abab"  # type: ignore[arg-type, comparison-overlap] # is not checked in a plain call
    assert await triple(2) == 6
    assert await app.find() == []


def test_function_itself_raises_as_it_does(app: Penstock) -> None:
    @app.task
    def fail() -> None:
        raise KeyError("own")

    with pytest.raises(KeyError):
        fail()


def test_name_is_registered_once(app: Penstock) -> None:
    app.task("t", lambda: None)
    with pytest.raises(ConfigurationError, match="'t' is already registered"):
        app.task("t", lambda: None)


def test_refused_registration_leaves_the_name_free(app: Penstock) -> None:
    with pytest.raises(InvalidJob):
        app.task("t", lambda: None, priority=99)
    app.task("t", lambda: None)


def anything(*args: int) -> None:
    """Takes any number of arguments."""


def anything_named(**kwargs: int) -> None:
    """Takes arguments of any name."""


def nameless(first: int, /) -> None:
    """Takes an argument without a name."""


@pytest.mark.parametrize("handler", [anything, anything_named, nameless])
def test_parameters_without_a_name_of_their_own_are_refused(
    app: Penstock, handler: Callable[..., None]
) -> None:
    with pytest.raises(ConfigurationError, match="arguments are stored by"):
        app.task(handler)
    assert app.tasks == {}


# Options


def test_using_changes_the_options_of_a_copy(app: Penstock) -> None:
    task = app.task("t", lambda: None, queue="mail", priority=7)
    urgent = task.using(priority=10, key="k", tags=["a", "b"], delay=SECOND)
    assert urgent.new() == NewJob(
        task="t", payload="{}", queue="mail", priority=10, key="k", tags=("a", "b"), delay=SECOND
    )
    assert task.new() == NewJob(task="t", payload="{}", queue="mail", priority=7)
    assert task.using(key="x").new().priority == 7
    assert app.tasks == {"t": task}


def test_using_can_be_repeated(app: Penstock) -> None:
    task = app.task("t", lambda: None).using(priority=1, key="a").using(priority=2)
    assert (task.new().priority, task.new().key) == (2, "a")


def test_using_keeps_the_function_and_its_permanent_errors(app: Penstock) -> None:
    task = app.task("t", lambda: 5, permanent=(KeyError,)).using(priority=1)
    assert (task(), task.permanent) == (5, (KeyError,))


async def test_wrong_option_is_refused_when_a_job_is_enqueued(app: Penstock) -> None:
    with pytest.raises(InvalidJob, match="priority"):
        await app.task("t", lambda: None).using(priority=99).enqueue()
    assert await app.find() == []


async def test_new_job_can_be_enqueued_with_others(app: Penstock) -> None:
    task = app.task("t", lambda n: None)
    jobs = await app.enqueue_many([task.new(1), task.using(queue="q").new(n=2)])
    assert [(job.args, job.queue) for job in jobs] == [({"n": 1}, "default"), ({"n": 2}, "q")]


# Arguments


def check(value: Any, annotation: Any) -> None:
    """What is given for a parameter of this type arrives as it was."""

    def handler(value: Any) -> None:
        raise NotImplementedError

    handler.__annotations__["value"] = annotation
    arguments = Arguments("t", handler)
    payload = arguments.encode((value,), {})
    arrived = arguments.decode(payload)
    assert arrived == {"value": value}
    assert type(arrived["value"]) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, -(2**63)),
        (float, 1.5),
        (bool, True),
        (str, "ö\0\U0001f600"),
        (None, None),
        (bytes, b"\0\xff"),
        (datetime, datetime(2030, 1, 1, 12, tzinfo=UTC)),
        (date, date(2030, 1, 1)),
        (timedelta, 90 * HOUR),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Literal["a", "b"], "b"),
        (int | None, None),
        (int | None, 5),
        (UserId, 5),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (Point, Point(1, 2)),
        (list[Point], [Point(1)]),
        (Address, Address("High Street", date(2020, 1, 1))),
        (Options, {"deep": True}),
        (Any, {"a": [1, None, "x", 1.5, True]}),
        (object, [1]),
    ],
    ids=str,
)  # fmt: skip
def test_argument_arrives_in_its_type(annotation: Any, value: Any) -> None:
    check(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "5"),
        (int, 1.5),
        (int, None),
        (str, 5),
        (bool, 1),
        (datetime, "yesterday"),
        (UUID, "no uuid"),
        (Literal["a"], "b"),
        (Colour, "blue"),
        (list[int], ["a"]),
        (Point, {"x": "one"}),
        (Address, {"street": "High Street"}),
        (float, float("nan")),
    ],
    ids=str,
)
def test_argument_of_another_type_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidJob, match=r"task t: .*value"):
        check(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [
        (datetime, "2030-01-01T00:00:00Z", datetime(2030, 1, 1, tzinfo=UTC)),
        (UUID, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
        (Point, {"x": 1}, Point(1)),
        (set[int], [1, 2], {1, 2}),
        (Colour, "red", Colour.RED),
    ],
    ids=str,
)
async def test_json_that_says_the_same_can_be_enqueued_by_name(
    app: Penstock, annotation: Any, given: Any, value: Any
) -> None:
    """Whoever enqueues from another language or a command line has nothing else."""

    def handler(value: Any) -> None:
        raise NotImplementedError

    handler.__annotations__["value"] = annotation
    task = app.task("t", handler)
    job = await app.enqueue("t", {"value": given})
    assert task.arguments.decode(job.payload) == {"value": value}


def test_defaults_are_left_to_the_handler() -> None:
    """So that a job enqueued before the default changed gets the new one."""

    def handler(n: int, text: str = "a", *, flag: bool | None = None) -> None:
        raise NotImplementedError

    arguments = Arguments("t", handler)
    assert arguments.encode((1,), {}) == '{"n":1}'
    assert arguments.decode('{"n":1}') == {"n": 1}
    assert arguments.decode(arguments.encode((1,), {"flag": None})) == {"n": 1, "flag": None}
    assert arguments.encode((1, "b"), {"flag": True}) == '{"n":1,"text":"b","flag":true}'


def test_default_of_another_type_is_left_to_the_handler() -> None:
    def handler(path: Path = Path("/"), later: Later | None = None) -> None:
        raise NotImplementedError

    arguments = Arguments("t", handler)
    assert arguments.decode(arguments.encode((), {})) == {}


def test_parameter_by_keyword_alone_may_be_required_behind_a_default() -> None:
    def handler(n: int = 1, *, text: str) -> None:
        raise NotImplementedError

    arguments = Arguments("t", handler)
    assert arguments.decode(arguments.encode((), {"text": "a"})) == {"text": "a"}
    assert arguments.decode(arguments.encode((2,), {"text": "a"})) == {"n": 2, "text": "a"}
    with pytest.raises(InvalidJob, match="text"):
        arguments.encode((2,), {})


def test_parameter_by_keyword_alone_is_not_taken_by_position() -> None:
    def handler(n: int, *, text: str) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidJob, match="1 positional"):
        Arguments("t", handler).encode((1, "a"), {})


def test_parameters_without_annotation_take_any_json() -> None:
    arguments = Arguments("t", lambda a, b=None: None)
    assert arguments.decode(arguments.encode(([1, {"x": None}],), {})) == {"a": [1, {"x": None}]}


def test_annotations_may_be_text() -> None:
    def handler(at: "datetime", who: "Point") -> None:
        raise NotImplementedError

    arguments = Arguments("t", handler)
    given = {"at": datetime(2030, 1, 1, tzinfo=UTC), "who": Point(1)}
    assert arguments.decode(arguments.encode((), given)) == given
    with pytest.raises(InvalidJob):
        arguments.encode((5, Point(1)), {})


def test_annotation_that_cannot_be_found_checks_nothing() -> None:
    def handler(n: "int", who: "Missing") -> None:  # type: ignore[name-defined] # noqa: F821 - is what is missing
        raise NotImplementedError

    arguments = Arguments("t", handler)
    assert arguments.decode(arguments.encode((1, {"a": 1}), {})) == {"n": 1, "who": {"a": 1}}


def test_annotation_that_cannot_be_found_leaves_the_others_checked() -> None:
    def handler(n: int, who: "Missing") -> None:  # type: ignore[name-defined] # noqa: F821 - is what is missing
        raise NotImplementedError

    with pytest.raises(InvalidJob):
        Arguments("t", handler).encode(("one", 1), {})


@pytest.mark.parametrize(
    "annotation",
    [
        Later,
        list[Later],
        list["Missing"],  # type: ignore[name-defined] # noqa: F821 - is what is missing
        Point | Address | Options,
        int | UserId | datetime | str | UUID,
        Callable[[], None],
        5,
        type[int],
    ],
    ids=str,
)  # fmt: skip
def test_annotation_that_json_cannot_hold_is_left_to_the_handler(annotation: Any) -> None:
    def handler(value: Any, other: Any = None) -> None:
        raise NotImplementedError

    handler.__annotations__.update(value=annotation, other=annotation)
    arguments = Arguments("t", handler)
    assert arguments.decode(arguments.encode(("text",), {})) == {"value": "text"}


def test_dataclass_whose_own_annotations_cannot_be_found_is_left_to_the_handler() -> None:
    @dataclass
    class Odd:
        inner: "Missing"  # type: ignore[name-defined] # noqa: F821 - is what is missing

    def handler(value: Any) -> None:
        raise NotImplementedError

    handler.__annotations__["value"] = Odd
    arguments = Arguments("t", handler)
    assert arguments.decode(arguments.encode(({"inner": 1},), {})) == {"value": {"inner": 1}}


def test_path_is_given_as_text() -> None:
    def handler(path: Path) -> None:
        raise NotImplementedError

    arguments = Arguments("t", handler)
    with pytest.raises(InvalidJob, match="Path"):
        arguments.encode((Path("/tmp"),), {})  # noqa: S108 - only its type counts
    assert arguments.decode(arguments.encode(("/etc",), {})) == {"path": "/etc"}


@pytest.mark.parametrize("name", ["self", "cls", "args", "kwargs", "handler", "name", "payload"])
async def test_parameters_may_have_any_name(app: Penstock, name: str) -> None:
    def handler(**_: int) -> None:
        raise NotImplementedError

    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=int)
    vars(handler)["__signature__"] = inspect.Signature([parameter])
    task: Task[..., None] = app.task("t", handler)
    assert (await task.enqueue(5)).args == {name: 5}
    assert (await app.enqueue("t", {name: 6})).args == {name: 6}


async def test_methods_are_tasks_without_their_self(app: Penstock) -> None:
    class Mailer:
        def send(self, to: str) -> str:
            return to

    task = app.task("send", Mailer().send)
    assert (await task.enqueue("me")).args == {"to": "me"}
    assert task("you") == "you"


def test_unknown_stored_argument_is_ignored_or_refused_but_never_passed_on() -> None:
    def handler(n: int) -> None:
        raise NotImplementedError

    arguments = Arguments("t", handler)
    assert arguments.decode('{"n":1,"gone":2}') == {"n": 1}


@pytest.mark.parametrize("payload", ["", "{", "[]", "null", "{}", '{"n":"x"}', '{"n":1}}'])
def test_stored_arguments_that_do_not_fit_are_refused(payload: str) -> None:
    def handler(n: int) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidJob, match="task t"):
        Arguments("t", handler).decode(payload)


def test_mutable_argument_is_stored_as_it_was(app: Penstock) -> None:
    task = app.task("t", lambda values: None)
    values = [1]
    job = run_sync(task.enqueue(values))
    values.append(2)
    assert job.args == {"values": [1]}

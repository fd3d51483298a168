"""Arguments and results as JSON: pydantic models, and results that do not match."""

import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import pydantic
import pytest

from penstock import InvalidJob, Penstock
from penstock.engine.codec import Arguments
from penstock.errors import Unreadable
from penstock.leases import Done, Failed
from penstock.worker.outcomes import returned


class User(pydantic.BaseModel):
    name: str
    age: int = 0


class Admin(User):
    rights: list[str] = []


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Secretive(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    _seen: int = pydantic.PrivateAttr(default=0)

    @pydantic.computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def shout(self) -> str:
        return self.name.upper()


class Reading(pydantic.BaseModel):
    value: float


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


def arguments(annotation: Any, default: Any = ...) -> Arguments:
    def required(value: Any) -> None:
        raise NotImplementedError

    def optional(value: Any = default) -> None:
        raise NotImplementedError

    handler = required if default is ... else optional
    handler.__annotations__["value"] = annotation
    return Arguments("t", handler)


def round_trip(annotation: Any, value: Any) -> Any:
    codec = arguments(annotation)
    return codec.decode(codec.encode((value,), {}))["value"]


def test_model_arrives_as_it_was() -> None:
    assert round_trip(User, User(name="ada", age=36)) == User(name="ada", age=36)
    assert round_trip(User | None, None) is None
    assert round_trip(Cat | Dog, Dog()) == Dog()
    assert round_trip(list[Cat | Dog], [Dog(), Cat()]) == [Dog(), Cat()]


def test_names_in_quotes_are_evaluated_wherever_they_are_and_when_they_are_used() -> None:
    user = User(name="ada")
    assert round_trip("User", user) == user
    assert round_trip(list["User"], [user]) == [user]
    assert round_trip(dict[str, "User | None"], {"a": user, "b": None}) == {"a": user, "b": None}
    assert round_trip(tuple["Decimal", ...] | None, (Decimal(1),)) == (Decimal(1),)
    assert round_trip(Annotated[list["User"], "a note"], [user]) == [user]
    later = arguments(list["Later"])
    assert later.decode(later.encode(([Later(n=1)],), {}))["value"] == [Later(n=1)]


def test_name_of_a_class_inside_a_function_is_evaluated_if_the_handler_uses_it() -> None:
    @dataclass
    class Local:
        n: int

    def handler(value: list["Local"]) -> Any:
        return [Local(one.n) for one in value]

    codec = Arguments("t", handler)
    assert codec.decode(codec.encode(([Local(1)],), {})) == {"value": [Local(1)]}


def test_annotation_that_cannot_be_evaluated_is_plain_json() -> None:
    assert round_trip("list[Unknown]", [1]) == [1]
    with pytest.raises(InvalidJob, match=r"'list\[Unknown\]' cannot be evaluated .*TYPE_CHECKING"):
        round_trip("list[Unknown]", [User(name="ada")])


def test_computed_and_private_parts_of_a_model_are_not_stored() -> None:
    user = Secretive(name="ada")
    user._seen = 5
    assert round_trip(Secretive, user).shout == "ADA"
    assert arguments(Secretive).encode((user,), {}) == '{"value":{"name":"ada"}}'


@pytest.mark.parametrize("annotation", [User, User | Cat])
def test_default_for_a_model_is_left_to_the_handler(annotation: Any) -> None:
    codec = arguments(annotation, None)
    assert codec.decode(codec.encode((), {})) == {}
    given = User(name="ada")
    assert codec.decode(codec.encode((given,), {})) == {"value": given}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (User, Admin(name="root", rights=["all"])),
        (Login, Login(password=pydantic.SecretStr("x-secret"))),
        (Reading, Reading(value=float("nan"))),
        (User, "ada"),
        (Cat | Dog, 5),
        (Any, User(name="ada")),
    ],
)
def test_model_that_would_come_back_changed_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidJob, match="value") as refused:
        round_trip(annotation, value)
    assert "x-secret" not in str(refused.value)


def test_json_for_a_model_can_be_enqueued_by_name() -> None:
    codec = arguments(User)
    assert codec.encode_json({"value": {"name": "ada"}}) == '{"value":{"name":"ada"}}'
    with pytest.raises(InvalidJob, match=r"value: age: Input should be a valid integer"):
        codec.encode_json({"value": {"name": "ada", "age": "x"}})


def test_long_list_of_complaints_is_shortened() -> None:
    with pytest.raises(InvalidJob, match=r"; and 3 more$"):
        arguments(list[User] | list[Reading]).decode('{"value":[{},{},{}]}')


def test_result_that_cannot_be_read_back_is_named() -> None:
    assert returned(Reading(value=1.5)) == Done('{"value":1.5}')
    outcome = returned([Reading(value=float("inf"))])
    assert isinstance(outcome, Failed)
    assert "its result[0].value is inf" in outcome.error


async def done(app: Penstock, task: str, result: str) -> int:
    await app.enqueue(task)
    [claimed] = await app.leases.claim(worker="w")
    await app.leases.settle([(claimed, Done(result))])
    return claimed.id


def amount() -> Decimal: ...  # type: ignore[empty-body] # runs elsewhere
def silent() -> None: ...
def unknown() -> "Missing": ...  # type: ignore[name-defined] # noqa: F821 - is what is missing
def later() -> "Later": ...  # type: ignore[empty-body]
def later_ones() -> list["Later"]: ...  # type: ignore[empty-body]
def unheld() -> type[int]: ...  # type: ignore[empty-body]


class Later(pydantic.BaseModel):
    n: int


async def test_result_is_decoded_by_its_annotation() -> None:
    app = Penstock("memory://")
    for handler in (amount, silent, later, later_ones, unheld):
        app.task(handler)
    assert repr(await app.result(await done(app, "amount", '"1.10"'))) == "Decimal('1.10')"
    assert await app.result(await done(app, "later", '{"n":1}')) == Later(n=1)
    assert await app.result(await done(app, "later_ones", '[{"n":1}]')) == [Later(n=1)]
    for task in ("silent", "unheld"):  # nothing says what it is
        assert await app.result(await done(app, task, '{"n":[1]}')) == {"n": [1]}
    await app.close()


async def test_result_whose_annotation_cannot_be_evaluated_says_so() -> None:
    app = Penstock("memory://")
    app.task(unknown)
    job = await done(app, "unknown", '{"n":1}')
    with pytest.raises(Unreadable, match=r"'Missing' cannot be evaluated .* job.returned"):
        await app.result(job)
    assert (await app.get(job)).returned == {"n": 1}
    await app.close()


async def test_result_of_another_type_says_so_and_can_be_read_as_it_is() -> None:
    app = Penstock("memory://")
    app.task(amount)
    app.task(later)
    job = await done(app, "amount", '"a lot"')
    with pytest.raises(Unreadable, match=rf"result of job {job} is not what task amount is anno"):
        await app.result(job)
    assert (await app.get(job)).returned == "a lot"
    job = await done(app, "later", '{"n":"x"}')
    with pytest.raises(Unreadable, match=r"return: n: Input should be a valid integer"):
        await app.result(job)
    await app.close()


def test_pydantic_is_not_imported_for_programs_that_do_not_use_it() -> None:
    program = """
import sys
from decimal import Decimal
from penstock import Penstock, run_sync
app = Penstock("memory://")
@app.task
def double(value: Decimal) -> Decimal:
    return 2 * value
run_sync(double.enqueue(Decimal(1)))
assert not [name for name in sys.modules if name.startswith("pydantic")]
"""
    subprocess.run([sys.executable, "-c", program], check=True)

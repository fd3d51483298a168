"""An app whose handlers take and return values of every kind; tests and children import it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic

from penstock import Penstock
from tests.worker.support import ONCE

app = Penstock("memory://")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    at: datetime


@attrs.define
class Size:
    width: Decimal
    colour: Colour = Colour.RED


class Address(msgspec.Struct):
    street: str
    since: date


class Options(TypedDict):
    deep: bool
    ids: tuple[UUID, ...]


class Item(pydantic.BaseModel):
    sku: str = pydantic.Field(alias="SKU", min_length=1)
    price: Decimal


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    items: list[Item]
    at: datetime


class Numbers(pydantic.RootModel[list[Decimal]]):
    """A model that is a list in JSON."""


class Refund(pydantic.BaseModel):
    order: int


@dataclass
class Parcel:
    item: Item


class Pallet(msgspec.Struct):
    parcels: list[Parcel]
    order: Order | None = None


NOON = datetime(2030, 1, 31, 12, 30, 15, 123456, tzinfo=UTC)
ITEM = Item(SKU="a-1", price=Decimal("1.10"))
ORDER = Order(items=[ITEM], at=NOON)

VALUES: dict[str, tuple[Any, Any]] = {
    "decimal": (Decimal, Decimal("1.10")),
    "datetime": (datetime, NOON),
    "timedelta": (timedelta, timedelta(days=1, seconds=1.5)),
    "uuid": (UUID, UUID(int=7)),
    "bytes": (bytes, b"\0\xff"),
    "enum": (Colour, Colour.RED),
    "int-enum": (Level, Level.HIGH),
    "dataclass": (Point, Point(1, NOON)),
    "attrs": (Size, Size(Decimal("2.50"))),
    "struct": (Address, Address("High Street", date(2020, 1, 1))),
    "typed-dict": (Options, {"deep": True, "ids": (UUID(int=1),)}),
    "tuple": (tuple[int, Decimal], (1, Decimal("0.5"))),
    "set": (frozenset[Colour], frozenset({Colour.RED})),
    "keys": (dict[UUID, Point], {UUID(int=2): Point(2, NOON)}),
    "model": (Order, ORDER),
    "models": (list[Item], [ITEM]),
    "root-model": (Numbers, Numbers([Decimal("1.10")])),
    "model-or-none": (Item | None, ITEM),
    "model-in-dataclass": (Parcel, Parcel(ITEM)),
    "model-in-struct": (Pallet, Pallet([Parcel(ITEM)], ORDER)),
    "either-model": (Order | Refund, Refund(order=5)),
    "list-of-either": (list[Order | Refund | int], [ORDER, Refund(order=5), 3]),
}
WAYS = ("coroutine", "thread", "process")


def same(value: Any, expected: Any) -> bool:
    """Return whether two values are equal in type and content, below as well."""
    shown = repr(value).replace("TzInfo(0)", "datetime.timezone.utc")  # UTC, as pydantic has it
    return shown == repr(expected) and bool(value == expected)


def _coroutine(kind: str) -> Callable[..., Any]:
    async def echo(value: Any) -> Any:
        assert same(value, VALUES[kind][1]), repr(value)
        return value

    return echo


def _function(kind: str) -> Callable[..., Any]:
    def echo(value: Any) -> Any:
        assert same(value, VALUES[kind][1]), repr(value)
        return value

    return echo


for _kind, (_annotation, _) in VALUES.items():
    for _way in WAYS:
        _handler = _coroutine(_kind) if _way == "coroutine" else _function(_kind)
        _handler.__annotations__.update({"value": _annotation, "return": _annotation})
        app.task(
            f"{_way}.{_kind}",
            _handler,
            retry=ONCE,
            isolation="process" if _way == "process" else None,
        )


def divide(by: int) -> float:
    return 1 / by


app.task("thread.divide", divide, retry=ONCE)
app.task("process.divide", divide, retry=ONCE, isolation="process")


@app.task
def fan_out(prices: list[Decimal]) -> list[int]:
    """Enqueue from a thread of the worker."""
    return [app.tasks["thread.decimal"].sync.enqueue(price).id for price in prices]

"""A store and a server implement one protocol in parts; what a server lacks it refuses."""

import asyncio
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import ConfigurationError, JobQuery, Penstock
from penstock.cli.main import cli
from penstock.client import RemotePenstock
from penstock.engine import protocol
from penstock.engine.protocol import App, Jobs
from penstock.errors import NotOffered

PARTS = {
    "queues": protocol.QueuePart,
    "limits": protocol.LimitPart,
    "schedules": protocol.SchedulePart,
    "archive": protocol.ArchivePart,
    "workers": protocol.WorkerPart,
    "tokens": protocol.TokenPart,
    "statistics": protocol.StatisticsPart,
    "tables": protocol.TablePart,
    "leases": protocol.LeasePart,
}
OFFERED = {
    "": "enqueue enqueue_many get find count log newest_log tail wait explain progress lines batch "
    "cancel retry reset set_priority delete close",
    "bulk(query)": "cancel retry reprioritise delete",
    "queues": "list statuses summary oldest_ready pause resume drain remove",
    "limits": "queue",
    "schedules": "list run_now pause resume",
    "workers": "list",
    "tokens": "scopes",
    "statistics": "intervals",
}
"""The calls that have routes."""


def calls(kind: type) -> list[str]:
    """The methods that a protocol declares."""
    return [
        name
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]


def members() -> Iterator[tuple[str, type, str]]:
    """Every call of the protocol: how its part is reached, the protocol, and its name."""
    kinds = {"": Jobs, "bulk(query)": protocol.BulkPart, **PARTS}
    for reached, kind in kinds.items():
        for name in calls(kind):
            yield reached, kind, name


def part_of(app: Any, reached: str) -> Any:
    if not reached:
        return app
    return app.bulk(JobQuery()) if reached.startswith("bulk") else getattr(app, reached)


def shape(call: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(call).parameters.values()
    return [(one.name, one.kind, one.default) for one in parameters]


MEMBERS = [pytest.param(*one, id=f"{one[0]}.{one[2]}".lstrip(".")) for one in members()]


@pytest.fixture(scope="module")
def remote() -> RemotePenstock:
    return RemotePenstock("http://127.0.0.1:9", blocking=True, retries=0)


def test_both_are_whole_apps(remote: RemotePenstock) -> None:
    """A type checker agrees, too."""
    apps: list[App] = [Penstock("memory://"), remote]
    assert all(hasattr(app, name) for app in apps for name in PARTS)


def test_protocol_has_every_part_and_call_of_a_store() -> None:
    app = Penstock("memory://")
    extra = {"afresh", "declare", "store_declared", "store_reserved"}  # for the engine itself
    for reached, kind in {"": Jobs, "bulk(query)": protocol.BulkPart, **PARTS}.items():
        ours = type(part_of(app, reached))
        named = {name for name in calls(ours) if name not in extra | {"bulk"}}
        assert named == set(calls(kind)), reached


@pytest.mark.parametrize(("reached", "kind", "name"), MEMBERS)
def test_store_has_it(reached: str, kind: type, name: str) -> None:
    """With the same parameters and defaults; mypy compares their types."""
    ours = getattr(type(part_of(Penstock("memory://"), reached)), name)
    if name != "task":  # has overloads
        assert shape(ours) == shape(getattr(kind, name))


@pytest.mark.parametrize(("reached", "kind", "name"), MEMBERS)
def test_server_has_it_or_refuses(
    remote: RemotePenstock, reached: str, kind: type, name: str
) -> None:
    part = part_of(remote, reached)
    theirs, declared = getattr(type(part), name), getattr(kind, name)
    offered = theirs is not declared
    assert offered == (name in OFFERED.get(reached, "").split())
    wanted = inspect.signature(declared).parameters
    if offered:
        assert list(inspect.signature(theirs).parameters) == list(wanted)
        return
    needed = [one for one in wanted.values() if one.default is one.empty][1:]
    positional = [None for one in needed if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: None for one in needed if one.kind is one.KEYWORD_ONLY}

    async def ask() -> None:
        await getattr(part, name)(*positional, **named)

    with pytest.raises(NotOffered, match="use the store itself") as refused:
        asyncio.run(ask())
    assert isinstance(refused.value, ConfigurationError)
    assert f"{reached.replace('query', '…')}.{name}(".lstrip(".") in str(refused.value)
    for command in re.findall(r"penstock ([a-z-]+)", str(refused.value)):
        assert command in cli.commands


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.enqueue_many([], connection=object()),
        lambda app: app.queues.summary(["mail"]),
        lambda app: app.queues.drain(timeout=None),
        lambda app: app.bulk(JobQuery()).delete(archive="a.jsonl"),
        lambda app: app.bulk(JobQuery()).retry(portion=object()),
        lambda app: app.statistics.intervals(None, step=None),
    ],
)
def test_server_refuses_options_that_it_has_no_route_for(remote: RemotePenstock, call: Any) -> None:
    with pytest.raises(NotOffered, match=r"use the store itself: .*Penstock\(url\)"):
        asyncio.run(call(remote))

"""The filter of the jobs page: `state:failed queue:mail no route`."""

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from penstock.cli.options import read_age
from penstock.core.job import Job, JobId
from penstock.core.lifecycle import State
from penstock.core.query import JobQuery

_WORDS = {
    "queue": "queue",
    "task": "task",
    "key": "key",
    "tenant": "tenant",
    "batch": "correlation",
}
FIELDS = ("state", *_WORDS, "tag", "parent", "since", "older", "worker")
"""The words that may precede a colon; anything else is a text to search for."""


class FilterRefused(ValueError):
    """A text that is not a valid filter."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter as it was typed, and its meaning.

    Stores cannot search by worker: `matching` selects among the jobs that a query finds.
    """

    text: str = ""
    states: frozenset[State] | None = None
    fields: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    parent: int | None = None
    since: timedelta | None = None
    older: timedelta | None = None
    sought: str | None = None
    worker: str | None = None

    def query(self, now: datetime) -> JobQuery:
        """Return the query for now, to which `since` and `older` are relative."""
        fields: dict[str, Any] = dict(self.fields)
        return JobQuery(
            states=frozenset({State.RUNNING}) if self.worker else self.states,
            tags=self.tags,
            parent=None if self.parent is None else JobId(self.parent),
            since=None if self.since is None else now - self.since,
            before=None if self.older is None else now - self.older,
            text=self.sought,
            **fields,
        )

    def matching(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that the filter selects among those that its query found."""
        return [job for job in jobs if self.worker is None or job.worker == self.worker]

    def of_state(self, state: State | None) -> "Filter":
        """Return the same filter for one state, or for all with None."""
        rest = [one for one in _split(self.text) if not one.startswith("state:")]
        return parse(shlex.join([*rest, *([] if state is None else [f"state:{state}"])]))


def parse(text: str) -> Filter:
    """Parse a filter. Raises `FilterRefused`."""
    found = Filter(text=text.strip())
    bare: list[str] = []
    for word in _split(text):
        name, colon, value = word.partition(":")
        if not colon or name not in FIELDS:
            if colon and name.isidentifier() and "/" not in value:
                raise FilterRefused(f"there is no filter {name}; choose from {', '.join(FIELDS)}")
            bare.append(word)
        elif not value:
            raise FilterRefused(f"{name}: needs a value, as in {name}:VALUE")
        else:
            found = _narrowed(found, name, value)
    return replace(found, sought=" ".join(bare) or None)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FilterRefused(f"{error}") from error


def _narrowed(found: Filter, name: str, value: str) -> Filter:
    match name:
        case "state":
            return replace(found, states=(found.states or frozenset()) | _states(value))
        case "tag":
            return replace(found, tags=(*found.tags, value))
        case "worker":
            return replace(found, worker=value)
        case "parent":
            return replace(found, parent=_number(value))
        case "since" | "older":
            return replace(found, **{name: _age(value)})
    return replace(found, fields=(*found.fields, (_WORDS[name], value)))


def _states(value: str) -> frozenset[State]:
    try:
        return frozenset(map(State, value.split(",")))
    except ValueError:
        raise FilterRefused(f"a state must be one of {', '.join(State)}") from None


def _number(value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) < 2**63:
        raise FilterRefused("parent: needs the ID of a job, which is a number")
    return int(value)


def _age(value: str) -> timedelta:
    try:
        return read_age(value)
    except click.BadParameter as error:
        raise FilterRefused(error.message) from None

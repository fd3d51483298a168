"""How errors are answered: one table of status codes, one shape of bodies."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from penstock.core.decode_errors import mismatch
from penstock.core.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    EmbeddingRefused,
    IndexUnavailable,
    InvalidJob,
    JobFailed,
    JobNotFound,
    LeaseLost,
    Overtaken,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    QueueInUse,
    ScheduleNotFound,
    SchemaMismatch,
    StoreError,
    StoreMoved,
    StoreUnavailable,
    TooManyQueues,
    TransitionRefused,
    UnknownTask,
    Unreadable,
)

T = TypeVar("T")

RETRY_AFTER = {"Retry-After": "1"}

STATUSES: dict[type[PenstockError], int] = {
    PenstockError: 500,
    ConfigurationError: 422,
    InvalidJob: 422,
    PayloadTooLarge: 413,
    UnknownTask: 404,
    JobNotFound: 404,
    ScheduleNotFound: 404,
    QueueFull: 429,
    TooManyQueues: 429,
    QueueInUse: 409,
    TransitionRefused: 409,
    Overtaken: 409,
    LeaseLost: 409,
    JobFailed: 409,
    EmbeddingRefused: 422,
    EmbedderUnavailable: 503,
    IndexUnavailable: 503,
    StoreError: 500,
    StoreUnavailable: 503,
    SchemaMismatch: 503,
    StoreMoved: 503,
}

_FIELDS: dict[type[PenstockError], tuple[str, ...]] = {
    QueueFull: ("queue", "limit"),
    QueueInUse: ("queue", "unfinished"),
    TooManyQueues: ("limit",),
}
"""Attributes of errors that a body has besides the text."""


class Problem(Exception):
    """An error that a request is answered with."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, str | int] = {"detail": detail, **(more or {})}
        if field is not None:
            self.body["field"] = field


class JobProblem(Problem):
    """A problem with one of several jobs in a request; `place` is its index."""

    def __init__(self, status: int, detail: str, *, field: str, place: int) -> None:
        super().__init__(status, detail, field=field)
        self._path = f"[{place}].{field}"

    def within(self, name: str) -> "JobProblem":
        """Name the element of the list `name`; returns the same problem."""
        self.body["field"] = f"{name}{self._path}"
        return self


@contextmanager
def naming_element_of(name: str) -> Iterator[None]:
    """Make a problem inside the block name the element of the list `name` that it is about."""
    try:
        yield
    except JobProblem as problem:
        raise problem.within(name) from None


def problem_of(error: PenstockError) -> Problem:
    """Return the problem for an error of the engine, by its nearest class in the table."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    later = status in (429, 503) and not isinstance(error, TooManyQueues)
    field = error.field if isinstance(error, Unreadable) else None
    more = {name: getattr(error, name) for name in _FIELDS.get(type(error), ())}
    headers = RETRY_AFTER if later else None
    return Problem(status, str(error), field=field, headers=headers, more=more)


def converted(value: Any, kind: type[T]) -> T:
    """Convert a value to the type that a route takes; raise the `Problem` that it would answer."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise wrong_shape(error, kind=kind) from error


def wrong_shape(
    error: Exception | str, *, kind: Any = None, where: str = "", given: Any = None
) -> Problem:
    """Return the problem for a value of the wrong type or range; it names the field.

    `kind` is the expected type, `where` the part of the request, and `given` what was sent, if that
    is text.
    """
    found = mismatch(error, kind, given)
    name = ".".join(part for part in (where, found.field) if part)
    text = f"{name}: {found.text}" if name else f"the body {found.text}"
    return Problem(422, text, field=name or None)

"""How an error is answered: every status code in one table, every body in one shape."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

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
    StoreError,
    StoreMoved,
    StoreUnavailable,
    TooManyQueues,
    TransitionRefused,
    UnknownTask,
    Unreadable,
)
from penstock.core.mismatch import mismatch

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
    StoreMoved: 503,
}


class Problem(Exception):
    """A request that is answered with an error: its status, what is wrong, and what else helps."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {"detail": detail, **({} if field is None else {"field": field})}


class ProblemOfOne(Problem):
    """A problem of one of the jobs that a request asks for; `place` is its index."""

    def __init__(self, status: int, detail: str, *, field: str, place: int) -> None:
        super().__init__(status, detail, field=field)
        self._path = f"[{place}].{field}"

    def within(self, name: str) -> "ProblemOfOne":
        """The same, naming the element of the list with this name."""
        self.body["field"] = f"{name}{self._path}"
        return self


@contextmanager
def naming_element_of(name: str) -> Iterator[None]:
    """Name the element of a list that a problem is about, inside the block."""
    try:
        yield
    except ProblemOfOne as problem:
        raise problem.within(name) from None


def problem_of(error: PenstockError) -> Problem:
    """The answer to an error of the engine: by the nearest class in the table."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    later = status in (429, 503) and not isinstance(error, TooManyQueues)
    field = error.field if isinstance(error, Unreadable) else None
    return Problem(status, str(error), field=field, headers=RETRY_AFTER if later else None)


def converted(value: Any, kind: type[T]) -> T:
    """Return a value as the type that a route takes; raises the `Problem` that it would answer."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise wrong_shape(error, kind=kind) from error


def wrong_shape(
    error: Exception | str, *, kind: Any = None, where: str = "", given: Any = None
) -> Problem:
    """The answer to what does not have the shape that a route asks for; names the field.

    `kind` is the type that was asked for, `where` the part of the request that it is about, and
    `given` what was sent, where that is text.
    """
    found = mismatch(error, kind, given)
    name = ".".join(part for part in (where, found.field) if part)
    return Problem(422, f"{name or 'the body'}: {found.text}", field=name or None)

"""How an error is answered: every status code in one table, every body in one shape."""

from collections.abc import Mapping
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
    ScheduleNotFound,
    StoreError,
    StoreMoved,
    StoreUnavailable,
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


def problem_of(error: PenstockError) -> Problem:
    """The answer to an error of the engine: by the nearest class in the table."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    later = status in (429, 503)
    field = error.field if isinstance(error, Unreadable) else None
    return Problem(status, str(error), field=field, headers=RETRY_AFTER if later else None)


def converted(value: Any, kind: type[T]) -> T:
    """Return a value as the type that a route takes; raises the `Problem` that it would answer."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise wrong_shape(str(error)) from error


def wrong_shape(text: str, *, where: str = "") -> Problem:
    """The answer to what does not have the shape that a route asks for; names the field."""
    message, _, place = text.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if not field and message.startswith("Object "):  # a missing or an unknown field: `name`
        field = message.rpartition("field `")[2].rstrip("`")
    name = ".".join(part for part in (where, field) if part)
    detail = f"{name}: {message}" if name else message
    return Problem(422, detail, field=name or None)

"""Requests, replies, and the errors in replies. No I/O."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.core import jsontext
from penstock.core.errors import (
    ConfigurationError,
    JobNotFound,
    NotAuthorised,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    QueueInUse,
    ServerUnreachable,
    StoreError,
    StoreUnavailable,
    TooManyQueues,
    TransitionRefused,
)
from penstock.core.redaction import redacted

T = TypeVar("T")

_OK = range(200, 300)
# The detail of a web framework for an unknown path. A server of ours adds `routes`.
_NO_ROUTE = "Not Found"
# Statuses of a gateway: the request may or may not have reached the server behind it.
_GATEWAY = frozenset({502, 504})
_LATER = frozenset({429, 503})
_LONGEST_PAUSE = 60.0
# Levels of nesting in a body around the part that is stored.
_AROUND = 8


class Request(NamedTuple):
    """A request to a server.

    `repeats` says that the same request may arrive twice without harm. A `file` is sent as it is,
    in place of a body. `patience` is how many seconds the server may wait before it answers. A
    stream ends after `silence` seconds without a line. `conflict` is the error for status 409.
    Statuses in `accepts` are answers, not errors.
    """

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    body: Any = None
    file: IO[bytes] | None = None
    repeats: bool = True
    patience: float = 0.0
    silence: float | None = None
    conflict: Callable[[str], PenstockError] = TransitionRefused
    invalid: type[PenstockError] = ConfigurationError
    accepts: frozenset[int] = frozenset()

    @property
    def kind(self) -> str:
        """The content type of the body."""
        is_raw = self.file is not None or isinstance(self.body, bytes)
        return "application/octet-stream" if is_raw else "application/json"

    def content(self) -> bytes | None:
        """Return the body to send: bytes as they are, anything else as JSON."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return jsontext.encode(self.body, "", jsontext.DEPTH_LIMIT + _AROUND).encode()


class Reply(NamedTuple):
    """The reply of a server."""

    status: int
    content: bytes
    retry_after: str | None = None
    warning: str | None = None

    def warned(self) -> str | None:
        """Return the text of a warning, which the header has behind a code and an agent."""
        if self.warning is None:
            return None
        return self.warning.partition('"')[2].removesuffix('"') or self.warning

    def after(self) -> float | None:
        """Return the seconds to wait before the next attempt, if the server names them."""
        try:
            seconds = float(self.retry_after or "")
        except ValueError:
            return None
        return min(max(seconds, 0.0), _LONGEST_PAUSE)


class _Problem(msgspec.Struct):
    """The body of an error."""

    detail: str
    queue: str | None = None
    limit: int | None = None
    unfinished: int | None = None
    routes: str | None = None


def checked_url(url: str) -> str:
    """Return the address of a server without a trailing slash."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{redacted(url)!r:.200} is not the address of a server, such as http://host:8000"
        )
    return url.rstrip("/")


def answer(request: Request, reply: Reply, kind: type[T], server: str) -> T:
    """Return the value in a reply, or raise the error in it."""
    if reply.status not in _OK and reply.status not in request.accepts:
        raise error_of(request, reply, server)
    if kind is type(None):
        return None
    try:
        return msgspec.json.decode(reply.content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _stranger(request, server) from error


def may_repeat(request: Request, reply: Reply) -> bool:
    """Whether the same request may succeed, and do no harm, when it is sent again."""
    if reply.status in _LATER and reply.retry_after is not None:
        return True  # nothing was changed
    return request.repeats and (reply.status in _LATER or reply.status in _GATEWAY)


def error_of(request: Request, reply: Reply, server: str) -> PenstockError:  # noqa: C901, PLR0911 - a list of cases
    """Return the error that a reply reports."""
    if reply.status in _GATEWAY:
        return ServerUnreachable(f"{server} cannot be reached: its gateway answered {reply.status}")
    problem = _problem(reply)
    if problem is None:
        return _stranger(request, server)
    detail = problem.detail
    match reply.status:
        case 401 | 403:
            return NotAuthorised(f"{server} refused {request.path}: {detail}")
        case 404 if problem.routes is not None or detail == _NO_ROUTE:
            return _stranger(request, server)
        case 404:
            return JobNotFound(detail)
        case 409 if problem.queue is not None and problem.unfinished is not None:
            return QueueInUse(problem.queue, problem.unfinished)
        case 409:
            return request.conflict(detail)
        case 413:
            return PayloadTooLarge(detail)
        case 422 | 400 | 414:
            return request.invalid(detail)
        case 429:
            return _full(problem, reply.after())
        case 501:  # a package is missing there
            return ConfigurationError(detail)
        case 503:
            return StoreUnavailable(detail)
    return StoreError(f"{server} answered {request.path} with {reply.status}: {detail}")


def _problem(reply: Reply) -> _Problem | None:
    try:
        return msgspec.json.decode(reply.content, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _full(problem: _Problem, after: float | None) -> PenstockError:
    if problem.limit is None:
        return StoreUnavailable(problem.detail)
    if problem.queue is None:
        return TooManyQueues(problem.limit)
    later = None if after is None else timedelta(seconds=after)
    return QueueFull(problem.queue, problem.limit, later)


def _stranger(request: Request, server: str) -> StoreError:
    return StoreError(
        f"{server} does not answer {request.method} {request.path} as a Penstock server of this "
        "version does; is that its address?"
    )

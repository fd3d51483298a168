"""How operations and their errors are answered over HTTP, and how contents come and go."""

import asyncio
from collections.abc import AsyncIterator
from functools import wraps
from typing import Any, BinaryIO, TypeVar, cast

from penstock import Job, State
from penstock.apps.notebooks import shapes
from penstock.apps.notebooks.books import Taken
from penstock.apps.notebooks.errors import (
    Exists,
    Missing,
    NotebookError,
    Passing,
    PathRefused,
    Permanent,
)
from penstock.apps.notebooks.files import TooLarge
from penstock.apps.notebooks.publishing import Conflict
from penstock.http.bodies import BODY_TIME, Disconnected, Receive, Send, announces_more, header
from penstock.http.problems import RETRY_AFTER, Problem
from penstock.http.routes import Answer, Call, Stream

STATUSES: dict[type[NotebookError], int] = {
    NotebookError: 500,
    Passing: 503,
    Permanent: 422,
    PathRefused: 422,
    Missing: 404,
    Exists: 409,
    Conflict: 409,
    TooLarge: 413,
    Taken: 409,
}
_BY_NAME = {kind.__name__: status for kind, status in STATUSES.items()}
_PIECE = 1 << 20
F = TypeVar("F", bound=Any)


def answering(handler: F) -> F:
    """Let a route answer the errors of notebooks with their statuses."""

    @wraps(handler)
    async def answer(*args: Any, **given: Any) -> Any:
        try:
            return await handler(*args, **given)
        except Conflict as error:
            return conflict(str(error), error.expected, error.actual)
        except NotebookError as error:
            status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
            headers = RETRY_AFTER if status == STATUSES[Passing] else None
            raise Problem(status, str(error), headers=headers) from error

    return cast("F", answer)


def conflict(detail: str, expected: int, actual: int) -> Answer:
    """A change that is based on an old version."""
    body = shapes.Conflicting(detail=detail, expected_version=expected, version=actual)
    return Answer(409, body)


def late(job: Job) -> Answer:
    """An operation that has not ended in time."""
    event = shapes.event_shape(job)
    return Answer(
        408, shapes.StillWaiting(detail=f"event {job.id} is still {event.status}", event=event)
    )


def failure(job: Job) -> Problem:
    """An operation that has ended without success."""
    if job.state is not State.FAILED:
        return Problem(409, f"event {job.id} is {shapes.STATUSES[job.state]}")
    return Problem(_BY_NAME.get(error_name(job), 500), shapes.headline(job.error or ""))


def error_name(job: Job) -> str:
    """The name of the error that an operation failed with."""
    line = (job.error or "").strip().partition("\n")[0]
    return line.partition(":")[0].rpartition(".")[2]


def version_of(call: Call, given: int | None) -> int | None:
    """The version that a change is based on: as it is given, or in `If-Match`."""
    sent = header(call.scope, b"if-match")
    if sent is None or sent.strip() == b"*":
        return given
    text = sent.decode("latin-1").strip().removeprefix("W/").strip('"')
    if not text.isdecimal() or len(text) > 18:  # noqa: PLR2004 - digits of a version
        raise Problem(422, f"If-Match is a version in quotes, not {text[:80]!r}")
    if given not in (None, int(text)):
        raise Problem(422, "If-Match and version say different things")
    return int(text)


async def pieces_of(call: Call, limit: int) -> AsyncIterator[bytes]:
    """The body of a request, as it comes; in pieces that are worth a thread."""
    if announces_more(call.scope, limit):
        raise TooLarge(f"the content has more than {limit:,} bytes")
    gathered, size, more = [], 0, True
    while more:
        try:
            message = await asyncio.wait_for(call.receive(), BODY_TIME)
        except TimeoutError:
            raise Problem(408, f"nothing came for {BODY_TIME:g} seconds") from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        gathered.append(message.get("body", b""))
        size += len(gathered[-1])
        more = message.get("more_body", False)
        if size >= _PIECE or not more:
            yield b"".join(gathered)
            gathered, size = [], 0


def streamed(file: BinaryIO, kind: str, version: int, size: int) -> Stream:
    """A file that is sent piece by piece."""

    async def send_all(send: Send, _: Receive) -> None:
        headers = [
            (b"content-type", kind.encode("latin-1", "replace")),
            (b"content-length", str(size).encode()),
            (b"etag", f'"{version}"'.encode()),
            *SAFE,
        ]
        left = size
        with file:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while left and (piece := await asyncio.to_thread(file.read, min(_PIECE, left))):
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return Stream(send_all)


SAFE = (
    # What is in a notebook is somebody's content: no browser is to run it as a page of the server.
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
)

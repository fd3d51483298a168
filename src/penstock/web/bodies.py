"""The body of a request, read within limits of size and time, and the end of its connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from penstock.web.problems import Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_TIME = 20.0
"""Seconds within which a body must arrive."""
_LONGEST_SIZE = 18
"""Digits of a content length; a longer number exceeds any limit."""


class Disconnected(Exception):
    """The client disconnected before its request was whole."""


Headers = Sequence[tuple[bytes, bytes]]


class Exchange:
    """A request and its answer on a server that can pass bodies whole, which ASGI does in messages.

    `receive` and `send` are methods of this object. Anything that wraps one of them, such as a
    middleware, hides the object, so that all messages pass it.
    """

    def take_body(self) -> bytes | None:
        """Return the body if all of it has arrived; None if it has to be received."""
        raise NotImplementedError

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer at once; return False if it has to be sent in messages."""
        raise NotImplementedError


def exchange_of(method: Receive | Send) -> Exchange | None:
    """Return the exchange that `receive` or `send` belongs to; None if the server has none."""
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, Exchange) else None


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of this name, which must be in lower case."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return None


def announces_more(scope: Scope, limit: int) -> bool:
    """Return whether `Content-Length` announces a body of more than `limit` bytes.

    The header may have any number of digits, and Python refuses to convert thousands of them.
    """
    announced = header(scope, b"content-length") or b""
    digits = announced.lstrip(b"0")
    if not digits.isdigit():
        return False
    return len(digits) > _LONGEST_SIZE or int(digits) > limit


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body; raise a `Problem` if it is too large or too slow."""
    exchange = exchange_of(receive)
    if exchange is not None and (body := exchange.take_body()) is not None:
        if len(body) > limit:
            raise _too_large(limit)
        return body
    if announces_more(scope, limit):
        raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_TIME):
            while more:
                message = await receive()
                parts.append(_content(message, limit, size))
                size += len(parts[-1])
                more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_TIME:g} seconds") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _content(message: Message, limit: int, before: int) -> bytes:
    if message["type"] == "http.disconnect":
        raise Disconnected
    part: bytes = message.get("body", b"")
    if before + len(part) > limit:
        raise _too_large(limit)
    return part


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit:,} bytes")


async def wait_for_disconnect(receive: Receive, stopping: asyncio.Event) -> None:
    """Wait until the client disconnects or the server shuts down."""
    ends = (asyncio.create_task(_disconnected(receive)), asyncio.create_task(stopping.wait()))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""The body of a request: read whole, within a size and a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from penstock.http.problems import Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_TIME = 20.0
"""Seconds within which a body has to arrive."""
_LONGEST_SIZE = 18
"""Digits; a body of more bytes is larger than any limit."""


class Disconnected(Exception):
    """The client went away before its request was whole."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name, in lower case."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return None


def announces_more(scope: Scope, limit: int) -> bool:
    """Whether `Content-Length` announces a body of more than `limit` bytes.

    The header may have any number of digits, and Python refuses to convert thousands of them.
    """
    announced = header(scope, b"content-length") or b""
    digits = announced.lstrip(b"0")
    if not digits.isdigit():
        return False
    return len(digits) > _LONGEST_SIZE or int(digits) > limit


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body; one that is too large or too slow is a `Problem`."""
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

"""Files as HTTP responses, sent in pieces."""

import asyncio
from collections.abc import Sequence
from typing import IO

from penstock.web.bodies import Receive, Send
from penstock.web.routes import Stream

PIECE = 1 << 20
"""Bytes that are read at a time: large enough to be worth a thread."""


def file_stream(file: IO[bytes], size: int, headers: Sequence[tuple[bytes, bytes]]) -> Stream:
    """Return an answer that sends `size` bytes of a file from its position, and closes it."""

    async def send_all(send: Send, _: Receive) -> None:
        start = [(b"content-length", str(size).encode()), *headers]
        left = size
        with file:
            await send({"type": "http.response.start", "status": 200, "headers": start})
            while left and (piece := await asyncio.to_thread(file.read, min(PIECE, left))):
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return Stream(send_all)

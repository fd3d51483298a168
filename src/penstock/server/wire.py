"""What a connection may send until a request is whole; uvicorn itself sets no limit to it.

Requests that arrive in one piece, nearly all, are looked at once and cost no timer.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_LIMIT = 64_000
"""Bytes that the first line and the headers of a request may have."""
REQUEST_TIME = 30.0
"""Seconds within which a request has to be whole, also one that was answered before."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP on one connection, that is cut when a request is endless, or does not come on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = False
        self._whole = False  # nothing yet is no request either
        self._head_size = 0
        self._patience: asyncio.TimerHandle | None = None
        self._earlier: list[RequestResponseCycle] = []  # behind which others have come already

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, not for ever."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(REQUEST_TIME, self._cut)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._be_calm()
        for cycle in self._earlier:  # uvicorn tells the last one alone
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what has come; if that was not all, do not wait for ever for the rest."""
        super().data_received(data)
        if self._whole:
            self._be_calm()
            return
        if self._patience is None:
            self._patience = self.loop.call_later(REQUEST_TIME, self._cut)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
                self._refuse(431, f"the headers are larger than {HEAD_LIMIT:,} bytes")

    def on_message_begin(self) -> None:
        """A request has begun."""
        super().on_message_begin()
        self._in_head, self._whole, self._head_size = True, False, 0

    def on_headers_complete(self) -> None:
        """Its body may follow."""
        self._in_head = False
        if self.cycle is not None:
            known = (*self._earlier, self.cycle)
            self._earlier = [cycle for cycle in known if not cycle.response_complete]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """It is whole."""
        self._whole = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the shape of every problem."""
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        body = msgspec.json.encode({"detail": detail})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _be_calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cut(self) -> None:
        self._patience = None
        self.transport.close()

"""The HTTP protocol of a connection: uvicorn's, with limits that it lacks, and less work to do.

A request that arrives in one piece, as nearly all do, needs no timer, and its answer is one write:
uvicorn writes the headers and the body each by itself, and a write costs as much as a handler.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from penstock.web.bodies import Exchange, Headers

HEAD_LIMIT = 64_000
"""The largest size of the first line and the headers of a request, in bytes."""
REQUEST_TIME = 30.0
"""Seconds within which a request must arrive whole, even if it was answered before."""

_LONGEST_URL = 65_535  # what httptools can parse
# Longer URLs and headers are not cached, so that a thousand of each stay small.
_REMEMBERED = 200
# Longer bodies are not copied behind their headers.
_ONE_PIECE = 64_000


class HttpExchange(RequestResponseCycle, Exchange):
    """A request and its answer on a connection."""

    task: asyncio.Task[None]
    tasks: set[asyncio.Task[None]]
    """The requests under way on all connections; this one is among them until it is done."""

    async def run_asgi(self, app: Any) -> None:
        """Serve the request."""
        try:
            await super().run_asgi(app)
        finally:
            self.tasks.discard(self.task)

    def take_body(self) -> bytes | None:
        """See `Exchange`."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        self.flow.resume_reading()
        self.message_event.clear()
        body = bytes(self.body)
        self.body = bytearray()
        return body

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """See `Exchange`; `headers` include the length of the body."""
        if (
            self.response_started
            or self.disconnected
            or self.flow.write_paused
            or self.scope["method"] == "HEAD"
        ):
            return False
        head = _First.of(status, self.default_headers)
        for name, value in headers:
            short = len(value) <= _REMEMBERED
            head += _line(name, value) if short else _checked_line(name, value)
        head += b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        if len(body) <= _ONE_PIECE:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


class _First:
    """The first lines of answers by status; they change once a second, with the date."""

    _headers: Sequence[tuple[bytes, bytes]] = ()
    _lines: dict[int, bytes] = {}  # noqa: RUF012 - one for all connections

    @classmethod
    def of(cls, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the status line and the headers that all answers have."""
        if headers is not cls._headers:
            cls._headers, cls._lines = headers, {}
        lines = cls._lines.get(status)
        if lines is None:
            every = (_checked_line(name, value) for name, value in headers)
            lines = cls._lines[status] = b"".join((STATUS_LINE[status], *every))
        return lines


def _checked_line(name: bytes, value: bytes) -> bytes:
    """Return a header as it is sent; raise an error for one that would be more than one line."""
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        raise RuntimeError(f"not a header: {name!r:.80}")
    return b"%b: %b\r\n" % (name.lower(), value)


_line = lru_cache(1_000)(_checked_line)


def _parse_url(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a URL, decoded and as it was sent, and the query string."""
    parsed = httptools.parse_url(url)
    raw: bytes = parsed.path
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, raw, parsed.query or b""


_known_url = lru_cache(1_000)(_parse_url)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP on one connection, which is closed if a request is too large or too slow."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = False
        self._whole = False  # until the first request
        self._head_size = 0
        self._timer: asyncio.TimerHandle | None = None
        # When the last answer was sent, if nothing has arrived since then.
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._earlier: list[RequestResponseCycle] = []  # followed by others already (pipelining)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(REQUEST_TIME, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and tell every request that its client is gone."""
        self._stop_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for cycle in self._earlier:  # uvicorn tells only the last one
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; if the request is not whole yet, limit its size and duration."""
        self._idle_since = None
        super().data_received(data)
        if self._whole:
            self._stop_timer()
            return
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_TIME, self._close)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
                self._refuse(431, f"the headers are larger than {HEAD_LIMIT:,} bytes")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_head, self._whole, self._head_size = True, False, 0

    def on_headers_complete(self) -> None:
        """Serve a request, as soon as those before it are answered; its body may follow."""
        self._in_head = False
        before: RequestResponseCycle | None = self.cycle
        if before is not None and (self._earlier or not before.response_complete):
            known = (*self._earlier, before)
            self._earlier = [cycle for cycle in known if not cycle.response_complete]
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        version = self.parser.get_http_version()
        parse = _known_url if len(self.url) <= _REMEMBERED else _parse_url
        scope["path"], scope["raw_path"], scope["query_string"] = parse(self.url)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        self.cycle = exchange = HttpExchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        exchange.tasks = self.tasks
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _start(self, exchange: HttpExchange) -> None:
        exchange.task = self.loop.create_task(exchange.run_asgi(self.app))
        self.tasks.add(exchange.task)

    def on_message_complete(self) -> None:
        """End a request."""
        self._whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Serve the next request, or wait for it as long as a connection may be idle.

        The timer goes on when a request arrives, and looks at the clock when it fires: setting a
        new one for each request would cost more than parsing it.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            exchange, _ = self.pipeline.pop()
            self._start(exchange)  # type: ignore[arg-type] # all of them were made here
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None or self.transport.is_closing():
            return  # the next answer starts it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(left, self._close_idle)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, with the body that every problem has."""
        if len(getattr(self, "url", b"")) > _LONGEST_URL:  # none before the first request
            self._refuse(414, f"the URL is longer than {_LONGEST_URL:,} bytes")
        else:
            self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        body = msgspec.json.encode({"detail": detail})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._timer = None
        self.transport.close()

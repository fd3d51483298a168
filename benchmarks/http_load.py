"""A load generator: as little work per request as Python can do, so that the server is measured."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, cast

Body = Callable[[], bytes]


class Reply(NamedTuple):
    """A status, and the body."""

    status: int
    body: bytes


class Connection(asyncio.Protocol):
    """One connection that is kept: a request, then its reply."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiting: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._buffer = self._buffer + data if self._buffer else data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        place = self._buffer.find(b"content-length: ", 0, head)
        size = 0
        if place >= 0:
            size = int(self._buffer[place + 16 : self._buffer.index(b"\r", place)])
        end = head + 4 + size
        if len(self._buffer) < end:
            return
        reply = Reply(int(self._buffer[9:12]), self._buffer[head + 4 : end])
        self._buffer = self._buffer[end:]
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server closed the connection"))

    def ask(self, request: bytes) -> asyncio.Future[Reply]:
        """Send a request; its reply comes."""
        assert self._transport is not None  # noqa: S101 - it is connected
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> Connection:
    """A connection to a server on this machine."""
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return protocol


def get(path: str) -> bytes:
    """A GET."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    """A POST of JSON."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Tally:
    """How many requests there were, and how long each took."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.seconds: list[float] = []


async def saturate(port: int, request: bytes, *, connections: int, tally: Tally) -> float:
    """Send one request after the other on each connection; the seconds it took in all."""
    lines = [await connect(port) for _ in range(connections)]
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for line in lines:
            group.create_task(_repeat(line, request, tally))
    taken = time.perf_counter() - start
    for line in lines:
        line.close()
    return taken


async def _repeat(line: Connection, request: bytes, tally: Tally) -> None:
    while tally.left > 0:
        tally.left -= 1
        begun = time.perf_counter()
        reply = await line.ask(request)
        tally.seconds.append(time.perf_counter() - begun)
        if not 200 <= reply.status < 300:
            raise RuntimeError(f"answered {reply.status}: {reply.body[:200]!r}")


async def at_a_rate(
    port: int, request: bytes, *, connections: int, rate: float, seconds: float
) -> list[float]:
    """Send requests at a steady rate; how long each took, from when it was due."""
    lines = [await connect(port) for _ in range(connections)]
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for line in lines:
        free.put_nowait(line)
    taken: list[float] = []

    async def one(due: float) -> None:
        line = await free.get()
        await line.ask(request)
        taken.append(time.perf_counter() - due)
        free.put_nowait(line)

    start = time.perf_counter()
    sent = 0
    async with asyncio.TaskGroup() as group:
        while (now := time.perf_counter() - start) < seconds:
            while sent < now * rate:
                group.create_task(one(start + sent / rate))
                sent += 1
            await asyncio.sleep(0.001)
    for line in lines:
        line.close()
    return taken

"""Answers are one write; connections that send too much, too slowly, or nothing are closed."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from penstock import Penstock
from penstock.server import protocol
from penstock.server.request_metrics import Asgi
from penstock.web.bodies import Message, Receive, Scope, Send, read_body
from penstock.web.routes import Answer, respond
from tests.environment import SOON
from tests.server.support import Listener, whole_service

HEAD = b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def ended(*pieces: bytes) -> bytes:
    """Return everything that a server answers to these bytes until it closes the connection."""
    listener = Listener(whole_service(Penstock("memory://")))
    serves = asyncio.create_task(listener.listen())
    async with asyncio.timeout(SOON):
        while not listener.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.writelines(pieces)
        try:
            return await reader.read()
        finally:
            writer.close()
            listener.should_exit = True
            await serves
            listener.socket.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /" + b"a" * 100_000],
        [HEAD + b"X: " + b"x" * 100_000],
        [HEAD, *[b"X: y\r\n"] * 20_000],
    ],
)
async def test_endless_head_is_refused(pieces: list[bytes]) -> None:
    answer = await ended(*pieces)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert answer.endswith(b'{"detail":"the headers are larger than 64,000 bytes"}')


async def test_address_that_cannot_be_parsed_is_too_long() -> None:
    answer = await ended(b"GET /events?x=" + b"a" * 65_600 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 414 ")
    assert answer.endswith(b'{"detail":"the URL is longer than 65,535 bytes"}')


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /events HT", b""),
        (HEAD, b""),
        (HEAD + b"Content-Length: 9000000\r\n\r\n[", b"HTTP/1.1 413 "),  # answered, yet unfinished
    ],
)
async def test_request_that_does_not_come_on_is_cut(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(protocol, "REQUEST_TIME", 0.2)
    got = await ended(sent)
    assert got.startswith(answer) if answer else got == b""


async def test_whole_request_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REQUEST_TIME", 0.2)
    wanted = b"GET /events/subscribe?tags=a&worker_id=w&wait=1 HTTP/1.1\r\nHost: localhost\r\n"
    answer = await ended(wanted + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")


class Wire(asyncio.Transport):
    """A connection that keeps what is written to it, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def written(app: Any, *pieces: bytes, **options: Any) -> Wire:
    """Return what an application writes to a connection on which these bytes arrive."""
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, **options)
    state = ServerState()
    state.default_headers = [(b"date", b"today")]
    wire = Wire()
    connection = protocol.BoundedProtocol(config=config, server_state=state, app_state={})
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
    async with asyncio.timeout(SOON):
        while state.tasks:  # those that were answered leave
            await asyncio.wait(set(state.tasks))
    connection.connection_lost(ConnectionResetError())
    return wire


def answering(value: Any, *headers: tuple[bytes, bytes]) -> Asgi:
    """Return an application that answers every request with this."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await respond(send, Answer(200, value, headers))

    return answer


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_answer_is_one_write() -> None:
    wire = await written(answering({"a": 1}, (b"X-Y", b"z")), GET)
    (whole,) = wire.writes
    assert whole == (
        b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 7\r\nx-y: z\r\n"
        b'content-type: application/json\r\n\r\n{"a":1}'
    )
    assert not wire.closed


async def test_large_answer_is_not_copied_behind_its_headers() -> None:
    wire = await written(answering(b"x" * 100_000), GET)
    assert b"".join(wire.writes).endswith(b"\r\n\r\n" + b"x" * 100_000)


async def test_requests_that_arrive_together_are_answered_in_their_order() -> None:
    async def echo(scope: Scope, _receive: Receive, send: Send) -> None:
        await respond(send, Answer(200, scope["path"]))

    wire = await written(echo, b"".join(GET.replace(b"/ ", b"/%d " % n) for n in range(3)))
    assert [one[-4:] for one in wire.writes] == [b'"/0"', b'"/1"', b'"/2"']


@pytest.mark.parametrize(
    "request_line", [b"GET / HTTP/1.0", b"GET / HTTP/1.1\r\nConnection: close"]
)
async def test_connection_is_closed_behind_the_last_answer(request_line: bytes) -> None:
    wire = await written(answering(1), request_line + b"\r\nHost: localhost\r\n\r\n")
    assert wire.writes[0].endswith(b"\r\nconnection: close\r\n\r\n1")
    assert wire.closed


async def test_head_has_no_body() -> None:
    wire = await written(answering("text"), GET.replace(b"GET", b"HEAD"))
    assert b"".join(wire.writes).endswith(b"content-type: application/json\r\n\r\n")


@pytest.mark.parametrize(
    "header", [(b"x", b"a\r\nset-cookie: b"), (b"x", b"y" * 300 + b"\n"), (b"x\r\ny", b"z")]
)
async def test_header_cannot_contain_another_one(header: tuple[bytes, bytes]) -> None:
    wire = await written(answering(1, header), GET)
    assert wire.writes[0].startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in b"".join(wire.writes)


async def test_client_that_asks_first_is_told_to_go_on() -> None:
    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, Answer(200, await read_body(scope, receive, 10)))

    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    wire = await written(read, head + b"Expect: 100-continue\r\n\r\n{}")
    assert wire.writes[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.writes[-1].endswith(b"\r\n\r\n{}")
    assert (await written(read, head + b"\r\n{}")).writes[0].endswith(b"\r\n\r\n{}")
    assert (await written(read, head + b"\r\n{", b"}")).writes[0].endswith(b"\r\n\r\n{}")


async def test_what_wraps_send_sees_every_message() -> None:
    """A middleware adds its headers, as that of CORS does."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-added", b"1"))
            await send(message)

        await answering(1)(scope, receive, add)

    wire = await written(wrapped, GET)
    assert b"x-added: 1" in b"".join(wire.writes)


class Timers:
    """An event loop whose clock and timers the test moves; tasks run on the real one."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.create_task = asyncio.get_running_loop().create_task

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, step: Callable[[], None]) -> asyncio.TimerHandle:
        self.due.append((self.now + delay, step))
        loop = asyncio.get_running_loop()
        return asyncio.TimerHandle(self.now + delay, step, (), loop)


async def test_idle_connection_is_closed_and_used_one_is_not() -> None:
    config = uvicorn.Config(answering(1), ws="none", lifespan="off", log_config=None)
    state, wire, timers = ServerState(), Wire(), Timers()
    loop = cast("asyncio.AbstractEventLoop", timers)
    connection = protocol.BoundedProtocol(
        config=config, server_state=state, app_state={}, _loop=loop
    )
    connection.connection_made(wire)
    timers.due.clear()  # the timer of the first request
    for timers.now in (100.0, 104.0):
        connection.data_received(GET)
        await asyncio.wait(set(state.tasks))
    ((first, look),) = timers.due  # one timer for both requests
    assert first == 105.0
    timers.now = first
    look()
    assert not wire.closed
    second, look = timers.due[1]
    assert second == 109.0
    timers.now = second
    look()
    assert wire.closed

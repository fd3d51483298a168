"""Connections that send too much, too slowly, or nothing, are cut."""

import asyncio

import pytest

from penstock import Penstock
from penstock.server import wire
from tests.server.support import SOON, Listener, whole_service

HEAD = b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def ended(*pieces: bytes) -> bytes:
    """All that a server answers to these bytes until it hangs up by itself."""
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
    monkeypatch.setattr(wire, "REQUEST_TIME", 0.2)
    got = await ended(sent)
    assert got.startswith(answer) if answer else got == b""


async def test_whole_request_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "REQUEST_TIME", 0.2)
    wanted = b"GET /events/subscribe?tags=a&worker_id=w&wait=1 HTTP/1.1\r\nHost: localhost\r\n"
    answer = await ended(wanted + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204 ")

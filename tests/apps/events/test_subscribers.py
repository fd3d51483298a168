"""Two thousand subscribers that wait at once, over real sockets."""

import asyncio
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.testing.stores import Proxy
from tests.environment import SOON
from tests.server.support import Listener, whole_service

MANY = 2_000
HALF = MANY // 2
NOTHING = b"HTTP/1.1 204 No Content\r\n"


class Counting(Proxy):
    """Counts the calls of each verb."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            self.calls[name] += 1
        return super().__getattr__(name)


class Waiters:
    """Connections that each wait for an event."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reading: dict[asyncio.Task[bytes], asyncio.StreamWriter] = {}

    async def add(self, n: int, tag: str) -> None:
        for k in range(n):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            wanted = f"tags={tag}&worker_id={tag}{k}&wait=60"
            writer.write(
                f"GET /events/subscribe?{wanted} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            self.reading[asyncio.create_task(self._answer(reader))] = writer

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        size = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
        body = await reader.readexactly(int(size[0].split(b":")[1])) if size else b""
        return head + body

    async def answered(self, n: int) -> list[bytes]:
        """Return the answers of the first `n`; the others continue to wait."""
        left = set(self.reading)
        answers: list[bytes] = []
        async with asyncio.timeout(SOON):
            while len(answers) < n:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                answers += [task.result() for task in done]
                for task in done:
                    self.reading.pop(task).close()
        return answers

    def leave(self) -> None:
        for task, writer in self.reading.items():
            task.cancel()
            writer.close()
        self.reading.clear()


def memory() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MANY + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise AssertionError(f"the test needs {wanted} descriptors, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def serving(app: Penstock) -> AsyncIterator[tuple[Listener, Waiters]]:
    listener = Listener(whole_service(app))
    serves = asyncio.create_task(listener.listen())
    waiters = Waiters(listener.port)
    try:
        async with asyncio.timeout(SOON):
            while not listener.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
        yield listener, waiters
    finally:
        listener.should_exit = True
        await serves
        waiters.leave()
        listener.socket.close()


def who_wait(listener: Listener) -> int:
    """Return the number of subscribers that the application knows."""
    (application, *_) = [one for one in listener.service.applications if one.name == "events"]
    return len(application.on_shutdown.__self__._waiters)  # type: ignore[attr-defined] # a bound method


async def until_they_wait(listener: Listener, n: int) -> None:
    async with asyncio.timeout(SOON):
        while who_wait(listener) != n:  # noqa: ASYNC110 - the application tells nobody
            await asyncio.sleep(0.01)


async def publish(app: Penstock, listener: Listener, tag: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    body = b'{"title": "t", "tags": "%s"}' % tag.encode()
    writer.write(
        b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert b" 201 " in await reader.readline()
    writer.close()


async def others(listener: Listener) -> None:
    """Send requests that need no store, one after the other, to let time pass."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    for _ in range(300):
        writer.write(b"OPTIONS /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
    writer.close()


@pytest.mark.timeout(300)
async def test_two_thousand_wait_at_no_cost(tmp_path: Path, many_descriptors: None) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    with Counting(app.store).before(app) as store:
        async with serving(app) as (listener, waiters):
            before = memory()
            await waiters.add(HALF, "a")
            await waiters.add(HALF, "b")
            await until_they_wait(listener, MANY)
            assert memory() - before < 100_000_000

            store.calls.clear()
            await others(listener)
            # Somebody may have looked again after half a minute: one for all, not one for each. And
            # the server itself may have asked whether the store is there.
            quiet = {"wait", "ready_tags", "tokens", "newest_log", "workers", "clock"}
            assert store.calls.keys() <= quiet, store.calls
            assert store.calls.total() < 8, store.calls

            await publish(app, listener, "a")
            (picked,) = await waiters.answered(1)
            assert b'"status":"PROCESSING"' in picked
            await until_they_wait(listener, MANY - 1)
            # One who got it, and perhaps one or two who looked in vain.
            assert store.calls["claim"] <= 4, store.calls

            listener.should_exit = True
            answers = await waiters.answered(MANY - 1)
            assert all(answer.startswith(NOTHING) for answer in answers)
    await app.close()


async def test_who_hung_up_gets_nothing(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    async with serving(app) as (listener, waiters):
        await waiters.add(3, "a")
        await until_they_wait(listener, 3)
        waiters.leave()
        await until_they_wait(listener, 0)
        await publish(app, listener, "a")
        (job,) = await app.leases.claim(worker="w", queues=["events"], tags=["a"])
        assert [entry.event for entry in await app.log(job.id)] == ["enqueued", "claimed"]
    await app.close()


async def test_who_hung_up_behind_another_request_gets_nothing(tmp_path: Path) -> None:
    """A client may send requests before the previous answer arrives."""
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    async with serving(app) as (listener, _):
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for path in ("/events/subscribe?tags=a&worker_id=w&wait=60", "/health", "/health"):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until_they_wait(listener, 1)
        writer.close()
        await until_they_wait(listener, 0)
        await publish(app, listener, "a")
        (job,) = await app.leases.claim(worker="w", queues=["events"], tags=["a"])
        assert [entry.event for entry in await app.log(job.id)] == ["enqueued", "claimed"]
    await app.close()

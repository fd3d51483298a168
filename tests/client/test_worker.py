import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, InvalidJob, Penstock
from penstock.client import AsyncClient, Event, EventWorker, NewEvent, connection, wire
from penstock.errors import NotAuthorised
from tests.client.support import Server, serving
from tests.environment import SOON

BRIEF = timedelta(seconds=0.2)
QUICK: dict[str, Any] = {"heartbeat": BRIEF}


@asynccontextmanager
async def working(worker: EventWorker) -> AsyncIterator[asyncio.Task[None]]:
    """Works inside the block, and stops gracefully behind it."""
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(SOON):
            yield running
    finally:
        worker.stop()
        await asyncio.wait_for(running, SOON)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, worker="w:9") as one:
        yield one


class Reached:
    """Waits until something was counted so often."""

    def __init__(self, n: int) -> None:
        self._left = n
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await asyncio.wait_for(self._event.wait(), SOON)


def new(n: int, tag: str, **fields: Any) -> list[NewEvent]:
    return [NewEvent(f"{tag} {i}", tag, i, **fields) for i in range(n)]


async def test_async_handlers_work_off_what_there_is_and_what_comes(client: AsyncClient) -> None:
    seen: list[Event] = []
    reached = Reached(30)

    async def handle(event: Event) -> None:
        seen.append(event)
        reached()

    await client.publish_many(new(20, "work-async"))
    async with working(EventWorker(client, "work-async", handle, batch=7)):
        await client.publish_many(new(10, "work-async"))
        await reached.wait()
    assert (await client.list(tags="work-async", status="COMPLETED")).total == 30
    assert len({event.id for event in seen}) == len(seen) == 30


async def test_functions_run_in_threads_so_many_at_a_time(client: AsyncClient) -> None:
    barrier = threading.Barrier(3)  # none gets on unless three run at once
    reached = Reached(6)

    def handle(event: Event) -> None:
        barrier.wait(SOON)
        reached()

    await client.publish_many(new(6, "work-threads"))
    async with working(EventWorker(client, ["work-threads"], handle, concurrency=3)):
        await reached.wait()
    assert (await client.list(tags="work-threads", status="COMPLETED")).total == 6


async def test_what_a_handler_raises_is_reported_and_tried_again(client: AsyncClient) -> None:
    reached = Reached(4)

    async def handle(event: Event) -> None:
        reached()
        if event.payload == 0 and event.retry_count == 0:
            raise ValueError("no luck")

    events = await client.publish_many(new(3, "work-fail", retry_delay=timedelta(0)))
    async with working(EventWorker(client, "work-fail", handle)):
        await reached.wait()
    found = await client.get(events[0].id, logs=True)
    assert found.status == "COMPLETED"
    assert [line.error_message for line in found.logs if line.action == "FAILED"] == [
        "ValueError: no luck"
    ]


async def test_holds_are_prolonged_while_handlers_run(client: AsyncClient) -> None:
    """Also of what has not begun: with one place, the second waits for the first."""
    began = asyncio.Event()
    go_on = asyncio.Event()
    reached = Reached(2)
    beats: list[int] = []
    both_beat_twice = asyncio.Event()

    class Listening(AsyncClient):
        async def heartbeat(self, event: Event) -> Any:
            hold = await super().heartbeat(event)
            beats.append(event.id)
            if len(set(beats)) == 2 and all(beats.count(one) >= 2 for one in set(beats)):
                both_beat_twice.set()
            return hold

    async def handle(event: Event) -> None:
        began.set()
        await go_on.wait()
        reached()

    async with Listening(client.url) as listening:
        await client.publish_many(new(2, "work-hold"))
        worker = EventWorker(listening, "work-hold", handle, concurrency=1, batch=2, **QUICK)
        async with working(worker):
            await began.wait()
            await both_beat_twice.wait()
            go_on.set()
            await reached.wait()
    assert (await client.list(tags="work-hold", status="COMPLETED")).total == 2


async def test_a_lost_event_is_dropped_and_its_handler_is_interrupted(
    client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    began, interrupted = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    event = await client.publish("lost", "work-lost")
    worker = EventWorker(client, "work-lost", handle, concurrency=1, **QUICK)
    with caplog.at_level(logging.WARNING):
        async with working(worker):
            await began.wait()
            await client.reset(event.id, "it hangs")
            # Another takes it before this worker, which has no place for a second, could.
            [taken] = await AsyncClient.subscribe(other := AsyncClient(client.url), "work-lost")
            await interrupted.wait()
            await other.complete(taken)
            await other.close()
    found = await client.get(event.id, logs=True)
    assert found.status == "COMPLETED"
    assert [line.action for line in found.logs if line.action != "REFUSED"] == [
        "PICKED",
        "RESET",
        "PICKED",
        "COMPLETED",
    ]
    assert "was lost; its result is discarded" in caplog.text


async def test_the_result_of_a_lost_event_is_dropped(client: AsyncClient) -> None:
    """Nobody noticed that it was lost before the handler ended, in a thread."""
    began, go_on = Reached(1), threading.Event()

    def handle(event: Event) -> None:
        began()
        go_on.wait(SOON)

    event = await client.publish("late", "work-late")
    worker = EventWorker(client, "work-late", handle, concurrency=1)
    async with working(worker):
        await began.wait()
        await client.reset(event.id)
        other = AsyncClient(client.url)
        [taken] = await other.subscribe("work-late")
        go_on.set()
        worker.stop()
    assert (await client.get(event.id)).status == "PROCESSING"
    await other.complete(taken)
    await other.close()


async def test_stop_lets_handlers_end_and_gives_back_what_did_not_begin(
    client: AsyncClient,
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        began.set()
        await go_on.wait()

    events = await client.publish_many(new(4, "work-stop"))
    worker = EventWorker(client, "work-stop", handle, concurrency=1, batch=4)
    async with working(worker):
        await began.wait()
        worker.stop()
        while (await client.list(tags="work-stop", status="PENDING")).total < 3:
            pass
        go_on.set()
    found = [await client.get(event.id) for event in events]
    assert sorted(one.status for one in found) == ["COMPLETED", "PENDING", "PENDING", "PENDING"]
    assert [one.retry_count for one in found] == [0, 0, 0, 0]


async def test_what_outlasts_its_grace_is_given_back(client: AsyncClient) -> None:
    began = asyncio.Event()

    async def handle(event: Event) -> None:
        began.set()
        await asyncio.Event().wait()

    event = await client.publish("long", "work-grace")
    async with working(EventWorker(client, "work-grace", handle, grace=timedelta(0))):
        await began.wait()
    found = await client.get(event.id, logs=True)
    assert (found.status, found.retry_count) == ("PENDING", 0)
    assert found.logs[-1].action == "RELEASED"


async def test_a_cancelled_worker_gives_back_what_it_holds(client: AsyncClient) -> None:
    began = asyncio.Event()

    async def handle(event: Event) -> None:
        began.set()
        await asyncio.Event().wait()

    event = await client.publish("cancelled", "work-cancel")
    running = asyncio.create_task(EventWorker(client, "work-cancel", handle).run())
    await asyncio.wait_for(began.wait(), SOON)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await client.get(event.id)).status == "PENDING"


async def test_an_event_that_is_asked_to_stop_is_interrupted(
    server: Server, client: AsyncClient
) -> None:
    began = asyncio.Event()

    async def handle(event: Event) -> None:
        began.set()
        await asyncio.Event().wait()

    event = await client.publish("stop", "work-asked")
    async with working(EventWorker(client, "work-asked", handle, **QUICK)):
        await began.wait()
        async with Penstock(server.store) as app:
            await app.cancel(event.id)
        while (await client.get(event.id)).status == "PROCESSING":
            pass
    assert (await client.get(event.id)).status == "CANCELLED"


class Said(logging.Handler):
    """Tells when a text has been logged."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._event.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._event.wait(), SOON)


async def test_a_worker_goes_on_when_the_server_was_killed_and_came_back(tmp_path: Path) -> None:
    """It is away for as long as it takes to fail at picking and at reporting."""
    with serving(tmp_path) as server, saying("cannot be claimed", "reported later") as said:
        seen: list[int] = []
        some_seen, all_seen, go_on = Reached(3), Reached(23), asyncio.Event()

        async def handle(event: Event) -> None:
            seen.append(event.id)
            some_seen()
            all_seen()
            await go_on.wait()

        async with AsyncClient(server.url, retries=0) as client:
            await client.publish_many(new(3, "back"))
            async with working(EventWorker(client, "back", handle, concurrency=5, **QUICK)):
                await some_seen.wait()
                server.end(signal.SIGKILL)
                await said[0].wait()
                go_on.set()
                await said[1].wait()
                server.start()
                server.until_up()
                await client.publish_many(new(20, "back"))
                await all_seen.wait()
            assert (await client.list(tags="back", status="COMPLETED")).total == 23
            assert len(set(seen)) == len(seen) == 23


@contextmanager
def saying(*texts: str) -> Iterator[list[Said]]:
    log = logging.getLogger("penstock.client.worker")
    said = [Said(text) for text in texts]
    for one in said:
        log.addHandler(one)
    try:
        yield said
    finally:
        for one in said:
            log.removeHandler(one)


WORKER = """
import sys
import time
from penstock.client import Client

def hang(event):
    print("began", flush=True)
    time.sleep(3600)

Client(sys.argv[1]).work("killed", hang, concurrency=1)
"""


async def test_what_a_killed_worker_held_comes_to_another(tmp_path: Path) -> None:
    with serving(tmp_path, PENSTOCK_EVENTS_LEASE="1") as server:
        async with AsyncClient(server.url) as client, Penstock(server.store) as app:
            event = await client.publish("killed", "killed", retry_delay=timedelta(0))
            command = [sys.executable, "-c", WORKER, server.url]
            with subprocess.Popen(  # noqa: ASYNC220 - starting it is quick
                command, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == "began\n"
                process.kill()
            done = asyncio.Event()

            async def handle(again: Event) -> None:
                assert (again.id, again.retry_count) == (event.id, 1)
                done.set()

            async with working(EventWorker(client, "killed", handle, heartbeat=BRIEF)):
                while not done.is_set():
                    await app.leases.reclaim()  # as a server does every second
            assert (await client.get(event.id)).status == "COMPLETED"


async def test_a_token_that_is_refused_ends_the_work(tmp_path: Path) -> None:
    async with Penstock(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        secret = await app.tokens.create("reader", ["read"])
    with serving(tmp_path, secret) as server:
        async with AsyncClient(server.url, token=secret) as client:
            with pytest.raises(NotAuthorised, match="work"):
                await EventWorker(client, "x", print).run()


def test_the_synchronous_client_works_until_a_signal(server: Server) -> None:
    async def handle(event: Event) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with server.client() as client:
        event = client.publish("signal", "work-signal")
        client.work("work-signal", handle)
        assert client.get(event.id).status == "COMPLETED"
    assert signal.getsignal(signal.SIGTERM) is before


def test_numbers_that_make_no_sense_are_refused(server: Server) -> None:
    for options in ({"concurrency": 0}, {"batch": 0}, {"heartbeat": timedelta(0)}):
        with pytest.raises(ConfigurationError):
            EventWorker(AsyncClient(server.url), "x", print, **options)


def test_handler_that_is_no_function_is_refused(server: Server) -> None:
    with pytest.raises(ConfigurationError, match="a handler must be a function of an event, not 3"):
        EventWorker(AsyncClient(server.url), "x", 3)  # type: ignore[arg-type] # that is the point


async def test_event_that_cannot_be_read_fails_alone(
    client: AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of another version may send what this one would have refused."""
    seen: list[Any] = []
    reached = Reached(2)

    async def handle(event: Event) -> None:
        seen.append(event.payload)
        reached()

    first, bad, last = await client.publish_many(
        [NewEvent("t", "unread", n, max_retries=1) for n in (1, 271828, 3)]
    )
    sent = BlockedNumber(b'"payload":271828', b'"payload":1e999')
    monkeypatch.setattr(wire, "answer", sent)
    monkeypatch.setattr(connection, "answer", sent)
    async with working(EventWorker(client, "unread", handle, concurrency=1, batch=3)):
        await reached.wait()
    assert sorted(seen) == [1, 3]
    states = [(await client.get(event.id)).status for event in (first, last)]
    assert states == ["COMPLETED", "COMPLETED"]
    failed = await client.get(bad.id, logs=True)
    assert failed.status == "FAILED"
    assert "cannot be decoded" in str([action.error_message for action in failed.logs])


class BlockedNumber:
    """Answers of the server with something else in the place of a number."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new = old, new
        self._answer = wire.answer

    def __call__(self, request: Any, reply: wire.Reply, kind: Any, server: str) -> Any:
        if request.path == "/events/subscribe":
            reply = reply._replace(content=reply.content.replace(self._old, self._new))
        return self._answer(request, reply, kind, server)


async def test_text_of_an_error_that_cannot_be_sent_spoils_no_other_report(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is logged goes to other processes of the test run, which cannot take such a text.
    monkeypatch.setattr(logging.getLogger("penstock.client.worker"), "disabled", True)
    reached = Reached(4)

    async def handle(event: Event) -> None:
        reached()
        raise ValueError("\ud800" if event.payload % 2 else "plain")

    events = await client.publish_many(new(4, "work-halves", max_retries=1))
    async with working(EventWorker(client, "work-halves", handle)):
        await reached.wait()
    assert [(await client.get(event.id)).status for event in events] == ["FAILED"] * 4


@pytest.mark.parametrize(
    "payload",
    [float("nan"), [float("inf")], {"a": -float("inf")}, 10**5_000],
    ids=["nan", "inf", "minus", "digits"],
)
async def test_payload_that_json_does_not_have_is_refused_and_not_changed(
    client: AsyncClient, payload: Any
) -> None:
    with pytest.raises(InvalidJob, match="payload"):
        await client.publish("t", "refused", payload)
    with pytest.raises(InvalidJob, match=r"events\[0\].payload"):
        await client.publish_many([NewEvent("t", "refused", payload)])
    assert (await client.list(tags="refused")).total == 0

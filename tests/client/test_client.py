import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    JobNotFound,
    LeaseLost,
    Penstock,
    QueueFull,
    StoreError,
    StoreUnavailable,
    run_sync,
)
from penstock.client import AsyncClient, Client, Event, NewEvent, RemotePenstock
from penstock.errors import NotAuthorised, PayloadTooLarge, ServerUnreachable, TooManyQueues
from tests.client.support import Server, answering, free_port, serving, swallowing

SECOND = timedelta(seconds=1)


def test_an_event_goes_from_publisher_to_worker_and_is_looked_at(client: Client) -> None:
    event = client.publish("Hello", ["hello", "greeting"], {"to": "Ada"}, description="A greeting")
    assert (event.status, event.tags, event.payload) == (
        "PENDING",
        ("hello", "greeting"),
        {"to": "Ada"},
    )
    assert event.created_at <= datetime.now(UTC)
    [picked] = client.subscribe("hello", limit=5)
    assert (picked.id, picked.status, picked.payload) == (event.id, "PROCESSING", {"to": "Ada"})
    client.start(picked)
    hold = client.heartbeat(picked)
    assert (hold.token, hold.cancel_requested) == (picked.token, False)
    report = client.complete(picked, took=SECOND, status_code=200)
    assert (report.event_id, report.recorded) == (event.id, True)
    done = client.get(event.id, logs=True)
    assert (done.status, done.description) == ("COMPLETED", "A greeting")
    assert [line.action for line in done.logs] == ["PICKED", "STARTED", "COMPLETED"]
    assert (done.logs[-1].execution_time_ms, done.logs[-1].worker_id) == (1000, "w:1")
    page = client.list(status="COMPLETED", tags=["hello"])
    assert ([one.id for one in page.events], page.total) == ([event.id], 1)


async def test_the_async_client_makes_the_same_calls(server: Server) -> None:
    async with AsyncClient(server.url, worker="w:2") as client:
        events = await client.publish_many(
            [NewEvent(f"n{n}", ("async",), n, priority=n) for n in range(3)]
        )
        picked = await client.subscribe(["async"], limit=10, wait=SECOND)
        assert [one.payload for one in picked] == [2, 1, 0]
        await client.release(picked[2])
        [failed] = await client.fail_many([(picked[1], "no luck")])
        assert failed.next_retry_at is not None
        reports = await client.complete_many([picked[0], picked[2]])
        assert [report.recorded for report in reports] == [True, False]
        found = [(await client.get(event.id)).status for event in events]
        assert found == ["PENDING", "PENDING", "COMPLETED"]


async def test_a_long_poll_ends_with_the_event(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        poll = asyncio.create_task(client.subscribe("poll", wait=timedelta(seconds=60)))
        published = await client.publish("now", "poll")
        [picked] = await poll
        assert picked.id == published.id
        assert await client.subscribe("poll") == []


def test_the_last_failure_is_a_report_and_no_error(client: Client) -> None:
    client.publish("once", "once", max_retries=2, retry_delay=timedelta(0))
    [first] = client.subscribe("once")
    assert client.fail(first, "first").next_retry_at is not None
    [second] = client.subscribe("once")
    assert client.fail(second, "second").next_retry_at is None
    assert client.fail(second, "second").recorded
    found = client.get(second.id, logs=True)
    assert (found.status, [line.error_message for line in found.logs if line.error_message]) == (
        "FAILED",
        ["first", "second"],
    )


def test_reset_takes_an_event_from_its_worker_whose_reports_are_refused(client: Client) -> None:
    event = client.publish("reset", "reset")
    [held] = client.subscribe("reset")
    assert client.reset(event.id, "it hangs").status == "PENDING"
    for call in (client.heartbeat, client.start, client.release, client.complete):
        with pytest.raises(LeaseLost) as lost:
            call(held)
        assert (lost.value.job_id, lost.value.token) == (event.id, held.token)
    with pytest.raises(LeaseLost):
        client.fail(held, "late")


def test_what_is_wrong_is_an_error_of_the_package(client: Client) -> None:
    with pytest.raises(JobNotFound, match="999999"):
        client.get(999_999)
    with pytest.raises(InvalidJob, match="title"):
        client.publish("", "wrong")
    with pytest.raises(InvalidJob, match="delay must be a timedelta"):
        client.publish("x", "wrong", delay=3)  # type: ignore[arg-type] # that is the point
    with pytest.raises(InvalidJob, match="JSON"):
        client.publish("x", "wrong", object())
    with pytest.raises(PayloadTooLarge):
        client.publish("x", "wrong", "x" * 1_100_000)
    with pytest.raises(ConfigurationError, match="status"):
        client.list(status="LOST")
    unknown = Event(
        id=999_999,
        title="",
        tags=(),
        status="",
        retry_count=0,
        created_at=datetime.now(UTC),
        token=1,
    )
    with pytest.raises(JobNotFound):
        client.complete(unknown)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "sqlite:///x.db"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        Client(url)


def test_a_server_that_is_not_there_is_said_to_be() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, retries=1) as client, pytest.raises(ServerUnreachable, match=url) as gone:
        client.publish("x", "gone")
    assert not gone.value.arrived


def reply(status: str, body: str = "", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers)
    return ("\r\n".join(lines) + f"\r\n\r\n{body}").encode()


@pytest.mark.parametrize(
    "said",
    [
        reply("200 OK", "<html>It works!</html>"),
        reply("200 OK", '{"events": 3}'),
        reply("404 Not Found", "<html>404</html>"),
        reply("404 Not Found", '{"detail": "Not Found"}'),
        reply("301 Moved", "", "Location: http://127.0.0.1/"),
        reply("500 Internal Server Error", "oops"),
    ],
)
def test_another_kind_of_server_is_recognised(said: bytes) -> None:
    with answering(said) as url, Client(url, retries=0) as client, pytest.raises(StoreError):
        client.subscribe("x")


def test_what_a_server_cannot_do_just_now_is_tried_again_and_then_said() -> None:
    said = reply("503 Service Unavailable", '{"detail": "the store is busy"}', "Retry-After: 0")
    with (
        answering(said) as url,
        Client(url, retries=2) as client,
        pytest.raises(StoreUnavailable, match="busy"),
    ):
        client.reset(1)


def test_a_gateway_without_a_server_behind_it_counts_as_unreachable() -> None:
    with (
        answering(reply("502 Bad Gateway", "<html>nginx</html>")) as url,
        Client(url, retries=1) as client,
        pytest.raises(ServerUnreachable, match="502"),
    ):
        client.list()


def test_a_full_queue_says_when_to_try_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.client(retries=1) as client:
        app = Penstock(server.store)
        run_sync(app.limits.queue("events", 1))
        client.publish("first", "full")
        with pytest.raises(QueueFull) as full:
            client.publish("second", "full")
        error = full.value
        assert (error.queue, error.limit, error.retry_after) == ("events", 1, SECOND)
        run_sync(app.limits.queue("events", None))
        assert client.publish("second", "full").id
        run_sync(app.close())


def test_a_queue_too_many_is_refused_and_not_tried_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        app, remote = Penstock(server.store), RemotePenstock(server.url, blocking=True)
        run_sync(app.limits.queues(1))
        run_sync(remote.enqueue("t", queue="first"))
        with pytest.raises(TooManyQueues) as refused:
            run_sync(remote.enqueue("t", queue="second"))
        assert refused.value.limit == 1
        run_sync(remote.close())
        run_sync(app.close())


# Answers that are lost


def test_a_publish_without_an_answer_is_repeated_and_stored_once(server: Server) -> None:
    with swallowing(server, answers=2) as proxy, Client(proxy.url) as client:
        event = client.publish("lost answer", "lost-publish")
        assert proxy.requests == 3
    with server.client() as client:
        assert [one.id for one in client.list(tags="lost-publish").events] == [event.id]


def test_a_batch_without_an_answer_is_repeated_and_stored_once(server: Server) -> None:
    with swallowing(server, answers=1) as proxy, Client(proxy.url) as client:
        events = client.publish_many([NewEvent(f"n{n}", "lost-batch") for n in range(5)])
        assert len({event.id for event in events}) == 5
    with server.client() as client:
        assert client.list(tags="lost-batch").total == 5


def test_a_publish_that_may_not_be_repeated_is_sent_once(server: Server) -> None:
    with swallowing(server, answers=1) as proxy, Client(proxy.url, retries=0) as client:
        with pytest.raises(ServerUnreachable) as lost:
            client.publish("lost answer", "lost-once")
        assert lost.value.arrived
        assert proxy.requests == 1
    with server.client() as client:
        assert client.list(tags="lost-once").total == 1


def test_a_report_without_an_answer_is_repeated_and_recorded_once(server: Server) -> None:
    with server.client(worker="w:3") as client:
        client.publish("a", "lost-report", retry_delay=timedelta(0))
        [held] = client.subscribe("lost-report")
    with swallowing(server, answers=2) as proxy, Client(proxy.url, worker="w:3") as client:
        assert client.fail(held, "once").next_retry_at is not None
    with server.client(worker="w:3") as client:
        [again] = client.subscribe("lost-report")
    with swallowing(server, answers=1) as proxy, Client(proxy.url, worker="w:3") as client:
        assert client.complete(again).recorded
        actions = [line.action for line in client.get(held.id, logs=True).logs]
    assert actions == ["PICKED", "FAILED", "PICKED", "COMPLETED"]


def test_a_reset_without_an_answer_is_not_repeated(server: Server) -> None:
    with server.client() as client:
        event = client.publish("a", "lost-reset")
    with swallowing(server, answers=1) as proxy, Client(proxy.url) as client:
        with pytest.raises(ServerUnreachable):
            client.reset(event.id)
        assert proxy.requests == 1


def test_a_call_goes_on_when_the_server_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.client(retries=40) as client:
        first = client.publish("before", "back")
        server.end(signal.SIGKILL)
        server.start()
        second = client.publish("after", "back")
        assert [one.id for one in client.list(tags="back").events] == [second.id, first.id]


# Tokens


def test_tokens_decide_who_may_do_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Penstock(f"sqlite:///{tmp_path / 'jobs.db'}")
    publisher = run_sync(app.tokens.create("publisher", ["publish"]))
    reader = run_sync(app.tokens.create("reader", ["read"]))
    run_sync(app.close())
    monkeypatch.setenv("PENSTOCK_TOKEN", reader)
    with serving(tmp_path) as server:
        with Client(server.url) as client:  # as the environment says
            assert client.list().total == 0
            with pytest.raises(NotAuthorised, match="publish"):
                client.publish("x", "x")
        with Client(server.url, token=publisher) as client:
            event = client.publish("x", "x")
            with pytest.raises(NotAuthorised, match="work"):
                client.subscribe("x")
        monkeypatch.delenv("PENSTOCK_TOKEN")
        with (
            Client(server.url, token="pst_wrong") as client,
            pytest.raises(NotAuthorised, match="token is unknown"),
        ):
            client.get(event.id)
        with (
            Client(server.url) as client,
            pytest.raises(NotAuthorised, match="a token is required"),
        ):
            client.get(event.id)
    with pytest.raises(ConfigurationError, match="token"):
        Client("http://127.0.0.1", token="two\nlines")

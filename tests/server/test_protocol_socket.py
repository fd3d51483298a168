"""A real server in its own process: malformed and pipelined requests, disconnects, shutdown."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock, run_sync
from penstock.apps.events.contents import job_of
from penstock.apps.events.shapes import NewEvent
from tests.environment import SOON
from tests.server.support import Server, serving

EVENT = b'{"title": "t", "tags": "a"}'
HEAD = b"POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder) as server:
        yield server


def say(server: Server, *pieces: bytes, answers: int = 1) -> bytes:
    """Return the answers to these bytes: this many, or all until the connection is closed."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON) as connection:
        with suppress(ConnectionError):  # it may have heard enough before the end
            for piece in pieces:
                connection.sendall(piece)
        with suppress(ConnectionError):
            while whole_answers(answer) < answers and (piece := connection.recv(65_536)):
                answer += piece
    return answer


def whole_answers(answer: bytes) -> int:
    """Return how many answers have arrived with their bodies."""
    found = 0
    while b"\r\n\r\n" in answer:
        head, _, rest = answer.partition(b"\r\n\r\n")
        (size,) = re.findall(rb"content-length: (\d+)", head) or [b"0"]
        if len(rest) < int(size):
            break
        answer, found = rest[int(size) :], found + 1
    return found


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def is_alive(server: Server) -> bool:
    return httpx.get(f"{server.url}/events?limit=1", timeout=30).status_code == 200


def published(server: Server) -> int:
    return int(httpx.get(f"{server.url}/events?limit=1", timeout=30).json()["total"])


LENGTH = b"Content-Length: %d\r\n" % len(EVENT)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(EVENT), EVENT)
HIDDEN = b"POST /events/1/reset HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS + HIDDEN,
        HEAD + b"Content-Length: 0\r\n" + LENGTH + b"\r\n" + EVENT,
        HEAD + b"Content-Length: +27\r\n\r\n" + EVENT,
        HEAD + b"Content-Length: 0x1b\r\n\r\n" + EVENT,
        HEAD + b"Content-Length: -1\r\n\r\n" + EVENT,
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + EVENT,
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
        HEAD + CHUNKED + b"\r\nzz\r\n" + EVENT,
        HEAD + CHUNKED + b"\r\n-5\r\n" + EVENT,
        HEAD + CHUNKED + b"\r\nffffffffffffffffff\r\n" + EVENT,
        HEAD + b"X: a\nb\r\n : c\r\n\r\n",
        HEAD + b"X\0: a\r\n\r\n",
        b"POST  /events HTTP/1.1\r\n\r\n",
        b"POST /events HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /events HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /events HTTP/1.1\r\n" + b"X: " + b"j" * 2_000_000,
        b"GET /" + b"a" * 2_000_000,
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\0" * 1_000,
        b"nonsense\r\n\r\n",
    ],
)
def test_shapes_that_no_client_sends(server: Server, request_bytes: bytes) -> None:
    before = published(server)
    answer = say(server, request_bytes)
    (status,) = statuses(answer)
    assert 400 <= status < 500
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"detail"}
    assert published(server) == before
    assert is_alive(server)


def test_requests_one_after_the_other_are_answered_one_after_the_other(server: Server) -> None:
    before = published(server)
    one = HEAD + LENGTH + b"\r\n" + EVENT
    many = HEAD + CHUNKED + b"\r\n" + CHUNKS
    answer = say(server, one + many + one, answers=3)
    assert statuses(answer) == [201] * 3
    assert published(server) == before + 3


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"Content-Length: 3000000\r\n\r\n", b"["],
        [HEAD + CHUNKED + b"\r\n", *[b"10000\r\n" + b"[" * 65_536 + b"\r\n"] * 40],
        [HEAD + b"Content-Length: 3000000\r\nExpect: 100-continue\r\n\r\n"],
    ],
)
def test_body_that_is_too_large_is_refused_before_it_has_arrived(
    server: Server, pieces: list[bytes]
) -> None:
    assert 413 in statuses(say(server, *pieces))
    assert is_alive(server)


def test_client_that_leaves_in_the_middle_changes_nothing(server: Server) -> None:
    before = published(server)
    whole = HEAD + LENGTH + b"\r\n" + EVENT
    for cut in (10, len(HEAD), len(HEAD) + 30, len(whole) - 1):
        say(server, whole[:cut], answers=0)
    assert published(server) == before


def test_event_of_another_process_wakes_who_waits(server: Server) -> None:
    """This process writes to the file itself; the server is another."""
    app = Penstock(f"sqlite:///{server.folder}/jobs.db", payload_limit=1_200_000)
    with ThreadPoolExecutor(1) as pool:
        wanted: dict[str, Any] = {"tags": "wake", "worker_id": "w", "wait": 60}
        waits = pool.submit(httpx.get, f"{server.url}/events/subscribe", params=wanted, timeout=90)
        while not waits.running():
            time.sleep(0.001)
        began = time.monotonic()
        event = job_of(NewEvent(title="t", tags="wake"), 300, timedelta(seconds=30))
        (job,) = run_sync(app.enqueue_many([event]))
        assert waits.result().json()["id"] == job.id
        assert time.monotonic() - began < SOON / 2, "it was found at the end of the wait only"
    run_sync(app.close())


def test_times_of_the_environment_hold_and_a_lost_lease_is_taken_back(tmp_path: Path) -> None:
    times = {"PENSTOCK_EVENTS_LEASE": "0.5", "PENSTOCK_EVENTS_RETRY_DELAY": "1000"}
    with (
        serving(tmp_path, **times) as server,
        httpx.Client(base_url=server.url, timeout=90) as client,
    ):
        event = client.post("/events", json={"title": "t", "tags": "a"}).json()
        wanted = {"tags": "a", "worker_id": "one", "wait": 60}
        first = client.post("/events/subscribe", json=wanted).json()
        again = client.post("/events/subscribe", json={**wanted, "worker_id": "two"}).json()
        assert first["id"] == again["id"] == event["id"]
        assert again["token"] > first["token"]
        late = {"worker_id": "one", "token": first["token"]}
        assert client.post(f"/events/{event['id']}/complete", json=late).status_code == 409
        failed = client.post(f"/events/{event['id']}/fail", json={"worker_id": "two"})
        if failed.status_code == 200:  # else that lease is over as well
            shown = client.get(f"/events/{event['id']}").json()
            assert shown["next_retry_at"] > shown["updated_at"]
            assert client.post("/events/subscribe", json={**wanted, "wait": 0}).status_code == 204


def test_stop_answers_who_waits(tmp_path: Path) -> None:
    wanted = b"GET /events/subscribe?tags=a&worker_id=w&wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(tmp_path) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        waiting = [
            stack.enter_context(socket.create_connection(address, timeout=SOON)) for _ in range(20)
        ]
        for connection in waiting:
            connection.sendall(wanted)
        for _ in range(5):  # what came before these has been read
            assert is_alive(server)
        began = time.monotonic()
        server.stop()
        assert [statuses(connection.recv(65_536)) for connection in waiting] == [[204]] * 20
        assert time.monotonic() - began < SOON / 2


def test_json_is_the_same_over_a_socket(server: Server) -> None:
    title = "Grüße, 世界 😀"
    sent = {"title": title, "tags": ["ü", "世"], "payload": {"x": [1.5, None, title]}}
    answer = httpx.post(f"{server.url}/events", json=sent, timeout=30)
    assert answer.json()["title"] == title
    assert answer.json()["payload"] == sent["payload"]
    assert answer.json()["tags"] == "ü,世"

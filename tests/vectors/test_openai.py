"""Test the embedder for the OpenAI API against a server on the loopback interface."""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from penstock import ConfigurationError
from penstock.vectors import EmbedderUnavailable, EmbeddingRefused, open_embedder
from penstock.vectors.openai import OpenAIEmbedder
from tests.vectors.support import LONG

KEY = "sk-secret-of-the-test"
Reply = tuple[int, dict[str, str], Any]


class Service:
    """Sends the given replies, one per request, and then correct ones."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""

    def answer(self, path: str, key: str | None, body: dict[str, Any]) -> Reply:
        self.requests.append(body)
        self.keys.append(key)
        if self.replies:
            return self.replies.pop(0)
        assert path == "/v1/embeddings"
        rows = [
            {"index": place, "embedding": [float(len(text)), 1.0, 0.0]}
            for place, text in enumerate(body["input"])
        ]
        return 200, {}, {"data": rows[::-1]}


@pytest.fixture
def service() -> Iterator[Service]:
    told = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, answer = told.answer(
                self.path, self.headers.get("Authorization"), body
            )
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # the client has given up
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def embedder(service: Service, pauses: list[float]) -> Iterator[OpenAIEmbedder]:
    made = OpenAIEmbedder(
        "m", service.url, key=KEY, batch=2, timeout=LONG, attempts=3, pause=pauses.append
    )
    assert made.dimensions == 3
    service.requests.clear()
    yield made
    made.close()


def test_rows_come_in_the_order_of_the_texts(embedder: OpenAIEmbedder, service: Service) -> None:
    vectors = embedder.embed(["a", "bb", " ", "cccc", "d"])
    np.testing.assert_allclose(
        vectors[:, 0], [0.5**0.5, 2 / 5**0.5, 0, 4 / 17**0.5, 0.5**0.5], 1e-6
    )
    assert [each["input"] for each in service.requests] == [["a", "bb"], ["cccc", "d"]]
    assert {each["model"] for each in service.requests} == {"m"}


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_transient_error_is_retried(
    embedder: OpenAIEmbedder, service: Service, pauses: list[float], status: int
) -> None:
    service.replies = [(status, {}, {}), (status, {}, {})]
    assert embedder.embed(["a"]).shape == (1, 3)
    assert pauses == [0.5, 1.0]


def test_retry_after_is_honoured_within_limits(
    embedder: OpenAIEmbedder, service: Service, pauses: list[float]
) -> None:
    service.replies = [(429, {"Retry-After": "7"}, {}), (429, {"Retry-After": "86400"}, {})]
    embedder.embed(["a"])
    assert pauses == [7.0, 30.0]


def test_attempts_are_limited(
    embedder: OpenAIEmbedder, service: Service, pauses: list[float]
) -> None:
    service.replies = [(503, {}, {})] * 3
    with pytest.raises(EmbedderUnavailable, match="failed 3 times, last with HTTP 503"):
        embedder.embed(["a"])
    assert len(service.requests) == 3
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_permanent_error_is_not_retried(
    embedder: OpenAIEmbedder, service: Service, status: int
) -> None:
    service.replies = [(status, {}, {"error": "no such model"})]
    with pytest.raises(EmbeddingRefused, match=rf"HTTP {status} .*no such model"):
        embedder.embed(["a"])
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        [],
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": [1, 2]}]},
        {"data": [{"index": 0, "embedding": [1, 2, 3]}] * 2},
    ],
)
def test_malformed_reply_is_refused(
    embedder: OpenAIEmbedder, service: Service, answer: Any
) -> None:
    service.replies = [(200, {}, answer)]
    with pytest.raises(EmbeddingRefused):
        embedder.embed(["a"])


def test_unreachable_service_is_unavailable() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    embedder = OpenAIEmbedder("m", f"http://127.0.0.1:{port}", attempts=2, pause=lambda _: None)
    with pytest.raises(EmbedderUnavailable, match="ConnectError"):
        embedder.embed(["a"])
    embedder.close()


def test_service_that_does_not_answer_in_time_is_unavailable(service: Service) -> None:
    waits = threading.Event()

    def slow(*_: Any) -> Reply:
        waits.wait(LONG)
        return 503, {}, {}

    service.answer = slow  # type: ignore[method-assign, assignment] # replaced for the test
    embedder = OpenAIEmbedder("m", service.url, timeout=0.05, attempts=2, pause=lambda _: None)
    with pytest.raises(EmbedderUnavailable, match="ReadTimeout"):
        embedder.embed(["a"])
    waits.set()
    embedder.close()


def test_key_comes_from_the_environment_and_is_never_shown(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    embedder = open_embedder(f"openai:org/model@v2@{service.url}")
    service.replies = [(401, {}, {"error": "wrong key"})]
    with pytest.raises(EmbeddingRefused) as failure:
        embedder.embed(["a"])
    assert service.keys == [f"Bearer {KEY}"]
    assert service.requests[0]["model"] == "org/model@v2"
    shown = f"{failure.value} {failure.value!r} {embedder!r} {embedder.name} {caplog.text}"
    assert KEY not in shown
    embedder.close()


@pytest.mark.parametrize(
    "text", ["model", "@http://localhost/v1", "m@localhost:80", "m@ftp://x", "m@http://a:b@host/v1"]
)
def test_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        open_embedder(f"openai:{text}")

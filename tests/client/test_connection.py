"""The transport that calls an application in this process, as a server would be called."""

import io
from typing import Any

import pytest

from penstock.client.connection import Connection, InProcessTransport
from penstock.client.wire import Request
from penstock.errors import ConfigurationError, JobNotFound

LARGE = b"x" * 600_000


class Echo:
    """An ASGI application that answers with what it was sent."""

    def __init__(self, status: int = 200, body: bytes = b"", warning: str | None = None) -> None:
        self.status = status
        self.warning = warning
        self.body = body
        self.scope: dict[str, Any] = {}
        self.received: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        more = True
        while more:
            message = await receive()
            self.received.append(message["body"])
            more = message["more_body"]
        headers = [(b"retry-after", b"7")]
        if self.warning is not None:
            headers.append((b"warning", b'199 - "%s"' % self.warning.encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def test_request_and_answer_are_those_of_a_server() -> None:
    app = Echo(body=b'{"n": 1}')
    connection = Connection("here", InProcessTransport(app), 0)
    params = {"dry_run": True, "name": "a b"}
    request = Request("POST", "/files/a%2Fb", params=params, body={"x": 1})
    assert await connection.ask(request, dict[str, int]) == {"n": 1}
    assert b"".join(app.received) == b'{"x":1}'
    assert (app.scope["method"], app.scope["path"]) == ("POST", "/files/a/b")
    assert app.scope["raw_path"] == b"/files/a%2Fb"
    assert app.scope["query_string"] == b"dry_run=true&name=a+b"
    assert (b"content-type", b"application/json") in app.scope["headers"]
    reply = await InProcessTransport(app).send(request)
    assert (reply.status, reply.after()) == (200, 7.0)


async def test_each_warning_is_logged_once_per_connection(caplog: pytest.LogCaptureFixture) -> None:
    app = Echo(body=b"{}")
    for _ in range(2):
        connection = Connection("here", InProcessTransport(app), 0)
        for app.warning in ("one", "two", "one", None, "two"):
            await connection.ask(Request("GET", "/"), dict[str, int])
    assert caplog.messages == ["one", "two"] * 2


async def test_file_is_sent_in_pieces() -> None:
    app = Echo(body=b"{}")
    request = Request("POST", "/import", file=io.BytesIO(LARGE))
    await Connection("here", InProcessTransport(app), 0).ask(request, dict[str, int])
    assert len(app.received) > 2
    assert b"".join(app.received) == LARGE


async def test_answer_is_written_to_a_file() -> None:
    file = io.BytesIO()
    await Connection("here", InProcessTransport(Echo(body=LARGE)), 0).fetch(
        Request("GET", "/export"), file
    )
    assert file.getvalue() == LARGE


@pytest.mark.parametrize(
    ("status", "error"), [(404, JobNotFound), (422, ConfigurationError), (501, ConfigurationError)]
)
async def test_errors_are_those_of_a_server(status: int, error: type[Exception]) -> None:
    app = Echo(status, b'{"detail": "there is none"}')
    connection = Connection("here", InProcessTransport(app), 0)
    with pytest.raises(error, match="there is none"):
        await connection.ask(Request("GET", "/x"), dict[str, int])
    with pytest.raises(error, match="there is none"):
        await connection.fetch(Request("GET", "/x"), io.BytesIO())

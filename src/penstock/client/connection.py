"""A connection to a server: sends requests, and retries those that are safe to send again.

Three transports carry the requests: httpx for an event loop, httpx for synchronous code, and calls
of an ASGI application in this process.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urlencode

from penstock.client.wire import Reply, Request, answer, checked_url, error_of, may_repeat
from penstock.core.errors import ConfigurationError, PenstockError, ServerUnreachable
from penstock.core.redaction import redacted, redacted_within
from penstock.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
"""An ASGI application: called with a scope, and functions to receive and to send messages."""

_log = logging.getLogger(__name__)

_MOST_WARNED = 1_000
"""How many warnings of a server are remembered, so that each is logged once."""

CONNECT_TIME = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_OK = 200
_PIECE = 256_000


class Transport(Protocol):
    """Carries a request to a server once, and its reply back."""

    async def send(self, request: Request) -> Reply:
        """Send a request and read the whole reply. Raises `ServerUnreachable`."""
        ...

    async def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write the body of a reply to a file as it arrives."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Yield the lines of a stream of events as they arrive."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class AsyncTransport:
    """Sends requests with httpx, in the event loop in which it is first used."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        self._http: httpx.AsyncClient | None = None
        self._pid = 0

    async def send(self, request: Request) -> Reply:
        """Send a request and read the whole reply."""
        http = self._opened()
        with _translated(self._url):
            return _reply(await http.request(**self._arguments(request)))

    async def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write the body of a reply to a file as it arrives."""
        async with self._response(request) as response:
            if response.status_code != _OK:
                await response.aread()
                raise error_of(request, _reply(response), redacted(self._url))
            async for piece in response.aiter_bytes():
                file.write(piece)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[str]]:
        """Yield the lines of a stream of events as they arrive."""
        async with self._response(request) as response:
            if not _is_stream(response):
                await response.aread()
                raise error_of(request, _reply(response), redacted(self._url))
            yield _until_silent(response.aiter_lines())

    @asynccontextmanager
    async def _response(self, request: Request) -> "AsyncIterator[httpx.Response]":
        http = self._opened()
        with _translated(self._url):
            async with http.stream(**self._arguments(request)) as response:
                yield response

    def _arguments(self, request: Request) -> dict[str, Any]:
        arguments = _arguments(request, self._timeout)
        if request.file is not None:
            arguments["content"] = _asynchronous(arguments["content"])
        return arguments

    def _opened(self) -> "httpx.AsyncClient":
        if self._http is None or self._pid != os.getpid():
            # A forked child leaves the sockets to its parent.
            self._http, self._pid = (
                _httpx().AsyncClient(**_settings(self._url, self._token)),
                os.getpid(),
            )
        return self._http

    async def pause(self, seconds: float) -> None:
        """Wait; other tasks of the event loop continue."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None and self._pid == os.getpid():
            await self._http.aclose()
        self._http = None


class BlockingTransport:
    """Sends requests with httpx from synchronous code: its coroutines block, see `run_sync`."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        self._http: httpx.Client | None = None
        self._pid = 0

    async def send(self, request: Request) -> Reply:
        """Send a request and read the whole reply."""
        http = self._opened()
        with _translated(self._url):
            return _reply(http.request(**_arguments(request, self._timeout)))

    async def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write the body of a reply to a file as it arrives."""
        with self._response(request) as response:
            if response.status_code != _OK:
                response.read()
                raise error_of(request, _reply(response), redacted(self._url))
            for piece in response.iter_bytes():
                file.write(piece)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[str]]:
        """Yield the lines of a stream of events as they arrive."""
        with self._response(request) as response:
            if not _is_stream(response):
                response.read()
                raise error_of(request, _reply(response), redacted(self._url))
            yield _until_silent(_asynchronous(response.iter_lines()))

    @contextmanager
    def _response(self, request: Request) -> "Iterator[httpx.Response]":
        http = self._opened()
        with (
            _translated(self._url),
            http.stream(**_arguments(request, self._timeout)) as response,
        ):
            yield response

    def _opened(self) -> "httpx.Client":
        if self._http is None or self._pid != os.getpid():
            # A forked child leaves the sockets to its parent.
            self._http, self._pid = (
                _httpx().Client(**_settings(self._url, self._token)),
                os.getpid(),
            )
        return self._http

    async def pause(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None and self._pid == os.getpid():
            self._http.close()
        self._http = None


class InProcessTransport:
    """Calls an ASGI application in this process and event loop; no token and no port is needed."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def send(self, request: Request) -> Reply:
        """Call the application and collect the whole reply."""
        content = bytearray()
        status, headers = await self._call(request, content.extend)
        return Reply(status, bytes(content), headers.get("retry-after"), headers.get("warning"))

    async def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write the body of a reply to a file as the application sends it."""
        status, _ = await self._call(request, file.write)
        if status != _OK:
            file.seek(0)
            raise error_of(request, Reply(status, file.read()), "the application")

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Refuse: a program that has the application has its log as well."""
        raise ConfigurationError(f"{request.path} is not streamed within one process")

    async def _call(
        self, request: Request, write: Callable[[bytes], object]
    ) -> tuple[int, dict[str, str]]:
        status, headers = 500, dict[str, str]()
        messages = _messages(request)

        async def receive() -> Message:
            for message in messages:
                return message
            await asyncio.get_running_loop().create_future()  # the caller never disconnects
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode(): text.decode() for name, text in message["headers"]}
            else:
                write(message.get("body", b""))

        await self._app(_scope(request), receive, send)
        return status, headers

    async def pause(self, seconds: float) -> None:
        """Wait; other tasks of the event loop continue."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Do nothing: there are no connections."""


class Connection:
    """Makes requests, and repeats those that did not arrive or may arrive twice."""

    def __init__(
        self, url: str, transport: Transport, retries: int, runtime: Runtime = SYSTEM
    ) -> None:
        self.url = url
        self.runtime = runtime
        self._name = redacted(url)
        self.retries = retries
        self._transport = transport
        self.blocking = not isinstance(transport, AsyncTransport)
        """Whether its coroutines block, so that they need no event loop."""
        self._warned: set[str] = set()

    async def ask(self, request: Request, kind: type[T]) -> T:
        """Send a request and return its answer, or raise the error in the reply."""
        for attempt in itertools.count():
            error, pause = None, self.scattered_pause(attempt)
            try:
                reply = await self._transport.send(request)
            except ServerUnreachable as unreachable:
                error = unreachable
                may = request.repeats or not unreachable.arrived
            else:
                may = may_repeat(request, reply)
                pause = max(pause, reply.after() or 0.0)
            if not may or attempt >= self.retries:
                if error is not None:
                    raise error
                if (text := reply.warned()) is not None and text not in self._warned:
                    if len(self._warned) >= _MOST_WARNED:
                        self._warned.clear()
                    self._warned.add(text)
                    _log.warning("%s", text)
                return answer(request, reply, kind, self._name)
            await self._transport.pause(pause)
        raise AssertionError  # unreachable: the count is endless

    async def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write the body of an answer to a file as it arrives."""
        await self._transport.fetch(request, file)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Yield the lines of a stream of events as they arrive, inside the block."""
        return self._transport.stream(request)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await self._transport.pause(seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def scattered_pause(self, attempt: int) -> float:
        """Return the seconds to wait after this many attempts: growing, with jitter."""
        most = min(_FIRST_PAUSE * 2.0**attempt, _LONGEST_PAUSE)
        return most * self.runtime.random.uniform(0.5, 1.0)

    def dedupe_key(self) -> str | None:
        """Return a key that makes it safe to retry a call; None if calls are not retried."""
        return f"client/{self.runtime.random.getrandbits(128):032x}" if self.retries else None


def connect(
    url: str, token: str | None, *, retries: int, timeout: float, blocking: bool = False
) -> Connection:
    """Return a connection to a server; the token is that of PENSTOCK_TOKEN unless given."""
    url = checked_url(url)
    token = token or os.environ.get("PENSTOCK_TOKEN") or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigurationError("a token is one line of ASCII characters")
    if retries < 0 or timeout <= 0:
        raise ConfigurationError("retries must be at least 0, and timeout must be positive")
    kind = BlockingTransport if blocking else AsyncTransport
    return Connection(url, kind(url, token, timeout), retries)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigurationError(
            f"the client needs a package that is not installed ({error}): "
            "pip install 'penstock[client]'"
        ) from error
    return httpx


def _settings(url: str, token: str | None) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return {"base_url": url, "headers": headers, "follow_redirects": False}


def _arguments(request: Request, timeout: float) -> dict[str, Any]:
    content: Any = request.content() if request.file is None else _content(request.file)
    longest = timeout + request.patience if request.silence is None else request.silence
    times = _httpx().Timeout(longest, connect=min(CONNECT_TIME, timeout))
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "content": content,
        "headers": None if content is None else {"Content-Type": request.kind},
        "timeout": times,
    }


def _content(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file from its start, in pieces."""
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece


def _messages(request: Request) -> Iterator[Message]:
    """Yield the ASGI messages that carry the body of a request."""
    pieces = [request.content() or b""] if request.file is None else _content(request.file)
    for piece in pieces:
        yield {"type": "http.request", "body": piece, "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}


def _scope(request: Request) -> Message:
    """Return the ASGI scope of a request."""
    params = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in (request.params or {}).items()
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode(),
        "root_path": "",
        "query_string": urlencode(params).encode(),
        "headers": [(b"host", b"localhost"), (b"content-type", request.kind.encode())],
        "client": None,
        "server": None,
    }


async def _asynchronous(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


async def _until_silent(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield lines until none arrives within `Request.silence`."""
    with contextlib.suppress(_httpx().ReadTimeout):
        async for line in lines:
            yield line


def _is_stream(response: "httpx.Response") -> bool:
    return str(response.headers.get("Content-Type", "")).startswith("text/event-stream")


def _reply(response: "httpx.Response") -> Reply:
    headers = response.headers
    said = headers.get("Retry-After"), headers.get("Warning")
    return Reply(response.status_code, response.content, *said)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Raise errors of httpx as our own."""
    httpx = _httpx()
    name = redacted(url)
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        text = f"the server at {name} cannot be reached: {_said(error)}"
        raise ServerUnreachable(text, arrived=False) from error
    except httpx.TransportError as error:
        raise ServerUnreachable(f"the server at {name} did not answer: {_said(error)}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PenstockError(f"the request to {name} failed: {_said(error)}") from error


def _said(error: Exception) -> str:
    return redacted_within(str(error)) or type(error).__name__

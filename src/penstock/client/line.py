"""The line to a server: sends requests over httpx, and repeats what does no harm."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.client.wire import Reply, Request, answer, checked_url, error_of, may_repeat
from penstock.core.errors import ConfigurationError, PenstockError, ServerUnreachable
from penstock.core.redaction import redacted, redacted_within

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_TIME = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_OK = 200


class Exchange(Protocol):
    """How a request becomes a reply, and how to wait meanwhile."""

    async def send(self, request: Request) -> Reply:
        """Send it once; raises `ServerUnreachable`."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait."""
        ...

    async def close(self) -> None:
        """Let go of the connections."""
        ...


class AsyncExchange:
    """For the event loop that it is first used in."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._given = url, token
        self._timeout = timeout
        self._http: httpx.AsyncClient | None = None

    async def send(self, request: Request) -> Reply:
        """Send it once."""
        http = self._opened()
        with _translated(self._given[0]):
            return _reply(await http.request(**_arguments(request, self._timeout)))

    @asynccontextmanager
    async def pieces(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """The pieces of an answer that is sent bit by bit, as they arrive."""
        http, arguments = self._opened(), _arguments(request, self._timeout)
        with _translated(self._given[0]):
            async with http.stream(**arguments) as response:
                if not _is_stream(response):
                    await response.aread()
                    raise error_of(request, _reply(response), redacted(self._given[0]))
                yield response.aiter_raw()

    def _opened(self) -> "httpx.AsyncClient":
        if self._http is None:
            self._http = _httpx().AsyncClient(**_settings(*self._given))
        return self._http

    async def pause(self, seconds: float) -> None:
        """Let others go on."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Let go of the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None


class BlockingExchange:
    """For synchronous code: its coroutines never wait for an event loop, see `run_sync`."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._given = url, token
        self._timeout = timeout
        self._http: httpx.Client | None = None

    async def send(self, request: Request) -> Reply:
        """Send it once."""
        if self._http is None:
            self._http = _httpx().Client(**_settings(*self._given))
        with _translated(self._given[0]):
            return _reply(self._http.request(**_arguments(request, self._timeout)))

    @contextmanager
    def lines(self, request: Request) -> Iterator[Iterator[str]]:
        """The lines of an answer that is sent bit by bit."""
        if self._http is None:
            self._http = _httpx().Client(**_settings(*self._given))
        arguments = _arguments(request, self._timeout)
        with _translated(self._given[0]), self._http.stream(**arguments) as response:
            if not _is_stream(response):
                response.read()
                raise error_of(request, _reply(response), redacted(self._given[0]))
            yield response.iter_lines()

    def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write an answer to a file as it comes."""
        if self._http is None:
            self._http = _httpx().Client(**_settings(*self._given))
        arguments = _arguments(request, self._timeout)
        with _translated(self._given[0]), self._http.stream(**arguments) as response:
            if response.status_code != _OK:
                response.read()
                raise error_of(request, _reply(response), redacted(self._given[0]))
            for piece in response.iter_bytes():
                file.write(piece)

    async def pause(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop

    async def close(self) -> None:
        """Let go of the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None


class Line:
    """Asks a server, again if need be: where the call cannot have arrived, or may arrive twice."""

    def __init__(self, url: str, exchange: Exchange, retries: int) -> None:
        self.url = url
        self._name = redacted(url)
        self.retries = retries
        self._exchange = exchange

    async def ask(self, request: Request, kind: type[T]) -> T:
        """The answer to a request."""
        for attempt in itertools.count():
            error, pause = None, scattered_pause(attempt)
            try:
                reply = await self._exchange.send(request)
            except ServerUnreachable as unreachable:
                error = unreachable
                may = request.repeats or not unreachable.arrived
            else:
                may = may_repeat(request, reply)
                pause = max(pause, reply.after() or 0.0)
            if not may or attempt >= self.retries:
                if error is not None:
                    raise error
                return answer(request, reply, kind, self._name)
            await self._exchange.pause(pause)
        raise AssertionError  # unreachable: it counts for ever

    def lines(self, request: Request) -> AbstractContextManager[Iterator[str]]:
        """The lines of an answer that is sent bit by bit, for synchronous code."""
        if not isinstance(self._exchange, BlockingExchange):
            raise ConfigurationError("a stream is for synchronous code: make it blocking")
        return self._exchange.lines(request)

    def fetch(self, request: Request, file: IO[bytes]) -> None:
        """Write an answer to a file as it comes, for synchronous code."""
        if not isinstance(self._exchange, BlockingExchange):
            raise ConfigurationError("a file is for synchronous code: make it blocking")
        self._exchange.fetch(request, file)

    def pieces(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The pieces of an answer that is sent bit by bit, for an event loop."""
        if not isinstance(self._exchange, AsyncExchange):
            raise ConfigurationError("pieces are for an event loop: make it not blocking")
        return self._exchange.pieces(request)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await self._exchange.pause(seconds)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._exchange.close()


def scattered_pause(attempt: int) -> float:
    """Seconds to wait after so many attempts: longer each time, and not all clients at once."""
    most = min(_FIRST_PAUSE * 2.0**attempt, _LONGEST_PAUSE)
    return most * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


def line_to(
    url: str, token: str | None, *, retries: int, timeout: float, blocking: bool = False
) -> Line:
    """A line to a server; the token is PENSTOCK_TOKEN unless given."""
    url = checked_url(url)
    token = token or os.environ.get("PENSTOCK_TOKEN") or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigurationError("a token is one line of ASCII characters")
    if retries < 0 or timeout <= 0:
        raise ConfigurationError("retries is a number from 0 on, timeout more than no time")
    exchange: Exchange = (BlockingExchange if blocking else AsyncExchange)(url, token, timeout)
    return Line(url, exchange, retries)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigurationError(
            f"the client needs what is not installed ({error}): pip install 'penstock[client]'"
        ) from error
    return httpx


def _settings(url: str, token: str | None) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return {"base_url": url, "headers": headers, "follow_redirects": False}


def _arguments(request: Request, timeout: float) -> dict[str, Any]:
    content: Any = request.content() if request.file is None else request.file
    times = _httpx().Timeout(timeout + request.patience, connect=min(CONNECT_TIME, timeout))
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params,
        "content": content,
        "headers": None if content is None else {"Content-Type": request.kind},
        "timeout": times,
    }


def _is_stream(response: "httpx.Response") -> bool:
    return str(response.headers.get("Content-Type", "")).startswith("text/event-stream")


def _reply(response: "httpx.Response") -> Reply:
    return Reply(response.status_code, response.content, response.headers.get("Retry-After"))


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Errors of httpx as our own, in the one place."""
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
        raise PenstockError(f"the server at {name} cannot be asked: {_said(error)}") from error


def _said(error: Exception) -> str:
    return redacted_within(str(error)) or type(error).__name__

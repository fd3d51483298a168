"""The jobs API and the dashboard inside another ASGI application, such as FastAPI or Starlette.

    queue = Penstock("sqlite:///jobs.db")
    server = MountedServer(queue, authenticate=who)
    app = FastAPI(lifespan=lifespan(server))
    app.mount("/ops/queue", server)

The application decides who calls and what they may do; the server's own protection against pages of
other sites stays in force. Neither signal handlers nor logging are touched.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from penstock.apps.kit.background import in_background
from penstock.core.errors import ConfigurationError
from penstock.core.tokens import Access
from penstock.engine.penstock import Penstock
from penstock.engine.validation import check_name
from penstock.server.authentication import Site, check_own_page, is_loopback
from penstock.web.bodies import Receive, Scope, Send, header
from penstock.web.problems import Problem
from penstock.web.routes import Answer, Identity, answer_to, respond
from penstock.worker.worker import Worker

try:
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request

    from penstock.server.app import PREFIX, Service
except ModuleNotFoundError as error:
    raise ImportError(
        f"{__name__} needs the package {error.name}: pip install 'penstock[server]'"
    ) from error

_log = logging.getLogger(__name__)

RECHECK = 10.0
"""Seconds after which the caller of a request that still runs, such as a stream, is asked again."""

_CALLER = "penstock.caller"
_PUBLIC = re.compile(r"/health(/|\Z)|/dashboard/")
"""Health checks, and the scripts and styles of the page: they reveal no data."""
_OPENAPI = "/openapi.json"
_SESSION = "/api/v1/session"
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
_LOCAL = Site()


class Caller:
    """Who calls, by the name that is written to the log, and with what scopes.

    The scopes are those of access tokens: `publish`, `work`, `read` and `admin`.
    """

    __slots__ = ("name", "scopes")

    def __init__(self, name: str, scopes: Iterable[Access | str]) -> None:
        check_name("name of a caller", name)
        if isinstance(scopes, str):
            raise ConfigurationError(f"scopes must be a list, not {scopes!r:.80}")
        try:
            self.scopes = frozenset(map(Access, scopes))
        except ValueError as error:
            known = ", ".join(Access)
            raise ConfigurationError(f"a scope must be one of {known}: {error}") from error
        self.name = name

    def __repr__(self) -> str:
        return f"Caller({self.name!r}, {sorted(map(str, self.scopes))})"


Authenticate = Callable[[Request], Caller | Awaitable[Caller | None] | None]
"""Returns who sent a request, or None if nobody is signed in; may be a coroutine function.

A plain function runs in a thread, as the plain dependencies of FastAPI do: it may read a database.
"""


def trust_this_machine(request: Request) -> Caller | None:
    """Let every program on this machine do everything, as `penstock serve` does; for development.

    Requests from other machines, through a proxy that says so, to another host name, and by pages
    of other sites are refused. Behind a proxy on this machine, which may not say so, every request
    looks like a local one: do not use this there.
    """
    client = request.scope.get("client")
    if client is None or not is_loopback(client[0]):
        return None
    if any(header(request.scope, name) is not None for name in _FORWARDED):
        return None
    try:
        _LOCAL.check(request.scope)
    except Problem:
        return None
    return Caller("local", Access)


class MountedServer:
    """The jobs API and the dashboard of a Penstock: an ASGI application to mount under any prefix.

    Every request is authenticated by `authenticate`, except health checks and the scripts and
    styles of the dashboard, which reveal no data. If it raises an error, the application that the
    server is mounted in answers it. The server runs while `lifespan` or `running` does.
    """

    def __init__(self, penstock: Penstock, *, authenticate: Authenticate) -> None:
        if not callable(authenticate):
            raise ConfigurationError(
                "authenticate must be a function that returns who sent a request, "
                f"not {authenticate!r:.80}"
            )
        self.penstock = penstock
        self._authenticate = authenticate
        self._is_async = any(
            inspect.iscoroutinefunction(one)
            for one in (authenticate, getattr(authenticate, "__call__", None))  # noqa: B004
        )
        self._service: Service | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the store and answer requests inside the block."""
        if self._service is not None:
            raise ConfigurationError("the server is running already")
        # A service belongs to one event loop; tests run the same application in many.
        service = Service(self.penstock, [])
        service.guard(_ApplicationGuard())
        async with service.running():
            self._service = service
            try:
                yield
            finally:
                service.begin_shutdown()
                self._service = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as an ASGI application."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "http":
            try:
                await self._serve(scope, receive, send)
            except Problem as problem:
                await respond(send, answer_to(problem))
        else:
            raise ConfigurationError(
                "a mounted server has no lifespan of its own; use penstock.integrations.asgi."
                "lifespan, or `penstock serve` for a server by itself"
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        if service is None:
            raise Problem(
                503, "the server is not running; pass lifespan=lifespan(server) to the application"
            )
        prefix, path = _split(scope)
        if not path:  # the page finds its files relative to its own address
            place = (b"location", f"{prefix}/".encode())
            await respond(send, Answer(307, b"", (place,)))
            return
        own = {**scope, "path": path, "root_path": "", PREFIX: prefix, _CALLER: None}
        if _PUBLIC.match(path):
            await service(own, receive, send)
            return
        request = Request(scope)
        own[_CALLER] = await self._caller(request)
        if own[_CALLER] is None and path != _SESSION:
            raise _unknown()
        if path == _OPENAPI and scope["method"] == "GET":
            await respond(send, Answer(200, {**service.document, "servers": [{"url": prefix}]}))
            return
        async with in_background(self._recheck(request, own)):
            await service(own, receive, send)

    async def _caller(self, request: Request) -> Caller | None:
        if self._is_async:
            found = self._authenticate(request)
        else:
            found = await run_in_threadpool(self._authenticate, request)
        caller = await found if inspect.isawaitable(found) else found
        if caller is not None and not isinstance(caller, Caller):
            raise TypeError(f"authenticate must return a Caller or None, not {caller!r:.80}")
        return caller

    async def _recheck(self, request: Request, own: Scope) -> None:
        """Ask again who calls, for as long as the request runs; after an error, nobody does."""
        while True:
            await asyncio.sleep(RECHECK)
            try:
                own[_CALLER] = await self._caller(request)
            except Exception as error:  # noqa: BLE001 - of the application, whatever it is
                _log.warning("the caller of %s is not known any more: %r", own["path"], error)
                own[_CALLER] = None


class _ApplicationGuard:
    """Lets callers do what the application has said they may."""

    is_open = False
    is_external = True

    def __call__(self, scope: Scope, access: Access) -> Identity:
        """See `Guard`."""
        caller = self.holder_of(scope)
        if access not in caller.scopes:
            raise Problem(403, f"{caller.name!r} does not have the scope {access}")
        return Identity(caller.name, Access.ADMIN in caller.scopes, "user")

    def holder_of(self, scope: Scope) -> Caller:
        """See `Guard`."""
        caller: Caller | None = scope[_CALLER]
        if caller is None:
            raise _unknown()
        # A browser adds cookies, and passwords that it remembers, to the requests of every page.
        if not _is_explicit(scope):
            check_own_page(scope)
        return caller

    def token(self, secret: str) -> Caller:  # noqa: ARG002 - none is accepted
        """See `Guard`."""
        raise Problem(403, "users sign in to the application, not with a token")


def _unknown() -> Problem:
    return Problem(401, "sign in to the application first")


def _is_explicit(scope: Scope) -> bool:
    """Return whether a program authenticates itself, with nothing that a browser might have added.

    If there were a cookie as well, the application would look at that.
    """
    kind, _, secret = (header(scope, b"authorization") or b"").partition(b" ")
    return kind.lower() == b"bearer" and bool(secret) and header(scope, b"cookie") is None


def _split(scope: Scope) -> tuple[str, str]:
    """Return the prefix that the server is mounted under, and the path within it.

    The path of ASGI includes `root_path`; servers that are not up to date leave it out.
    """
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "").rstrip("/")
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        path = path[len(prefix) :]
    return prefix, path


# The lifespan of an application

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]
"""What Starlette and FastAPI take as `lifespan`."""


def lifespan(
    opened: Penstock | MountedServer, *, worker: Callable[[], Worker] | None = None
) -> Lifespan:
    """Return a lifespan that opens a Penstock, or a mounted server and its Penstock, and closes it.

    With `worker`, which creates one, jobs run in the same process: `lambda: Worker(queue)`. When
    the application stops, they have the worker's grace. An application that has a lifespan already
    enters this one inside: `async with lifespan(server)(app): ...`.
    """

    @asynccontextmanager
    async def running(_: Any) -> AsyncIterator[None]:
        async with _opened(opened) as penstock:
            # The store is created now, not in a request whose own transaction locks the database.
            await penstock.newest_log()
            if worker is None:
                yield
                return
            async with _working(worker()):
                yield

    return running


@asynccontextmanager
async def _opened(opened: Penstock | MountedServer) -> AsyncIterator[Penstock]:
    if isinstance(opened, Penstock):
        async with opened:
            yield opened
    else:
        async with opened.running():
            yield opened.penstock


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """Run jobs inside the block, and their grace at its end."""
    working = asyncio.create_task(worker.run())
    working.add_done_callback(_report)
    try:
        yield
    finally:
        worker.stop()
        await working


def _report(working: "asyncio.Task[None]") -> None:
    """Log an error now: the application goes on without its worker."""
    if not working.cancelled() and working.exception() is not None:
        _log.error("the worker of this process has ended", exc_info=working.exception())

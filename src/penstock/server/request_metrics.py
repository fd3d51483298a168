"""The requests that this process has answered: their number and duration by route and status."""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter

from penstock.web.bodies import Message, Receive, Scope, Send
from penstock.web.routes import GONE, Route

_log = logging.getLogger("penstock.server.requests")

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bound of each bucket, in seconds; one more bucket has no bound."""

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_OTHER = ("other", "other")


class Durations:
    """A histogram of durations, and their sum."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class RequestMetrics:
    """Measures the requests of an ASGI application; with `log`, logs each of them."""

    def __init__(self, *, log: bool = False) -> None:
        self.answered: dict[tuple[str, str, int], Durations] = {}
        self._log = log

    async def measure(self, app: Asgi, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with `app`, and measure it."""
        status = GONE

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = perf_counter()
        try:
            await app(scope, receive, note_status)
        finally:
            self.count(scope, status, perf_counter() - began)

    async def measure_route(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with a route, which returns its status, and measure it."""
        scope["endpoint"] = route
        status = GONE
        began = perf_counter()
        try:
            status = await route.serve(scope, receive, send)
        finally:
            declared = route.declared
            self._add((declared.method, declared.path, status), scope, perf_counter() - began)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Add a request."""
        route = scope.get("endpoint")
        # Callers can invent any number of other paths and methods.
        name = _OTHER
        if isinstance(route, Route):
            name = (route.declared.method, route.declared.path)
        self._add((*name, status), scope, seconds)

    def _add(self, name: tuple[str, str, int], scope: Scope, seconds: float) -> None:
        durations = self.answered.get(name)
        if durations is None:
            durations = self.answered[name] = Durations()
        durations.add(seconds)
        if self._log:
            _log_request(scope, name[-1], seconds)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    """Leave out parameters and headers, which may hold secrets."""
    path = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
    client = scope.get("client")
    extra = {
        "method": scope["method"],
        "path": path,
        "status": status,
        "seconds": round(seconds, 6),
        "client": client[0] if client else None,
    }
    _log.info("%s %s %d in %.1f ms", scope["method"], path, status, seconds * 1000, extra=extra)

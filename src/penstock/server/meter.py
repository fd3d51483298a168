"""What requests this process has answered, by route and status, and how long each took."""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter

from penstock.http.bodies import Message, Receive, Scope, Send
from penstock.http.routes import GONE, Route

_log = logging.getLogger("penstock.server.requests")

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The longest duration of each bucket, in seconds; one more holds what took longer."""

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_OTHER = ("other", "other")


class Durations:
    """How many there were, how long they took together, and how many of which size."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class Meter:
    """Counts the requests of an ASGI application; logs them on request."""

    def __init__(self, *, logs: bool = False) -> None:
        self.answered: dict[tuple[str, str, int], Durations] = {}
        self._logs = logs

    async def measure(self, app: Asgi, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request with `app`, and count it."""
        status = GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = perf_counter()
        try:
            await app(scope, receive, noting)
        finally:
            self.count(scope, status, perf_counter() - began)

    async def measure_route(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """As `measure`, for a route, which tells its status by itself."""
        scope["endpoint"] = route
        status = GONE
        began = perf_counter()
        try:
            status = await route.serve(scope, receive, send)
        finally:
            self.count(scope, status, perf_counter() - began)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one more request."""
        route = scope.get("endpoint")
        # Paths and methods that nobody declared are the callers' own: they would never end.
        name = _OTHER
        if isinstance(route, Route):
            name = (route.declared.method, route.declared.path)
        durations = self.answered.get((*name, status))
        if durations is None:
            durations = self.answered[(*name, status)] = Durations()
        durations.add(seconds)
        if self._logs:
            _log_request(scope, status, seconds)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    """Without the parameters and the headers: they may hold secrets."""
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

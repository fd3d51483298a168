"""What is served: the routes of the server and of the applications, as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.routing import Route as StarletteRoute

from penstock.apps import Application
from penstock.engine import Penstock
from penstock.http.bodies import Receive, Scope, Send
from penstock.http.openapi import describe
from penstock.http.routes import Gate, Route
from penstock.server.meter import Meter

TITLE = "Penstock"


class Service:
    """A Penstock and its applications as one ASGI application, and what runs beside them."""

    def __init__(
        self,
        penstock: Penstock,
        applications: Sequence[Application],
        routes: Iterable[Route] = (),
        meter: Meter | None = None,
    ) -> None:
        self.penstock = penstock
        self._meter = meter or Meter()
        self.applications = applications
        self.routes = [*(route for one in applications for route in one.routes), *routes]
        self.stopping = asyncio.Event()  # set when those who wait should go
        self._app = _fastapi(self.routes)

    def guard(self, gate: Gate) -> None:
        """Let nobody in whom this gate refuses."""
        for route in self.routes:
            route.gate = gate

    def let_go(self) -> None:
        """Answer those who wait, now: nothing new comes."""
        self.stopping.set()
        for application in self.applications:
            application.let_go()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what stands beside the routes, inside the block."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.penstock)
            for application in self.applications:
                await stack.enter_async_context(application.running())
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a path means the same with and without its last slash."""
        if scope["type"] == "http":
            path: str = scope["path"]
            if len(path) > 1 and path.endswith("/"):
                scope["path"] = path[:-1]
            await self._meter.measure(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _fastapi(routes: Sequence[Route]) -> FastAPI:
    app = FastAPI(
        title=TITLE,
        version=version("penstock"),
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        # Newer versions trace by themselves; ours is there with all of them, see `tracing.py`.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    for route in sorted(routes, key=_precedence):
        declared = route.declared
        app.router.routes.append(
            StarletteRoute(declared.path, endpoint=route, methods=[declared.method])
        )
    document = describe(
        routes,
        title=TITLE,
        version=version("penstock"),
        summary="A durable job queue: events, jobs, queues and workers over HTTP.",
    )
    app.openapi = lambda: document  # type: ignore[method-assign] # as FastAPI documents it
    return app


def _precedence(route: Route) -> tuple[int, int]:
    """Exact paths before those with parameters; what is called most, first."""
    return "{" in route.declared.path, 0

"""The ASGI application: the routes of the server, its applications and the dashboard."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any, get_args

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from penstock import dashboard
from penstock.apps.kit.application import Application
from penstock.engine.penstock import Penstock
from penstock.server.authentication import Guard
from penstock.server.bulk import BulkRoutes
from penstock.server.health import HealthRoutes
from penstock.server.jobs import JobRoutes
from penstock.server.queues import QueueRoutes
from penstock.server.relations import RelationRoutes
from penstock.server.request_metrics import RequestMetrics
from penstock.server.schedules import ScheduleRoutes
from penstock.server.session import SessionRoutes
from penstock.server.statistics import HistoryRoutes, StoreRoutes
from penstock.server.stream import StreamRoutes
from penstock.server.trust_boundary import TrustBoundary
from penstock.server.workers import WorkerRoutes
from penstock.stores.observed import Timing
from penstock.web.bodies import Receive, Scope, Send
from penstock.web.openapi import describe
from penstock.web.routes import Route, routes_of

PREFIX = "penstock.prefix"
"""Where the scope of a request has the prefix that the server is mounted under."""

TITLE = "Penstock"


class Service:
    """A Penstock and its applications as one ASGI application, with their background tasks."""

    def __init__(
        self,
        penstock: Penstock,
        applications: Sequence[Application],
        routes: Iterable[Route] = (),
        *,
        requests: RequestMetrics | None = None,
        cors_origins: Sequence[str] = (),
        timings: Mapping[str, Timing] | None = None,
    ) -> None:
        """Serve these applications, and `routes` besides.

        `timings` are the durations of store calls that the store's status shows.
        """
        self.penstock = penstock
        self._requests = requests or RequestMetrics()
        self.draining = asyncio.Event()  # set when others should take over
        self.stopping = asyncio.Event()  # set when waiting requests should be answered
        self._session = SessionRoutes([application.name for application in applications])
        own = _own_routes(
            HealthRoutes(penstock, self.draining),
            penstock,
            self.stopping,
            self._session,
            {} if timings is None else timings,
        )
        self.applications = [*applications, own, dashboard.install()]
        self.routes = [*(route for one in self.applications for route in one.routes), *routes]
        boundary = TrustBoundary(applications)
        for route in self.routes:  # general, unless it belongs to an application
            route.admit = boundary.admit_for(None)
        for application in applications:
            for route in application.routes:
                route.admit = boundary.admit_for(application.name)
        self.document = describe(
            self.routes,
            title=TITLE,
            version=version("penstock"),
            summary="A durable job queue: jobs, queues, workers and applications over HTTP.",
        )
        self._app = _fastapi(self.routes, self.document)
        # With CORS, every request has to pass the middleware.
        self._find = None if cors_origins else RouteTable(self.routes).find
        if cors_origins:
            self._app.add_middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["Authorization", "Content-Type"],
            )

    def guard(self, guard: Guard) -> None:
        """Serve only callers whom this guard accepts."""
        self._session.guard = guard
        for route in self.routes:
            route.authenticate = guard

    def begin_drain(self) -> None:
        """Report that the server is not ready, and go on serving requests."""
        self.draining.set()

    def begin_shutdown(self) -> None:
        """Answer waiting requests now, and report that the server is not ready."""
        self.draining.set()
        self.stopping.set()
        for application in self.applications:
            application.on_shutdown()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the store and run the background tasks of all applications, inside the block."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.penstock)
            for application in self.applications:
                await stack.enter_async_context(application.running())
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a trailing slash makes no difference.

        Declared routes are found here, in constant time. FastAPI serves the rest: unknown paths,
        wrong methods, and the OpenAPI document.
        """
        if scope["type"] == "http":
            path: str = scope["path"]
            # An escaped slash is part of a name: /health%2f is not /health/.
            if len(path) > 1 and path.endswith("/") and scope.get("raw_path", b"/")[-1:] == b"/":
                scope["path"] = path = path[:-1]
            route = self._find(scope["method"], path, scope) if self._find else None
            if route is not None:
                await self._requests.measure_route(route, scope, receive, send)
            else:
                await self._requests.measure(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _own_routes(
    health: HealthRoutes,
    penstock: Penstock,
    stopping: asyncio.Event,
    session: SessionRoutes,
    timings: Mapping[str, Timing],
) -> Application:
    """Return the routes that every server has."""
    stream = StreamRoutes(penstock, stopping)
    owners = (
        JobRoutes(penstock, penstock.secrets),
        BulkRoutes(penstock),
        RelationRoutes(penstock),
        QueueRoutes(penstock, stopping),
        WorkerRoutes(penstock),
        ScheduleRoutes(penstock, penstock.secrets),
        HistoryRoutes(penstock),
        StoreRoutes(penstock, timings),
        stream,
        health,
        session,
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with health.running(), stream.running():
            yield

    return Application(
        "server",
        "Jobs, queues, workers, schedules, statistics, the log and health.",
        [route for owner in owners for route in routes_of(owner)],
        running,
    )


class RouteTable:
    """Finds the route of a path without trying one after the other.

    Paths with parameters are found by the number of their segments and by the fixed ones.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[tuple[str, str], Route] = {}
        self._patterns: dict[tuple[str, int], list[tuple[_Pattern, Route]]] = {}
        for route in routes:
            method, path = route.declared.method, route.declared.path
            if "{" not in path:
                self._exact[method, path] = route
                continue
            alike = self._patterns.setdefault((method, path.count("/")), [])
            alike.append((_pattern_of(path), route))

    def find(self, method: str, path: str, scope: Scope) -> Route | None:
        """Return the route, if there is one, and add its parameters to the scope."""
        route = self._exact.get((method, path))
        if route is not None:
            return route
        for (fixed, named), route in self._patterns.get((method, path.count("/")), ()):
            segments = path.split("/")
            if all(segments[n] == segment for n, segment in fixed):
                scope["path_params"] = {name: segments[n] for n, name in named}
                return route
        return None


_Pattern = tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]
"""The segments of a path by index: the fixed ones, and the names of the parameters."""


def _pattern_of(path: str) -> _Pattern:
    segments = list(enumerate(path.split("/")))
    return (
        tuple((n, segment) for n, segment in segments if not segment.startswith("{")),
        tuple((n, segment.strip("{}")) for n, segment in segments if segment.startswith("{")),
    )


def _fastapi(routes: Sequence[Route], document: dict[str, Any]) -> FastAPI:
    app = FastAPI(
        title=TITLE,
        version=version("penstock"),
        docs_url=None,  # its page would load scripts from another site
        redoc_url=None,
        redirect_slashes=False,
        # Newer versions trace requests by themselves; we do with all versions: `engine.tracing`.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    for route in sorted(routes, key=lambda route: "{" in route.declared.path):
        declared = route.declared
        app.router.routes.append(
            StarletteRoute(_starlette_path(route), endpoint=route, methods=[declared.method])
        )
    app.add_exception_handler(404, _unknown_path)
    app.add_exception_handler(405, _wrong_method)
    app.openapi = lambda: document  # type: ignore[method-assign] # as FastAPI documents it
    return app


def _starlette_path(route: Route) -> str:
    """Return the path as Starlette spells it: names of queues and the like may contain slashes."""
    path = route.declared.path
    for name, kind in route.path_types.items():
        if get_args(kind)[:1] == (str,):
            path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
    return path


async def _unknown_path(request: Request, _: Exception) -> Response:
    prefix = request.scope.get(PREFIX, "")
    path, routes = f"{prefix}{request.scope['path']}", f"{prefix}{request.app.openapi_url}"
    detail = f"there is no route {request.method} {path:.200}; {routes} lists all routes"
    return JSONResponse({"detail": detail, "routes": routes}, 404)


async def _wrong_method(request: Request, _: Exception) -> Response:
    """Answer with the methods of all routes of a path; OPTIONS asks for them."""
    methods = {
        method
        for route in request.app.router.routes
        if isinstance(route, StarletteRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    headers = {"Allow": ", ".join(sorted(methods))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    detail = f"{request.method} is not allowed here; use {headers['Allow']}"
    return JSONResponse({"detail": detail}, 405, headers)

"""What is served: the routes of the server and of the applications, as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import get_args

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from penstock import dashboard
from penstock.apps import Application
from penstock.engine import Penstock
from penstock.http.bodies import Receive, Scope, Send
from penstock.http.openapi import describe
from penstock.http.routes import Route, routes_of
from penstock.server import api
from penstock.server.boundary import Boundary
from penstock.server.gate import Gatekeeper
from penstock.server.meter import Meter
from penstock.server.session import SessionRoutes
from penstock.stores.observed import Timing

TITLE = "Penstock"


class Service:
    """A Penstock and its applications as one ASGI application, and what runs beside them."""

    def __init__(
        self,
        penstock: Penstock,
        applications: Sequence[Application],
        routes: Iterable[Route] = (),
        *,
        meter: Meter | None = None,
        cors_origins: Sequence[str] = (),
        timings: Mapping[str, Timing] | None = None,
    ) -> None:
        self.penstock = penstock
        self._meter = meter or Meter()
        self.stopping = asyncio.Event()  # set when those who wait should go
        self._session = SessionRoutes([application.name for application in applications])
        self.applications = [
            *applications,
            api.install(
                penstock,
                self.stopping,
                routes_of(self._session),
                secrets=penstock.secrets,
                timings={} if timings is None else timings,
            ),
            dashboard.install(),
        ]
        self.routes = [*(route for one in self.applications for route in one.routes), *routes]
        boundary = Boundary(applications)
        for route in self.routes:  # unless it is one of an application, it is a general one
            route.admit = boundary.of(None)
        for application in applications:
            for route in application.routes:
                route.admit = boundary.of(application.name)
        self._app = _fastapi(self.routes)
        # Web pages of other sites have their questions answered by the middleware.
        self._find = None if cors_origins else Directory(self.routes).find
        if cors_origins:
            self._app.add_middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["Authorization", "Content-Type"],
            )

    def guard(self, gate: Gatekeeper) -> None:
        """Let nobody in whom this gate refuses."""
        self._session.door = gate
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
        """Serve one request; a path means the same with and without its last slash.

        Declared routes are found here, in constant time. FastAPI has the rest: what is not
        there, or not with this method, and the document of what is.
        """
        if scope["type"] == "http":
            path: str = scope["path"]
            # An escaped slash is no last slash: /health%2f is another path than /health/.
            if len(path) > 1 and path.endswith("/") and scope.get("raw_path", b"/")[-1:] == b"/":
                scope["path"] = path = path[:-1]
            route = self._find(scope["method"], path, scope) if self._find else None
            if route is not None:
                await self._meter.measure_route(route, scope, receive, send)
            else:
                await self._meter.measure(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Directory:
    """Finds the route of a path without trying one after the other.

    Paths with parameters are found by how many parts they have and by those that are fixed.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[tuple[str, str], Route] = {}
        self._shapes: dict[tuple[str, int], list[tuple[_Shape, Route]]] = {}
        for route in routes:
            method, path = route.declared.method, route.declared.path
            if "{" not in path:
                self._exact[method, path] = route
                continue
            shape = _shape(path)
            alike = self._shapes.setdefault((method, path.count("/")), [])
            alike.append((shape, route))

    def find(self, method: str, path: str, scope: Scope) -> Route | None:
        """The route, if there is one; the scope is given its parameters."""
        route = self._exact.get((method, path))
        if route is not None:
            return route
        for (fixed, named), route in self._shapes.get((method, path.count("/")), ()):
            parts = path.split("/")
            if all(parts[n] == part for n, part in fixed):
                scope["path_params"] = {name: parts[n] for n, name in named}
                return route
        return None


_Shape = tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]
"""The parts of a path by their places: those that are fixed, and the names of the others."""


def _shape(path: str) -> _Shape:
    parts = list(enumerate(path.split("/")))
    return (
        tuple((n, part) for n, part in parts if not part.startswith("{")),
        tuple((n, part.strip("{}")) for n, part in parts if part.startswith("{")),
    )


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
    for route in sorted(routes, key=lambda route: "{" in route.declared.path):
        declared = route.declared
        app.router.routes.append(
            StarletteRoute(_pattern(route), endpoint=route, methods=[declared.method])
        )
    document = describe(
        routes,
        title=TITLE,
        version=version("penstock"),
        summary="A durable job queue: events, jobs, queues and workers over HTTP.",
    )
    app.add_exception_handler(405, _wrong_method)
    app.openapi = lambda: document  # type: ignore[method-assign] # as FastAPI documents it
    return app


def _pattern(route: Route) -> str:
    """The path as the router reads it: names of queues and the like may have slashes in them."""
    path = route.declared.path
    for name, kind in route.path_types.items():
        if get_args(kind)[:1] == (str,):
            path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
    return path


async def _wrong_method(request: Request, _: Exception) -> Response:
    """The methods that a path has, of all its routes; asking for them is no mistake."""
    methods = {
        method
        for route in request.app.router.routes
        if isinstance(route, StarletteRoute) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    headers = {"Allow": ", ".join(sorted(methods))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    detail = f"{request.method} is no method of this path; it has {headers['Allow']}"
    return JSONResponse({"detail": detail}, 405, headers)

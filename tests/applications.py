"""All routes of a server with every application."""

from penstock import Penstock
from penstock.apps import entries, events, indexing, ingest, notebooks
from penstock.server.app import Service
from penstock.server.metrics import Metrics
from penstock.server.request_metrics import RequestMetrics
from penstock.web.routes import Route, routes_of


def served_routes() -> list[Route]:
    """The routes of the server and of all applications; `/metrics` is not among them."""
    app = Penstock("memory://")
    installed = [
        events.install(app, events.Settings()),
        indexing.install(app, indexing.Settings()),
        entries.install(app, entries.Settings()),
        ingest.install(app, ingest.Settings()),
        notebooks.install(app, notebooks.Settings()),
    ]
    return Service(app, installed).routes


def all_routes() -> dict[str, Route]:
    """Every route that is declared, by its method and path."""
    metrics = routes_of(Metrics(Penstock("memory://"), RequestMetrics(), {}))
    return {
        f"{route.declared.method} {route.declared.path}": route
        for route in [*served_routes(), *metrics]
    }

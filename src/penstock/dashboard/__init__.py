"""The dashboard: pages for a browser, which use the documented HTTP API and nothing else.

Its files are what browsers read, as they lie in `files/`: there is no build step.
"""

from penstock.apps import Application
from penstock.dashboard.pages import PageRoutes
from penstock.http.routes import routes_of


def install() -> Application:
    """The dashboard, to be served."""
    return Application("dashboard", "Pages for a browser.", list(routes_of(PageRoutes())))

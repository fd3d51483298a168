"""The dashboard: web pages that use the documented HTTP API and nothing else.

Browsers get the files in `files/` as they are: there is no build step.
"""

from penstock.apps.kit.application import Application
from penstock.dashboard.pages import PageRoutes
from penstock.web.routes import routes_of


def install() -> Application:
    """Return the dashboard as an application."""
    return Application(
        "dashboard", "Web pages that show jobs, queues and workers.", list(routes_of(PageRoutes()))
    )

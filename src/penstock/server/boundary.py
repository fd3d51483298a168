"""The trust boundary: which names of jobs a route may use that stores them.

Every route of a server runs inside `acting_for`, and the engine asks `admit` before it stores a job
for a caller. So a route that is added later cannot forget to ask. See ADR 0023.
"""

from collections.abc import Sequence
from functools import partial

from penstock.apps import Application
from penstock.apps.namespaces import Namespaces, Owned
from penstock.core.job import NewJob
from penstock.http.problems import ProblemOfOne
from penstock.http.routes import Admit


class Boundary:
    """Keeps the names of applications for their own routes."""

    def __init__(self, applications: Sequence[Application]) -> None:
        self._namespaces = Namespaces.with_others(one.name for one in applications)

    def of(self, application: str | None) -> Admit:
        """What the routes of an application may store; None stands for the general routes."""
        return partial(self._admit, application)

    def _admit(self, application: str | None, jobs: Sequence[NewJob]) -> None:
        for place, job in enumerate(jobs):
            owned = self._namespaces.foreign(job, application)
            if owned is not None:
                detail = _detail(owned, job.task)
                raise ProblemOfOne(403, detail, field=owned.field, place=place)


def _detail(owned: Owned, task: str) -> str:
    field, text, namespace = owned
    said = f"{field} {text!r:.200} belongs to the application {namespace.name}"
    other = f"choose another {field}"
    if field == "task":
        route = namespace.route_for(task)
        return f"{said}; use {route}" if route else f"{said}, which stores its jobs itself"
    return f"{said}; use {namespace.route}, or {other}" if namespace.route else f"{said}; {other}"

"""The trust boundary: routes may only store jobs under names that are theirs to use.

Every route runs inside `acting_for`, and the engine calls `admit` before it stores a job for a
caller, so that a route that is added later cannot forget the check. See ADR 0023.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from penstock.apps.kit.application import Application
from penstock.apps.kit.namespaces import FIELDS, Namespaces, Owned
from penstock.core.job import NewJob
from penstock.web.problems import JobProblem
from penstock.web.routes import Admit

_names_of = attrgetter(*FIELDS)


class TrustBoundary:
    """Reserves the names of each application for its own routes."""

    def __init__(self, applications: Sequence[Application]) -> None:
        self._namespaces = Namespaces(one.name for one in applications)

    def admit_for(self, application: str | None) -> Admit:
        """Return the check of the routes of an application; None means the general routes."""
        return partial(self._admit, application)

    def _admit(self, application: str | None, jobs: Sequence[NewJob]) -> None:
        admitted: object = None
        for place, job in enumerate(jobs):
            names = _names_of(job)
            if names == admitted:  # as most jobs of one request
                continue
            admitted = names
            owned = self._namespaces.foreign(job, application)
            if owned is not None:
                detail = _detail(owned, job.task)
                raise JobProblem(403, detail, field=owned.field, place=place)


def _detail(owned: Owned, task: str) -> str:
    field, text, owner = owned
    manifest = owned.manifest
    reserved = f"{field} {text!r:.200} belongs to the application {owner}"
    other = f"choose another {field}"
    if field == "task":
        route = manifest.route_for(task)
        if route:
            return f"{reserved}; use {route}"
        return f"{reserved}, which enqueues its jobs itself; {other}"
    if manifest.route:
        return f"{reserved}; use {manifest.route}, or {other}"
    return f"{reserved}; {other}"

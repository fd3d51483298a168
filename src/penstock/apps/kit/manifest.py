"""What an application declares about itself: its name, queues, tasks and the routes that use them.

A folder next to the kit is an application, and its name is the application's. So the names are
known on every server, even where an application is switched off or a package that it needs is
missing: another server may run its jobs on the same store. Everything else is in the `MANIFEST` of
its package.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from penstock.apps.kit.requirements import is_package_missing
from penstock.engine.penstock import Penstock

_APPLICATIONS = "penstock.apps"
_FOLDER = Path(__file__).parent.parent
_KIT = Path(__file__).parent.name


class Manifest(NamedTuple):
    """The declaration of an application: the value of `MANIFEST` in its package."""

    name: str
    """The name of its package, reserved as the prefix of its tasks, queues and keys."""
    summary: str = ""
    queues: tuple[str, ...] = ()
    """The queues whose jobs only workers that name them may take."""
    route: str = ""
    """The route that stores its jobs, for people who tried another one."""
    tasks: Mapping[str, str] = MappingProxyType({})
    """Its tasks, each with the route that stores its jobs; empty if that is `route`."""

    def route_for(self, task: str) -> str:
        """Return the route that stores jobs of a task; empty if there is none."""
        return self.tasks.get(task) or self.route

    def register(self, penstock: Penstock) -> None:
        """Reserve the queues of the application. Call this wherever its tasks are registered."""
        penstock.limits.reserve(*self.queues)


@cache
def application_names() -> tuple[str, ...]:
    """Return the names of the applications in this package, in alphabetical order."""
    found = (one.parent.name for one in _FOLDER.glob("*/__init__.py"))
    return tuple(sorted(name for name in found if name != _KIT))


@cache
def manifest_of(name: str) -> Manifest:
    """Return the manifest of an application.

    Only its name if a package is missing, or if it is an application of another distribution.
    """
    if name not in application_names():
        return Manifest(name)
    try:
        package = importlib.import_module(f"{_APPLICATIONS}.{name}")
    except ImportError as error:
        if not is_package_missing(error):
            raise
        return Manifest(name)
    found: Manifest = getattr(package, "MANIFEST", Manifest(name))
    return found

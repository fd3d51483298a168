"""The applications that a server installs, and their settings. Needs nothing but this package."""

import importlib
import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from penstock.apps import Application
from penstock.config import Found, Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.engine import Penstock

_log = logging.getLogger(__name__)

APPS = ("events",)


def sections(settings: Server, sources: Sources) -> list[Found[Any]]:
    """The settings of each application that would be installed; others are refused."""
    sources.refuse_sections(APPS)
    return [sources.section(name, module.Settings) for name, module in _modules(settings)]


def install(penstock: Penstock, settings: Server, sources: Sources) -> list[Application]:
    """The applications that are asked for, or all that are installed, on a Penstock."""
    sources.refuse_sections(APPS)
    return [
        module.install(penstock, sources.section(name, module.Settings).settings)
        for name, module in _modules(settings)
    ]


def _modules(settings: Server) -> Iterator[tuple[str, ModuleType]]:
    for name in APPS if settings.apps is None else dict.fromkeys(settings.apps):
        if name not in APPS:
            raise ConfigurationError(f"there is no app {name!r}; known are {', '.join(APPS)}")
        try:
            yield name, importlib.import_module(f"penstock.apps.{name}")
        except ImportError as error:
            if settings.apps is not None:
                raise ConfigurationError(
                    f"app {name!r} needs what is not installed ({error}): "
                    f"pip install 'penstock[{name}]'"
                ) from error
            _log.info("app %s is off: %s", name, error)

"""The applications of a server: which are installed, and with which settings.

This is the only module of the server that looks applications up; none is known by name.
"""

import importlib
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from penstock.apps.kit.application import Application
from penstock.apps.kit.manifest import application_names
from penstock.apps.kit.requirements import is_package_missing
from penstock.config import Section, Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.engine.penstock import Penstock
from penstock.engine.task import AppFactory

S = TypeVar("S", bound=msgspec.Struct)

_log = logging.getLogger(__name__)

APPS = application_names()
"""The names of all applications, installed or not."""


def sections(settings: Server, sources: Sources) -> list[Section[Any]]:
    """Return the settings of each application that the server installs.

    Raises `ConfigurationError` for a section of the file that belongs to no application.
    """
    sources.check_sections(APPS)
    found = [sources.section(name, module.Settings) for name, module in _modules(settings)]
    for one in found:
        _check_retention(settings, one)
    return found


def unknown_variables(settings: Server, sources: Sources) -> list[str]:
    """Return a warning for each variable that looks like a setting and is none."""
    sections(settings, sources)
    if any(sources.unknown_variables()):  # they may belong to applications that are switched off
        for name in APPS:
            with suppress(ImportError):
                sources.recognise(name, _module(name).Settings)
    return list(sources.unknown_variables())


def install(penstock: Penstock, settings: Server, sources: Sources) -> list[Application]:
    """Install the requested applications; by default all whose packages are installed."""
    return [
        _module(section.name).install(
            penstock, effective_settings(settings, section.settings), Path(settings.data).absolute()
        )
        for section in sections(settings, sources)
    ]


def effective_settings(settings: Server, own: S) -> S:
    """Return the settings of an application on a server; one without workers has none of any kind.

    Applications with worker processes of their own call their number `workers`, too.
    """
    if settings.workers == 0 and "workers" in own.__struct_fields__:
        return msgspec.structs.replace(own, workers=0)
    return own


def _check_retention(settings: Server, section: Section[Any]) -> None:
    """Refuse an application that keeps its jobs longer than the server, which removes them."""
    own: Retention | None = getattr(section.settings, "retention", None)
    for name in () if own is None else ("finished", "failed"):
        wanted, kept = getattr(own, name), getattr(settings.retention, name)
        if wanted > kept:
            problem = ConfigurationError(
                f"{section.name} keeps {name} jobs for {wanted.total_seconds():,.0f} seconds, but "
                f"the server removes them after {kept.total_seconds():,.0f}"
            )
            problem.add_note(f"--keep-{name} {wanted.total_seconds():.0f}")
            raise problem


class _Installed(msgspec.Struct, frozen=True):
    """What a child process needs to install the same applications."""

    data: str
    settings: dict[str, Any]


def child_factory(settings: Server, sources: Sources, **replaced: msgspec.Struct) -> AppFactory:
    """Return how child processes build an app that has the same applications.

    `replaced` are settings of applications, by name, that are used instead of those in `sources`.
    The address of the store is left out: it may contain a password, every user of the machine can
    read how a process was started, and children do not use the store.
    """
    found = {one.name: one.settings for one in sections(settings, sources)} | replaced
    installed = _Installed(str(Path(settings.data).absolute()), found)
    return AppFactory(f"{__name__}:build_in_child", msgspec.json.encode(installed).decode())


def build_in_child(text: str) -> Penstock:
    """Return the app of a child process: the same tasks with the same settings."""
    installed = msgspec.json.decode(text, type=_Installed)
    penstock = Penstock("memory://")
    for name, values in installed.settings.items():
        module = _module(name)
        module.install(penstock, msgspec.convert(values, module.Settings), Path(installed.data))
    return penstock


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"penstock.apps.{name}")


def _modules(settings: Server) -> Iterator[tuple[str, ModuleType]]:
    for name in APPS if settings.apps is None else dict.fromkeys(settings.apps):
        if name not in APPS:
            raise ConfigurationError(
                f"there is no application {name!r}; choose from {', '.join(APPS)}"
            )
        try:
            yield name, _module(name)
        except ImportError as error:
            if not is_package_missing(error):
                raise
            if settings.apps is not None:
                problem = ConfigurationError(
                    f"application {name!r} needs a package that is not installed ({error})"
                )
                problem.add_note(f"pip install 'penstock[{name}]'")
                raise problem from error
            _log.info("application %s is off: %s", name, error)

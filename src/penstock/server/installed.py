"""The applications of a server, their settings and its store. Needs nothing but this package."""

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from penstock.apps import Application
from penstock.apps.namespaces import NAMESPACES
from penstock.config import Found, Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.core.redaction import redacted
from penstock.engine import Penstock
from penstock.isolation import Origin
from penstock.stores import is_private

S = TypeVar("S", bound=msgspec.Struct)

_log = logging.getLogger(__name__)

APPS = tuple(one.name for one in NAMESPACES)


def store_url(settings: Server) -> str:
    """The store to work on; by default a file in the data folder, which is made."""
    if settings.store is not None:
        if settings.store.startswith(("http://", "https://")):
            url = redacted(settings.store)
            refused = ConfigurationError(f"a server needs the store itself, and {url} is a server")
            refused.add_note("--store sqlite:///FILE, or unset PENSTOCK_STORE")
            raise refused
        if settings.processes > 1 and is_private(settings.store):
            refused = ConfigurationError(
                f"{redacted(settings.store)} belongs to one process, "
                f"and {settings.processes} cannot share it"
            )
            refused.add_note("--processes 1, or a store that processes share: sqlite:///FILE")
            raise refused
        return settings.store
    folder = Path(settings.data).absolute()
    problem = f"the data folder {folder} cannot be written to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the data folder {folder} cannot be made: {error.strerror or error}"
    if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        refused = ConfigurationError(problem)
        refused.add_note("another folder: --data DIR")
        raise refused
    return f"sqlite:///{folder / 'penstock.db'}"


def sections(settings: Server, sources: Sources) -> list[Found[Any]]:
    """The settings of each application that would be installed; others are refused."""
    sources.refuse_sections(APPS)
    found = [sources.section(name, module.Settings) for name, module in _modules(settings)]
    for one in found:
        _check_retention(settings, one)
    return found


def strangers(settings: Server, sources: Sources) -> list[str]:
    """What to say of variables that look like settings and are none."""
    sections(settings, sources)
    if any(sources.strangers()):  # or are they those of applications that are not asked for?
        for name in APPS:
            with suppress(ImportError):
                sources.know(name, _module(name).Settings)
    return list(sources.strangers())


def install(penstock: Penstock, settings: Server, sources: Sources) -> list[Application]:
    """The applications that are asked for, or all that are installed, on a Penstock."""
    return [
        _module(found.section).install(
            penstock, obeying(settings, found.settings), Path(settings.data).absolute()
        )
        for found in sections(settings, sources)
    ]


def retention_of(settings: Server) -> Retention:
    """How long a server keeps finished jobs."""
    return Retention(
        finished=timedelta(seconds=settings.keep_finished),
        failed=timedelta(seconds=settings.keep_failed),
    )


def _check_retention(settings: Server, found: Found[Any]) -> None:
    """Refuse an application that keeps its jobs longer than the server does, which removes them."""
    own: Retention | None = getattr(found.settings, "retention", None)
    for name in () if own is None else ("finished", "failed"):
        wanted, kept = getattr(own, name), getattr(retention_of(settings), name)
        if wanted > kept:
            problem = ConfigurationError(
                f"{found.section} keeps {name} jobs for {wanted.total_seconds():,.0f} seconds, but "
                f"the server removes them after {kept.total_seconds():,.0f}"
            )
            problem.add_note(f"--keep-{name} {wanted.total_seconds():.0f}")
            raise problem


def obeying(settings: Server, own: S) -> S:
    """The settings of an application on a server: where that runs no jobs, neither do processes."""
    if settings.workers == 0 and "workers" in own.__struct_fields__:
        return msgspec.structs.replace(own, workers=0)
    return own


def origin_of(settings: Server, sources: Sources, **others: msgspec.Struct) -> Origin:
    """How child processes make an app again that has these applications.

    `others` are settings of applications, by their names, in place of those that were found.
    Without the address of the store, which may have a password in it: what a process was started
    with is for everybody on the machine to see, and children have no use for the store.
    """
    found = {one.section: one.settings for one in sections(settings, sources)} | others
    told = _Told(str(Path(settings.data).absolute()), found)
    return Origin(f"{__name__}:in_child", msgspec.json.encode(told).decode())


def in_child(text: str) -> Penstock:
    """The app of a child process: the same tasks with the same settings."""
    told = msgspec.json.decode(text, type=_Told)
    penstock = Penstock("memory://")
    for name, values in told.settings.items():
        module = _module(name)
        module.install(penstock, msgspec.convert(values, module.Settings), Path(told.data))
    return penstock


class _Told(msgspec.Struct, frozen=True):
    data: str
    settings: dict[str, Any]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"penstock.apps.{name}")


def _modules(settings: Server) -> Iterator[tuple[str, ModuleType]]:
    for name in APPS if settings.apps is None else dict.fromkeys(settings.apps):
        if name not in APPS:
            raise ConfigurationError(f"there is no app {name!r}; known are {', '.join(APPS)}")
        try:
            yield name, _module(name)
        except ImportError as error:
            if settings.apps is not None:
                raise ConfigurationError(
                    f"app {name!r} needs what is not installed ({error}): "
                    f"pip install 'penstock[{name}]'"
                ) from error
            _log.info("app %s is off: %s", name, error)

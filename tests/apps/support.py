"""All applications at once."""

import importlib
from pathlib import Path

from penstock import Penstock
from penstock.apps import entries, ingest
from penstock.server.app import Service
from penstock.server.installed import APPS


def registered(name: str, folder: Path) -> Penstock:
    """A Penstock with all tasks of an application, also those that processes of its own run."""
    app = Penstock("memory://")
    module = importlib.import_module(f"penstock.apps.{name}")
    module.install(app, module.Settings(), folder)
    if name == "entries":
        entries.Entries(app, folder).register()
    if name == "ingest":
        parts = ingest.assemble(app, ingest.Settings(), folder)
        parts.handlers.register()
        parts.close()
    return app


def served(folder: Path, url: str = "memory://") -> Service:
    """A service with all applications."""
    app = Penstock(url)
    modules = [importlib.import_module(f"penstock.apps.{name}") for name in APPS]
    return Service(app, [one.install(app, one.Settings(), folder) for one in modules])

"""All applications at once, and their commands."""

import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from penstock import Penstock
from penstock.apps import entries, ingest
from penstock.server.app import Service
from penstock.server.applications import APPS
from tests.cli.support import COMMAND
from tests.environment import SOON


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


class Commands:
    """Runs commands in a folder, each in a process of its own."""

    def __init__(self, folder: Path, *prefix: str, **environment: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, **environment}
        self._prefix = prefix

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Return what a command prints; what it reports as an error if `code` is not 0."""
        done = subprocess.run(
            [*COMMAND, *self._prefix, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * SOON,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        """Return what a command prints with `--json`."""
        return json.loads(self(*arguments, "--json"))

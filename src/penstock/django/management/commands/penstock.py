"""`manage.py penstock`: the commands of Penstock on the queue of a Django project."""

import json
import os
import subprocess
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from penstock.cli.main import cli
from penstock.django import databases
from penstock.django.backend import PenstockBackend, backends

_DJANGO_OPTIONS = {"--settings", "--pythonpath"}
_NAME = "manage.py penstock"
# Their parent forks, and must not have imported the project: children would keep its old code.
_FORKING_OPTIONS = {"--processes", "--reload"}
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from penstock.cli.main import cli; cli.main(sys.argv[2:], {_NAME!r})"
)


class Command(BaseCommand):
    """Runs a command of Penstock with the project's database as its store."""

    help = "Runs workers of Penstock, and shows and manages their jobs: penstock status"

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--backend`, and take everything else as a command line of Penstock."""
        parser.add_argument("--backend", help="which backend of TASKS, if several are Penstock")
        parser.add_argument("arguments", nargs=REMAINDER, help="a command; --help lists them all")

    def handle(self, *, backend: str | None, arguments: Sequence[str], **_: Any) -> None:
        """Run the command, and exit with its code."""
        chosen = _backend(backend)
        os.environ["PENSTOCK_STORE"] = databases.url_of(connections[chosen.database])
        os.environ.pop("PENSTOCK_URL", None)
        given = _without_django(arguments)
        if given[:1] == ["worker"]:
            given = _worker(chosen, given[1:])
            # Without a settings module, only this process knows the settings.
            is_forking = not _FORKING_OPTIONS.isdisjoint(map(_name, given))
            if is_forking and os.environ.get("DJANGO_SETTINGS_MODULE"):
                _replace_process(given)
        cli.main(given, _NAME)


def _backend(alias: str | None) -> PenstockBackend:
    known = {backend.alias: backend for backend in backends()}
    if not known:
        raise CommandError(
            "no backend of TASKS is Penstock; set its BACKEND to "
            "penstock.django.backend.PenstockBackend"
        )
    if alias is None and len(known) > 1:
        raise CommandError(f"name one of the backends with --backend: {', '.join(known)}")
    found = known.get(next(iter(known)) if alias is None else alias)
    if found is None:
        raise CommandError(f"TASKS has no backend {alias!r} of Penstock, only {', '.join(known)}")
    return found


def _without_django(arguments: Sequence[str]) -> list[str]:
    """Leave out the options that Django has taken from any place in its command line."""
    rest, given = [], iter(arguments)
    for argument in given:
        if argument in _DJANGO_OPTIONS:
            next(given, None)
        elif _name(argument) not in _DJANGO_OPTIONS:
            rest.append(argument)
    return rest


def _worker(backend: PenstockBackend, options: list[str]) -> list[str]:
    """Name the app, and the queues of the backend unless others are given."""
    if backend.queues and "--queues" not in map(_name, options):
        options = [*options, "--queues", ",".join(sorted(backend.queues))]
    return ["worker", f"penstock.django.worker:{backend.alias}", *options]


def _name(option: str) -> str:
    return option.partition("=")[0]


def _replace_process(arguments: Sequence[str]) -> NoReturn:
    """Run a command of Penstock in place of this process, with nothing of the project imported."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    connections.close_all()
    sys.stdout.flush()
    sys.stderr.flush()
    entries: Sequence[object] = sys.path  # some programs add others, which imports ignore
    path = json.dumps([entry for entry in entries if isinstance(entry, str)])
    program = [sys.executable, *flags, "-c", _PROGRAM, path, *arguments]
    os.execv(sys.executable, program)  # noqa: S606 - no shell, and the same interpreter

"""Discovery: finds the app that a worker is to run, and imports the modules with its tasks."""

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.core.errors import ConfigurationError
from penstock.engine.penstock import Penstock

TASKS = "tasks"
"""Modules and packages of this name are imported, wherever they are in a package."""


def load_app(target: str, imports: Sequence[str] = ()) -> Penstock:
    """Import the Penstock `module:name`, or the only one of `module`, and the modules of its tasks.

    These are `imports` and, if the module is a package, its modules called `tasks`. Raises
    `ConfigurationError` with advice.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or (colon and not name) or _is_path(module_name):
        guess = module_name.removesuffix(".py").replace("/", ".").strip(".") or "tasks"
        raise _advised(
            f"{target!r} does not name an app: expected MODULE or MODULE:APP",
            f"penstock worker {guess}:{name}" if name else f"penstock worker {guess}",
        )
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path holds strings
    module = _import(module_name)
    modules = [module, *(_import(each) for each in (*_task_modules(module), *imports))]
    app = _named(module, name) if name else _only(modules)
    if not app.tasks:
        raise _advised(
            f"{target} has no tasks, so a worker would have nothing to run",
            f"penstock worker {target} --import MODULE, for each module with tasks",
        )
    return app


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name


# Task modules


def _task_modules(package: ModuleType) -> list[str]:
    """Return the modules of a package that are called `tasks` or belong to a package called so.

    Only packages that contain such modules are imported, apart from the one given.
    """
    found = _modules_in(list(getattr(package, "__path__", ())), package.__name__)
    return [name for name in found if TASKS in name.removeprefix(package.__name__).split(".")]


def _modules_in(folders: Sequence[str], package: str) -> Iterator[str]:
    for found in pkgutil.iter_modules(folders):
        name = f"{package}.{found.name}"
        if found.name == "__main__":  # running it is not meant
            continue
        yield name
        if found.ispkg:
            yield from _modules_in([str(Path(each) / found.name) for each in folders], name)


# The app


def _named(module: ModuleType, name: str) -> Penstock:
    app: Any = module
    try:
        for part in name.split("."):
            app = getattr(app, part)
    except AttributeError:
        raise _advised(f"module {module.__name__!r} has no {name!r}", _others(module)) from None
    if not isinstance(app, Penstock):
        kind = type(app).__name__
        raise _advised(f"{module.__name__}:{name} is a {kind}, not a Penstock", _others(module))
    return app


def _only(modules: Sequence[ModuleType]) -> Penstock:
    """Return the app of the first module that has one, which must be its only one."""
    for module in modules:
        apps = _apps(module)
        if len(apps) > 1:
            names = [f"{module.__name__}:{name}" for name in apps.values()]
            raise _advised(
                f"module {module.__name__!r} has {len(apps)} apps: {', '.join(names)}",
                f"penstock worker {names[0]}",
            )
        if apps:
            return next(iter(apps))
    searched = modules[0].__name__
    if len(modules) > 1:
        raise _advised(
            f"there is no Penstock in {searched!r}, nor in the modules imported for its tasks",
            f"penstock worker {searched}.MODULE:APP",
        )
    raise _advised(f"there is no Penstock in module {searched!r}", _others(modules[0]))


def _apps(module: ModuleType) -> dict[Penstock, str]:
    """Return the apps in a module, each with its first name there."""
    found: dict[Penstock, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Penstock):
            found.setdefault(value, name)
    return found


def _others(module: ModuleType) -> str:
    """Return a command to try: a worker for the first app in the module."""
    for name in _apps(module).values():
        return f"penstock worker {module.__name__}:{name}"
    return f'app = Penstock("sqlite:///penstock.db") in {module.__name__}'


# Importing


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        path = name.replace(".", "/") + ".py"
        message = f"there is no module {error.name!r} in this folder or installed"
        raise _advised(message, f"the same command in the folder of {path}") from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> ConfigurationError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = f"importing {name!r} failed: {type(error).__name__}: {error}{place}"
    return _advised(text, f'python -c "import {name}"')


def _advised(message: str, step: str) -> ConfigurationError:
    error = ConfigurationError(message)
    error.add_note(step)
    return error

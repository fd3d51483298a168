"""How a child process gets the app of its worker: by importing what the worker has imported."""

import importlib
import importlib.util
import sys
from typing import NoReturn

import msgspec

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.redaction import redacted
from penstock.engine.connection import Connection
from penstock.engine.penstock import Penstock
from penstock.stores import is_private

SCRIPT = "__penstock_main__"
"""The name under which a child imports the script that its worker was started from."""

_importing = False


class AppLocation(msgspec.Struct, frozen=True):
    """Where to import an app from: `name` of `module`, after these `modules` and this `script`.

    With an `argument`, the name is that of a function, which returns the app for it.
    """

    module: str
    name: str
    modules: list[str] = []
    script: str | None = None
    argument: str | None = None


def locate(app: Penstock) -> AppLocation:
    """Return what a child must import to get this app with its isolated tasks.

    Raises `ConfigurationError` if no module contains the app.
    """
    if sys.platform == "win32":
        raise ConfigurationError('isolation="process" needs process groups: not on Windows')
    if app.factory is not None:
        module, _, name = app.factory.function.partition(":")
        return AppLocation(module, name, argument=app.factory.argument)
    script, main = _script()
    names = _names(app)
    if not names:
        raise ConfigurationError(
            "tasks with isolation need an app that a child process can import: define it at the "
            "top level of a module, as in app = Penstock(…)"
        )
    modules = {
        # If multiprocessing started this program, its script has two names.
        task.handler.__module__.replace("__mp_main__", "__main__")
        for task in app.tasks.values()
        if task.isolation is not None and getattr(task.handler, "__module__", None)
    }
    # A module other than the script is preferred: importing it has no side effects.
    module, name = min(names, key=lambda place: place[0] == "__main__")
    needs_script = "__main__" in modules or module == "__main__"
    if needs_script and script is None and main is None:
        raise ConfigurationError(
            "tasks with isolation need a file that a child process can import, but this program "
            "was not started from one; put the app and its tasks into a module"
        )
    if main is not None and needs_script:
        modules.add(main)
    if module == "__main__":
        module = main or SCRIPT
    return AppLocation(
        module=module,
        name=name,
        modules=sorted(modules - {"__main__"}),
        script=script if needs_script and main is None else None,
    )


def import_app(location: AppLocation) -> Penstock:
    """In the child: import the modules and return the app."""
    global _importing  # noqa: PLW0603 - it concerns this process as a whole
    _importing = True
    try:
        if location.script is not None:
            _import_script(location.script)
        for name in location.modules:
            importlib.import_module(name)
        module = sys.modules.get(location.module) or importlib.import_module(location.module)
        app = getattr(module, location.name, None)
        if location.argument is not None and callable(app):
            app = app(location.argument)
    finally:
        _importing = False
    if not isinstance(app, Penstock):
        raise ConfigurationError(
            f"importing {location.module!r} defined no app called {location.name!r}; define it at "
            "the top level of the module"
        )
    if is_private(app.url):
        app.connection.__class__ = _Unreachable
    return app


def refuse_while_importing() -> None:
    """Raise if importing the app for a child starts a worker, which would start children again."""
    if _importing:
        raise ConfigurationError(
            "importing the app starts a worker; put that under if __name__ == '__main__':"
        )


def _names(app: Penstock) -> list[tuple[str, str]]:
    """Return every module and the name that the app has in it."""
    return [
        (module, name)
        for module, content in list(sys.modules.items())
        for name, value in list(getattr(content, "__dict__", {}).items())
        if value is app and module != "__mp_main__"
    ]


def _script() -> tuple[str | None, str | None]:
    """Return the file that this program was started from, and the module if by `python -m`."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return getattr(main, "__file__", None), None if spec is None else spec.name


def _import_script(path: str) -> None:
    spec = importlib.util.spec_from_file_location(SCRIPT, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} cannot be imported; put the tasks into a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT] = sys.modules["__main__"] = module
    spec.loader.exec_module(module)


class _Unreachable(Connection):
    """The connection of an app whose jobs are in the memory of the worker process."""

    @property
    def store(self) -> NoReturn:
        """Raise: there is no store in this process."""
        raise StoreError(
            f"the jobs of {redacted(self.url)} are in the memory of the worker, not of this child "
            "process; use a store that processes share, or return what to enqueue"
        )

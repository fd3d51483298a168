"""How a child process finds the app of its worker: by importing what the worker has imported."""

import importlib
import importlib.util
import sys
from typing import Any, NoReturn

from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.redaction import redacted
from penstock.engine import Penstock
from penstock.stores import is_private
from penstock.worker.frames import Boot

SCRIPT = "__penstock_main__"
"""The name under which a child imports the script that its worker was started from."""

_importing = False


def find(app: Penstock) -> Boot:
    """What a child has to import to have this app with its isolated tasks.

    Raises `ConfigurationError` if the app stands in no module.
    """
    if sys.platform == "win32":
        raise ConfigurationError('isolation="process" needs process groups: not on Windows')
    if app.origin is not None:
        module, _, name = app.origin.function.partition(":")
        return Boot(-1, -1, module, name, [], argument=app.origin.argument)
    script, main = _script()
    places = _places(app)
    if not places:
        raise ConfigurationError(
            "tasks with isolation need an app that a child process can import: make it at the top "
            "level of a module, as in app = Penstock(…)"
        )
    modules = {
        # Where multiprocessing started this program, its script has two names.
        task.handler.__module__.replace("__mp_main__", "__main__")
        for task in app.tasks.values()
        if task.isolation is not None and getattr(task.handler, "__module__", None)
    }
    # A module of its own rather than the script: importing it is all that has to happen.
    module, name = min(places, key=lambda place: place[0] == "__main__")
    needs_script = "__main__" in modules or module == "__main__"
    if needs_script and script is None and main is None:
        raise ConfigurationError(
            "tasks with isolation need a file that a child process can import, and this program "
            "was not started from one; put the app and its tasks into a module"
        )
    if main is not None and needs_script:
        modules.add(main)
    if module == "__main__":
        module = main or SCRIPT
    return Boot(
        fd=-1,
        parent=-1,
        module=module,
        app=name,
        modules=sorted(modules - {"__main__"}),
        script=script if needs_script and main is None else None,
    )


def load(boot: Boot) -> Penstock:
    """In the child: import all of it, and find the app there."""
    global _importing  # noqa: PLW0603 - it is about this process as a whole
    _importing = True
    try:
        if boot.script is not None:
            _import_script(boot.script)
        for name in boot.modules:
            importlib.import_module(name)
        module = sys.modules.get(boot.module) or importlib.import_module(boot.module)
        app = getattr(module, boot.app, None)
        if boot.argument is not None and callable(app):
            app = app(boot.argument)
    finally:
        _importing = False
    if not isinstance(app, Penstock):
        raise ConfigurationError(
            f"importing {boot.module!r} made no app called {boot.app!r}; make it at the top level "
            "of the module"
        )
    if is_private(app.url):
        app.__class__ = _apart(type(app))
    return app


def refuse_while_importing() -> None:
    """Raise if a worker is started by importing the app for a child: there would be no end."""
    if _importing:
        raise ConfigurationError(
            "importing the app starts a worker; put that under if __name__ == '__main__':"
        )


def _places(app: Penstock) -> list[tuple[str, str]]:
    return [
        (module, name)
        for module, content in list(sys.modules.items())
        for name, value in list(getattr(content, "__dict__", {}).items())
        if value is app and module != "__mp_main__"
    ]


def _script() -> tuple[str | None, str | None]:
    """The file that this program was started from, or the module that was (python -m)."""
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


def _apart(kind: type[Penstock]) -> type[Penstock]:
    """The same app, whose jobs are in the memory of another process."""

    def unreachable(self: Any) -> NoReturn:
        raise StoreError(
            f"the jobs of {redacted(self.url)} are in the memory of the worker, not of this child "
            "process; use a store that processes share, or return what to enqueue"
        )

    names: dict[str, property] = {"store": property(unreachable)}
    return type(kind.__name__, (kind,), names)

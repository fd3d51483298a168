"""Tasks of this backend: Django's, with the options of a job, and which ones a process knows."""

import importlib
import pkgutil
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from penstock.core.errors import UnknownTask
from penstock.core.job import Scope
from penstock.core.retry import RetryPolicy
from penstock.django.framework import DEFAULT_TASK_PRIORITY, Task

JOB_OPTIONS = (
    "retry", "key", "dedupe", "scope", "delay", "timeout", "lease", "tags", "tenant", "throttle",
)  # fmt: skip
"""The options of a task that its jobs have."""
HANDLER_OPTIONS = ("concurrency",)
"""The options of a task that its workers use."""
SCHEDULE_OPTIONS = ("cron", "every", "timezone")
"""The options of a task that is enqueued periodically."""
_TASKS_MODULE = "tasks"
_STEP = 20
_MIDDLE = 5

_declared: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PenstockTask(Task):
    """A task of Django with the options of its jobs, each None unless given.

    Errors of the `permanent` types are not retried. At most `concurrency` jobs of the task run at a
    time, in all processes. With `cron` or `every`, workers enqueue it periodically. The others are
    those of jobs everywhere in Penstock.
    """

    retry: RetryPolicy | None = None
    key: str | None = None
    dedupe: str | None = None
    scope: Scope | None = None
    delay: timedelta | None = None
    timeout: timedelta | None = None
    lease: timedelta | None = None
    tags: Collection[str] | None = None
    tenant: str | None = None
    throttle: str | None = None
    permanent: tuple[type[Exception], ...] = ()
    concurrency: int | None = None
    cron: str | None = None
    every: timedelta | None = None
    timezone: str | None = None

    def using(self, **changes: Any) -> "PenstockTask":
        """Return the same task with other options, as in Django; None leaves one as it is."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


def job_options(task: Any) -> dict[str, Any]:
    """Return the options that a task gives its jobs; none for a task of another backend."""
    return _given(task, JOB_OPTIONS)


def handler_options(task: Any) -> dict[str, Any]:
    """Return the options that a task is registered with."""
    return _given(task, HANDLER_OPTIONS)


def schedule_options(task: Any) -> dict[str, Any]:
    """Return when a task is enqueued periodically."""
    return _given(task, SCHEDULE_OPTIONS)


def _given(task: Any, names: Iterable[str]) -> dict[str, Any]:
    found = ((name, getattr(task, name, None)) for name in names)
    return {name: value for name, value in found if value is not None}


def queue_priority(priority: int) -> int:
    """Return the priority of a job, 0 to 10, for a priority of Django, -100 to 100.

    Never changes the order of two: each step of the queue stands for 20 of Django. The default is
    alone in the middle, so that any other priority differs from it.
    """
    steps = -(-abs(priority) // _STEP)
    return _MIDDLE + (steps if priority > DEFAULT_TASK_PRIORITY else -steps)


# Which tasks exist


def declare(task: Any) -> None:
    """Remember a task. Every task declares itself when it is made, as its backend validates it."""
    _declared.setdefault(task.module_path, task)


def declared() -> dict[str, Any]:
    """Return the tasks of the modules that this process has imported, by their paths."""
    return {path: find(path) for path in _declared}


def find(path: str) -> Any:
    """Return a task by its path. Raises `UnknownTask`.

    Only tasks that have declared themselves are found: a path in the database imports nothing.
    """
    if path not in _declared:
        load_modules()
    if path not in _declared:
        raise UnknownTask(
            f"there is no task {path!r}: move it to the module `tasks` of an installed app, or add "
            'its module to OPTIONS["modules"] of its backend in TASKS'
        )
    first = _declared[path]
    # What the module calls so now, as after `send = send.using(retry=...)`.
    current = getattr(sys.modules.get(first.func.__module__), first.func.__name__, None)
    return current if isinstance(current, Task) and current.func is first.func else first


def load_modules(further: Iterable[str] = ()) -> None:
    """Import the module or package `tasks` of every installed app, and further modules."""
    for config in apps.get_app_configs():
        if module_has_submodule(config.module, _TASKS_MODULE):
            _load_whole(f"{config.name}.{_TASKS_MODULE}")
    for name in further:
        _load_whole(name)


def _load_whole(name: str) -> None:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        importlib.import_module(found.name)


def is_loaded_by_workers(task: Any, further: Iterable[str]) -> bool:
    """Return whether workers import the module of a task."""
    roots = [f"{config.name}.{_TASKS_MODULE}" for config in apps.get_app_configs()]
    module = f"{task.func.__module__}."
    return any(module.startswith(f"{root}.") for root in (*roots, *further))

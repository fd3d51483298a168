"""Assertions about what was enqueued."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job, bind
from penstock.core.models import encode_model
from penstock.core.query import JobQuery
from penstock.engine.penstock import Penstock
from penstock.engine.task import Task
from penstock.testing.calls import call
from penstock.testing.jobs import every_job, shown

_SHOWN = 10


def enqueued(
    app: Penstock,
    task: Task[..., Any] | str | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    **fields: Any,
) -> list[Job]:
    """Return the matching jobs that were enqueued, oldest first, in any state.

    `task` is a task or its name. `args` are arguments by name, including defaults; arguments that
    it does not name are ignored. Other fields of `Job` (`queue`, `key`, `tags`, …) and `delay` are
    compared with `==`.
    """
    wanted = _Wanted(app, task, args, fields)
    return [job for job in _all(app) if not wanted.misses(job)]


def assert_enqueued(
    app: Penstock,
    task: Task[..., Any] | str | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    times: int | None = 1,
    **fields: Any,
) -> list[Job]:
    """Fail unless matching jobs were enqueued `times` times; None means at least once.

    Returns them. `enqueued` describes how jobs match. The failure shows what was enqueued instead.
    """
    wanted = _Wanted(app, task, args, fields)
    jobs = _all(app)
    found = [job for job in jobs if not wanted.misses(job)]
    if len(found) == times or (times is None and found):
        return found
    __tracebackhide__ = True
    number = "at least once" if times is None else _number(times)
    raise AssertionError(
        f"expected {wanted} enqueued {number}, but found {_number(len(found))}\n"
        + _listed(found, jobs, wanted)
    )


def assert_not_enqueued(
    app: Penstock,
    task: Task[..., Any] | str | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Fail if a matching job was enqueued. `enqueued` describes how jobs match."""
    __tracebackhide__ = True
    assert_enqueued(app, task, args=args, times=0, **fields)


class _Wanted:
    """The expected job, compared with jobs that were enqueued."""

    def __init__(
        self,
        app: Penstock,
        task: Task[..., Any] | str | None,
        args: Mapping[str, Any] | None,
        fields: Mapping[str, Any],
    ) -> None:
        if unknown := fields.keys() - {*Job.__struct_fields__, "delay"}:
            raise ConfigurationError(f"jobs have no {', '.join(sorted(unknown))}")
        self._task = task.name if isinstance(task, Task) else task
        self._known = app.tasks
        self._args = {name: _plain(value) for name, value in (args or {}).items()}
        self._fields = {
            name: tuple(value) if name == "tags" else value for name, value in fields.items()
        }

    def __str__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self._args.items()]
        options = [f"{name}={value!r}" for name, value in self._fields.items()]
        return " ".join([f"{self._task or 'any task'}({', '.join(parts)})", *options])

    def misses(self, job: Job) -> list[str]:
        """Describe how the job differs; return an empty list if it matches."""
        missed = []
        if self._task not in (None, job.task):
            missed.append(f"task is {job.task}")
        given = {**self._defaults(job.task), **job.args}
        for name, value in self._args.items():
            if name not in given:
                missed.append(f"argument {name} is missing")
            elif not value == given[name]:  # noqa: SIM201 - mock.ANY only defines equality
                missed.append(f"{name} is {given[name]!r}, not {value!r}")
        for name, value in self._fields.items():
            has = job.run_at - job.enqueued_at if name == "delay" else getattr(job, name)
            if not value == has:  # noqa: SIM201 - as above
                missed.append(f"{name} is {has!r}, not {value!r}")
        return missed

    def rank(self, job: Job) -> tuple[bool, int, int]:
        """Return a sort key: jobs of the same task first, then those that differ least."""
        return self._task not in (None, job.task), len(self.misses(job)), -job.id

    def _defaults(self, task: str) -> dict[str, Any]:
        if task not in self._known:
            return {}
        parameters = inspect.signature(self._known[task].handler).parameters.values()
        return {
            one.name: _plain(one.default)
            for one in parameters
            if one.default is not inspect.Parameter.empty
        }


def _plain(value: Any) -> Any:
    """Return a value as a store would; one that is not JSON, such as mock.ANY, unchanged."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=encode_model))
    except (TypeError, ValueError):
        return value


def _all(app: Penstock) -> list[Job]:
    async def read() -> list[Job]:
        return [job async for job in every_job(app.store, JobQuery())]

    return bind(call(read()), app)


def _listed(found: Sequence[Job], jobs: Sequence[Job], wanted: _Wanted) -> str:
    if not jobs:
        return "nothing was enqueued at all"
    rest = sorted((job for job in jobs if job not in found), key=wanted.rank)
    lines = [f"  {shown(job)}  <- matches" for job in found]
    lines += [f"  {shown(job)}  <- {'; '.join(wanted.misses(job))}" for job in rest]
    more = len(lines) - _SHOWN
    end = [f"  … and {more} more"] if more > 0 else []
    return "\n".join(["what was enqueued, nearest first:", *lines[:_SHOWN], *end])


def _number(n: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(n, f"{n} times")

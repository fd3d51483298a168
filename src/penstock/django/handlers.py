"""Handlers: run the tasks of Django in a worker of Penstock, with its signals and connections."""

import asyncio
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from penstock.core.errors import Cancel, Snooze
from penstock.core.job import Job, LogEntry
from penstock.django import results, tasks
from penstock.django.framework import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from penstock.engine.penstock import Penstock, run_sync
from penstock.worker.context import context

_LOG_LIMIT = 10_000
# Ends of a run that are no ends of the task: it runs again, or the worker stops.
_INTERRUPTIONS = (Snooze, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


class UnsupportedResult(TypeError):
    """A task returned what is not JSON; another run would repeat its effects for nothing."""


def register(app: Penstock, sender: type, options: Callable[[Any], dict[str, Any]]) -> None:
    """Register every declared task with the queue of a worker.

    `options` returns those of the jobs of a task, which schedules need.
    """
    for path, task in tasks.declared().items():
        app.task(
            path,
            _handler(app, task, sender),
            permanent=_permanent(task),
            **options(task),
            **tasks.handler_options(task),
        )


def _permanent(task: Any) -> tuple[type[Exception], ...]:
    return (UnsupportedResult, *getattr(task, "permanent", ()))


def _handler(app: Penstock, task: Any, sender: type) -> Callable[..., Any]:
    run = _Runs(app, task, sender)
    return _in_loop(run) if iscoroutinefunction(task.func) else _in_thread(run)


# The parameters are the fields of `results.Call`. The job has them; these handlers read it there.


def _in_thread(runs: "_Runs") -> Callable[..., Any]:
    def handler(
        args: Any = None,  # noqa: ARG001 - see above
        kwargs: Any = None,  # noqa: ARG001
        backend: Any = None,  # noqa: ARG001
        priority: Any = None,  # noqa: ARG001
        run_after: Any = None,  # noqa: ARG001
    ) -> Any:
        job = context().job
        earlier = run_sync(runs.earlier(job))
        run = runs.begin(job, earlier)
        try:
            run.finish(runs.task.func(*run.args, **run.kwargs))
        except _INTERRUPTIONS:
            raise
        except BaseException as error:
            run.fail(error)
            raise
        finally:
            close_old_connections()
        return run.returned

    return handler


def _in_loop(runs: "_Runs") -> Callable[..., Coroutine[Any, Any, Any]]:
    async def handler(
        args: Any = None,  # noqa: ARG001 - see above
        kwargs: Any = None,  # noqa: ARG001
        backend: Any = None,  # noqa: ARG001
        priority: Any = None,  # noqa: ARG001
        run_after: Any = None,  # noqa: ARG001
    ) -> Any:
        job = context().job
        earlier = await runs.earlier(job)
        # Receivers of signals may use the database, which Django refuses in an event loop.
        run = await sync_to_async(runs.begin)(job, earlier)
        try:
            returned = await runs.task.func(*run.args, **run.kwargs)
            await sync_to_async(run.closing)(run.finish, returned)
        except _INTERRUPTIONS:
            raise
        except BaseException as error:
            await sync_to_async(run.closing)(run.fail, error)
            raise
        return run.returned

    return handler


class _Runs:
    """The runs of one task in this process."""

    def __init__(self, app: Penstock, task: Any, sender: type) -> None:
        self.task = task
        self.sender = sender
        self._app = app

    async def earlier(self, job: Job) -> list[LogEntry]:
        """Return the log of a job if it has had earlier attempts, which the log tells about."""
        return await self._app.log(job.id, limit=_LOG_LIMIT) if job.attempt > 1 else []

    def begin(self, job: Job, log: list[LogEntry]) -> "_Run":
        """Begin a run as Django begins a request, without connections that are too old."""
        close_old_connections()
        return _Run(self, job, log)


class _Run:
    """One run of a task: its result, as receivers of signals and the task itself see it."""

    def __init__(self, runs: _Runs, job: Job, log: list[LogEntry]) -> None:
        self.returned: Any = None
        self._runs = runs
        self._job = job
        self._result = results.result_of(job, runs.task, log)
        self.args = self._result.args
        self.kwargs = self._result.kwargs
        if runs.task.takes_context:
            self.args = [TaskContext(task_result=self._result), *self.args]
        task_started.send_robust(runs.sender, task_result=self._result)

    def finish(self, returned: Any) -> None:
        """Take what the task returned. Raises `UnsupportedResult` for what is not JSON."""
        try:
            self.returned = normalize_json(returned)
        except (TypeError, ValueError) as error:
            raise UnsupportedResult(f"the task ran, but its result is not JSON: {error}") from error
        self._end(TaskResultStatus.SUCCESSFUL, _return_value=self.returned)

    def fail(self, error: BaseException) -> None:
        """Take what the task raised; its end is told if no further attempt follows."""
        self._result.errors.append(results.error_of(error, "".join(format_exception(error))))
        is_permanent = isinstance(error, (Cancel, *_permanent(self._runs.task)))
        if is_permanent or self._job.attempt >= self._job.retry.attempts:
            self._end(TaskResultStatus.FAILED)

    def closing(self, end: Callable[[Any], None], outcome: Any) -> None:
        """End the run in this thread, and close its connections as after a request."""
        try:
            end(outcome)
        finally:
            close_old_connections()

    def _end(self, status: Any, **changes: Any) -> None:
        results.update(self._result, status=status, finished_at=timezone.now(), **changes)
        task_finished.send_robust(self._runs.sender, task_result=self._result)

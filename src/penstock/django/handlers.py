"""Handlers: run the tasks of Django in a worker of Penstock, with its signals and connections."""

import asyncio
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone
from msgspec.structs import replace

from penstock.core.job import Job, LogEntry
from penstock.core.lifecycle import Cancelled, Done, Failed, Move, Outcome, State, advance
from penstock.django import results, tasks
from penstock.django.framework import (
    TaskContext,
    normalize_json,
    task_finished,
    task_started,
)
from penstock.engine.penstock import Penstock, run_sync
from penstock.worker.context import Context, conclude, context
from penstock.worker.exchange import UNCOMMITTED
from penstock.worker.outcomes import raised, returned

_LOG_LIMIT = 10_000
# They end the worker, not the task.
_INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit)


class UnsupportedResult(TypeError):
    """A task returned what is not JSON; another run would repeat its effects for nothing."""


def register(app: Penstock, backend: Any, options: Callable[[Any], dict[str, Any]]) -> None:
    """Register every declared task with the queue of a worker of a backend.

    Also those of other backends, because `using(backend=...)` brings them here; but a task is
    enqueued periodically by workers of its own backend only. `options` returns those of the jobs
    of a task, which schedules need.
    """
    for path, task in tasks.declared().items():
        schedule = tasks.schedule_options(task) if task.backend == backend.alias else {}
        app.task(
            path,
            _handler(app, task, type(backend)),
            permanent=(UnsupportedResult, *getattr(task, "permanent", ())),
            **options(task),
            **tasks.handler_options(task),
            **schedule,
        )


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
        own = context()
        run = runs.begin(own, run_sync(runs.earlier(own.job)))
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
        own = context()
        earlier = await runs.earlier(own.job)
        # Receivers of signals may use the database, which Django refuses in an event loop.
        run = await sync_to_async(runs.begin)(own, earlier)
        try:
            value = await runs.task.func(*run.args, **run.kwargs)
            conclude(own)  # at once: a timeout would cancel what follows
            await sync_to_async(run.closing)(run.finish, value)
        except _INTERRUPTIONS:
            raise
        except BaseException as error:
            if conclude(own) is None and _is_cancelled(error):
                raise
            await sync_to_async(run.closing)(run.fail, error)
            raise
        return run.returned

    return handler


def _is_cancelled(error: BaseException) -> bool:
    """Return whether the worker itself is cancelled; a task may raise that error, too."""
    current = asyncio.current_task()
    is_requested = current is not None and current.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and is_requested


class _Runs:
    """The runs of one task in this process."""

    def __init__(self, app: Penstock, task: Any, sender: type) -> None:
        self.app = app
        self.task = task
        self.sender = sender

    async def earlier(self, job: Job) -> list[LogEntry]:
        """Return the log of a job if it has had earlier attempts, which the log tells about."""
        return await self.app.log(job.id, limit=_LOG_LIMIT) if job.attempt > 1 else []

    def begin(self, own: Context, log: list[LogEntry]) -> "_Run":
        """Begin a run as Django begins a request, without connections that are too old."""
        close_old_connections()
        return _Run(self, own, log)


class _Run:
    """One run of a task: its result, as receivers of signals and the task itself see it."""

    def __init__(self, runs: _Runs, own: Context, log: list[LogEntry]) -> None:
        self.returned: Any = None
        self._runs = runs
        self._context = own
        self._result = results.result_of(own.job, runs.task, log)
        self.args = self._result.args
        self.kwargs = self._result.kwargs
        if runs.task.takes_context:
            self.args = [TaskContext(task_result=self._result), *self.args]
        task_started.send_robust(runs.sender, task_result=self._result)

    def finish(self, value: Any) -> None:
        """Take what the task returned. Raises `UnsupportedResult` for what is not JSON."""
        try:
            self.returned = normalize_json(value)
        except (TypeError, ValueError) as error:
            raise UnsupportedResult(f"the task ran, but its result is not JSON: {error}") from error
        requested = conclude(self._context)
        self._end(requested if isinstance(requested, Failed) else returned(self.returned))

    def fail(self, error: BaseException) -> None:
        """Take what the task raised."""
        requested = conclude(self._context)
        if isinstance(error, asyncio.CancelledError) and requested is not None:
            self._end(requested)
        else:
            self._end(raised(error, self._runs.app.tasks[self._context.job.task]))

    def closing(self, end: Callable[[Any], None], outcome: Any) -> None:
        """End the run in this thread, and close its connections as after a request."""
        try:
            end(outcome)
        finally:
            close_old_connections()

    def _end(self, outcome: Outcome) -> None:
        """Send the end of the task, unless another run follows: the worker decides the same."""
        own = self._context
        if own.lost:
            return
        if own.finishing:
            found = run_sync(self._runs.app.get(own.job.id))
            if found.token == own.job.token and found.state.final:
                self._send(found.state, found.returned)
                return
            outcome = UNCOMMITTED if isinstance(outcome, Done) else outcome
        is_cancelled = own.job.cancel_requested or isinstance(own.requested, Cancelled)
        move = advance(replace(own.job, cancel_requested=is_cancelled), outcome)
        if move.state.final:
            self._send(move.state, self.returned, move)

    def _send(self, state: State, value: Any, move: Move | None = None) -> None:
        if state is State.DONE:
            results.update(self._result, _return_value=value)
        elif move is not None:
            self._result.errors.append(results.error_of(move.event, move.error, move.reason))
        results.update(self._result, status=results.STATUSES[state], finished_at=timezone.now())
        task_finished.send_robust(self._runs.sender, task_result=self._result)

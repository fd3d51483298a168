"""Runs one job's handler and tells what came of it."""

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

from penstock.core.errors import Cancel, ConfigurationError, InvalidJob, Snooze
from penstock.core.job import Job
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed
from penstock.isolation import Isolation
from penstock.task import Task
from penstock.worker.context import Context, enter
from penstock.worker.finishing import finished
from penstock.worker.notebook import Notebook
from penstock.worker.processes import Child, ChildFailed, Children

_ERROR_LIMIT = 20_000
_SUMMARY_LIMIT = 500


class Run:
    """One run of one job, and the ways in which it is told to end early."""

    __slots__ = ("_ending", "_in_thread", "_task", "context", "job", "lost")

    def __init__(self, job: Job, notebook: Notebook | None = None) -> None:
        self.job = job
        self.context = Context(job, notebook)
        self.lost = False
        self._ending: Outcome | None = None
        self._task: asyncio.Task[Any] | None = None
        self._in_thread = False

    def end(self, outcome: Outcome) -> None:
        """Ask the run to end; if it does, this is its outcome. The first request counts.

        A coroutine is cancelled; a thread cannot be, it only sees `context.cancelled`.
        """
        if self._ending is None:
            self._ending = outcome
            self.context.cancelled = True
            if self._task is not None and not self._in_thread:
                self._task.cancel()

    def lose(self) -> None:
        """Another worker may run the job now: stop, and do not settle."""
        self.lost = True
        self.end(Cancelled("the lease was lost"))

    @property
    def unstoppable(self) -> bool:
        """Whether it is out of time but goes on, being a thread."""
        return self._in_thread and isinstance(self._ending, Failed)

    async def execute(
        self,
        task: Task[..., Any] | None,
        threads: ThreadPoolExecutor,
        current: asyncio.Task[Any] | None,
    ) -> Outcome:
        """Run the handler in the current asyncio task; raises only when that is cancelled."""
        ended_before = self._ending
        if ended_before is not None:
            return ended_before
        if task is None:
            return Failed(f"UnknownTask: this worker has no handler called {self.job.task!r}")
        timer = self._timer(task)
        self._task = current
        self._in_thread = not task.is_async
        try:
            return self._finished(await self._call(task, threads))
        except asyncio.CancelledError as error:
            if self._ending is not None:
                return self._ending
            if current is None or current.cancelling():
                raise
            return Failed(described(error))  # the handler's own, not a request to stop
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return raised(error, task)
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()
            while current is not None and current.cancelling():
                current.uncancel()

    async def execute_apart(
        self,
        task: Task[..., Any],
        isolation: Isolation,
        children: Children,
        current: asyncio.Task[Any] | None,
    ) -> Outcome:
        """As `execute`, in a child process. Its time begins when the child is there."""
        ended_before = self._ending
        if ended_before is not None:
            return ended_before
        timer = None
        self._task = current
        try:
            child = await children.take(isolation)
            timer = self._timer(task)
            try:
                outcome = await self._call_apart(child)
            finally:
                children.give(child)
            return self._ending if isinstance(self._ending, Failed) else outcome
        except (ChildFailed, ConfigurationError) as error:
            return Failed(str(error))
        except asyncio.CancelledError:
            if self._ending is None:
                raise
            return self._ending
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()
            while current is not None and current.cancelling():
                current.uncancel()

    async def _call_apart(self, child: Child) -> Outcome:
        try:
            return await child.run(self.context)
        except asyncio.CancelledError:
            late = await child.stop()
            if self._ending is not None and isinstance(late, Done):
                return late  # it came to its end meanwhile
            raise

    def _call(self, task: Task[..., Any], threads: ThreadPoolExecutor) -> Awaitable[Any]:
        arguments = task.arguments.decode(self.job.payload)
        if task.is_async:
            enter(self.context)
            coroutine: Awaitable[Any] = task.handler(**arguments)
            return coroutine
        own = contextvars.copy_context()
        own.run(enter, self.context)
        handler = partial(task.handler, **arguments)
        return self._call_in_thread(partial(own.run, _caught, handler), threads)

    async def _call_in_thread(
        self, call: Callable[[], tuple[Any, BaseException | None]], threads: ThreadPoolExecutor
    ) -> Any:
        result, error = await asyncio.get_running_loop().run_in_executor(threads, call)
        if error is not None:
            raise error
        return result

    def _finished(self, result: Any) -> Outcome:
        if isinstance(self._ending, Failed):  # a thread that came back after its time
            return self._ending
        return finished(result)

    def _timer(self, task: Task[..., Any]) -> asyncio.TimerHandle | None:
        if self.job.timeout is None:
            return None
        seconds = self.job.timeout.total_seconds()
        return asyncio.get_running_loop().call_later(seconds, self._time_out, task)

    def _time_out(self, task: Task[..., Any]) -> None:
        assert self.job.timeout is not None  # noqa: S101 - there is no timer without
        error = f"TimeoutError: it ran longer than {self.job.timeout.total_seconds():g} s"
        self.end(Failed(error, permanent=issubclass(TimeoutError, task.permanent)))


def _caught(handler: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call it; some exceptions, such as StopIteration, cannot cross a future."""
    try:
        return handler(), None
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return None, error


def raised(error: BaseException, task: Task[..., Any]) -> Outcome:
    """What a handler came to that raised this."""
    match error:
        case Snooze(delay=timedelta()):
            return Snoozed(error.delay, str(error.reason))
        case Cancel():
            return Cancelled(str(error.reason))
        case InvalidJob():  # the stored arguments do not fit the handler: they never will
            return Failed(str(error), permanent=True)
        case _:
            return Failed(described(error), permanent=isinstance(error, task.permanent))


def described(error: BaseException) -> str:
    """An error as text: what it is in the first line, then where it comes from."""
    summary = traceback.format_exception_only(error)[0].strip().split("\n")[0]
    text = "".join(traceback.format_exception(error)).strip()
    if len(text) > _ERROR_LIMIT:
        text = "…" + text[-_ERROR_LIMIT:]
    return f"{summary[:_SUMMARY_LIMIT]}\n\n{text}"

"""One run of one job: calls the handler in the event loop, in a thread or in a child process."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from penstock.core.errors import ConfigurationError
from penstock.core.job import Job
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome
from penstock.engine.task import Isolation, Task
from penstock.worker.children.pool import ChildPool
from penstock.worker.children.process import ChildFailed, ChildProcess
from penstock.worker.context import Context, Reporter, enter, request_end
from penstock.worker.outcomes import describe, raised, returned


class Run:
    """One run of one job, which can be asked to end early."""

    __slots__ = ("_in_thread", "_task", "context", "job", "seconds")

    def __init__(self, job: Job, reporter: Reporter | None = None) -> None:
        self.job = job
        self.context = Context(job, reporter)
        self.seconds = 0.0
        """How long it took."""
        self._task: asyncio.Task[Any] | None = None
        self._in_thread = False

    def end(self, outcome: Outcome) -> None:
        """Ask the run to end with this outcome. Only the first request counts.

        A coroutine is cancelled; a thread cannot be: it only sees `context.cancelled`.
        """
        if request_end(self.context, outcome) and self._task is not None and not self._in_thread:
            self._task.cancel()

    def lose(self) -> None:
        """End the run and do not settle it: another worker may run the job now."""
        self.context.lost = True
        self.end(Cancelled("the lease was lost"))

    @property
    def lost(self) -> bool:
        """Whether another worker may run the job now."""
        return self.context.lost

    @property
    def unstoppable(self) -> bool:
        """Whether the run timed out but continues, because a thread cannot be stopped."""
        return self._in_thread and isinstance(self.context.requested, Failed)

    async def execute(
        self,
        task: Task[..., Any],
        threads: Executor,
        current: asyncio.Task[Any] | None,
    ) -> Outcome:
        """Run the handler in the current asyncio task; raise only if that task is cancelled."""
        ended_before = self.context.requested
        if ended_before is not None:
            return ended_before
        timer = self._timer(task)
        self._task = current
        self._in_thread = not task.is_async
        try:
            return self._returned(await self._call(task, threads))
        except asyncio.CancelledError as error:
            if self.context.requested is not None:
                return self.context.requested
            if current is None or current.cancelling():
                raise
            return Failed(describe(error))  # raised by the handler, not a request to end
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

    async def execute_in_child(
        self,
        task: Task[..., Any],
        isolation: Isolation,
        children: ChildPool,
        current: asyncio.Task[Any] | None,
    ) -> Outcome:
        """Run the handler in a child process; its timeout begins when the child is ready."""
        ended_before = self.context.requested
        if ended_before is not None:
            return ended_before
        timer = None
        self._task = current
        try:
            child = await children.take(isolation)
            timer = self._timer(task)
            try:
                outcome = await self._call_in_child(child)
            finally:
                children.give_back(child)
            return self.context.requested if isinstance(self.context.requested, Failed) else outcome
        except (ChildFailed, ConfigurationError) as error:
            return Failed(str(error))
        except asyncio.CancelledError:
            if self.context.requested is None:
                raise
            return self.context.requested
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()
            while current is not None and current.cancelling():
                current.uncancel()

    async def _call_in_child(self, child: ChildProcess) -> Outcome:
        try:
            return await child.run(self.context)
        except asyncio.CancelledError:
            late = await child.stop()
            if self.context.requested is not None and isinstance(late, Done):
                return late  # it completed before it was stopped
            raise

    def _call(self, task: Task[..., Any], threads: Executor) -> Awaitable[Any]:
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
        self, call: Callable[[], tuple[Any, BaseException | None]], threads: Executor
    ) -> Any:
        result, error = await asyncio.get_running_loop().run_in_executor(threads, call)
        if error is not None:
            raise error
        return result

    def _returned(self, result: Any) -> Outcome:
        if isinstance(self.context.requested, Failed):  # a thread that returned after its timeout
            return self.context.requested
        return returned(result)

    def _timer(self, task: Task[..., Any]) -> asyncio.TimerHandle | None:
        if self.job.timeout is None:
            return None
        seconds = self.job.timeout.total_seconds()
        return asyncio.get_running_loop().call_later(seconds, self._time_out, task)

    def _time_out(self, task: Task[..., Any]) -> None:
        assert self.job.timeout is not None  # noqa: S101 - otherwise there is no timer
        error = f"TimeoutError: it ran longer than {self.job.timeout.total_seconds():g} s"
        self.end(Failed(error, permanent=issubclass(TimeoutError, task.permanent)))


def _caught(handler: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call the handler; some exceptions, such as StopIteration, cannot pass through a future."""
    try:
        return handler(), None
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return None, error

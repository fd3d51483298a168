"""The child processes of one worker: started on demand, used again, and replaced in time."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from penstock.core.errors import ConfigurationError
from penstock.engine.penstock import Penstock
from penstock.engine.task import Isolation
from penstock.worker.children.app_import import AppLocation, locate, refuse_while_importing
from penstock.worker.children.guard import ProcessGuard
from penstock.worker.children.process import LAST_WAIT, ChildFailed, ChildProcess

# A child that is not needed gives its memory back.
_LONGEST_IDLE = timedelta(minutes=1)


class ChildPool:
    """The child processes of one worker, at most one for each of its slots."""

    def __init__(
        self,
        penstock: Penstock,
        *,
        limit: int,
        grace: timedelta,
        idle: timedelta = _LONGEST_IDLE,
    ) -> None:
        """A child gets `grace` to stop by itself, and is retired after being `idle`."""
        self._penstock = penstock
        self._limit = limit
        self._grace = grace.total_seconds()
        self._longest_idle = idle.total_seconds()
        self._children: dict[ChildProcess, Isolation] = {}
        self._idle: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._location: AppLocation | None = None
        self._guard = ProcessGuard(penstock.runtime)

    @property
    def longest_stop(self) -> float:
        """How many seconds stopping the running children may take."""
        return self._grace + 1.0 if self._children else 0.0

    async def prepare(self) -> None:
        """Start a child of each kind; raise `ConfigurationError` if that cannot work."""
        refuse_while_importing()
        tasks = {task.name: task for task in self._penstock.tasks.values() if task.isolation}
        if not tasks:
            return
        self._location = locate(self._penstock)
        try:
            kinds = {task.isolation for task in tasks.values() if task.isolation is not None}
            children = [self._start(isolation) for isolation in kinds]
            for child in children:
                _check_tasks(tasks, await child.ready())
                self.give_back(child)
        except ChildFailed as error:
            await self.close()
            raise ConfigurationError(str(error)) from None
        except BaseException:
            await self.close()
            raise

    async def take(self, isolation: Isolation) -> ChildProcess:
        """Return an idle child of this kind, or a new one; raise `ChildFailed`.

        The caller returns it with `give_back`.
        """
        for child in reversed(self._idle):  # the newest first, so that the others may be retired
            if self._children.get(child) == isolation and child.usable:
                self._idle.pop(child).cancel()
                return child
        child = self._start(isolation)
        try:
            await child.ready()
        except BaseException:
            child.kill()
            raise
        return child

    def give_back(self, child: ChildProcess) -> None:
        """Make a child available for other jobs, or retire it."""
        isolation = self._children.get(child)
        if isolation is None or not child.usable or child.jobs >= isolation.recycle:
            self._retire(child)
        else:
            loop = asyncio.get_running_loop()
            self._idle[child] = loop.call_later(self._longest_idle, self._retire, child)

    async def close(self) -> None:
        """End all children with everything they started."""
        try:
            for child in list(self._children):
                self._retire(child)
            if self._children:
                exits = [child.exited for child in self._children]
                await asyncio.wait(exits, timeout=self._grace + LAST_WAIT)
        finally:
            for child in list(self._children):
                child.join()
            self._children.clear()
            self._guard.close()

    def _start(self, isolation: Isolation) -> ChildProcess:
        if self._location is None:  # the task was registered after the worker had started
            self._location = locate(self._penstock)
        if len(self._children) >= self._limit and self._idle:
            self._retire(next(iter(self._idle)))
        child = ChildProcess(self._penstock, self._location, isolation, self._guard, self._grace)
        self._children[child] = isolation
        child.exited.add_done_callback(lambda _: self._forget(child))
        return child

    def _retire(self, child: ChildProcess) -> None:
        if timer := self._idle.pop(child, None):
            timer.cancel()
        child.retire()

    def _forget(self, child: ChildProcess) -> None:
        self._children.pop(child, None)
        if timer := self._idle.pop(child, None):
            timer.cancel()


def _check_tasks(expected: Iterable[str], found: Iterable[str]) -> None:
    if missing := sorted(set(expected) - set(found)):
        raise ConfigurationError(
            f"a child process that imports the app has no task {', '.join(missing)}: a task with "
            "isolation must be registered when its module is imported, not by a function that is "
            "called later"
        )

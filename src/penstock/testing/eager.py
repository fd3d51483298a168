"""Runs every job at once, in the call that enqueues it."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import Cancel, Snooze, UnknownTask
from penstock.core.job import Claim, Job, NewJob
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed
from penstock.core.store import Store
from penstock.engine import Penstock
from penstock.task import Task
from penstock.testing.calls import in_loop, run
from penstock.testing.clock import Clock
from penstock.testing.home import fresh, sharing
from penstock.testing.proxy import Proxy
from penstock.worker.context import Context, enter
from penstock.worker.execute import described
from penstock.worker.notebook import Notebook

_WORKER = "inline"
_AT_ONCE = 1_000
# What gives itself back is not run again in the same call.
_LEAST_SNOOZE = timedelta(seconds=1)


@contextlib.contextmanager
def inline(*apps: Penstock, clock: Clock | None = None) -> Iterator[Penstock]:
    """Run every job inside the call that enqueues it, until the block ends.

    The apps are on fresh stores in memory, as by `fresh`. A job is stored, claimed, run and
    settled before `enqueue` returns, also one with a delay; a `connection` is not joined.

    Plain handlers run in the calling thread (where an event loop runs, in another one, as in a
    worker). An error of a handler ends its job, without another attempt, and is raised by
    `enqueue`; several of a batch as an `ExceptionGroup`, when all have run.
    """
    groups = sharing(apps)
    with fresh(*apps, clock=clock), contextlib.ExitStack() as stack:
        for group in groups:
            for app in group:
                stack.enter_context(_Inline(app.store, app, group).before(app))
        yield apps[0]


class _Inline(Proxy):
    def __init__(self, store: Store, app: Penstock, sharing: Sequence[Penstock]) -> None:
        super().__init__(store)
        self._app = app
        self._apps = [app, *sharing]
        self._finished: set[int] = set()

    async def add(self, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        """See `Store.add`; and run what is ready then. No transaction is joined."""
        options.pop("connection", None)
        at_once = [replace(job, delay=None, run_at=None) for job in jobs]
        added = await self._store.add(at_once, **options)
        errors: list[Exception] = []
        while claimed := await self._store.claim(Claim(worker=_WORKER, limit=_AT_ONCE)):
            for job in claimed:
                outcome, error = await self._run(job)
                if job.id not in self._finished:
                    await self._app.settle([(job, outcome)])
                errors += [] if error is None else [error]
        if len(errors) > 1:
            raise ExceptionGroup(f"{len(errors)} jobs failed", errors)
        if errors:
            raise errors[0]
        now = {job.id: job for job in await self._store.get([job.id for job in added])}
        return [replace(now[job.id], duplicate=job.duplicate) for job in added]

    async def finish(self, ended: Sequence[tuple[Job, Done]], **_: Any) -> list[Job]:
        """See `Store.finish`. No transaction is joined."""
        self._finished.update(job.id for job, _ in ended)
        return await self._app.settle(ended)

    async def _run(self, job: Job) -> tuple[Outcome, Exception | None]:
        notebook = Notebook(self._app)
        try:
            result = await self._call(job, notebook)
            encoded = None if result is None else msgspec.json.encode(result).decode()
        except Snooze as signal:
            return Snoozed(max(signal.delay, _LEAST_SNOOZE), signal.reason), None
        except Cancel as signal:
            return Cancelled(signal.reason), None
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            error.add_note(f"raised by job {job.id} ({job.task}), which ran inline")
            return Failed(described(error), permanent=True), error
        finally:
            notebook.close()  # what it said is written before it is settled
        return Done(encoded), None

    async def _call(self, job: Job, notebook: Notebook) -> Any:
        task = self._task(job.task)
        own = contextvars.copy_context()
        own.run(enter, Context(job, notebook))
        handler = partial(task.handler, **task.arguments.decode(job.payload))
        if task.is_async:
            return await _await(handler, own)
        if not in_loop():
            return own.run(handler)
        caught = partial(own.run, _caught, handler)
        result, error = await asyncio.get_running_loop().run_in_executor(None, caught)
        if error is not None:
            raise error
        return result

    def _task(self, name: str) -> Task[..., Any]:
        for app in self._apps:
            if name in app.tasks:
                return app.tasks[name]
        raise UnknownTask(f"no handler is called {name!r}: give inline the app that has it as well")


async def _await(handler: Callable[[], Any], own: contextvars.Context) -> Any:
    if in_loop():
        return await asyncio.get_running_loop().create_task(handler(), context=own)

    async def call() -> Any:
        return await handler()

    return own.run(run, call(), "")


def _caught(handler: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call it; some exceptions, such as StopIteration, cannot cross a future."""
    try:
        return handler(), None
    except Exception as error:  # noqa: BLE001 - raised again by the caller
        return None, error

"""`inline`: a store that runs every job in the call that enqueues it."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import Cancel, ConfigurationError, Snooze, UnknownTask
from penstock.core.job import Claim, Job, NewJob
from penstock.core.lifecycle import Cancelled, Done, Failed, Outcome, Snoozed
from penstock.core.models import encode_model
from penstock.core.store import Store
from penstock.engine.penstock import Penstock
from penstock.engine.task import Task
from penstock.testing.calls import in_loop, run
from penstock.testing.clock import Clock
from penstock.testing.stores import Proxy, fresh, grouped_by_store
from penstock.worker.context import Context, enter
from penstock.worker.outcomes import describe
from penstock.worker.progress import ProgressBuffer

_encode = msgspec.json.Encoder(enc_hook=encode_model).encode
_WORKER = "inline"
_AT_ONCE = 1_000
# A job that snoozes does not run again in the same call.
_LEAST_SNOOZE = timedelta(seconds=1)


@contextlib.contextmanager
def inline(*apps: Penstock, clock: Clock | None = None) -> Iterator[Penstock]:
    """Run every job in the call that enqueues it, inside the block.

    The apps use fresh stores in memory, as with `fresh`. A job is stored, claimed, run and settled
    before `enqueue` returns, even if it has a delay; the transaction of a `connection` is ignored.

    Synchronous handlers run in the calling thread, or in another one if an event loop runs, as in
    a worker. If a handler raises, its job fails without another attempt and `enqueue` raises the
    error; for several jobs, it raises an `ExceptionGroup` after all have run.
    """
    groups = grouped_by_store(apps)
    with fresh(*apps, clock=clock), contextlib.ExitStack() as stack:
        for group in groups:
            for app in group:
                stack.enter_context(_Inline(app.store, app, group).before(app))
        yield apps[0]


class _Inline(Proxy):
    def __init__(self, store: Store, app: Penstock, group: Sequence[Penstock]) -> None:
        super().__init__(store)
        self._app = app
        self._apps = [app, *group]
        self._finished: set[int] = set()

    async def add(self, jobs: Sequence[NewJob], **options: Any) -> list[Job]:
        """See `Store.add`. Runs the jobs that are ready; joins no transaction."""
        at_once = [replace(job, delay=None, run_at=None) for job in jobs]
        added = await self._store.add(at_once, **options)
        errors: list[Exception] = []
        while claimed := await self._store.claim(Claim(worker=_WORKER, limit=_AT_ONCE)):
            for job in claimed:
                outcome, error = await self._run(job)
                if job.id not in self._finished:
                    await self._app.leases.settle([(job, outcome)])
                errors += [] if error is None else [error]
        if len(errors) > 1:
            raise ExceptionGroup(f"{len(errors)} jobs failed", errors)
        if errors:
            raise errors[0]
        now = {job.id: job for job in await self._store.get([job.id for job in added])}
        return [replace(now[job.id], duplicate=job.duplicate) for job in added]

    @property
    def tables(self) -> "_NoTransaction":
        """See `Store.tables`."""
        return _NoTransaction(self)

    async def finish(self, ended: Sequence[tuple[Job, Done]]) -> list[Job]:
        """See `TableStore.finish`. Joins no transaction."""
        self._finished.update(job.id for job, _ in ended)
        return await self._app.leases.settle(ended)

    async def _run(self, job: Job) -> tuple[Outcome, Exception | None]:
        reporter = ProgressBuffer(self._app)
        try:
            result = await self._call(job, reporter)
            encoded = None if result is None else _encode(result).decode()
        except Snooze as signal:
            return Snoozed(max(signal.delay, _LEAST_SNOOZE), signal.reason), None
        except Cancel as signal:
            return Cancelled(signal.reason), None
        except Exception as error:  # noqa: BLE001 - raised to the caller
            error.add_note(f"raised by job {job.id} ({job.task}), which ran inline")
            return Failed(describe(error), permanent=True), error
        finally:
            await reporter.close()  # writes progress before the job is settled
        return Done(encoded), None

    async def _call(self, job: Job, reporter: ProgressBuffer) -> Any:
        task = self._task(job.task)
        own = contextvars.copy_context()
        own.run(enter, Context(job, reporter))
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
        raise UnknownTask(f"no task is named {name!r}: give inline the app that has it as well")


class _NoTransaction:
    """Adds and finishes jobs without a transaction."""

    def __init__(self, inline: _Inline) -> None:
        self._inline = inline

    async def add_within(self, jobs: Sequence[NewJob], *, actor: str, **_: Any) -> list[Job]:
        return await self._inline.add(jobs, actor=actor)

    async def finish(self, ended: Sequence[tuple[Job, Done]], **_: Any) -> list[Job]:
        return await self._inline.finish(ended)

    def __getattr__(self, name: str) -> Any:
        raise ConfigurationError(
            f"inline stores jobs in memory, without a database for {name}; use fresh with "
            "url='sqlite:///FILE'"
        )


async def _await(handler: Callable[[], Any], own: contextvars.Context) -> Any:
    if in_loop():
        return await asyncio.get_running_loop().create_task(handler(), context=own)

    async def call() -> Any:
        return await handler()

    return own.run(run, call(), "")


def _caught(handler: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call a handler; some exceptions, such as StopIteration, cannot cross a future."""
    try:
        return handler(), None
    except Exception as error:  # noqa: BLE001 - raised again by the caller
        return None, error

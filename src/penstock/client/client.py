"""The clients: the same calls for an event loop and for synchronous code."""

import asyncio
import functools
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from penstock.client.connection import connect
from penstock.client.events import EventCalls, Tags
from penstock.client.remote import RemotePenstock
from penstock.client.worker import EventWorker, Handler, until_signalled
from penstock.core.job import Job
from penstock.engine.penstock import run_sync

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT = timedelta(seconds=30)


class AsyncClient(EventCalls):
    """A client of a server for one event loop: publishes and handles events.

    `token` is that of PENSTOCK_TOKEN unless given, `worker` the name in the log, by default
    host and process. A call that fails with a transient error is retried `retries` times, with
    growing pauses. `timeout` is how long a call may take, in addition to the time that it waits
    for events. `jobs` is the queue behind the server.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        worker: str | None = None,
        retries: int = 5,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self._connection = connect(url, token, retries=retries, timeout=timeout.total_seconds())
        self.url = self._connection.url
        self.worker = worker or own_name()
        self.jobs = RemotePenstock.on(self._connection)

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        """Store a job for a task of another program; the options are the fields of a `NewJob`.

        A call without an answer is retried under a dedupe key of its own.
        """
        return await self.jobs.enqueue(task, args, **options)

    async def work(self, tags: Tags, handler: Handler, **options: Any) -> None:
        """Handle events with any of these tags, until SIGINT, SIGTERM or `EventWorker.stop`.

        The options are those of `EventWorker`.
        """
        worker = EventWorker(self, tags, handler, **options)
        with until_signalled(worker.stop):
            await worker.run()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _blocking(
    call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Return the same call for synchronous code."""

    @functools.wraps(call)
    def blocking(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(call(self._calls, *args, **kwargs))

    return blocking


class Client:
    """The same as `AsyncClient`, for synchronous code; threads may share one.

    Calls of `jobs` are coroutines, like those of a `Penstock`: wrap them in `run_sync`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        worker: str | None = None,
        retries: int = 5,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        self._calls = EventCalls()
        self._calls._connection = connect(  # noqa: SLF001 - its own
            url, token, retries=retries, timeout=timeout.total_seconds(), blocking=True
        )
        self._calls.worker = self.worker = worker or own_name()
        self.url = self._calls._connection.url  # noqa: SLF001 - its own
        self.jobs = RemotePenstock.on(self._calls._connection)  # noqa: SLF001 - its own
        self._same = functools.partial(
            AsyncClient, url, token=token, worker=worker, retries=retries, timeout=timeout
        )

    publish = _blocking(EventCalls.publish)
    publish_many = _blocking(EventCalls.publish_many)
    subscribe = _blocking(EventCalls.subscribe)
    start = _blocking(EventCalls.start)
    heartbeat = _blocking(EventCalls.heartbeat)
    release = _blocking(EventCalls.release)
    complete = _blocking(EventCalls.complete)
    fail = _blocking(EventCalls.fail)
    complete_many = _blocking(EventCalls.complete_many)
    fail_many = _blocking(EventCalls.fail_many)
    get = _blocking(EventCalls.get)
    reset = _blocking(EventCalls.reset)
    list = _blocking(EventCalls.list)

    def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Any) -> Job:
        """See `AsyncClient.enqueue`."""
        return run_sync(self.jobs.enqueue(task, args, **options))

    def work(self, tags: Tags, handler: Handler, **options: Any) -> None:
        """See `AsyncClient.work`; runs in an event loop of its own, and blocks until it stops."""

        async def work() -> None:
            async with self._same() as client:
                await client.work(tags, handler, **options)

        asyncio.run(work())

    def close(self) -> None:
        """Close the connections."""
        run_sync(self._calls._connection.close())  # noqa: SLF001 - its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def own_name() -> str:
    """Return the name of this worker for the log: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"

"""Contenders that keep their jobs in PostgreSQL, each in the database of its run."""

# ruff: noqa: D102 - the protocols in benchmarks.contenders say what the methods do

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from benchmarks import postgres
from benchmarks.contenders import Handle, Payload

T = TypeVar("T")

Work = Callable[[Payload], None]
"""What a worker calls per job."""

LOOK_SECONDS = 0.01


class AsyncQueue:
    """An asynchronous library, driven from synchronous code on an event loop of its own.

    All of them run on uvloop, as the commands of PgQueuer and Oban do; the others lose nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = postgres.url_of(folder)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call of the library to its end."""
        return self._runner.run(work)

    def enqueue_own_way(self, payloads: Sequence[Payload]) -> None:
        raise NotImplementedError

    async def work(self, handle: Work, stop: Awaitable[object]) -> None:
        """Run the library's worker; after `stop`, return when all that it ran is settled."""
        raise NotImplementedError

    def fill(self, payloads: Sequence[Payload]) -> None:
        self.enqueue_own_way(payloads)
        postgres.rest(self.folder)

    def drain(self, handle: Handle) -> None:
        self.serve(handle)

    def serve(self, handle: Handle) -> None:
        enough = asyncio.Event()

        def count(payload: Payload) -> None:
            if not handle(payload):
                enough.set()

        self.run(self.work(count, enough.wait()))

    def share(self, handle: Handle, is_over: Callable[[], bool]) -> None:
        async def over() -> None:
            while not is_over():  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(LOOK_SECONDS)

        def count(payload: Payload) -> None:
            handle(payload)

        self.run(self.work(count, over()))

    def close(self) -> None:
        self._runner.close()

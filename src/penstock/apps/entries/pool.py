"""The pool: processes that embed, started at need, and started again when they die.

They are processes of their own, so that a request never waits for an embedder. Each claims for
itself; this process only sees to it that they are there.
"""

import asyncio
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import msgspec

from penstock import PenstockError, State
from penstock.apps.entries import rows
from penstock.apps.entries.entries import Entries
from penstock.apps.entries.operations import OPERATIONS_QUEUE
from penstock.apps.entries.rows import QUEUE
from penstock.apps.entries.settings import Settings

_log = logging.getLogger(__name__)

GRACE = timedelta(seconds=30)
_LOOK_AGAIN = 5.0
_PAUSE = 0.2
_FIRST_REST, _LONGEST_REST = 0.1, 30.0
_LONG_LIFE = 10.0
"""Seconds after which a process that dies had not died at once."""


class Told(msgspec.Struct, frozen=True):
    """What a process is told on its standard input."""

    url: str
    folder: str
    settings: Settings


class Pool:
    """The processes that embed for one server."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._penstock = entries.penstock
        self.restarts = 0
        self.processes: dict[int, int] = {}
        """The process ids of those that run, by their places."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have them run, inside the block; at its end they finish what they are at."""
        keeping = asyncio.create_task(self._run())
        try:
            yield
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    async def _run(self) -> None:
        await self._until(self._is_needed)
        await self._until(self._prepare)
        async with asyncio.TaskGroup() as group:
            for place in range(self._entries.settings.workers):
                group.create_task(self._keep(place))

    async def _until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Look again whenever jobs have changed, and after a while where the store is away."""
        seen = 0
        while True:
            try:
                if await is_so():
                    return
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(_PAUSE)

    async def _is_needed(self) -> bool:
        """Whether there is work, or something to be checked: others start no processes."""
        if any((await self._entries.counts()).values()) or self._entries.shelves.folder.exists():
            return True
        return any(
            n
            for (queue, state, _), n in (await self._penstock.count()).items()
            if queue in (QUEUE, OPERATIONS_QUEUE)
            if state in (State.PENDING, State.RUNNING)
        )

    async def _prepare(self) -> bool:
        """What is done once at the start."""
        await self._penstock.transact(rows.gather_counts)
        if self._entries.settings.retry_failed:
            await self._entries.retry_failed()
        return True

    async def _keep(self, place: int) -> None:
        """Have one process run; rest a little longer each time that it dies at once."""
        rest = _FIRST_REST
        while True:
            began = time.monotonic()
            code = await self._one(place)
            self.restarts += 1
            _log.warning("embedding process %d ended with %d; another takes its place", place, code)
            lived = time.monotonic() - began > _LONG_LIFE
            rest = _FIRST_REST if lived else min(rest * 2, _LONGEST_REST)
            await asyncio.sleep(rest)

    async def _one(self, place: int) -> int:
        module = "penstock.apps.entries.child"
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=PIPE)
        self.processes[place] = process.pid
        try:
            await self._tell(process)
            return await process.wait()
        finally:
            await _end(process)
            self.processes.pop(place, None)

    async def _tell(self, process: Process) -> None:
        """What it needs to know, not where everybody on the machine could read it."""
        told = Told(
            url=self._penstock.url,
            folder=str(self._entries.shelves.folder),
            settings=self._entries.settings,
        )
        if process.stdin is not None:
            with suppress(ConnectionError):  # it is gone: that is seen by whoever waits for it
                process.stdin.write(msgspec.json.encode(told) + b"\n")
                await process.stdin.drain()


async def _end(process: Process) -> None:
    """Let it finish what it is at: the end of its input tells it to."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(GRACE.total_seconds()):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()

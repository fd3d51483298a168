"""The processes of a server that work on items: started at need, and again when one dies.

They are processes of their own, so that no request waits for what is cut and embedded there.
"""

import asyncio
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from penstock import Penstock, PenstockError, State
from penstock.apps.ingest.process import Told
from penstock.apps.ingest.service import QUEUE
from penstock.apps.ingest.settings import Settings

_log = logging.getLogger(__name__)

_BEGIN = "from penstock.apps.ingest.process import main; main()"
_GRACE = 30.0
_LOOK_AGAIN = 5.0
_PAUSE = 0.2
_FIRST_REST, _LONGEST_REST = 0.1, 30.0
_LONG_LIFE = 10.0
"""Seconds after which a process that dies has not died at once."""


class Pool:
    """The processes that work on the items of one server."""

    def __init__(self, penstock: Penstock, settings: Settings, data: Path) -> None:
        self._penstock = penstock
        self._settings = settings
        self._data = data
        self.processes: dict[int, int] = {}
        """The ids of those that run, by their places."""

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
        if not self._settings.workers:
            return
        await self._until_needed()
        async with asyncio.TaskGroup() as group:
            for place in range(self._settings.workers):
                group.create_task(self._keep(place))

    async def _until_needed(self) -> None:
        """A server without items starts no processes."""
        seen = 0
        while True:
            try:
                if await self._is_needed():
                    return
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(_PAUSE)

    async def _is_needed(self) -> bool:
        counts = await self._penstock.count()
        unfinished = (State.PENDING, State.RUNNING)
        return any(
            n for (queue, state, _), n in counts.items() if queue == QUEUE if state in unfinished
        )

    async def _keep(self, place: int) -> None:
        """Have one process run; rest longer each time that it dies at once."""
        rest = _FIRST_REST
        while True:
            began = time.monotonic()
            code = await self._one(place)
            _log.warning("process %d for items ended with %d; another takes its place", place, code)
            lived = time.monotonic() - began > _LONG_LIFE
            rest = _FIRST_REST if lived else min(rest * 2, _LONGEST_REST)
            await asyncio.sleep(rest)

    async def _one(self, place: int) -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _BEGIN, stdin=PIPE)
        self.processes[place] = process.pid
        try:
            await self._tell(process)
            return await process.wait()
        finally:
            self.processes.pop(place, None)
            await _end(process)

    async def _tell(self, process: Process) -> None:
        told = Told(url=self._penstock.url, data=str(self._data), settings=self._settings)
        if process.stdin is not None:
            with suppress(ConnectionError):  # it is gone, and whoever waits for it sees that
                process.stdin.write(msgspec.json.encode(told) + b"\n")
                await process.stdin.drain()


async def _end(process: Process) -> None:
    """Let it finish what it is at: the end of its input tells it to."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()

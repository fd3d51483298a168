"""Processes of a server that work for an application: started at need, and again when one dies.

They are processes of their own, so that no request waits for what they compute. Each claims for
itself; the server only sees to it that they are there. A process is told what it needs on its
standard input, because others can read command lines, and ends when that does.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

from penstock import Penstock, PenstockError, Worker
from penstock.apps.beside import beside
from penstock.logs import child_environment, set_up_child_logging

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GRACE = 30.0
_LAST_WAIT = 5.0
_LOOK_AGAIN = 5.0
_PAUSE = 0.2
_FIRST_REST, _LONGEST_REST = 0.1, 30.0
_LONG_LIFE = 10.0
"""Seconds after which a process that dies has not died at once."""
_POLITE = 5
"""How much requests go before the work of these processes, where both want the processor."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


class Pool:
    """So many processes that each run `main` of a module, which asks `told` for what it needs.

    They start when `is_needed` says so, which is asked whenever jobs have changed.
    """

    def __init__(
        self,
        penstock: Penstock,
        module: str,
        told: msgspec.Struct,
        workers: int,
        is_needed: Callable[[], Awaitable[bool]],
        *,
        name: str,
    ) -> None:
        """`name` is what the names of their workers begin with: see `worker_name`."""
        self._name = name
        self._penstock = penstock
        self._module = module
        self._told = told
        self._workers = workers
        self._is_needed = is_needed
        self.processes: dict[int, int] = {}
        """The ids of those that run, by their places."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have them run, inside the block; at its end they finish what they are at."""
        async with beside(self._run()):
            yield

    async def _run(self) -> None:
        if not self._workers:
            return
        await self._until_needed()
        async with asyncio.TaskGroup() as group:
            for place in range(self._workers):
                group.create_task(self._keep(place))

    async def _until_needed(self) -> None:
        """Look again whenever jobs have changed, and after a while where the store is away."""
        seen = 0
        while True:
            try:
                if await self._is_needed():
                    return
                seen = await self._penstock.wait(seen, _LOOK_AGAIN)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(_PAUSE)

    async def _keep(self, place: int) -> None:
        """Have one process run; rest longer each time that it dies at once."""
        rest = _FIRST_REST
        while True:
            began = time.monotonic()
            code = await self._one(place)
            text = "process %d of %s ended with %d; another takes its place"
            _log.warning(text, place, self._module, code)
            lived = time.monotonic() - began > _LONG_LIFE
            rest = _FIRST_REST if lived else min(rest * 2, _LONGEST_REST)
            await asyncio.sleep(rest)

    async def _one(self, place: int) -> int:
        begin = f"from {self._module} import main; main()"
        # They share the cores: none of them may take all. NumPy asks for it once.
        threads = str(max(1, (os.cpu_count() or 1) // self._workers))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", begin),
            stdin=PIPE,
            env={**dict.fromkeys(_THREADS, threads), **os.environ, **child_environment()},
        )
        self.processes[place] = process.pid
        try:
            await self._tell(process)
            return await process.wait()
        finally:
            await _end(process)
            self.processes.pop(place, None)
            await self._deregister(process.pid)

    async def _deregister(self, pid: int) -> None:
        """Take the worker of a process that has ended off the list: it may not have said so."""
        try:
            async with asyncio.timeout(_LAST_WAIT):
                await self._penstock.store.dismiss([worker_name(self._name, pid)])
        except (PenstockError, TimeoutError) as error:
            _log.warning("the worker of process %d stays in the list: %s", pid, error)

    async def _tell(self, process: Process) -> None:
        if process.stdin is not None:
            with suppress(ConnectionError):  # it is gone, and whoever waits for it sees that
                process.stdin.write(msgspec.json.encode(self._told) + b"\n")
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


def told(kind: type[T]) -> T:
    """In such a process: what it was told. From then on it lets requests go first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends our input
    set_up_child_logging()
    heard = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    os.nice(_POLITE)
    return heard


def worker_name(prefix: str, pid: int) -> str:
    """Return the name of the worker in a process, which its supervisor knows as well."""
    return f"{prefix}:{socket.gethostname()}:{pid}"


def stop_at_the_end_of_input(worker: Worker) -> None:
    """The server holds the other end: however it ends, so does this process."""
    loop = asyncio.get_running_loop()
    lifeline = sys.stdin.fileno()

    def look() -> None:
        with suppress(OSError):
            if os.read(lifeline, 1024):
                return
        loop.remove_reader(lifeline)
        worker.stop()

    loop.add_reader(lifeline, look)
    loop.add_signal_handler(signal.SIGTERM, worker.stop)

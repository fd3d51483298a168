"""Worker processes of an application, started and restarted by a server.

They are separate processes so that requests do not wait for their computations. Each claims jobs
for itself; the server only keeps them running. A process reads what it needs from its standard
input, because command lines are visible to others, and ends when that input does.
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

from penstock.apps.kit.background import in_background
from penstock.core.errors import PenstockError
from penstock.engine.penstock import Penstock
from penstock.logs import child_environment, set_up_child_logging
from penstock.worker.worker import Worker

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GRACE = 30.0
_LAST_WAIT = 5.0
_POLL = 5.0
_PAUSE = 0.2
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0
_LONG_LIFE = 10.0
"""Seconds after which the next restart is not delayed any longer."""
_NICENESS = 5
"""How far these processes give way to requests when both want the processor."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


class Pool:
    """A number of processes that each call `main` of a module.

    `main` calls `startup_message` for the message that they are started with. They start when
    `is_needed` returns true; it is called whenever jobs have changed. The names of their workers
    start with `name`: see `worker_name`.
    """

    def __init__(
        self,
        penstock: Penstock,
        module: str,
        message: msgspec.Struct,
        workers: int,
        is_needed: Callable[[], Awaitable[bool]],
        *,
        name: str,
    ) -> None:
        self._name = name
        self._penstock = penstock
        self._module = module
        self._message = message
        self._workers = workers
        self._is_needed = is_needed
        self.processes: dict[int, int] = {}
        """The process IDs of those that run, by their place in the pool."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the processes inside the block; at its end they finish their current jobs."""
        async with in_background(self._run()):
            yield

    async def _run(self) -> None:
        if not self._workers:
            return
        await self._until_needed()
        async with asyncio.TaskGroup() as group:
            for place in range(self._workers):
                group.create_task(self._keep(place))

    async def _until_needed(self) -> None:
        """Wait until there is work, also through times when the store is unavailable."""
        seen = 0
        while True:
            try:
                if await self._is_needed():
                    return
                seen = await self._penstock.wait(seen, _POLL)
            except PenstockError as error:
                _log.warning("the store did not answer, trying again: %s", error)
            await asyncio.sleep(_PAUSE)

    async def _keep(self, place: int) -> None:
        """Keep one process running, with growing delays if it exits shortly after each start."""
        delay = _FIRST_DELAY
        while True:
            started = time.monotonic()
            code = await self._one(place)
            text = "process %d of %s exited with status %d and is restarted"
            _log.warning(text, place, self._module, code)
            lived = time.monotonic() - started > _LONG_LIFE
            delay = _FIRST_DELAY if lived else min(delay * 2, _LONGEST_DELAY)
            await asyncio.sleep(delay)

    async def _one(self, place: int) -> int:
        command = f"from {self._module} import main; main()"
        # They share the cores, so none of them may use all. NumPy reads this once.
        threads = str(max(1, (os.cpu_count() or 1) // self._workers))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", command),
            stdin=PIPE,
            env={**dict.fromkeys(_THREADS, threads), **os.environ, **child_environment()},
        )
        self.processes[place] = process.pid
        try:
            await self._send_message(process)
            return await process.wait()
        finally:
            await _end(process)
            self.processes.pop(place, None)
            await self._deregister(process.pid)

    async def _deregister(self, pid: int) -> None:
        """Deregister the worker of a process that has ended; it may not have done so itself."""
        try:
            async with asyncio.timeout(_LAST_WAIT):
                await self._penstock.store.deregister([worker_name(self._name, pid)])
        except (PenstockError, TimeoutError) as error:
            _log.warning("the worker of process %d stays registered: %s", pid, error)

    async def _send_message(self, process: Process) -> None:
        if process.stdin is not None:
            with suppress(ConnectionError):  # it has exited, which its `wait` reports
                process.stdin.write(msgspec.json.encode(self._message) + b"\n")
                await process.stdin.drain()


async def _end(process: Process) -> None:
    """End a process by closing its input; kill it if it does not exit in time."""
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


def startup_message(kind: type[T]) -> T:
    """Return the message that this process of a `Pool` was started with, and lower its priority."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends our input
    set_up_child_logging()
    message = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    os.nice(_NICENESS)
    return message


def worker_name(prefix: str, pid: int) -> str:
    """Return the name of the worker in a process, which its supervisor knows as well."""
    return f"{prefix}:{socket.gethostname()}:{pid}"


def stop_with_server(worker: Worker) -> None:
    """Stop a worker when the server closes the input of this process or exits in any way."""
    loop = asyncio.get_running_loop()
    lifeline = sys.stdin.fileno()

    def read() -> None:
        with suppress(OSError):
            if os.read(lifeline, 1024):
                return
        loop.remove_reader(lifeline)
        worker.stop()

    loop.add_reader(lifeline, read)
    loop.add_signal_handler(signal.SIGTERM, worker.stop)

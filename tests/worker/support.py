"""Support for the tests of the worker: ways to run one, and to wait for its effects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from penstock import Job, Penstock, RetryPolicy, Worker
from penstock.jobs import Event
from tests.contract.support import HOUR, SECOND, ManualClock
from tests.environment import SOON

ONCE = RetryPolicy(attempts=1)
AT_ONCE = RetryPolicy(attempts=3, delay=0 * SECOND)
"""Three attempts without a delay between them."""


async def work_off(app: Penstock, **options: Any) -> None:
    """Run a worker until nothing is ready."""
    async with asyncio.timeout(SOON):
        await Worker(app, **options).run(until_empty=True)


async def ended(running: "asyncio.Task[None]") -> None:
    """Wait for the end of a worker; fail if it does not end soon."""
    done, _ = await asyncio.wait({running}, timeout=SOON)
    assert done, "the worker did not end"
    await running


@asynccontextmanager
async def working(app: Penstock, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker inside the block."""
    worker = Worker(app, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await ended(running)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(SOON):
        while not await holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def take_away(app: Penstock, job: Job, clock: ManualClock) -> None:
    """Let the lease of a running job expire although its worker renews it, and reclaim the job.

    The clock jumps until a renewal comes too late. The worker sweeps as well, so that either may
    reclaim the job.
    """
    async with asyncio.timeout(SOON):
        while True:
            clock.advance(2 * HOUR)
            await app.leases.reclaim()
            if Event.EXPIRED in [entry.event for entry in await app.log(job.id)]:
                return


async def soon(event: asyncio.Event) -> None:
    """Wait for an event; fail if it is not set soon."""
    async with asyncio.timeout(SOON):
        await event.wait()


async def is_final(app: Penstock, job: Job) -> bool:
    """Whether the job has ended for good."""
    return (await app.get(job.id)).state.final


async def exists(file: Path) -> bool:
    """Whether a handler has created this file."""
    return file.exists()  # noqa: ASYNC240 - nothing else runs here


# Processes


def child_processes(process: int | str = "self") -> list[int]:
    """Return the child processes of a process, zombies included."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found += map(int, (thread / "children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while this is read
        return False
    return status != "Z"


async def are_gone(pids: list[int]) -> bool:
    """Whether all of these processes have ended."""
    return not any(is_alive(pid) for pid in pids)


def pids_in(file: Path) -> list[int]:
    """Return the process IDs that a handler has written to a file."""
    return [int(pid) for pid in file.read_text().split()]

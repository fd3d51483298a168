"""The program of the child process of a `WorkerProcess`."""

import asyncio
import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.job import Claim, Job, JobId
from penstock.core.lifecycle import Event
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.core.transition import Change
from penstock.engine.penstock import Penstock
from penstock.runtime import Runtime, system_clock
from penstock.stores import open_store
from penstock.testing.clock import Clock
from penstock.testing.process import Instructions, Location, Point
from penstock.testing.stores import Proxy
from penstock.worker.worker import Worker

_SETTLED = frozenset({Event.DONE, Event.FAILED, Event.SNOOZED, Event.CANCELLED})


def main(text: str) -> None:
    """Run a worker as instructed, until it is stopped or kills itself."""
    instructions = msgspec.json.decode(text, type=Instructions)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    app = find(instructions.location)
    clock = system_clock if instructions.now is None else Clock(from_micros(instructions.now))
    store = open_store(instructions.url, runtime=Runtime(clock))
    with (
        app.connection.elsewhere(instructions.url, store, app.runtime.with_clock(clock)),
        ReportingStore(store, instructions).before(app),
    ):
        asyncio.run(_work(app, instructions))


def _exit_with_parent() -> None:
    """Exit at the end of standard input, which the parent keeps open while it lives."""
    while os.read(0, 1):
        pass
    os._exit(1)


def find(location: Location) -> Penstock:
    """Return the app from its module, imported by name if possible, otherwise from its file."""
    value: Any = _imported(location)
    for part in location.name.split("."):
        value = getattr(value, part)
    if not isinstance(value, Penstock):
        raise ConfigurationError(f"{location.module}:{location.name} is not a Penstock")
    return value


def _imported(location: Location) -> Any:
    known = None
    if location.module != "__main__":
        try:
            known = importlib.util.find_spec(location.module)
        except ImportError:
            known = None
    if known is not None and location.file in (None, known.origin):
        return importlib.import_module(location.module)
    if location.file is None:
        raise ConfigurationError(f"there is no module {location.module}")
    # A test module that pytest did not import under a name that can be imported here.
    name = location.module if location.module != "__main__" else "__mp_main__"
    spec = importlib.util.spec_from_file_location(name, location.file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{location.file} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _work(app: Penstock, instructions: Instructions) -> None:
    worker = Worker(app, concurrency=instructions.concurrency, queues=instructions.queues)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


class ReportingStore(Proxy):
    """Reports to the parent which jobs reach which point, and kills the process at one of them."""

    def __init__(self, store: Store, instructions: Instructions) -> None:
        super().__init__(store)
        self._instructions = instructions
        self._reached = {"claimed": 0, "ran": 0, "settled": 0}

    async def claim(self, wanted: Claim, **options: Any) -> list[Job]:
        """See `Store.claim`."""
        jobs = await self._store.claim(wanted, **options)
        self._report("claimed", [job.id for job in jobs])
        return jobs

    async def transition(self, changes: Sequence[Change], **options: Any) -> list[Job | None]:
        """See `Store.transition`."""
        ended = [change.job.id for change in changes if change.move.event in _SETTLED]
        self._report("ran", ended)
        answers = await self._store.transition(changes, **options)
        self._report("settled", ended)
        return answers

    def _report(self, point: Point, ids: Sequence[JobId]) -> None:
        for job_id in ids:
            os.write(self._instructions.report, f"{point} {job_id}\n".encode())
            self._reached[point] += 1
            if (
                point == self._instructions.point
                and self._reached[point] == self._instructions.kill_at
            ):
                os.kill(os.getpid(), signal.SIGKILL)

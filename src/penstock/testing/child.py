"""What a `WorkerProcess` runs in its child."""

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
from penstock.core.job import Change, Claim, Job, JobId
from penstock.core.lifecycle import Event
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.engine import Penstock
from penstock.stores import open_store, system_clock
from penstock.testing.clock import Clock
from penstock.testing.process import Order, Place, Point
from penstock.testing.proxy import Proxy
from penstock.worker.worker import Worker

_SETTLED = frozenset({Event.DONE, Event.FAILED, Event.SNOOZED, Event.CANCELLED})


def main(text: str) -> None:
    """Work as ordered, until told to stop or until the point of death."""
    order = msgspec.json.decode(text, type=Order)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    app = find(order.place)
    clock = system_clock if order.now is None else Clock(from_micros(order.now))
    store = open_store(order.url, clock=clock)
    with app.elsewhere(order.url, store, clock), Telling(store, order).before(app):
        asyncio.run(_work(app, order))


def _leave_with_the_parent() -> None:
    """Wait for the end of standard input, whose other side the parent holds while it lives."""
    while os.read(0, 1):
        pass
    os._exit(1)


def find(place: Place) -> Penstock:
    """The app in its module, imported as its program would, or else from its file."""
    value: Any = _imported(place)
    for part in place.name.split("."):
        value = getattr(value, part)
    if not isinstance(value, Penstock):
        raise ConfigurationError(f"{place.module}:{place.name} is not a Penstock")
    return value


def _imported(place: Place) -> Any:
    known = None
    if place.module != "__main__":
        try:
            known = importlib.util.find_spec(place.module)
        except ImportError:
            known = None
    if known is not None and place.file in (None, known.origin):
        return importlib.import_module(place.module)
    if place.file is None:
        raise ConfigurationError(f"there is no module {place.module}")
    # A test's own module, which pytest did not import by a name that others could use.
    name = place.module if place.module != "__main__" else "__mp_main__"
    spec = importlib.util.spec_from_file_location(name, place.file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{place.file} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _work(app: Penstock, order: Order) -> None:
    worker = Worker(app, concurrency=order.concurrency, queues=order.queues)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


class Telling(Proxy):
    """Tells the parent which job has come to which point, and dies at the one that was ordered."""

    def __init__(self, store: Store, order: Order) -> None:
        super().__init__(store)
        self._order = order
        self._told = {"claimed": 0, "ran": 0, "settled": 0}

    async def claim(self, wanted: Claim, **options: Any) -> list[Job]:
        """See `Store.claim`."""
        jobs = await self._store.claim(wanted, **options)
        self._tell("claimed", [job.id for job in jobs])
        return jobs

    async def transition(self, changes: Sequence[Change], **options: Any) -> list[Job | None]:
        """See `Store.transition`."""
        ended = [change.job.id for change in changes if change.move.event in _SETTLED]
        self._tell("ran", ended)
        answers = await self._store.transition(changes, **options)
        self._tell("settled", ended)
        return answers

    def _tell(self, point: Point, ids: Sequence[JobId]) -> None:
        for job_id in ids:
            os.write(self._order.report, f"{point} {job_id}\n".encode())
            self._told[point] += 1
            if point == self._order.point and self._told[point] == self._order.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

"""Servers in a simulated world, and the programs that reach them over its network."""

import asyncio
import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

from penstock.apps import events
from penstock.client.client import AsyncClient
from penstock.client.connection import Connection
from penstock.client.remote import RemotePenstock
from penstock.client.values import Event, NewEvent, Report
from penstock.client.worker import EventWorker
from penstock.core.errors import PenstockError, ServerUnreachable
from penstock.core.job import Job, Retention
from penstock.engine.penstock import Penstock
from penstock.server.app import Service
from penstock.testing.simulation.world import Process, World
from penstock.worker.upkeep import Upkeep
from tests.crash.recording import (
    DOUBT,
    Asked,
    AskedJob,
    Claimed,
    Refused,
    Settled,
    Told,
    asked_job,
    mark_of,
    recorded_run,
)
from tests.simulation.application import LEASE, PAUSE, Program, WorldRecorder
from tests.simulation.network import Network, SimulatedTransport
from tests.simulation.plan import JobSpec, Order

TAG = "simulated"
_SWEEP = timedelta(seconds=1)
_RESTART = 1.0
_RETRIES = 3


async def serve(
    world: World, network: Network, place: str, process: Process, url: str, **options: Any
) -> None:
    """Run a server, until its process dies; a supervisor starts it again if it cannot begin."""
    settings = events.Settings(retry_delay=PAUSE.total_seconds(), lease=LEASE.total_seconds())
    while True:
        app = Penstock(url, actor=process.name, runtime=process.runtime, **options)
        service = Service(app, [events.install(app, settings)])
        try:
            async with service.running():
                network.listen(place, process, service)
                await Upkeep(app, None, _SWEEP, Retention()).run()
        except PenstockError as error:
            world.tell(f"{process.name}: ended by {error}")
            await asyncio.sleep(_RESTART)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Report nothing about what processes that died left half done."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    logging.disable()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)
        sys.unraisablehook = before


class RemoteProgram(Program):
    """A program that enqueues over HTTP. It never opens the store."""

    def __init__(self, *args: Any, transport: SimulatedTransport, **options: Any) -> None:
        super().__init__(*args, **options)
        connection = Connection("http://simulated", transport, _RETRIES, self.runtime)
        self._transport = transport
        self._jobs = RemotePenstock.on(connection)
        self._events = RecordedEvents(connection, self.recorder)

    async def send(self, order: Order) -> None:
        if order.events:
            new = [self._event(spec) for spec in order.jobs]
            call = self._ask([_asked_event(event) for event in new])
            published = await self._answer(call, self._events.publish_many(new))
            stored = [(one.id, one.payload["mark"]) for one in published]
            asked = [event.payload["mark"] for event in new]
        else:
            jobs = [self.new(spec) for spec in order.jobs]
            call = self._ask([asked_job(job) for job in jobs])
            answered = await self._answer(call, self._jobs.enqueue_many(jobs))
            stored = [(job.id, mark_of(job.payload)) for job in answered]
            asked = [mark_of(job.payload) for job in jobs]
        # A repeated request is answered with the job that it stored the first time.
        told = [(n, found != mark) for (n, found), mark in zip(stored, asked, strict=True)]
        self.recorder.note(Told, call=call, jobs=told)

    def _ask(self, jobs: list[AskedJob]) -> int:
        call = next(self.recorder.calls)
        self.recorder.note(Asked, call=call, jobs=jobs, repeats=True)
        return call

    async def _answer(self, call: int, answer: Any) -> Any:
        """Await an answer; a refusal is certain only if the request was sent once."""
        before = self._transport.copies
        try:
            return await answer
        except PenstockError as error:
            known = DOUBT not in str(error) and not isinstance(error, ServerUnreachable)
            if known and self._transport.copies == before + 1:
                self.recorder.note(Refused, call=call, error=f"{type(error).__name__}: {error}")
            raise

    async def handle_events(self) -> None:
        """Run the worker of events, until its process dies."""
        while True:
            worker = EventWorker(
                self._events,
                TAG,
                self._handle,
                concurrency=3,
                wait=timedelta(seconds=3),
                heartbeat=LEASE / 4,
            )
            try:
                await worker.run()
            except PenstockError as error:  # a supervisor starts it again
                self.recorder.tell(f"ended by {error}")
                await asyncio.sleep(_RESTART)

    async def _handle(self, event: Event) -> None:
        held = _Held(event.id, event.token or 0, event.retry_count + 1)
        with recorded_run(cast("Job", held), self.recorder, self._fence):
            deed = await self.begin(event.payload["does"], held.attempt)
            if deed in {"fail", "permanent"}:
                raise RuntimeError("as it was told")

    def _event(self, spec: JobSpec) -> NewEvent:
        delay = spec.options.get("delay")
        return NewEvent(
            "simulated",
            TAG,
            {"mark": self.mark(), "does": spec.does},
            priority=spec.options["priority"],
            max_retries=spec.options["attempts"],
            key=spec.options.get("key"),
            delay=None if delay is None else timedelta(seconds=delay),
            dedupe=spec.options.get("dedupe"),
        )


def _asked_event(event: NewEvent) -> AskedJob:
    dedupe = None if event.dedupe is None else f"events:{event.dedupe}"
    return AskedJob(event.payload["mark"], "events", event.key, dedupe)


class _Held(NamedTuple):
    """An event in a worker's hands, as far as recording it goes."""

    id: int
    token: int
    attempt: int


class RecordedEvents(AsyncClient):
    """A client of events that notes what it is given and what it reports."""

    def __init__(self, connection: Connection, recorder: WorldRecorder) -> None:
        self._connection = connection
        self.url = connection.url
        self.worker = recorder.client
        self.jobs = RemotePenstock.on(connection)
        self.recorder = recorder

    async def subscribe(self, *args: Any, **options: Any) -> list[Event]:
        found = await super().subscribe(*args, **options)
        if found:
            self.recorder.note(Claimed, runs=[(event.id, event.token) for event in found])
        return found

    async def complete_many(self, events: Sequence[Event]) -> list[Report]:
        return self._settled(events, await super().complete_many(events))

    async def fail_many(self, failures: Sequence[tuple[Event, str]]) -> list[Report]:
        return self._settled([event for event, _ in failures], await super().fail_many(failures))

    def _settled(self, events: Sequence[Event], reports: list[Report]) -> list[Report]:
        runs = [(e.id, e.token, one.recorded) for e, one in zip(events, reports, strict=True)]
        self.recorder.note(Settled, runs=runs)
        return reports

"""Serving: the settings become a service that listens until it is told to stop."""

import asyncio
import contextlib
import errno
import gc
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import uvicorn

from penstock.apps.beside import beside
from penstock.config import Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.core.redaction import redacted
from penstock.engine import Penstock
from penstock.http.routes import routes_of
from penstock.server.app import Service
from penstock.server.gate import Gatekeeper
from penstock.server.installed import install, origin_of, retention_of, store_url
from penstock.server.meter import Meter
from penstock.server.metrics import Metrics
from penstock.server.site import Site, is_loopback
from penstock.server.wire import BoundedProtocol
from penstock.stores import open_store
from penstock.stores.observed import Timing, observe
from penstock.worker.upkeep import Upkeep
from penstock.worker.worker import Worker

# An event's payload has 1 MB; its title, description and the like come on top.
_PAYLOAD_LIMIT = 1_200_000
_SWEEP = timedelta(seconds=1)
_SELDOM = timedelta(minutes=1)
"""How often the other workers of a process look after the store: one of them is enough."""
_TURN = 0.001
# Connections that wait to be accepted.
_BACKLOG = 2048
_OTHER_PORT = {
    errno.EADDRINUSE: "--port 0, which takes a free one",
    errno.EACCES: "a port above 1023: those below are for administrators",
}


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises `ConfigurationError`."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(kind, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        problem = ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}"
        )
        if error.errno in _OTHER_PORT:
            problem.add_note(_OTHER_PORT[error.errno])
        raise problem from error
    return listening


def address_of(listening: socket.socket) -> str:
    """Where a socket listens, as the URL of a server."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Listener(uvicorn.Server):
    """Serves on a socket. Signals are not its business: whoever runs it handles them."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests, and finish those under way."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Keep the date of answers, until it is stopped: uvicorn's own looks ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class Serving:
    """One process of a server: serves requests and, unless others do, runs jobs; until `stop`."""

    def __init__(
        self,
        settings: Server,
        sources: Sources,
        *,
        process: int = 0,
        replaces: int | None = None,
    ) -> None:
        """Of several processes, the one with the number 0 runs the jobs.

        `replaces` is the process whose place this one takes, because it has died.
        """
        self._settings = settings
        self._replaces = replaces
        self._works = process == 0
        self._grace = timedelta(seconds=settings.grace)
        self._retention = retention_of(settings)
        timings: dict[str, Timing] = {}
        self._penstock = Penstock(
            store_url(settings),
            payload_limit=_PAYLOAD_LIMIT,
            secret_fields=settings.secret_fields,
            opener=lambda *args, **options: observe(open_store(*args, **options), timings),
            origin=origin_of(settings, sources),
        )
        meter = Meter(logs=settings.request_log)
        metrics = Metrics(self._penstock, meter, timings, process)
        self._service = Service(
            self._penstock,
            install(self._penstock, settings, sources),
            routes_of(metrics),
            meter=meter,
            cors_origins=settings.cors_origins,
            timings=timings,
        )
        self._gate = Gatekeeper(
            self._penstock,
            open_without_tokens=is_loopback(settings.host),
            site=Site(settings.host, settings.cors_origins),
        )
        self._service.guard(self._gate)
        self._listener: _Listener | None = None
        self._workers: list[Worker] = []
        self._told = False

    async def run(self, listening: socket.socket, ready: Callable[[], None]) -> None:
        """Serve on this socket; `ready` is called when requests are answered."""
        config = uvicorn.Config(
            self._service,
            http=BoundedProtocol,
            ws="none",
            proxy_headers=False,  # whose word counts is asked of tokens, not of addresses
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(self._settings.grace)),
        )
        address = address_of(listening)
        # Tokens that applications make for those whom they tell are there when the gate opens.
        async with self._service.running(), self._announced(address), self._gate.running():
            # A store that may not be written is refused now, not with the first job: this changes
            # nothing, but has to be allowed to.
            await self._penstock.store.dismiss(await self._gone())
            if self._settings.metrics_queues is not None:
                await self._penstock.store.series(self._settings.metrics_queues)
            await self._refuse_strangers()
            async with self._working():
                # What is here now stays: a collector that walks all of it stops every request
                # for 50 ms, about once a second under load.
                gc.collect()
                gc.freeze()
                # While threads compute lists, the event loop waits for its turn this long each
                # time; with Python's own 5 ms, /health took 80 ms then, with this it takes 20.
                sys.setswitchinterval(_TURN)
                self._listener = _Listener(config, ready)
                if self._told:
                    self._listener.stop()
                await self._listener.serve([listening])

    async def _gone(self) -> list[str]:
        """The workers of the process whose place this one takes."""
        if self._replaces is None:
            return []
        dead = (socket.gethostname(), self._replaces)
        return [one.name for one in await self._penstock.workers() if (one.host, one.pid) == dead]

    def stop(self) -> None:
        """Answer those who wait, finish the requests and jobs under way, within the grace."""
        self._told = True
        self._service.let_go()
        if self._listener is not None:
            self._listener.stop()
        for worker in self._workers:
            worker.stop()

    async def _refuse_strangers(self) -> None:
        host = self._settings.host
        if not is_loopback(host) and not await self._penstock.tokens():
            problem = ConfigurationError(
                f"{host} can be reached from elsewhere, and there is no access token"
            )
            store = shlex.quote(redacted(self._penstock.url))
            problem.add_note(f"penstock token create NAME --scope SCOPE --store {store}")
            raise problem

    @asynccontextmanager
    async def _announced(self, address: str) -> AsyncIterator[None]:
        """Tell the applications where the server is, inside the block; one process does."""
        async with contextlib.AsyncExitStack() as stack:
            for application in self._service.applications if self._works else ():
                await stack.enter_async_context(application.listening(address))
                if self._settings.workers:
                    await stack.enter_async_context(application.working())
            yield

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Run jobs of the applications, inside the block; at its end they get their grace."""
        if not self._works:
            yield
            return
        if self._settings.workers == 0 or not self._penstock.tasks:
            async with _kept_up(self._penstock, self._retention):
                yield
            return
        self._workers = self._made_workers()
        running = [asyncio.create_task(self._work(worker)) for worker in self._workers]
        for one in running:
            one.add_done_callback(lambda _: self.stop())  # whatever ended it, it has to be seen
        try:
            yield
        finally:
            for worker, one in zip(self._workers, running, strict=True):
                worker.stop()
                if worker.draining:  # it may be over, and what follows it is to end
                    one.cancel()
            for one in running:
                with suppress(asyncio.CancelledError):
                    await one

    def _made_workers(self) -> list[Worker]:
        """One worker for each queue that has its own, and one for all others."""
        slots: dict[str, int] = {}
        for application in self._service.applications:
            slots |= application.slots
        others = {task.queue for task in self._penstock.tasks.values()} - slots.keys()
        made = [(sorted(others), self._settings.workers)] if others else []
        made += [([queue], concurrency) for queue, concurrency in slots.items()]
        return [
            Worker(
                self._penstock,
                queues=queues,
                concurrency=n,
                grace=self._grace,
                sweep=sweep,
                retention=self._retention,
            )
            for (queues, n), sweep in zip(made, (_SWEEP, *[_SELDOM] * len(slots)), strict=False)
        ]

    async def _work(self, worker: Worker) -> None:
        """Run jobs; a server whose worker was drained goes on without one."""
        await worker.run()
        if worker.draining and not self._told:
            await Upkeep(self._penstock, None, _SWEEP, self._retention).run()


@asynccontextmanager
async def _kept_up(penstock: Penstock, retention: Retention) -> AsyncIterator[None]:
    """Take back leases that ran out, sum up the log and prune, where no worker does it."""
    async with beside(Upkeep(penstock, None, _SWEEP, retention).run()):
        yield

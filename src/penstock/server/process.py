"""A process of a server: from its settings to a service that listens until it is stopped."""

import asyncio
import contextlib
import errno
import gc
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from datetime import timedelta

import uvicorn

from penstock.apps.kit.background import in_background
from penstock.config import Server, Sources, store_url
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.core.redaction import redacted
from penstock.engine.penstock import Penstock
from penstock.server.app import Service
from penstock.server.applications import child_factory, install
from penstock.server.authentication import Authenticator, Site, is_loopback
from penstock.server.metrics import Metrics
from penstock.server.protocol import BoundedProtocol
from penstock.server.request_metrics import RequestMetrics
from penstock.stores import open_store
from penstock.stores.observed import Timing, observe
from penstock.web.routes import routes_of
from penstock.worker.liveness import Liveness, Pulse
from penstock.worker.upkeep import Upkeep
from penstock.worker.worker import Worker

# Applications accept payloads of 1 MB; titles, descriptions and the like are stored with them.
_PAYLOAD_LIMIT = 1_200_000
_SWEEP = timedelta(seconds=1)
_RARE_SWEEP = timedelta(minutes=1)
"""How often the other workers of a process do the upkeep of the store: one is enough."""
_SWITCH_INTERVAL = 0.001
_NEW_OBJECTS = 10_000
# Connections that may wait to be accepted.
_BACKLOG = 2048
_OTHER_PORT = {
    errno.EADDRINUSE: "--port 0, which chooses a free one",
    errno.EACCES: "a port above 1023; lower ones are reserved for administrators",
}


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one. Raises `ConfigurationError`."""
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
    """Return the URL of a server that listens on this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Accept no more requests, and finish the current ones."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Update the date of responses once a second; uvicorn itself does so ten times a second."""
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


class ServerProcess:
    """A process of a server: serves requests and, if it is the first, runs jobs, until `stop`."""

    def __init__(
        self,
        settings: Server,
        sources: Sources,
        *,
        process: int = 0,
        replaces: int | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """Number the processes of a server from 0: process 0 runs the jobs.

        `replaces` is the id of a dead process that this one replaces. `pulse` beats while the
        process answers requests and its store answers the process.
        """
        self._settings = settings
        self._pulse = pulse
        self._replaces = replaces
        self._works = process == 0
        self._grace = timedelta(seconds=settings.grace)
        self._retention = settings.retention
        timings: dict[str, Timing] = {}
        self._penstock = Penstock(
            store_url(settings),
            payload_limit=_PAYLOAD_LIMIT,
            migrate=settings.migrate,
            secret_fields=settings.secret_fields,
            opener=lambda *args, **options: observe(open_store(*args, **options), timings),
            factory=child_factory(settings, sources),
        )
        requests = RequestMetrics(log=settings.request_log)
        metrics = Metrics(self._penstock, requests, timings, process)
        self._service = Service(
            self._penstock,
            install(self._penstock, settings, sources),
            routes_of(metrics),
            requests=requests,
            cors_origins=settings.cors_origins,
            timings=timings,
        )
        self._authenticator = Authenticator(
            self._penstock,
            open_without_tokens=is_loopback(settings.host),
            site=Site(settings.host, settings.cors_origins),
        )
        self._service.guard(self._authenticator)
        self._listener: _Listener | None = None
        self._workers: list[Worker] = []
        self._stopped = False

    async def run(self, listening: socket.socket, ready: Callable[[], None]) -> None:
        """Serve on this socket; call `ready` once requests are answered."""
        config = uvicorn.Config(
            self._service,
            http=BoundedProtocol,
            ws="none",
            proxy_headers=False,  # callers are known by their tokens, not by their addresses
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(self._settings.grace)),
        )
        address = address_of(listening)
        # Applications may create tokens when they are announced, so authentication comes last.
        async with self._service.running(), self._announced(address), self._authenticator.running():
            # Fail now rather than with the first job if the store is not writable: this needs the
            # permission to write even where there is nothing to change.
            await self._penstock.store.deregister(await self._dead_workers())
            if self._settings.metrics_queues is not None:
                await self._penstock.store.series(self._settings.metrics_queues)
            await self._require_token()
            async with self._working(), self._beating():
                # What exists now stays: a garbage collection that visits all of it stops every
                # request for 50 ms, about once a second under load.
                gc.collect()
                gc.freeze()
                # Of the rest, nearly everything goes with its request: looking for cycles after
                # every 700 new objects, as Python does, is a fifth of the event loop's work.
                gc.set_threshold(_NEW_OBJECTS)
                # While a thread computes a list, the event loop waits this long for each turn:
                # /health then takes 20 ms, and 80 ms with Python's default of 5 ms.
                sys.setswitchinterval(_SWITCH_INTERVAL)
                self._listener = _Listener(config, ready)
                if self._stopped:
                    self._listener.stop()
                await self._listener.serve([listening])

    async def _dead_workers(self) -> list[str]:
        """Return the workers of the process that this one replaces."""
        if self._replaces is None:
            return []
        dead = (socket.gethostname(), self._replaces)
        return [
            one.name for one in await self._penstock.workers.list() if (one.host, one.pid) == dead
        ]

    def _beating(self) -> AbstractAsyncContextManager[None]:
        """Beat inside the block, if somebody watches this process."""
        if self._pulse is None:
            return nullcontext()
        return in_background(Liveness(self._penstock, self._pulse).run())

    def stop(self) -> None:
        """Answer waiting requests, and finish the current ones and the jobs within the grace.

        With a drain delay, report that the server is not ready, and accept requests until the
        delay is over: a load balancer learns of the first before the second hurts.
        """
        if self._stopped:
            return
        self._stopped = True
        self._service.begin_drain()
        for worker in self._workers:
            worker.stop()
        if self._listener is not None and self._settings.drain_delay:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.drain_delay, self._stop_serving)
        else:
            self._stop_serving()

    def _stop_serving(self) -> None:
        self._service.begin_shutdown()
        if self._listener is not None:
            self._listener.stop()

    async def _require_token(self) -> None:
        """Raise `ConfigurationError` if other machines could call the server without a token."""
        host = self._settings.host
        if not is_loopback(host) and not await self._penstock.tokens.list():
            problem = ConfigurationError(
                f"{host} is reachable from other machines, and there is no access token"
            )
            store = shlex.quote(redacted(self._penstock.url))
            problem.add_note(f"penstock token create NAME --scope SCOPE --store {store}")
            raise problem

    @asynccontextmanager
    async def _announced(self, address: str) -> AsyncIterator[None]:
        """Tell the applications the address of the server, inside the block; in process 0 only."""
        async with contextlib.AsyncExitStack() as stack:
            for application in self._service.applications if self._works else ():
                await stack.enter_async_context(application.listening(address))
                if self._settings.workers:
                    await stack.enter_async_context(application.working())
            yield

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Run the jobs of the applications inside the block, and their grace period at its end."""
        if not self._works:
            yield
            return
        if self._settings.workers == 0 or not self._penstock.tasks:
            async with _upkeep(self._penstock, self._retention):
                yield
            return
        self._workers = self._create_workers()
        running = [asyncio.create_task(self._work(worker)) for worker in self._workers]
        for one in running:
            one.add_done_callback(lambda _: self.stop())  # its error must surface
        try:
            yield
        finally:
            for worker, one in zip(self._workers, running, strict=True):
                worker.stop()
                if worker.draining:  # it may have ended, and upkeep goes on in its place
                    one.cancel()
            for one in running:
                with suppress(asyncio.CancelledError):
                    await one

    def _create_workers(self) -> list[Worker]:
        """Return a worker for each queue that has its own, and one for all others."""
        slots: dict[str, int] = {}
        for application in self._service.applications:
            slots |= application.slots
        others = {task.queue for task in self._penstock.tasks.values()} - slots.keys()
        wanted = [(sorted(others), self._settings.workers)] if others else []
        wanted += [([queue], concurrency) for queue, concurrency in slots.items()]
        return [
            Worker(
                self._penstock,
                queues=queues,
                concurrency=n,
                grace=self._grace,
                sweep=sweep,
                retention=self._retention,
            )
            for (queues, n), sweep in zip(
                wanted, (_SWEEP, *[_RARE_SWEEP] * len(slots)), strict=False
            )
        ]

    async def _work(self, worker: Worker) -> None:
        """Run jobs; a server whose worker is drained goes on without one."""
        await worker.run()
        if worker.draining and not self._stopped:
            await Upkeep(self._penstock, None, _SWEEP, self._retention).run()


@asynccontextmanager
async def _upkeep(penstock: Penstock, retention: Retention) -> AsyncIterator[None]:
    """Reclaim expired leases, roll up statistics and prune, where no worker does."""
    async with in_background(Upkeep(penstock, None, _SWEEP, retention).run()):
        yield

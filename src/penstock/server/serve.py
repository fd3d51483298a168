"""Serving: the settings become a service that listens until it is told to stop."""

import asyncio
import importlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn

from penstock.apps import Application
from penstock.config import Found, Server, Sources
from penstock.core.errors import ConfigurationError
from penstock.core.job import Retention
from penstock.engine import Penstock
from penstock.server.app import Service
from penstock.server.gate import Gatekeeper
from penstock.server.site import Site, is_loopback
from penstock.server.wire import BoundedProtocol
from penstock.worker.upkeep import run_upkeep
from penstock.worker.worker import Worker

_log = logging.getLogger(__name__)

APPS = ("events",)
# An event's payload has 1 MB; its title, description and the like come on top.
_PAYLOAD_LIMIT = 1_200_000
_SWEEP = timedelta(seconds=1)


def store_url(settings: Server) -> str:
    """The store to work on; by default a file in the data folder, which is made."""
    if settings.store is not None:
        return settings.store
    folder = Path(settings.data).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the data folder {folder} cannot be made: {error}") from error
    return f"sqlite:///{folder / 'penstock.db'}"


def install_apps(
    penstock: Penstock, settings: Server, sources: Sources
) -> tuple[list[Application], list[Found[Any]]]:
    """The applications that are asked for, or all that are installed, and their settings."""
    applications, found = [], []
    for name in settings.apps if settings.apps is not None else APPS:
        if name not in APPS:
            raise ConfigurationError(f"there is no app {name!r}; known are {', '.join(APPS)}")
        try:
            module = importlib.import_module(f"penstock.apps.{name}")
        except ImportError as error:
            if settings.apps is not None:
                raise ConfigurationError(
                    f"app {name!r} needs what is not installed ({error}): "
                    f"pip install 'penstock[{name}]'"
                ) from error
            _log.info("app %s is off: %s", name, error)
            continue
        section = sources.section(name, module.Settings)
        applications.append(module.install(penstock, section.settings))
        found.append(section)
    return applications, found


class _Listener(uvicorn.Server):
    """Tells the service when it stops listening, so that nobody waits in vain."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let those go who wait, then end what runs."""
        self._service.let_go()
        await super().shutdown(sockets)


@asynccontextmanager
async def working(penstock: Penstock, concurrency: int, grace: timedelta) -> AsyncIterator[None]:
    """Run jobs of the applications, inside the block; at its end they get their grace.

    Where none run, leases of outside workers are still swept.
    """
    if concurrency == 0 or not penstock.tasks:
        upkeep = asyncio.create_task(run_upkeep(penstock, _SWEEP, Retention()))
        try:
            yield
        finally:
            upkeep.cancel()
            with suppress(asyncio.CancelledError):
                await upkeep
        return
    worker = Worker(penstock, concurrency=concurrency, grace=grace)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def serve(settings: Server, sources: Sources) -> None:
    """Serve until a signal."""
    penstock = Penstock(store_url(settings), payload_limit=_PAYLOAD_LIMIT)
    applications, _ = install_apps(penstock, settings, sources)
    service = Service(penstock, applications, cors_origins=settings.cors_origins)
    grace = timedelta(seconds=settings.grace)
    gate = Gatekeeper(
        penstock,
        open_without_tokens=is_loopback(settings.host),
        site=Site(settings.host, settings.cors_origins),
    )
    service.guard(gate)
    config = uvicorn.Config(
        service,
        host=settings.host,
        port=settings.port,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
    )
    async with service.running(), gate.running():
        if not is_loopback(settings.host) and not await penstock.tokens():
            raise ConfigurationError(
                f"{settings.host} can be reached from elsewhere, and there is no token; make one: "
                "penstock token create NAME --scope ..."
            )
        async with working(penstock, settings.workers, grace):
            await _Listener(config, service).serve()

"""A service on a real socket, and a real `penstock serve` in a process of its own."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import uvicorn

from penstock import Penstock
from penstock.apps.events import Settings, install
from penstock.server.app import Service
from penstock.server.gate import Gatekeeper
from penstock.server.wire import BoundedProtocol

SOON = 60.0
"""Seconds after which a test gives up; nothing comes near unless it is broken."""


def whole_service(app: Penstock) -> Service:
    """All that a server serves."""
    return Service(app, [install(app, Settings())])


@asynccontextmanager
async def guarded(service: Service) -> AsyncIterator[Gatekeeper]:
    """The service with its gate, inside the block."""
    gate = Gatekeeper(service.penstock, open_without_tokens=True)
    service.guard(gate)
    async with service.running(), gate.running():
        yield gate


class Listener(uvicorn.Server):
    """A server in this process, on a port that was free."""

    def __init__(self, service: Service) -> None:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.service = service
        super().__init__(
            uvicorn.Config(
                service,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_level="error",
            )
        )

    async def listen(self) -> None:
        async with guarded(self.service):
            await self.serve([self.socket])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.let_go()
        await super().shutdown(sockets)


@contextmanager
def listening(url: str) -> Iterator[Listener]:
    """A service in a thread with a loop of its own."""
    import asyncio

    made: list[Listener] = []
    ready = threading.Event()

    async def run() -> None:
        made.append(Listener(whole_service(Penstock(url))))
        ready.set()
        await made[0].listen()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(SOON)
    deadline = time.monotonic() + SOON
    while not made[0].started:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    try:
        yield made[0]
    finally:
        made[0].should_exit = True
        thread.join(SOON)
        made[0].socket.close()


class Server:
    """`penstock serve` on a file; it can be killed and started again at the same address."""

    workers = 0

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / "server.txt"
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *program: str) -> None:
        """Start it, and wait until it answers. `program` stands in the place of `penstock`."""
        command = [
            *(program or (sys.executable, "-m", "penstock.cli.main")),
            *("serve", "--store", f"sqlite:///{self.folder}/jobs.db"),
            *("--port", str(self.port), "--workers", str(self.workers)),
        ]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
            )
        deadline = time.monotonic() + SOON
        while not self._answers():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/openapi.json", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(SOON)
        self.process = None
        return status


@contextmanager
def serving(folder: Path, **environment: str) -> Iterator[Server]:
    """A running server that is gone afterwards, whatever happens."""
    server = Server(folder, **environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()

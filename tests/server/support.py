"""What tests of the server share: services in this process and in others, and their clients.

Run as a program, it serves the store that is named until its input ends.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn

from penstock import Penstock
from penstock.apps.events import Settings, install
from penstock.server.app import Service
from penstock.server.authentication import Authenticator
from penstock.server.protocol import BoundedProtocol
from penstock.web.openapi import ProblemBody
from tests.cli.support import COMMAND, Process, started
from tests.environment import SOON

# In this process


class Api:
    """A client of the server's own routes, in the process of the test."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        """Return the decoded answer, which must have this status."""
        url = path if path.startswith("/health") else f"/api/v1{path}"
        answer = await self.client.request(method, url, json=body, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def refused(self, method: str, path: str, body: Any = None, status: int = 422) -> Any:
        """Return the field that a problem names; its body must have the common shape."""
        problem = await self(method, path, body, status=status)
        assert problem.keys() <= set(ProblemBody.__struct_fields__)
        assert problem["detail"]
        return problem.get("field")


def whole_service(app: Penstock) -> Service:
    """Return a service with the events application."""
    return Service(app, [install(app, Settings())])


@asynccontextmanager
async def guarded(service: Service) -> AsyncIterator[Authenticator]:
    """Run the service with an authenticator, inside the block."""
    authenticator = Authenticator(service.penstock, open_without_tokens=True)
    service.guard(authenticator)
    async with service.running(), authenticator.running():
        yield authenticator


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
        self.service.begin_shutdown()
        await super().shutdown(sockets)


@contextmanager
def serving_in_thread(url: str) -> Iterator[Listener]:
    """Serve in a thread with its own event loop, inside the block."""
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


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[str]:
    """Serve on a socket inside the block; yields the address."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(service, lifespan="off", log_level="critical", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        service.begin_shutdown()
        server.should_exit = True
        await serving
        bound.close()


# In a process of its own


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
        """Start it, and wait until it answers. `program` replaces the command `penstock`."""
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
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """Stop it gracefully, and return its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(SOON)
        self.process = None
        return status


@contextmanager
def serving(folder: Path, **environment: str) -> Iterator[Server]:
    """Run a server inside the block, and kill it afterwards."""
    server = Server(folder, **environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()


SERVE = (*COMMAND, "serve", "--port", "0")

PROBE = '''
import asyncio, os, sys, types
import msgspec
from penstock.apps.kit.application import Application
from penstock.cli import main, signals
from penstock.core.tokens import Access
from penstock.web.routes import route, routes_of
from penstock.server import applications

class Settings(msgspec.Struct):
    pass

class Routes:
    """Requests and jobs that last until a test releases them."""
    def __init__(self, penstock):
        self.penstock = penstock

    @route("POST", "/held", Access.READ)
    async def held(self) -> dict[str, str]:
        print("request runs", flush=True)
        return {"read": await asyncio.to_thread(read)}

    @route("POST", "/jobs", Access.READ)
    async def job(self) -> dict[str, int]:
        return {"id": (await self.penstock.enqueue("probe.endless")).id}

    @route("GET", "/pid", Access.READ)
    async def pid(self) -> dict[str, int]:
        return {"pid": os.getpid()}

def read():
    with open("pipe") as pipe:
        return pipe.read()

async def endless():
    print("job runs in", os.getpid(), flush=True)
    await asyncio.Event().wait()

def install(penstock, settings, data):
    penstock.task("probe.endless", endless)
    return Application("probe", "For tests.", list(routes_of(Routes(penstock))))

module = types.ModuleType("penstock.apps.probe")
module.Settings, module.install = Settings, install
sys.modules["penstock.apps.probe"] = module
applications.APPS = ("events", "probe")
main.main()
'''
"""A server with an application whose requests and jobs a test controls."""

PROBE_SERVE = (sys.executable, "-c", PROBE, "serve", "--port", "0")


def address(process: Process) -> str:
    """Return the URL that a server prints when it is ready."""
    found = re.search(r"http://\S+?:\d+", process.wait_for("http://"))
    assert found
    return found.group()


@contextlib.contextmanager
def served(
    folder: Path, *options: str, command: Sequence[str] = SERVE
) -> Iterator[tuple[Process, str]]:
    """Run a server inside the block; yields its process and its URL."""
    with started((*command, *options), folder) as process:
        yield process, address(process)


# Readers of the stream


class Said(NamedTuple):
    """A block of a stream, up to an empty line."""

    id: int | None
    event: str | None
    data: Any
    comment: str | None


async def said(answer: httpx.Response) -> AsyncIterator[Said]:
    """Yield every block of a stream, comments included."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            assert name not in fields, "two fields of a name in one event"
            fields[name or "comment"] = value if name else line
            continue
        yield Said(
            int(fields["id"]) if "id" in fields else None,
            fields.get("event"),
            json.loads(fields["data"]) if "data" in fields else None,
            fields.get("comment"),
        )
        fields = {}


@asynccontextmanager
async def streaming(
    address: str, last: int | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[Said]]:
    """Open a stream inside the block; its first block says where it begins."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
        client.stream("GET", f"{address}/api/v1/stream", params=query, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield said(answer)


async def transitions(stream: AsyncIterator[Said]) -> AsyncIterator[Said]:
    """Yield the entries only."""
    async for one in stream:
        if one.event is not None:
            assert one.event == "transition"
            assert one.id == one.data["entry"]["id"]
            yield one


async def main(url: str) -> None:
    """Serve a store until the input ends."""
    async with Penstock(url) as app:
        service = Service(app, [])
        async with service.running(), listening(service) as address:
            print(address, flush=True)  # noqa: T201 - who started this waits for it
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""A real `penstock serve`, on a free port of this machine."""

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cli.support import COMMAND, Process, started

SERVE = (*COMMAND, "serve", "--port", "0")

PROBE = '''
import asyncio, os, sys, types
import msgspec
from penstock.apps import Application
from penstock.cli import main, stopping
from penstock.core.token import Access
from penstock.http.routes import route, routes_of
from penstock.server import installed

class Settings(msgspec.Struct):
    pass

class Routes:
    """Requests and jobs that last until a test lets them go on."""
    def __init__(self, penstock):
        self.penstock = penstock

    @route("POST", "/held", Access.READ, "Wait for the pipe", answers={200: dict[str, str]})
    async def held(self) -> dict[str, str]:
        print("request runs", flush=True)
        return {"read": await asyncio.to_thread(read)}

    @route("POST", "/jobs", Access.READ, "Enqueue a job", answers={200: dict[str, int]})
    async def job(self) -> dict[str, int]:
        return {"id": (await self.penstock.enqueue("probe.endless")).id}

    @route("GET", "/pid", Access.READ, "Who serves", answers={200: dict[str, int]})
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
installed.APPS = ("events", "probe")
main.main()
'''
"""A server with an application whose requests and jobs a test holds in its hands."""

PROBE_SERVE = (sys.executable, "-c", PROBE, "serve", "--port", "0")


def address(process: Process) -> str:
    """The URL that a server prints when it is ready."""
    found = re.search(r"http://\S+?:\d+", process.wait_for("http://"))
    assert found
    return found.group()


@contextlib.contextmanager
def served(
    folder: Path, *options: str, command: Sequence[str] = SERVE
) -> Iterator[tuple[Process, str]]:
    """A server that is gone afterwards, and its URL."""
    with started((*command, *options), folder) as process:
        yield process, address(process)

"""Prints the functions that one job passes: python benchmarks/walk.py sqlite:////tmp/jobs.db.

For each step (enqueue, claim, settle, and the worker's own part) it prints every function of the
package in the order of their first calls, how many modules they are in, and how often the walk
crosses from one folder into another. The second of two jobs is walked, so that what happens once
per process (opening, declaring, preparing) is left out.

`python benchmarks/walk.py events sqlite:////tmp/jobs.db` walks `POST /events` instead, from the
call of the ASGI application to its answer, with file and line of each function. `notebook` in place
of `events` walks the second file of a notebook, from its request to its commit, in the functions of
that application.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from penstock import Penstock, Worker, run_sync
from penstock.core.lifecycle import Done

ROOT = Path(penstock.__file__).parent
NAMELESS = {"<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>"}


class Walk:
    """The functions that were called, and the folders that they lie in."""

    def __init__(self, only: str = "", *, active: bool = True) -> None:
        self.only = only
        self.active = active
        self.functions: list[str] = []
        self.lines: dict[str, str] = {}
        self.crossings = 0
        self._folder = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take a call into account; for `sys.setprofile`."""
        code = frame.f_code
        path = Path(code.co_filename)
        if not self.active or event != "call":
            return
        if code.co_name in NAMELESS or ROOT not in path.parents:
            return
        module = path.relative_to(ROOT).with_suffix("")
        name = f"{'.'.join(module.parts)}:{code.co_qualname}"
        if name in self.functions or not name.startswith(self.only):
            return
        self.functions.append(name)
        self.lines[name] = f"{path.relative_to(ROOT)}:{code.co_firstlineno} {code.co_qualname}"
        folder = str(module.parent)
        self.crossings += bool(self._folder) and folder != self._folder
        self._folder = folder

    def report(self, step: str, *, lines: bool = False) -> str:
        """The walk as lines of text; with `lines`, with the place of each function."""
        modules = {name.partition(":")[0] for name in self.functions}
        head = (
            f"{step}: {len(self.functions)} functions in {len(modules)} modules, "
            f"{self.crossings} crossings"
        )
        shown = [self.lines[name] if lines else name for name in self.functions]
        return "\n".join([head, *(f"  {name}" for name in shown), ""])


@contextmanager
def walking(walk: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Follow all threads inside the block; those that are started in it as well."""
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main(url: str) -> None:
    """Walk a job on the store of this URL."""
    app = Penstock(url)

    @app.task
    async def noop(data: str) -> None: ...

    run_sync(noop.enqueue("first"))
    enqueue = Walk()
    with walking(enqueue):
        run_sync(noop.enqueue("second"))
    print(enqueue.report("enqueue"))

    run_sync(app.leases.claim(worker="walker"))
    claim, settle = Walk(), Walk()
    with walking(claim):
        (job,) = run_sync(app.leases.claim(worker="walker"))
    print(claim.report("claim"))
    with walking(settle):
        run_sync(app.leases.settle([(job, Done())]))
    print(settle.report("settle"))

    run_sync(noop.enqueue("third"))
    run = Walk(only="worker")

    async def work() -> None:
        worker = Worker(app, concurrency=1, sweep=timedelta(hours=1))
        with walking(run):
            await worker.run(until_empty=True)

    asyncio.run(work())
    print(run.report("a worker, from its start to its end"))
    run_sync(app.close())


async def publish_event(url: str) -> None:
    """Walk `POST /events`, on a server without tokens and without background tasks."""
    from penstock.apps import events
    from penstock.server.app import Service
    from penstock.server.authentication import Authenticator

    walk, sent = Walk(active=False), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"title":"t","tags":"a","payload":{"n":1}}'}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def post() -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/events", "raw_path": b"/events"}
        await service({**scope, "query_string": b"", "headers": headers}, receive, send)

    with walking(walk):  # also in threads of the store, which start with the first request
        app = Penstock(url)
        service = Service(app, [events.install(app, events.Settings())])
        service.guard(Authenticator(app, open_without_tokens=True))
        await post()
        await asyncio.sleep(0.5)  # until the threads of the store are idle
        walk.active = True
        await post()
        walk.active = False
        await app.close()
    assert [one["status"] for one in sent if "status" in one] == [201, 201], sent  # noqa: S101
    print(walk.report("POST /events", lines=True))


async def write_file(url: str) -> None:
    """Walk one file of a notebook through its request, its job and its commit."""
    import httpx

    from penstock.apps import notebooks
    from penstock.server.app import Service

    walk = Walk(only="apps.notebooks", active=False)
    with tempfile.TemporaryDirectory() as folder, walking(walk):
        app = Penstock(url)
        settings = notebooks.Settings(watch=False, commit_interval=3_600)
        application = notebooks.install(app, settings, Path(folder))
        service = Service(app, [application])
        transport = httpx.ASGITransport(app=service)
        async with (
            service.running(),
            application.working(),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):

            async def post(path: str, body: dict[str, Any]) -> None:
                answer = await client.post(f"/api/v1{path}", json=body)
                assert answer.is_success, answer.text  # noqa: S101 - a benchmark
                await Worker(app, queues=["notebooks"]).run(until_empty=True)

            await post("/notebooks", {"name": "garden", "git": True})
            for name in ("first", "second"):
                walk.active = name == "second"
                await post("/notebooks/garden/files", {"path": f"{name}.md", "content": name})
                await post("/events/commit", {"notebook": "garden"})
            walk.active = False
    print(walk.report("one file of a notebook", lines=True))


if __name__ == "__main__":
    if sys.argv[1] == "events":
        asyncio.run(publish_event(sys.argv[2]))
    elif sys.argv[1] == "notebook":
        asyncio.run(write_file(sys.argv[2]))
    else:
        main(sys.argv[1])

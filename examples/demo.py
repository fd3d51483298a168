"""A server with lively sample work, until Ctrl-C: ./dev run --demo [options of penstock serve].

Events are published and worked over HTTP by a few workers that fail now and then; jobs with
progress run in several queues, one of which is paused. A few things happen each second, no more.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from datetime import timedelta

import httpx

from penstock import Penstock, RetryPolicy, Worker, context

DATA = "penstock-demo"
SUBJECTS = {
    "orders": ("Order received", "Order paid", "Order shipped"),
    "users": ("User signed up", "User changed the address"),
    "files": ("File uploaded", "File scanned"),
}
WORKERS = {"packer": "orders", "greeter": "users", "all-rounder": "orders,users,files"}
QUICK = RetryPolicy(attempts=3, delay=timedelta(seconds=5))


def store_of(options: list[str]) -> str:
    """The store that a server with these options works on."""
    command = (sys.executable, "-m", "penstock", "config", "--json", *options)
    told = subprocess.run(command, check=True, stdout=PIPE)  # noqa: S603 - with its own options
    found = json.loads(told.stdout)
    return found["store"]["value"] or f"sqlite:///{found['data']['value']}/penstock.db"


async def main() -> int:
    """Start the server, keep it busy until a signal, and stop it."""
    options = ["--data", DATA, *sys.argv[1:]]
    try:
        store = store_of(options)
    except subprocess.CalledProcessError as error:  # it has said what is wrong
        return error.returncode
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock", "serve", *options),
        stdout=PIPE,
        process_group=0,  # Ctrl-C is for this program, which tells the server
    )
    assert server.stdout is not None  # noqa: S101 - a pipe, as asked for
    address = (await server.stdout.readline()).decode().split()
    if address:
        print(*address, "with sample work; Ctrl-C stops it", flush=True)
        busy = asyncio.create_task(keep_busy(address[-1], store))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, busy.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await busy
        finally:
            server.terminate()
    return await server.wait()


async def keep_busy(url: str, store: str) -> None:
    """Publish and work events over HTTP, enqueue and run jobs beside it."""
    app = Penstock(store)
    add_tasks(app)
    async with app, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await app.pause("reports")
        async with asyncio.TaskGroup() as group:
            group.create_task(Worker(app, queues=["mail", "images", "reports"]).run())
            group.create_task(enqueue_jobs(app))
            group.create_task(publish_events(http))
            for name, tags in WORKERS.items():
                group.create_task(work_events(http, name, tags))


def add_tasks(app: Penstock) -> None:
    """The jobs of the demo: some are slow, some fail, some wait for the end of a pause."""

    @app.task(queue="images", retry=QUICK)
    async def resize(count: int) -> str:
        for n in range(count):
            await asyncio.sleep(random.uniform(0.2, 0.6))
            context().progress(n + 1, count, f"image {n + 1}")
        return f"{count} images"

    @app.task(queue="mail", retry=QUICK)
    async def send(to: str) -> None:
        await asyncio.sleep(random.uniform(0.05, 0.5))
        if random.random() < 0.2:
            raise ConnectionError(f"the mailbox of {to} does not answer")

    @app.task(queue="reports")
    async def report(month: int) -> int:
        return month


async def enqueue_jobs(app: Penstock) -> None:
    """About one job a second."""
    while True:
        await app.enqueue("send", {"to": random.choice(("ada", "grace", "edsger"))})
        if random.random() < 0.3:
            await app.enqueue("resize", {"count": random.randint(3, 20)})
        if random.random() < 0.05:
            await app.enqueue("report", {"month": random.randint(1, 12)})
        await asyncio.sleep(random.uniform(0.5, 1.5))


async def publish_events(http: httpx.AsyncClient) -> None:
    """About two events a second."""
    while True:
        tag = random.choice(list(SUBJECTS))
        event = {"title": random.choice(SUBJECTS[tag]), "tags": tag, "retry_delay": 5}
        with suppress(httpx.HTTPError):  # the server may be stopping
            await http.post("/events", json=event)
        await asyncio.sleep(random.uniform(0.2, 0.8))


async def work_events(http: httpx.AsyncClient, name: str, tags: str) -> None:
    """Pick an event, take a while, report success or, now and then, a failure."""
    query = {"tags": tags, "worker_id": name, "wait": "20"}
    while True:
        try:
            picked = await http.get("/events/subscribe", params=query)
            if picked.status_code == httpx.codes.OK:
                await work(http, name, picked.json()["id"])
        except httpx.HTTPError:
            await asyncio.sleep(1)


async def work(http: httpx.AsyncClient, name: str, event_id: int) -> None:
    """Work one event."""
    seconds = random.uniform(0.1, 1.5)
    await asyncio.sleep(seconds)
    said = {"worker_id": name, "execution_time_ms": round(seconds * 1000)}
    if random.random() < 0.15:
        said |= {"error_message": "the warehouse does not answer", "status_code": 503}
        await http.post(f"/events/{event_id}/fail", json=said)
    else:
        await http.post(f"/events/{event_id}/complete", json={**said, "status_code": 200})


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

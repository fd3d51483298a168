"""A server with lively sample work, until Ctrl-C: ./dev run --demo [options of penstock serve].

Programs publish and process events over HTTP, and fail now and then; jobs with progress run in
several queues, one of which is paused. Some have keys, some belong to tenants, chains or batches,
some are scheduled. All applications have something to show. A few things happen each second.
"""

import asyncio
import json
import logging
import random
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import httpx

from penstock import Penstock, RetryPolicy, Worker, chain, context

DATA = "penstock-demo"
SUBJECTS = {
    "orders": ("Order received", "Order paid", "Order shipped"),
    "users": ("User signed up", "User changed the address"),
    "files": ("File uploaded", "File scanned"),
}
WORKERS = {"packer": "orders", "greeter": "users", "all-rounder": "orders,users,files"}
QUICK = RetryPolicy(attempts=3, delay=timedelta(seconds=5))
QUEUES = ("mail", "images", "reports", "orders")
PEOPLE = ("ada", "grace", "edsger")
TENANTS = ("acme", "globex", "initech")
HANDBOOK = {
    "bread": "Mix flour, water and salt, and let the dough rise overnight.",
    "kettle": "Descale the kettle with vinegar, and rinse it twice.",
    "deliveries": "Parcels leave at noon. Late orders leave on the next day.",
    "returns": "A returned parcel is checked, booked and refunded within a day.",
}


def places_of(options: list[str]) -> tuple[str, Path]:
    """Return the store of a server with these options, and a folder of files beside its data."""
    command = (sys.executable, "-m", "penstock", "config", "--json", *options)
    told = subprocess.run(command, check=True, stdout=PIPE)  # noqa: S603 - with its own options
    found = json.loads(told.stdout)
    data = found["data"]["value"]
    store = found["store"]["value"] or f"sqlite:///{data}/penstock.db"
    folder = Path(f"{data}-handbook").absolute()  # the data folder belongs to the server alone
    folder.mkdir(parents=True, exist_ok=True)
    return store, folder


async def main() -> int:
    """Start the server, keep it busy until a signal, and stop it."""
    options = ["--data", DATA, *sys.argv[1:]]
    try:
        store, folder = places_of(options)
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
        busy = asyncio.create_task(keep_busy(address[-1], store, folder))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, busy.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await busy
        finally:
            server.terminate()
    return await server.wait()


async def keep_busy(url: str, store: str, folder: Path) -> None:
    """Publish and process events over HTTP, and enqueue and run jobs at the same time."""
    logging.getLogger("penstock.worker.job_log").setLevel("CRITICAL")  # failures are wanted here
    app = Penstock(store)
    add_tasks(app)
    async with app, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await app.queues.pause("reports")
        await app.limits.queue("images", 500, concurrency=4)
        await app.limits.queue("mail", rate=(20, timedelta(seconds=1)))
        async with asyncio.TaskGroup() as group:
            group.create_task(Worker(app, queues=QUEUES).run())
            group.create_task(enqueue_jobs(app))
            group.create_task(fill_applications(http, folder))
            group.create_task(publish_events(http))
            for name, tags in WORKERS.items():
                group.create_task(work_events(http, name, tags))


def add_tasks(app: Penstock) -> None:
    """The jobs of the demo: some are slow, some fail, some wait until a pause ends."""

    @app.task(queue="images", retry=QUICK)
    async def resize(count: int) -> str:
        for n in range(count):
            await asyncio.sleep(random.uniform(0.2, 0.6))
            context().progress(n + 1, count, f"image {n + 1}")
        return f"{count} images"

    @app.task(queue="mail", retry=QUICK, permanent=(LookupError,))
    async def send(to: str) -> None:
        await asyncio.sleep(random.uniform(0.05, 0.5))
        if random.random() < 0.05:
            raise LookupError(f"{to} has no mailbox")
        if random.random() < 0.2:
            raise ConnectionError(f"the mailbox of {to} does not answer")

    @app.task(queue="reports")
    async def report(month: int) -> int:
        return month

    @app.task(queue="orders", retry=QUICK)
    async def step(order: int, name: str) -> str:
        context().logger.info("order %d: %s", order, name)
        await asyncio.sleep(random.uniform(1, 4))
        return name

    @app.task(queue="orders")
    async def count_stock() -> int:
        await asyncio.sleep(random.uniform(0.5, 2))
        return random.randint(800, 900)


async def enqueue_jobs(app: Penstock) -> None:
    """About one job a second, and now and then some that belong together."""
    report, stock = app.tasks["report"].new(1), app.tasks["count_stock"].new()
    await app.schedules.put("monthly", report, cron="0 7 1 * *", timezone="Europe/Berlin")
    await app.schedules.put("stock", stock, every=timedelta(seconds=30), overlap=False)
    for number in range(1, 1_000_000):
        tenant, tags = random.choice(TENANTS), [random.choice(("eu", "us"))]
        await app.enqueue("send", {"to": random.choice(PEOPLE)}, tenant=tenant, tags=tags)
        if random.random() < 0.4:
            key = f"album-{random.choice(PEOPLE)}"
            await app.enqueue("resize", {"count": random.randint(3, 20)}, key=key)
        if random.random() < 0.05:
            await app.enqueue("report", {"month": random.randint(1, 12)})
        if number % 15 == 1:
            await enqueue_together(app, number)
        await asyncio.sleep(random.uniform(0.5, 1.5))


async def enqueue_together(app: Penstock, number: int) -> None:
    """A chain, whose middle runs in parallel, and a batch."""
    step, send = app.tasks["step"], app.tasks["send"]
    packing = [step.new(number, f"pack parcel {n}") for n in range(1, 4)]
    await app.enqueue_many(
        chain(step.new(number, "book"), packing, step.new(number, "ship"), step.new(number, "bill"))
    )
    letter = [send.using(tags=["newsletter"]).new(person) for person in PEOPLE * 4]
    await app.enqueue_batch(letter, correlation=f"newsletter-{number}-{random.randrange(10**6)}")


async def fill_applications(http: httpx.AsyncClient, folder: Path) -> None:
    """Give a handbook to each application that the server has; the others answer with 404."""
    with suppress(httpx.HTTPError):  # the server may be stopping
        await http.post("/api/v1/notebooks", json={"name": "handbook"})
        for name, text in HANDBOOK.items():
            await write_chapter(http, folder, name, text)
        for number in range(1_000_000):
            await http.post("/index", json={"folder_path": str(folder), "collection": "handbook"})
            await http.post("/api/v1/ingest", json={"path": str(folder), "tenant_id": "shop"})
            await asyncio.sleep(random.uniform(10, 20))
            news = f"{random.choice(PEOPLE).capitalize()} has counted {number} parcels."
            await write_chapter(http, folder, f"news-{number % 10}", news)


async def write_chapter(http: httpx.AsyncClient, folder: Path, name: str, text: str) -> None:
    """Write a file, a page of the notebook, and an entry."""
    content = f"# {name.capitalize()}\n\n{text}\n"
    (folder / f"{name}.md").write_text(content, "utf-8")
    page = {"path": f"shop/{name}.md"}
    await http.put("/api/v1/notebooks/handbook/content", params=page, content=content)
    entry = {"title": name.capitalize(), "playbook": text}
    body = {"entity_type": "experience", "category_code": "SHOP", "data": entry}
    await http.post("/api/v1/entries/write", json=body)


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
    """Process one event."""
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

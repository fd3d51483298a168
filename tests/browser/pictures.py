"""Take the pictures in docs/images, but for those that tests/cli compares.

    python -m tests.browser.pictures [NAME...]

Fills a store with the work of a small shop, an hour of it in the past, serves it with all
applications, and photographs the dashboard, light and dark, and the output of commands. With names,
such as `workers`, takes these pictures only. Look at every picture afterwards.
"""

import asyncio
import json
import os
import pty
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from penstock import JobQuery, Penstock, RetryPolicy, State, Worker, chain, context, run_sync
from penstock.leases import Done, Failed, WorkerInfo
from penstock.testing import Clock
from tests.browser.conftest import chromium, ready

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SHOP = Path("/tmp/shop")  # noqa: S108 - it is shown, so it has the same name everywhere
WORKER = "web1:4711:fa5263"
QUEUES = ("mail", "photos", "reports")
PEOPLE = ("ada", "grace", "edsger", "barbara", "alan")
ERROR = (
    "LookupError: {to} has no mailbox\n\nTraceback (most recent call last):\n"
    '  File "shop/mail.py", line 11, in send\n    raise LookupError(f"{{to}} has no mailbox")\n'
    "LookupError: {to} has no mailbox"
)
RANDOM = random.Random(1)
DARK = TerminalTheme(
    (22, 26, 32),
    (214, 218, 224),
    [
        *((40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123)),
        *((97, 175, 239), (198, 120, 221), (86, 182, 194), (171, 178, 191)),
    ],
)


# The work of the shop


def add_tasks(app: Penstock) -> None:
    """What the shop runs: quick mails, slow photos, reports, and the closing of its books."""

    @app.task("mail.send", queue="mail", retry=RetryPolicy(attempts=2))
    async def send(to: str, template: str) -> str:
        await asyncio.sleep(RANDOM.uniform(0.1, 0.9))
        return f"{template} sent to {to}"

    @app.task("photos.resize", queue="photos")
    async def resize(album: str, count: int) -> int:
        for done in range(count):
            context().progress(done, count, f"{album}/{done:03}.jpg")
            await asyncio.sleep(1)
        return count

    @app.task("reports.daily", queue="reports", cron="30 2 * * MON-FRI", timezone="Europe/Berlin")
    async def daily() -> None: ...

    @app.task("reports.stock", queue="reports", every=timedelta(minutes=5))
    async def stock() -> int:
        await asyncio.sleep(RANDOM.uniform(0.5, 2))
        return RANDOM.randint(800, 900)

    @app.task("books.close", queue="closing")
    async def close(month: str) -> None: ...


def mail(app: Penstock) -> Any:
    """Return a mail that is to be sent."""
    to = f"{RANDOM.choice(PEOPLE)}@example.org"
    send = app.tasks["mail.send"].using(
        tenant=RANDOM.choice(("acme", "globex")), tags=[RANDOM.choice(("eu", "us"))]
    )
    return send.new(to, RANDOM.choice(("welcome", "receipt")))


def dying(now: datetime) -> WorkerInfo:
    """Return a worker that is about to be killed."""
    return WorkerInfo(
        name="web2:815:130e71",
        host="web2",
        pid=815,
        queues=QUEUES,
        concurrency=8,
        started_at=now,
        seen_at=now,
    )


async def past(url: str) -> None:
    """Work through the last hour, with a clock that is moved."""
    start = datetime.now(UTC).replace(second=5) - timedelta(hours=1)
    clock = Clock(start)
    async with Penstock(url, clock=clock, actor="web1:4700") as app:
        add_tasks(app)
        for minute in range(59):
            if minute == 54:
                await app.store.heartbeat([dying(start + timedelta(minutes=minute))])
            count = round(20 + 12 * abs((minute % 20) - 10) / 10 + RANDOM.uniform(-4, 4))
            await app.enqueue_many([mail(app) for _ in range(count)])
            clock.advance(timedelta(seconds=RANDOM.uniform(0.02, 1)))
            for job in await app.leases.claim(worker=WORKER, limit=count, queues=["mail"]):
                clock.advance(timedelta(seconds=RANDOM.uniform(0.02, 0.08)))
                fails = RANDOM.random() < 0.04
                failed = Failed(ERROR.format(to=job.args["to"]), permanent=True)
                await app.leases.settle([(job, failed if fails else Done())])
            clock.set(start + timedelta(minutes=minute + 1))
        await app.statistics.roll_up()


async def present(app: Penstock) -> None:
    """Store what waits and runs while the pictures are taken."""
    await app.limits.queue("photos", 500, concurrency=2)
    await app.queues.pause("reports")
    months = ("2030-01", "2030-02", "2030-03")
    await app.enqueue_many(chain(*[app.tasks["books.close"].new(month) for month in months]))
    later = app.tasks["books.close"].using(delay=timedelta(days=3))
    await later.enqueue("2030-04")
    resize = app.tasks["photos.resize"]
    for album in ("holiday", "garden", "wedding"):
        for count in (900, 240, 80, 40):
            await resize.using(key=f"album:{album}").enqueue(album, count)
    await app.enqueue_many([mail(app) for _ in range(8)])


async def keep_busy(url: str, stopping: threading.Event) -> None:
    """Run two workers, and send mails now and then."""
    async with Penstock(url, actor="web1:4700") as app:
        add_tasks(app)
        worker = Worker(app, queues=QUEUES, concurrency=8, name=WORKER, grace=timedelta(0))
        await present(app)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            while not stopping.is_set():
                await app.enqueue_many([mail(app)])
                await asyncio.sleep(2)
            worker.stop()


# The applications


def call(url: str, path: str, body: dict[str, Any], method: str = "POST") -> Any:
    """Send a request to the server, and return its answer."""
    data = json.dumps(body).encode()
    request = Request(  # noqa: S310 - to a server of our own
        url + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
            return json.load(answer)
    except HTTPError as error:
        raise SystemExit(f"{path}: {error.read().decode()}") from error


def fill(url: str) -> None:
    """Give each application something to show."""
    handbook = SHOP / "handbook"
    handbook.mkdir()
    chapters = {
        "bread": "Mix flour, water and salt, and let the dough rise overnight.",
        "kettle": "Descale the kettle with vinegar, and rinse it twice.",
        "deliveries": "Parcels leave at noon. Late orders leave on the next day.",
        "returns": "A returned parcel is checked, booked and refunded within a day.",
    }
    for name, text in chapters.items():
        (handbook / f"{name}.md").write_text(f"# {name.capitalize()}\n\n{text}\n")
    index = {"folder_path": str(handbook), "collection": "handbook"}
    call(url, "/index", index)
    call(url, "/api/v1/ingest", {"path": str(handbook), "tenant_id": "shop"})
    for name, text in chapters.items():
        data = {"title": name.capitalize(), "playbook": text}
        entry = {"entity_type": "experience", "category_code": "HOME", "data": data}
        call(url, "/api/v1/entries/write", entry)
    call(url, "/api/v1/notebooks", {"name": "diary"})
    for name, text in chapters.items():
        file = {"path": f"2030/{name}.md", "content": text}
        call(url, "/api/v1/notebooks/diary/files?sync=true", file)


@contextmanager
def serving() -> Iterator[str]:
    """Serve the shop, with someone who works in it, and yield the address."""
    shutil.rmtree(SHOP, ignore_errors=True)
    SHOP.mkdir()
    store = f"sqlite:///{SHOP}/penstock.db"
    asyncio.run(past(store))
    (SHOP / "site").mkdir()
    # Python imports this first, in every process of the server.
    customized = "import socket\n\nsocket.gethostname = lambda: 'web1'\n"
    (SHOP / "site" / "sitecustomize.py").write_text(customized)
    environment = {**os.environ, "PENSTOCK_NOTEBOOKS_AUTHOR": "Ada <ada@example.org>"}
    environment["PYTHONPATH"] = str(SHOP / "site")
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--data", "data"]
    server = subprocess.Popen(
        [*command, "--store", store], stdout=subprocess.PIPE, cwd=SHOP, env=environment, text=True
    )
    stopping = threading.Event()
    busy = threading.Thread(target=lambda: asyncio.run(keep_busy(store, stopping)))
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        busy.start()
        fill(url)
        time.sleep(8)  # until there is something to see
        yield url
    finally:
        stopping.set()
        server.terminate()
        server.wait()
        busy.join()
        shutil.rmtree(SHOP, ignore_errors=True)


# The dashboard


class Shot(NamedTuple):
    """A picture of the dashboard: where, how large, and what to do first."""

    path: str
    height: int
    width: int = 1200
    act: Callable[[Page], None] | None = None


def search(page: Page) -> None:
    """Search the handbook."""
    page.get_by_label("Collection", exact=True).first.fill("handbook")
    page.locator("#query").fill("vinegar for the kettle")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("kettle.md").first.wait_for()


def newest(app: Penstock, query: JobQuery) -> int:
    """Return the ID of the newest job that matches."""
    return run_sync(app.find(query))[0].id


def shots(app: Penstock) -> dict[str, Shot]:
    """Return the pictures to take, by their names."""
    failed = newest(app, JobQuery(states=[State.FAILED]))
    # The oldest waits for nothing; the newest is due later.
    _, blocked = run_sync(app.find(JobQuery(task="books.close")))[:2]
    return {
        "overview": Shot("/", 1420),
        "jobs": Shot("/jobs?state=failed", 620),
        "job": Shot(f"/jobs/{failed}", 860),
        "blocked": Shot(f"/jobs/{blocked.id}", 700),
        "keys": Shot("/keys?key=album:holiday", 560),
        "workers": Shot("/workers", 680),
        "schedules": Shot("/schedules", 300),
        "store": Shot("/store", 560),
        "indexing": Shot("/indexing", 620, act=search),
        "notebooks": Shot("/notebooks", 560),
        "entries": Shot("/entries", 560),
        "ingest": Shot("/ingest", 560),
        "phone-overview": Shot("/", 844, 390),
        "phone-jobs": Shot("/jobs", 844, 390),
        "phone-job": Shot(f"/jobs/{failed}", 844, 390),
    }


def photograph(browser: Browser, url: str, name: str, shot: Shot, theme: Any) -> None:
    """Take one picture, in light or dark colours."""
    size: ViewportSize = {"width": shot.width, "height": shot.height}
    with browser.new_context(viewport=size, color_scheme=theme) as session:
        page = session.new_page()
        ready(page, f"{url}/#{shot.path}")
        if shot.act:
            shot.act(page)
        page.wait_for_timeout(1_500)  # for charts and what is loaded besides
        suffix = "-dark" if theme == "dark" else ""
        (IMAGES / f"dashboard-{name}{suffix}.png").write_bytes(reduced(page.screenshot()))


def reduced(picture: bytes) -> bytes:
    """Return a PNG with a palette of 256 colours: a third of the size."""
    pixels = decoded(picture)
    flat = pixels.reshape(-1, 3).astype(np.int32)
    codes = flat[:, 0] << 16 | flat[:, 1] << 8 | flat[:, 2]
    colours, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    values = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
    # The most frequent of each kind first, so that small coloured words keep their colour.
    frequent = np.argsort(counts)[::-1]
    kinds = (values >> 5) @ np.array([64, 8, 1])
    _, first = np.unique(kinds[frequent], return_index=True)
    order = np.concatenate([np.sort(first), np.setdiff1d(np.arange(len(frequent)), first)])
    palette = values[frequent[order[:256]]]
    nearest = np.concatenate(
        [
            ((part[:, None, :] - palette[None]) ** 2).sum(axis=2).argmin(axis=1)
            for part in np.array_split(values, len(values) // 512 + 1)
        ]
    )
    height, width, _ = pixels.shape
    rows = nearest[places].reshape(height, width).astype(np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", head),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def decoded(picture: bytes) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return the pixels of a PNG as a browser writes it: 8 bits a channel, not interlaced."""
    place, packed, width, channels = 8, b"", 0, 3
    while place < len(picture):
        (size,) = struct.unpack_from(">I", picture, place)
        kind, data = picture[place + 4 : place + 8], picture[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, _, _, colour = struct.unpack_from(">IIBB", data)
            channels = 4 if colour == 6 else 3
        elif kind == b"IDAT":
            packed += data
        place += size + 12
    raw, step = zlib.decompress(packed), width * channels + 1
    rows, above = [], bytearray(step - 1)
    for start in range(0, len(raw), step):
        above = unfiltered(raw[start], bytearray(raw[start + 1 : start + step]), above, channels)
        rows.append(np.frombuffer(above, np.uint8).reshape(width, channels)[:, :3])
    return np.stack(rows)


def unfiltered(kind: int, row: bytearray, above: bytearray, channels: int) -> bytearray:
    """Undo the filter of one line of a PNG."""
    for x, value in enumerate(row):
        left = row[x - channels] if x >= channels else 0
        upper_left = above[x - channels] if x >= channels else 0
        row[x] = value + guess(kind, left, above[x], upper_left) & 255
    return row


def guess(kind: int, left: int, up: int, upper_left: int) -> int:
    """Return what a filter of PNG expects at a place, by its neighbours."""
    if kind != 4:
        return (0, left, up, (left + up) >> 1)[kind]
    a, b, c = abs(up - upper_left), abs(left - upper_left), abs(left + up - 2 * upper_left)
    if a <= b and a <= c:
        return left
    return up if b <= c else upper_left


# The terminal

COMMANDS = {
    "workers": ["workers"],
    "jobs": ["jobs", "--limit", "14"],
    "status": ["status"],
    "stats": ["stats"],
    "cron": ["cron", "list"],
}
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" \
xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" \
clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def terminal(name: str, command: list[str]) -> None:
    """Run a command on a terminal of 120 columns, and draw what it prints."""
    chunks = []
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm-256color", "NO_COLOR": ""}
    environment["PENSTOCK_STORE"] = f"sqlite:///{SHOP}/penstock.db"
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "penstock", *command]
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # the other end is closed
            running.wait()
    os.close(ours)
    console = Console(width=120, record=True, file=StringIO(), force_terminal=True)
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    console.print(Text.from_ansi(text.rstrip()))
    drawn = console.export_svg(
        title=f"penstock {' '.join(command)}", theme=DARK, code_format=FORMAT, unique_id=name
    )
    tidy = "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip())
    (IMAGES / f"{name}.svg").write_text(re.sub(r"@font-face \{.*?\}", "", tidy) + "\n", "utf-8")


def main(wanted: list[str]) -> None:
    """Take all pictures, or those that are named."""
    socket.gethostname = lambda: "web1"  # in this process
    with serving() as url:
        app = Penstock(f"sqlite:///{SHOP}/penstock.db", create=False)
        commands = dict(COMMANDS)
        commands["job"] = ["jobs", str(newest(app, JobQuery(states=[State.DONE], queue="mail")))]
        for name, command in commands.items():
            if not wanted or name in wanted:
                terminal(name, command)
        planned = shots(app)
        run_sync(app.close())
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            for name, shot in planned.items():
                if not wanted or name in wanted:
                    photograph(browser, url, name, shot, "light")
                    photograph(browser, url, name, shot, "dark")
            browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])

"""What the tests of entries share: an embedder, workers, files, a client, a server, a check."""

import asyncio
import hashlib
import io
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from openpyxl import Workbook

from penstock import JobQuery, LeaseLost, Penstock, State, TransitionRefused, Worker
from penstock.apps.entries import Entries, Entry, EntryQuery, EntryType, Field, Settings
from penstock.apps.entries.formats import read, writer_to
from penstock.apps.entries.reconciliation import index_digests, row_digests
from penstock.apps.entries.records import BadRecord, Exported, Record
from penstock.apps.entries.rows import QUEUE
from penstock.apps.entries.transfers import Options, Report, import_records
from penstock.apps.entries.types import BUILT_IN, EntryTypes
from penstock.testing import expire_lease
from penstock.vectors.embedders import Vectors, normalised
from tests.environment import SOON

if TYPE_CHECKING:
    from tests.apps.indexing.support import Embeddings

LEASE = 3_600
"""Seconds. No live worker loses a row however slow it is; tests expire the leases of dead ones."""
SERVER_LEASE = 15
"""Seconds. A job whose workers died twice rests for up to its lease, so this one is shorter."""
DIMENSIONS = {"letters": 32, "others": 24}


# Entries and workers in the process of the test


class Letters:
    """Embeds without a model: equal texts have equal vectors, other texts have others.

    Refuses texts with the word `poison`, and waits at those with a word that is held.
    """

    def __init__(self, name: str = "letters") -> None:
        self.name = name
        self.dimensions = DIMENSIONS[name]
        self.poison = "poison"
        self.calls: list[list[str]] = []
        self.holds = ""
        self.held = threading.Event()
        self.go_on = threading.Event()

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.holds and any(self.holds in text for text in texts):
            self.held.set()
            assert self.go_on.wait(SOON)
        if any(self.poison in text for text in texts):
            raise ValueError("this text is poison")
        self.calls.append(list(texts))
        return vectors_of(texts, self.name)

    def hold(self, word: str) -> None:
        self.held.clear()
        self.go_on.clear()
        self.holds = word

    async def wait_until_held(self) -> None:
        assert await asyncio.to_thread(self.held.wait, SOON)

    def release(self) -> None:
        self.holds = ""
        self.go_on.set()

    def close(self) -> None:
        """Do nothing: there is nothing open."""


def vectors_of(texts: Sequence[str], name: str = "letters") -> Vectors:
    size = DIMENSIONS[name]
    rows = [
        np.frombuffer(
            hashlib.blake2b(f"{name} {text}".encode(), digest_size=size).digest(), np.uint8
        )
        for text in texts
    ]
    return normalised(np.array(rows, np.float32).reshape(-1, size) - 127.5)


@asynccontextmanager
async def opened(
    url: str, folder: Path, letters: Letters | None = None, settings: Settings | None = None
) -> AsyncIterator[Entries]:
    """Entries in a store, whose tasks a worker of this process can run."""
    own = letters or Letters()
    settings = settings or Settings(embedder="letters", lease=LEASE)
    async with Penstock(url, actor="tester") as penstock:
        entries = Entries(
            penstock,
            folder,
            settings=settings,
            open_embedder=lambda name: own if name == own.name else Letters(name),
        )
        await entries.prepare()
        entries.register()
        try:
            yield entries
        finally:
            own.release()
            entries.close()


def worker(entries: Entries, **options: Any) -> Worker:
    """One that embeds; it looks for expired leases all the time."""
    usual = {"queues": ["entries", "entries-operations"], "concurrency": 40}
    return Worker(entries.penstock, **{**usual, "sweep": timedelta(milliseconds=20), **options})


@asynccontextmanager
async def working(entries: Entries, **options: Any) -> AsyncIterator[None]:
    one = worker(entries, **options)
    running = asyncio.create_task(one.run())
    try:
        yield
    finally:
        one.stop()
        await running


async def work_off(entries: Entries, **options: Any) -> None:
    """Embed everything that is pending."""
    await worker(entries, **options).run(until_empty=True)


async def claim_and_die(entries: Entries, limit: int) -> list[int]:
    """Claim jobs as a worker that is killed at once; return them, with expired leases."""
    claimed = await entries.penstock.leases.claim(worker="dead", limit=limit, queues=[QUEUE])
    for job in claimed:
        expire_lease(entries.penstock, job)
    return [job.id for job in claimed]


async def status(entries: Entries, one: str) -> str:
    (found,) = await entries.read([one])
    return found.embedding_status


async def has_status(entries: Entries, one: str, wanted: str) -> bool:
    return await status(entries, one) == wanted


async def jobs(entries: Entries) -> list[int]:
    return [job.id for job in await entries.penstock.find(JobQuery(queue=QUEUE))]


async def in_flight(entries: Entries, letters: Letters, title: str) -> str:
    """Write a row whose embedding waits until `letters` is released."""
    letters.hold(title)
    made = await entries.write("experience", "A", experience(title))
    return made.id


async def is_paused(entries: Entries) -> bool:
    return any(one.paused for one in await entries.penstock.queues.list() if one.name == QUEUE)


async def until(entries: Entries, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until this holds, looking after every change of the store."""
    seen = 0
    async with asyncio.timeout(SOON):
        while not await holds():
            seen = await entries.penstock.wait(seen, 1)


def experience(title: str, playbook: str = "do it") -> dict[str, Any]:
    return {"title": title, "playbook": playbook}


async def everything(entries: Entries) -> list[Entry]:
    found: list[Entry] = []
    while page := await entries.page(
        EntryQuery(), after=found[-1].number if found else None, limit=1_000, newest=False
    ):
        found += page
    return found


async def assert_index_equals_rows(entries: Entries) -> None:
    """The index has exactly the rows that are embedded, each with the vector of its text.

    The counts agree with the rows as well.
    """
    rows = await everything(entries)
    texts = {
        one.id: entries.types.get(one.type).text(one.data)
        for one in rows
        if one.embedding_status == "embedded"
    }
    current = await entries.current_index()
    with closing(sqlite3.connect(current.folder / "catalogue.db")) as db:
        stored = dict(db.execute("SELECT id, vector FROM item JOIN body USING (number)"))
    assert stored.keys() == texts.keys()
    digests = await asyncio.to_thread(lambda: dict(row_digests(entries)))
    assert dict(index_digests(current)) == digests
    wanted = dict(zip(texts, current.embedder.embed(list(texts.values())), strict=True))
    for one, vector in stored.items():
        assert np.allclose(np.frombuffer(vector, "<f4"), wanted[one], atol=1e-6), one
    for one in list(texts)[:: 1 + len(texts) // 200]:  # FAISS has them too
        (best, *_) = current.index.search(wanted[one], k=1, mode="vector")
        assert best.score > 0.999
        assert np.allclose(wanted[best.id], wanted[one], atol=1e-6)
    counted: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row.type, row.embedding_status
        counted[key] = counted.get(key, 0) + 1
    assert {key: n for key, n in (await entries.counts()).items() if n} == counted


# Imports


def lines(numbers: Iterable[int], text: str = "text", **more: Any) -> bytes:
    """Manuals as lines of JSON."""
    found = [
        {
            "id": f"m-{n}",
            "entity_type": "manual",
            "category_code": "A",
            "data": {"title": f"title {n}", "content": f"{text} {n}"},
            **more,
        }
        for n in numbers
    ]
    return "\n".join(map(json.dumps, found)).encode()


def records(entries: Entries, content: bytes, kind: str = "jsonl") -> Iterable[Record | BadRecord]:
    return read(io.BytesIO(content), kind, entries.types)


async def imported(entries: Entries, content: bytes, name: str = "1", **options: Any) -> Report:
    return await import_records(entries, records(entries, content), Options(**options), name=name)


async def contents(entries: Entries) -> dict[str, str]:
    """What the manuals say, by id."""
    return {one.id: one.data["content"] for one in await everything(entries)}


def kill_program(chance: random.Random, steps: Sequence[str], *arguments: str, pause: str) -> None:
    """Run `program` and kill it at a random moment of a random step."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.apps.entries.program", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PAUSE": pause},
    ) as process:
        assert process.stdout is not None
        step = chance.choice(steps)
        while (said := process.stdout.readline().strip()) != step:
            assert said, f"it ended before it was {step}"
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, 0.15))
        process.kill()


# Files

EVERY_KIND = EntryType(
    name="note",
    fields={
        "title": Field(required=True),
        "score": Field(kind="number"),
        "done": Field(kind="flag"),
        "tags": Field(kind="list"),
        "extra": Field(kind="object"),
        "context": Field(kind="any"),
    },
    embed=("title",),
)


TYPES = EntryTypes([*BUILT_IN, EVERY_KIND])


_EMBEDDED = ("embedded", 3, "2030-01-01T00:00:00+00:00", "2030-01-01T00:00:00+00:00")


def note(number: int, data: dict[str, Any], entity_type: str = "note") -> Exported:
    return Exported(f"id-{number}", entity_type, "A-1", data, *_EMBEDDED)


def written(kind: str, entries: Iterable[Exported]) -> bytes:
    file = io.BytesIO()
    with writer_to(file, kind, list(TYPES)) as writer:
        for one in entries:
            writer.write(one)
    return file.getvalue()


def parsed(kind: str, content: bytes | str, **options: Any) -> list[Record | BadRecord]:
    content = content.encode() if isinstance(content, str) else content
    return list(read(io.BytesIO(content), kind, TYPES, **options))


def workbook(*rows: Iterable[Any]) -> bytes:
    book = Workbook()
    for row in rows:
        book.active.append(list(row))
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


# Routes


class Api:
    """A client of the routes, in the process of the test."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        for url in (path, f"{path}/") if method == "GET" else (f"{path}/",):
            answer = await self.client.request(method, url, json=body, **options)
            assert answer.status_code == status, answer.text
        return answer.json()

    async def entries(self, verb: str, body: Any, status: int = 200) -> Any:
        return await self("POST", f"/api/v1/entries/{verb}", body, status=status)

    async def queue(self, verb: str, status: int = 200, **params: Any) -> Any:
        return await self("POST", f"/admin/queue/{verb}", status=status, params=params)


# A real server


class Server:
    """`penstock serve` with its processes; it can be killed and started again at its address.

    The leases of processes that were killed are expired by the test, in `eventually`.
    """

    def __init__(self, folder: Path, store: str, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.store = folder, store
        self.output = folder / "server.txt"
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SOON)
        self._environment = {
            "PENSTOCK_ENTRIES_LEASE": str(SERVER_LEASE),
            "PENSTOCK_ENTRIES_POLL_INTERVAL": "0.1",
            **environment,
        }
        self._command = [
            *(sys.executable, "-m", "penstock.cli.main", "serve", "--store", store),
            *("--port", str(port), "--data", str(folder / "data"), "--apps", "entries"),
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self._killed: set[int] = set()

    def start(self, *options: str) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._command, *options],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
            )
        self.eventually(self._answers)

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self.client.get("/health").status_code == 200
        return False

    def eventually(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SOON
        while not (found := holds()):
            assert time.monotonic() < deadline, self.output.read_text()
            if self._killed:
                asyncio.run(self._expire_leases())
            time.sleep(0.02)
        return found

    async def _expire_leases(self) -> None:
        """Expire the leases of killed processes.

        More than once: PostgreSQL may commit the last claim of a process after it has died.
        """
        async with Penstock(self.store) as app:
            for job in await app.find(JobQuery(states=frozenset({State.RUNNING}), limit=1_000)):
                if int((job.worker or "").rpartition(":")[2] or 0) in self._killed:
                    with suppress(LeaseLost, TransitionRefused):  # it was reclaimed meanwhile
                        expire_lease(app, job)

    def ask(self, path: str, body: Any = None) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def write(self, title: str) -> str:
        body = {"entity_type": "experience", "category_code": "A", "data": experience(title)}
        return str(self.ask("/api/v1/entries/write", body)["entry_id"])

    def entry(self, one: str) -> Any:
        return self.ask("/api/v1/entries/read", {"ids": [one]})["entry"]

    def queue(self) -> Any:
        return self.client.get("/admin/queue/status").json()["queue"]

    def pids(self) -> set[int]:
        """The processes that embed and live."""
        return {pid for pid in self.workers() if lives(pid)}

    def workers(self) -> dict[int, Any]:
        """What the status says of each worker, by its process."""
        shown = self.client.get("/admin/queue/status").json()["workers"]["workers"]
        return {one["pid"]: one for one in shown}

    def is_embedded(self, n: int) -> bool:
        return bool(self.queue()["embedded"]["total"] == n)

    def operation(self, job: str) -> Any:
        return self.client.get(f"/api/v1/operations/jobs/{job}").json()

    def kill(self) -> None:
        """End the server as a power cut would; its processes notice by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_processes(self, pids: Iterable[int]) -> None:
        """Kill processes that embed."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._killed.add(pid)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(SOON)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def serving(
    folder: Path,
    store: str,
    embeddings: "Embeddings",
    *options: str,
    again: str = "0",
    workers: str = "2",
) -> Iterator[Server]:
    server = Server(
        folder,
        store,
        PENSTOCK_ENTRIES_EMBEDDER=embeddings.configuration,
        PENSTOCK_ENTRIES_RETRY_DELAY="0",
        CHL_NUM_EMBEDDING_WORKERS=workers,
        CHL_WORKER_BATCH_SIZE="10",
        CHL_QUEUE_RETRY_FAILED_ON_STARTUP=again,
        OPENAI_API_KEY="none",
    )
    try:
        server.start(*options)
        yield server
    finally:
        embeddings.release()
        if server.process is not None and server.process.poll() is None:
            server.stop()
        server.client.close()

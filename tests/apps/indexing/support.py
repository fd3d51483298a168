"""Folders to index, an embedding service that a test can hold, and servers that can be killed."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np

from penstock import JobQuery, Penstock, State, run_sync
from penstock.apps.indexing.files import Files
from penstock.apps.indexing.indexer import Indexer
from penstock.apps.indexing.job import Parameters, Report
from penstock.testing import expire_lease
from penstock.vectors import Index, open_index
from penstock.vectors.embedders import Vectors, normalised
from tests.environment import SOON
from tests.worker.support import child_processes, is_alive

DIMENSIONS = 64
FINAL = ("done", "failed", "cancelled")
_WORD = re.compile(r"\w+")


def hashed(text: str) -> list[float]:
    """Return a vector that depends on the words of a text: without meaning, but fast and stable."""
    row = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.lower()):
        row[hashlib.blake2b(word.encode(), digest_size=2).digest()[0] % DIMENSIONS] += 1.0
    return row


class HashEmbedder:
    """Embeds without a model."""

    name = "hash"
    dimensions = DIMENSIONS

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return normalised(np.array([hashed(text) for text in texts]).reshape(-1, DIMENSIONS))

    def close(self) -> None:
        pass


class Embeddings:
    """A local embedding service that a test can hold, so that requests wait."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.holds: tuple[str, ...] = ()
        self.refusals: dict[str, str] = {}
        """Words of texts that are refused, with the answers."""
        self.held = threading.Event()
        self._go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def configuration(self) -> str:
        return f"openai:hash@http://127.0.0.1:{self._server.server_port}/v1"

    def hold(self, *words: str) -> None:
        """Make requests wait that contain one of these words."""
        self.held.clear()
        self._go_on.clear()
        self.holds = words

    def release(self) -> None:
        self.holds = ()
        self._go_on.set()

    def wait_until_held(self) -> None:
        assert self.held.wait(SOON)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if any(word in text for word in service.holds for text in asked["input"]):
                    service.held.set()
                    service._go_on.wait()
                for word, why in list(service.refusals.items()):
                    if any(word in text for text in asked["input"]):
                        return self._answer(400, why.encode())
                service.texts += asked["input"]
                rows = [
                    {"index": n, "embedding": hashed(text)} for n, text in enumerate(asked["input"])
                ]
                return self._answer(200, json.dumps({"data": rows}).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

            def handle(self) -> None:
                with suppress(OSError):  # who asked was killed
                    super().handle()

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Quiet:
    """Records the progress of a job."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []
        self.kept: list[tuple[str, Report]] = []

    def progress(self, report: Report, done: int, path: str) -> None:
        self.told.append((done, path))

    def checkpoint(self, after: str, report: Report) -> None:
        import msgspec

        self.kept.append((after, msgspec.convert(msgspec.to_builtins(report), Report)))


class Indexed:
    """A collection in a folder of its own, without a queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.embedder = HashEmbedder()
        self.observer = Quiet()
        self.jobs = 0

    @contextmanager
    def opened(self) -> Iterator[tuple[Files, Index]]:
        with (
            Files(self.folder) as files,
            open_index(self.folder, DIMENSIONS, fingerprint="hash") as index,
        ):
            yield files, index

    def run(
        self,
        parameters: Parameters,
        *,
        after: str = "",
        before: Report | None = None,
        job: int | None = None,
        largest: int = 10_000,
        at_once: int = 50,
        observer: Any = None,
    ) -> Report:
        """Run a job as its task would."""
        self.jobs += 1
        with self.opened() as (files, index):
            indexer = Indexer(
                parameters,
                files,
                index,
                self.embedder,
                observer or self.observer,
                job=job or self.jobs,
                largest=largest,
                at_once=at_once,
                clock=lambda: 0.0,
            )
            return indexer.run(after, before)

    def content(self) -> dict[str, Any]:
        """Return its chunks with their texts and vectors, and its files with their digests."""
        import sqlite3

        with sqlite3.connect(self.folder / "catalogue.db") as db:
            chunks = db.execute(
                "SELECT id, path, type, metadata, title, text, vector FROM item "
                "JOIN body USING (number) ORDER BY id"
            ).fetchall()
        db.close()
        with sqlite3.connect(self.folder / "files.db") as db:
            files = db.execute(
                "SELECT path, folder, digest, chunks FROM file ORDER BY path"
            ).fetchall()
        db.close()
        return {"chunks": chunks, "files": files}

    def paths(self) -> set[str]:
        return {Path(path).name for path, *_ in self.content()["files"]}


def asked(folder: Path, **fields: Any) -> Parameters:
    """Return the arguments of a job on a folder."""
    return Parameters(folder=str(folder), **fields)


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


class Server:
    """`penstock serve` for a project, which can be killed and started again."""

    def __init__(self, project: Path, embeddings: Embeddings, **environment: str) -> None:
        self.project = project
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = project.parent / f"{project.name}.txt"
        data = project.parent / f"{project.name}-data"
        self._store = data / "penstock.db"
        self._environment = {
            "PENSTOCK_INDEXING_EMBEDDER": embeddings.configuration,
            "PENSTOCK_INDEXING_LEASE": "3600",  # it never expires while its worker is alive
            "PENSTOCK_INDEXING_RETRY_DELAY": "0",
            "PENSTOCK_DATA": str(data),
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(base_url=self.url, timeout=SOON)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", "serve", "--port", str(self.port)],
                cwd=self.project,
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
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill the server with all its processes, and expire their leases.

        The guard kills the child that indexes. Until then it may go on, and ask for embeddings.
        """
        if self.process is None:
            return
        children = child_processes(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.process = None
        deadline = time.monotonic() + SOON
        while any(is_alive(child) for child in children):
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.01)
        if self._store.exists():
            self._expire_leases()

    def _expire_leases(self) -> None:
        app = Penstock(f"sqlite:///{self._store}")
        for job in run_sync(app.find(JobQuery(queue="indexing", states={State.RUNNING}))):
            expire_lease(app, job)
        run_sync(app.close())

    def stop(self) -> int:
        """Stop the server; return its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(SOON)
        self.process = None
        return status

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def index(self, folder: str, **fields: Any) -> str:
        answer = self.ask("POST", "/index/", {"folder_path": folder, **fields}, status=202)
        return str(answer["job_id"])

    def job(self, job_id: str) -> Any:
        return self.ask("GET", f"/index/jobs/{job_id}")

    def until(self, job_id: str, *statuses: str) -> Any:
        """Return a job as soon as it has one of these states."""
        deadline = time.monotonic() + SOON
        while (job := self.job(job_id))["status"] not in statuses:
            assert time.monotonic() < deadline, (job, self.output.read_text())
            time.sleep(0.02)
        return job

    def finished(self, job_id: str) -> Any:
        return self.until(job_id, *FINAL)

    def found(self, query: str, **fields: Any) -> list[str]:
        """Return the names of the files that a search finds."""
        results = self.ask("POST", "/query/", {"query": query, "top_k": 100, **fields})["results"]
        return sorted({Path(one["source"]).name for one in results})


@contextmanager
def serving(project: Path, embeddings: Embeddings, **environment: str) -> Iterator[Server]:
    """Run a server inside the block, and kill it at the end if necessary."""
    server = Server(project, embeddings, **environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        server.client.close()

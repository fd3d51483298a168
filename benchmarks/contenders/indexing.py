"""Who indexes folders: `penstock serve` by a job, and the same pipeline without a queue."""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.http import Site


class IndexingServer(Site):
    """`penstock serve` with the default embedder; folders anywhere may be indexed."""

    def command(self, folder: Path) -> Sequence[str]:
        """See `Site`."""
        os.environ["PENSTOCK_PROJECT_ROOT"] = "/"
        os.environ["PENSTOCK_INDEXING_MAX_QUEUE"] = "100000"
        serve = "from penstock.cli.main import main; main()"
        options = ("--data", str(folder / "data"), "--port", str(self.port))
        return (sys.executable, "-c", serve, "serve", *options)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request, and what is answered."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine
            return json.load(answer)

    def begin(self, folder: Path) -> str:
        """Ask for a folder; the job."""
        return str(self.ask("POST", "/index", {"folder_path": str(folder)})["job_id"])

    def finish(self, job_id: str) -> Any:
        """The job when it has ended."""
        while (job := self.ask("GET", f"/index/jobs/{job_id}"))["status"] in (
            "pending",
            "running",
        ):
            time.sleep(0.05)
        if job["status"] != "done":
            raise RuntimeError(job["error"])
        return job

    def index(self, folder: Path) -> float:
        """Index a folder; the seconds that the job ran."""
        return float(self.finish(self.begin(folder))["execution_time_ms"]) / 1_000


class BarePipeline:
    """Read, cut, embed, add: in this process, nothing noted, nothing resumed."""

    def __init__(self, folder: Path) -> None:
        from penstock.vectors import Collection, open_embedder

        self._collection = Collection.open(folder / "bare", open_embedder())

    def index(self, folder: Path) -> float:
        """Index a folder; the seconds it took."""
        from penstock.vectors import Document

        begun = time.perf_counter()
        paths = sorted(path for path in folder.rglob("*.txt"))
        self._collection.replace(Document(str(path), path.read_text()) for path in paths)
        return time.perf_counter() - begun

    def close(self) -> None:
        """Let go of the collection."""
        self._collection.close()

    enqueue = fill = None

"""Who embeds entries: `penstock serve` with its pool, and the embedder with FAISS alone."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.indexing import IndexingServer

_BATCH = 256


class EntriesServer(IndexingServer):
    """`penstock serve` with the default embedder and as many processes as it has by default."""

    def command(self, folder: Path) -> Sequence[str]:
        """See `Site`."""
        serve = "from penstock.cli.main import main; main()"
        options = ("--data", str(folder / "data"), "--port", str(self.port), "--apps", "entries")
        return (sys.executable, "-c", serve, "serve", *options)

    def send(self, content: bytes) -> str:
        """Import lines of JSON; the job."""
        import httpx

        url = f"http://127.0.0.1:{self.port}/api/v1/entries/import?format=jsonl"
        sent = httpx.post(url, content=content, timeout=60)
        sent.raise_for_status()
        return str(sent.json()["job_id"])

    def status(self) -> Any:
        """How many rows there are, by status."""
        return self.ask("GET", "/admin/queue/status")["queue"]

    def until_embedded(self, n: int) -> None:
        """Wait until so many rows are embedded."""
        while self.status()["embedded"]["total"] < n:
            time.sleep(0.02)


class BareEmbedder:
    """Embed and add to FAISS: in this process, nothing is stored."""

    def __init__(self, folder: Path) -> None:
        import faiss

        from penstock.vectors import open_embedder

        self._file = str(folder / "bare.faiss")
        self._embedder = open_embedder()
        self._index = faiss.IndexFlatIP(self._embedder.dimensions)
        self._save = faiss.write_index

    def embed(self, texts: Sequence[str]) -> float:
        """Embed texts; the seconds it took."""
        begun = time.perf_counter()
        for start in range(0, len(texts), _BATCH):
            self._index.add(self._embedder.embed(texts[start : start + _BATCH]))
        self._save(self._index, self._file)
        return time.perf_counter() - begun

    enqueue = fill = close = None

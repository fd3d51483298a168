"""Who ingests folders: `penstock serve` by items."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.indexing import IndexingServer


class IngestServer(IndexingServer):
    """`penstock serve` with the default embedder; files anywhere may be read."""

    def command(self, folder: Path) -> Sequence[str]:
        """See `Site`."""
        os.environ["PENSTOCK_INGEST_ROOTS"] = "/"
        serve = "from penstock.cli.main import main; main()"
        options = ("--data", str(folder / "data"), "--port", str(self.port))
        return (sys.executable, "-c", serve, "serve", *options)

    def ingest(self, folder: Path) -> float:
        """Ingest a folder; the seconds until all its files were done."""
        begun = time.perf_counter()
        body = {"path": str(folder)}
        [item] = self.ask("POST", "/api/v1/ingest", body)["items"]
        while not self._is_over(self.ask("GET", f"/api/v1/queue/items/{item['queue_id']}")):
            time.sleep(0.1)
        return time.perf_counter() - begun

    @staticmethod
    def _is_over(item: Any) -> bool:
        children = item["children"]
        if item["status"] == "failed" or children["failed"]:
            raise RuntimeError(str(item))
        return bool(
            item["status"] == "done" and children["total"] and children["done"] == children["total"]
        )

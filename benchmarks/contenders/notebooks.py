"""Who keeps files with a history: `penstock serve`, and git called for each file."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders.indexing import IndexingServer

NOTEBOOK = "/api/v1/notebooks/bench"


class NotebookServer(IndexingServer):
    """`penstock serve` with one notebook."""

    def command(self, folder: Path) -> Sequence[str]:
        """See `Site`."""
        os.environ["PENSTOCK_NOTEBOOKS_MAX_QUEUE"] = "1000000"
        serve = "from penstock.cli.main import main; main()"
        options = ("--data", str(folder / "data"), "--port", str(self.port))
        self.root = folder / "data" / "notebooks" / "bench"
        return (sys.executable, "-c", serve, "serve", "--apps", "notebooks", *options)

    def make(self) -> None:
        """Register the notebook."""
        self.ask("POST", "/api/v1/notebooks", {"name": "bench"})

    def wait(self, event_id: int) -> Any:
        """An operation when it has ended; raises if it has failed."""
        event = self.ask("GET", f"/api/v1/events/{event_id}/wait?timeout=600")
        if event["status"] != "completed":
            raise RuntimeError(event["error_message"])
        return event

    def commit(self) -> None:
        """Commit, and wait for it."""
        self.ask("POST", "/api/v1/events/commit?sync=true&timeout=600", {})

    def commits(self) -> int:
        """How many there are."""
        return int(_git(self.root, "rev-list", "--count", "HEAD"))

    def known(self, files: int) -> None:
        """Wait until so many files are known and nothing is left to be done for them."""
        before = 0
        while True:
            metrics = self.ask("GET", "/api/v1/events/metrics")
            if metrics["completed"] != before and not metrics["processing"]:
                if len(self.ask("GET", f"{NOTEBOOK}/files?limit=10000")["files"]) >= files:
                    return
                before = metrics["completed"]
            time.sleep(0.05)


class GitPerFile:
    """`git add` and `git commit` after each file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "repository"
        self._folder.mkdir()
        _git(self._folder, "init", "--quiet")
        _git(self._folder, "config", "user.name", "bench")
        _git(self._folder, "config", "user.email", "bench@localhost")

    def create(self, name: str, text: str) -> None:
        """Write a file and commit it."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        _git(self._folder, "add", "--", name)
        _git(self._folder, "commit", "--quiet", "--message", f"Add {name}")

    def close(self) -> None:
        """Nothing stays open."""

    enqueue = fill = None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],  # noqa: S607 - the one that is installed
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()

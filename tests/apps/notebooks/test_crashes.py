"""A real server with a notebook, killed at random under load and started again."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.notebooks.disk import files_of
from tests.apps.notebooks.support import git
from tests.server.support import Server

SOON = 60
ENVIRONMENT = {
    "PENSTOCK_APPS": "notebooks",
    "PENSTOCK_NOTEBOOKS_LEASE": "1",
    "PENSTOCK_NOTEBOOKS_RETRY_DELAY": "0.1",
    "PENSTOCK_NOTEBOOKS_COMMIT_INTERVAL": "0.2",
    "PENSTOCK_NOTEBOOKS_MAX_RETRIES": "20",
}


class Working(Server):
    """A server that runs jobs."""

    workers = 4


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A running server that is gone afterwards, whatever happens."""
    server = Working(folder, **ENVIRONMENT)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Progress:
    """How many operations were acknowledged, to all writers together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.acknowledged = 0

    def add(self) -> None:
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        with self._changed:
            wanted = self.acknowledged + more
            assert self._changed.wait_for(lambda: self.acknowledged >= wanted, SOON)


class Writer(threading.Thread):
    """A client with paths of its own; knows what they have to be at the end."""

    def __init__(
        self, server: Server, name: str, seed: int, stop: threading.Event, progress: Progress
    ) -> None:
        super().__init__(name=name)
        self._progress = progress
        self._server = server
        self._chance = random.Random(seed)
        self._stop_asked = stop
        self.files: dict[str, set[str | None]] = {}
        """What may be at each path; one thing, where every answer has arrived."""
        self.wrong: str | None = None

    def run(self) -> None:
        with httpx.Client(timeout=20) as client:
            while not self._stop_asked.is_set() and self.wrong is None:
                self._change(client)

    def _change(self, client: httpx.Client) -> None:
        place = f"{self._server.url}/api/v1/notebooks/garden"
        path = f"{self.name}/{self._chance.randrange(8)}.md"
        known = self.files.get(path, {None})
        if self._chance.random() < 0.25 and known != {None}:
            operations = [{"op": "delete", "path": path}]
            self._send(path, None, lambda: client.post(f"{place}/batch", json=_batch(operations)))
            return
        text = f"{self.name} {self._chance.random()}"
        self._send(path, text, lambda: client.put(f"{place}/content?path={path}", content=text))

    def _send(self, path: str, after: str | None, send: Callable[[], httpx.Response]) -> None:
        before = self.files.get(path, {None})
        self.files[path] = {*before, after}
        try:
            answer = send()
        except httpx.TransportError:
            self._stop_asked.wait(0.01)  # it may or may not have arrived
            return
        if answer.status_code == 202:
            self.files[path] = {after}
            self._progress.add()
        elif answer.status_code != 503:
            self.wrong = answer.text


def _batch(operations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"operations": operations}


def _quiet(server: Server) -> dict[str, Any]:
    """Wait until nothing is left to do."""
    deadline = time.monotonic() + SOON
    while True:
        metrics: dict[str, Any] = httpx.get(f"{server.url}/api/v1/events/metrics").json()
        if not metrics["pending"] + metrics["processing"] and not metrics["uncommitted"]:
            return metrics
        assert time.monotonic() < deadline, metrics
        time.sleep(0.05)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_when_the_server_is_killed(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    root = tmp_path / "penstock-data/notebooks/garden"
    stop, progress = threading.Event(), Progress()
    with serving(tmp_path) as server:
        answer = httpx.post(f"{server.url}/api/v1/notebooks", json={"name": "garden"})
        assert answer.status_code == 201
        writers = [Writer(server, f"w{n}", seed * 10 + n, stop, progress) for n in range(3)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(3):
                progress.wait_for(chance.randrange(1, 60))
                server.kill()
                server.start()
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert [writer.wrong for writer in writers] == [None] * 3
        _quiet(server)
        _check(root, server, writers)
        assert git(root, "fsck", "--full", "--strict", "--no-dangling") == ""
        assert git(root, "status", "--porcelain") == ""


def _check(root: Path, server: Server, writers: list[Writer]) -> None:
    files = httpx.get(f"{server.url}/api/v1/notebooks/garden/files").json()["files"]
    known = {one["path"]: one["size"] for one in files}
    disk = {path: file.read_text() for path, file in files_of(root)}
    committed = {path: git(root, "show", f"HEAD:{path}") for path in git(root, "ls-files").split()}
    assert disk == committed
    assert known == {path: len(text) for path, text in disk.items()}
    for writer in writers:
        for path, possible in writer.files.items():
            assert disk.get(path) in possible, (path, possible)


def test_second_server_is_refused_with_a_clear_word(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        httpx.post(f"{server.url}/api/v1/notebooks", json={"name": "garden"})
        _quiet(server)
        with pytest.raises(AssertionError, match="another server works on notebook 'garden'"):
            Working(tmp_path, **ENVIRONMENT).start()

"""A real server with a notebook, killed at random under load and started again.

More kills: `PENSTOCK_NOTEBOOK_KILLS=200 ./dev test tests/apps/notebooks/test_crashes.py`; other
operations: with another `PENSTOCK_NOTEBOOK_SEED`.
"""

import hashlib
import os
import random
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.apps.notebooks.support import (
    SERVER_ENVIRONMENT,
    Step,
    WorkingServer,
    World,
    files_of,
    git,
    request_for,
    serving,
    some_batch,
    some_step,
    wait_until_quiet,
)
from tests.environment import SOON
from tests.server.support import Server

KILLS = int(os.environ.get("PENSTOCK_NOTEBOOK_KILLS", "6"))


SEED = int(os.environ.get("PENSTOCK_NOTEBOOK_SEED", "1"))


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
    """A client with a folder of its own; knows what has to be in it at the end."""

    def __init__(
        self, server: Server, name: str, seed: int, stop: threading.Event, progress: Progress
    ) -> None:
        super().__init__(name=name)
        self._progress = progress
        self._server = server
        self._chance = random.Random(seed)
        self._stop_asked = stop
        self.worlds = [World()]
        """What the folder may be; one thing, where every answer has arrived."""
        self.events: list[int] = []
        """Operations that were acknowledged."""
        self.wrong: str | None = None

    def run(self) -> None:
        # A kill cuts the connection. Without one, an answer is waited for: a request that was given
        # up could still be stored, after the next one.
        with httpx.Client(base_url=self._server.url, timeout=SOON) as client:
            while not self._stop_asked.is_set() and self.wrong is None:
                is_batch = self._chance.random() < 0.3
                steps = some_batch(self._chance) if is_batch else [some_step(self._chance)]
                self._change(client, [one.below(self.name) for one in steps])

    def _change(self, client: httpx.Client, steps: list[Step]) -> None:
        name = f"{self.name}-{self._chance.random()}"
        try:
            answer = client.request(**request_for(steps, correlation=name))
        except httpx.TransportError:
            self._may_have(steps)  # it may or may not have arrived
            self._stop_asked.wait(0.01)
            return
        if answer.status_code == 202:
            told = answer.json()
            self.events += [one["event_id"] for one in told.get("events", [told])]
            for world in self.worlds:
                world.follow_all(steps)
            self._progress.add()
        elif answer.status_code not in (409, 422, 503):
            self.wrong = answer.text

    def _may_have(self, steps: list[Step]) -> None:
        for world in [world.copy() for world in self.worlds]:
            world.follow_all(steps)
            if all(world.files != one.files or world.folders != one.folders for one in self.worlds):
                self.worlds.append(world)


@pytest.mark.timeout(120 + 20 * KILLS)
def test_nothing_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """Every kill costs a start of the server, a second; after every third all is compared."""
    chance = random.Random(SEED)
    root = tmp_path / "penstock-data/notebooks/garden"
    with serving(tmp_path) as server:
        answer = httpx.post(f"{server.url}/api/v1/notebooks", json={"name": "garden"}, timeout=SOON)
        assert answer.status_code == 201
        worlds: dict[str, World] = {}
        for killed in range(0, KILLS, 3):
            writers = _killed_under_load(server, chance, worlds, min(KILLS - killed, 3))
            wait_until_quiet(server)
            disk = _agreement(root, server)
            for writer in writers:
                worlds[writer.name] = _world(writer, root, disk)
                _check_events(server, writer)
        assert git(root, "fsck", "--full", "--strict", "--no-dangling") == ""
        assert git(root, "status", "--porcelain") == ""


def _killed_under_load(
    server: Server, chance: random.Random, worlds: dict[str, World], kills: int
) -> list[Writer]:
    stop, progress = threading.Event(), Progress()
    writers = [Writer(server, f"w{n}", chance.randrange(10**9), stop, progress) for n in range(3)]
    for writer in writers:
        writer.worlds = [worlds.get(writer.name, World())]
        writer.start()
    try:
        for _ in range(kills):
            progress.wait_for(chance.randrange(1, 60))
            time.sleep(chance.random() / 20)  # not always just after an answer
            server.kill()
            server.start()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert [writer.wrong for writer in writers] == [None] * len(writers)
    return writers


def _agreement(root: Path, server: Server) -> dict[str, str]:
    """What is on the disk, which is what is known and what is committed."""
    files = httpx.get(f"{server.url}/api/v1/notebooks/garden/files", timeout=SOON).json()["files"]
    disk = {path: file.read_text() for path, file in files_of(root)}
    committed = {path: git(root, "show", f"HEAD:{path}") for path in git(root, "ls-files").split()}
    assert disk == committed
    assert {one["path"]: one["hash"] for one in files} == {
        path: hashlib.sha256(text.encode()).hexdigest() for path, text in disk.items()
    }
    return disk


def _world(writer: Writer, root: Path, disk: dict[str, str]) -> World:
    """The one of a writer's worlds that has come true."""
    mine = {path: text for path, text in disk.items() if path.startswith(f"{writer.name}/")}
    top = root / writer.name
    there = [top, *top.rglob("*")] if top.exists() else []
    folders = {str(one.relative_to(root)) for one in there if one.is_dir()}
    for world in writer.worlds:
        if world.files == mine and world.folders == folders:
            return world
    worlds = [(world.files, world.folders) for world in writer.worlds]
    raise AssertionError(f"{mine} in {folders} is none of {worlds}")


def _check_events(server: Server, writer: Writer) -> None:
    """All that was acknowledged is there, and has come to its end."""
    with httpx.Client(timeout=SOON) as client:
        for number in writer.events:
            event = client.get(f"{server.url}/api/v1/events/{number}").json()
            assert event["status"] not in ("pending", "processing"), event


def test_second_server_is_refused_with_a_clear_word(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        httpx.post(f"{server.url}/api/v1/notebooks", json={"name": "garden"})
        wait_until_quiet(server)
        with pytest.raises(AssertionError, match="another server works on notebook 'garden'"):
            WorkingServer(tmp_path, **SERVER_ENVIRONMENT).start()

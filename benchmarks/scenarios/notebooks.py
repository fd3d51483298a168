"""How fast files get into a notebook and its history, and who waits meanwhile."""

import asyncio
import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psutil

from benchmarks import http_load
from benchmarks.contenders import Contender
from benchmarks.contenders.notebooks import NOTEBOOK, GitPerFile, NotebookServer
from benchmarks.scenarios import Figures, Load, Scenario, percentile, timed

_OURS = ("penstock",)
_BATCH = 100
_TEXT = "Some text of a note.\n" * 10


def creates_of(load: Load) -> int:
    """How many files are created one by one: 1,000 unless the load is another."""
    return load.jobs // 20


def files_of(load: Load) -> int:
    """How many files a folder has: 10,000 unless the load is another."""
    return load.jobs // 2


def creates(contender: Contender, folder: Path, load: Load) -> Figures:
    """New files until all are committed; through HTTP in batches of 100."""
    n = creates_of(load)
    if contender.name == "git":
        git = cast("GitPerFile", contender.open(folder))
        with timed() as watch:
            for place in range(n):
                git.create(f"{place // _BATCH}/{place}.md", f"{place}\n{_TEXT}")
        git.close()
        return {"rate": n / watch.seconds}
    with cast("NotebookServer", contender.open(folder)) as server:
        server.make()
        with timed() as watch, ThreadPoolExecutor(8) as threads:
            for last in threads.map(server.wait, threads.map(_batch(server), _portions(n))):
                assert last["status"] == "completed"  # noqa: S101 - `wait` has seen to it
            server.commit()
        return {"rate": n / watch.seconds, "commits": float(server.commits())}


def _portions(n: int) -> list[list[int]]:
    return [list(range(start, min(start + _BATCH, n))) for start in range(0, n, _BATCH)]


def _batch(server: NotebookServer) -> Any:
    def post(places: list[int]) -> int:
        operations = [
            {"op": "create", "path": f"{n // _BATCH}/{n}.md", "content": f"{n}\n{_TEXT}"}
            for n in places
        ]
        answer = server.ask("POST", f"{NOTEBOOK}/batch", {"operations": operations})
        return int(answer["events"][-1]["event_id"])

    return post


def folder(contender: Contender, place: Path, load: Load) -> Figures:
    """A large folder: copied by somebody else, committed, moved; and publishing meanwhile."""
    n = files_of(load)
    source = place / "source"
    for number in range(n):
        below = source / f"{number % 100}"
        if number < 100:
            below.mkdir(parents=True)
        (below / f"{number}.md").write_text(f"{number}\n{_TEXT}")
    with cast("NotebookServer", contender.open(place)) as server:
        server.make()
        server.ask("PATCH", NOTEBOOK, {"settings": {"commit_interval": 86_400}})
        with timed() as seen:
            subprocess.run(["cp", "-r", source, server.root / "a"], check=True)  # noqa: S607 - whichever is there
            server.known(n)
        server.commit()
        with timed() as moved:
            event = server.ask(
                "PATCH", f"{NOTEBOOK}/folders/a?sync=true&timeout=600", {"path": "b"}
            )
        if event["result"]["file_count"] != n:
            raise RuntimeError(f"{event['result']} were moved, not {n}")
        with timed() as committed:
            published = _while_committing(server, load)
        idle = _idle(server, load)
    return {
        "seen": seen.seconds,
        "moved": moved.seconds,
        "committed": committed.seconds,
        "publish": 1_000 * percentile(published, 0.95),
        "published": float(len(published)),
        "idle": 100 * idle,
    }


def _while_committing(server: NotebookServer, load: Load) -> list[float]:
    """How long publishing takes while everything is committed."""
    over = threading.Event()

    def commit() -> None:
        server.commit()
        over.set()

    committing = threading.Thread(target=commit)
    committing.start()
    taken = asyncio.run(_publish(server.port, load.samples, over))
    committing.join()
    return taken


async def _publish(port: int, samples: int, over: threading.Event) -> list[float]:
    line = await http_load.connect(port)
    taken: list[float] = []
    for n in range(samples):
        body = json.dumps({"path": f"published/{n}.md", "content": _TEXT}).encode()
        begun = time.perf_counter()
        reply = await line.ask(http_load.post(f"{NOTEBOOK}/files", body))
        taken.append(time.perf_counter() - begun)
        if reply.status != 202:
            raise RuntimeError(f"answered {reply.status}: {reply.body[:200]!r}")
        if over.is_set():
            break
        await asyncio.sleep(0.005)
    line.close()
    return taken


def _idle(server: NotebookServer, load: Load) -> float:
    """The part of a core that the server takes when nothing happens."""
    process = psutil.Process(server.pid)
    time.sleep(3)  # what has just begun is over then
    before = sum(process.cpu_times()[:2])
    time.sleep(10 * load.idle_seconds)
    return (sum(process.cpu_times()[:2]) - before) / (10 * load.idle_seconds)


SCENARIOS = (
    Scenario("creates", creates),
    Scenario("folder", folder, _OURS, interleaves=False),
)

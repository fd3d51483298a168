"""How fast folders are indexed, beside the bare pipeline, and who waits meanwhile."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import psutil

from benchmarks import http_load
from benchmarks.contenders import Contender
from benchmarks.contenders.indexing import BarePipeline, IndexingServer
from benchmarks.http_load import get, post
from benchmarks.scenarios import Figures, Load, Scenario, percentile, timed

_OURS = ("penstock",)
_BYTES = 5_000
_WORDS = 4_000


def files_of(load: Load) -> int:
    """How many files: 10,000 unless the load is another."""
    return load.jobs // 2


def write_files(folder: Path, n: int) -> Path:
    """Text files of 5 kB, of words in the frequencies of a language."""
    chance = random.Random(n)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 11))) for _ in range(_WORDS)]
    weights = [1 / rank for rank in range(1, _WORDS + 1)]
    for place in range(n):
        below = folder / f"{place // 500:03}"
        below.mkdir(parents=True, exist_ok=True)
        chosen = chance.choices(words, weights, k=_BYTES // 5)
        lines = [" ".join(chosen[start : start + 12]) for start in range(0, len(chosen), 12)]
        (below / f"{place:05}.txt").write_text("\n".join(lines)[:_BYTES])
    return folder


def index(contender: Contender, folder: Path, load: Load) -> Figures:
    """All files for the first time; the process that does it has its model already."""
    n = files_of(load)
    files = write_files(folder / "files", n)
    warm = write_files(folder / "warm", 5)
    if contender.name == "bare":
        pipeline = cast("BarePipeline", contender.open(folder))
        pipeline.index(warm)
        with timed():
            seconds = pipeline.index(files)
        pipeline.close()
        return {"rate": n / seconds}
    with cast("IndexingServer", contender.open(folder)) as server:
        server.index(warm)
        with timed():
            seconds = server.index(files)
        again = server.index(files)
    return {"rate": n / seconds, "recheck": again * 10_000 / n}


def answers(contender: Contender, folder: Path, load: Load) -> Figures:
    """How long others wait for their answers while a folder is indexed."""
    files = write_files(folder / "files", files_of(load))
    for n in range(load.samples):
        (folder / "others" / str(n)).mkdir(parents=True)
    with cast("IndexingServer", contender.open(folder)) as server:
        server.index(write_files(folder / "warm", 5))
        job = server.begin(files)
        over = threading.Event()

        def wait() -> None:
            server.finish(job)
            over.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        asked, status = asyncio.run(_ask_while(server.port, folder / "others", load, over.is_set))
        waiting.join()
    return {
        "post": 1_000 * percentile(asked, 0.99),
        "status": 1_000 * percentile(status, 0.99),
        "post_p50": 1_000 * percentile(asked, 0.5),
        "asked": float(len(asked)),
    }


async def _ask_while(
    port: int, others: Path, load: Load, is_over: Callable[[], bool]
) -> tuple[list[float], list[float]]:
    line = await http_load.connect(port)
    asked: list[float] = []
    status: list[float] = []
    for n in range(load.samples):
        body = json.dumps({"folder_path": str(others / str(n))}).encode()
        for request, taken in ((post("/index", body), asked), (get("/health/status"), status)):
            begun = time.perf_counter()
            reply = await line.ask(request)
            taken.append(time.perf_counter() - begun)
            if reply.status not in (200, 202):
                raise RuntimeError(f"answered {reply.status}: {reply.body[:200]!r}")
        if is_over():
            break
        await asyncio.sleep(0.01)
    line.close()
    return asked, status


def memory(contender: Contender, folder: Path, load: Load) -> Figures:
    """How much more memory the job's process takes for four times as many files."""
    peaks = []
    for n in (files_of(load) // 4, files_of(load)):
        place = folder / str(n)
        place.mkdir()
        files = write_files(place / "files", n)
        with cast("IndexingServer", contender.open(place)) as server:
            job = server.begin(files)
            over = threading.Event()
            peak: list[float] = []
            watching = threading.Thread(target=_peak, args=(server.pid, over, peak))
            watching.start()
            server.finish(job)
            over.set()
            watching.join()
            peaks.append(peak[0])
    return {"few": peaks[0], "growth": peaks[1] - peaks[0]}


def _peak(pid: int, over: threading.Event, peak: list[float]) -> None:
    highest = 0.0
    server = psutil.Process(pid)
    while not over.wait(0.1):
        for child in server.children(recursive=True):
            try:
                highest = max(highest, child.memory_info().rss / 1e6)
            except psutil.NoSuchProcess:
                continue
    peak.append(highest)


SCENARIOS = (
    Scenario("index", index),
    Scenario("answers", answers, _OURS),
    Scenario("memory", memory, _OURS, interleaves=False),
)

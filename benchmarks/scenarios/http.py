"""Events per second over HTTP, and how long others wait meanwhile."""

import asyncio
import gc
import json
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil

from benchmarks import http_load
from benchmarks.contenders import Contender, make_payload
from benchmarks.contenders.http import Site
from benchmarks.http_load import Tally, get, post
from benchmarks.processes import started
from benchmarks.scenarios import Figures, Load, Scenario, percentile, timed

T = TypeVar("T")

EVENT = {
    "title": "Send Email Notification",
    "tags": "email,notification",
    "payload": make_payload("x"),
}
_BODY = json.dumps(EVENT).encode()
_HUNDRED = json.dumps({"events": [EVENT] * 100}).encode()
CONNECTIONS = 64
POLLS = 2_000
_OURS = ("penstock", "before")


def _run(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    gc.disable()  # a pause of the one who measures is none of the server
    return uvloop.run(work)


def _site(contender: Contender, folder: Path) -> Site:
    return cast("Site", contender.open(folder))


def publish(contender: Contender, folder: Path, load: Load) -> Figures:
    """One event per request, on many connections."""
    with _site(contender, folder) as site:
        tally = Tally(load.jobs)
        with timed(process=site.pid) as watch:
            taken = _run(
                http_load.saturate(
                    site.port, post("/events", _BODY), connections=CONNECTIONS, tally=tally
                )
            )
    return {
        **watch.figures(load.jobs),
        "rate": load.jobs / taken,
        "p99": 1000 * percentile(tally.seconds, 0.99),
    }


def publish_hundred(contender: Contender, folder: Path, load: Load) -> Figures:
    """A hundred events per request."""
    requests = load.jobs * 3 // 100
    with _site(contender, folder) as site:
        request = post("/events/batch", _HUNDRED)
        with timed(process=site.pid) as watch:
            taken = _run(
                http_load.saturate(site.port, request, connections=8, tally=Tally(requests))
            )
    return {**watch.figures(requests * 100), "rate": requests * 100 / taken}


def cycle(contender: Contender, folder: Path, load: Load) -> Figures:
    """Workers take fifty events and complete them, until there are none."""
    with _site(contender, folder) as site:
        taken = _run(_fill_and_work(site.port, load.jobs))
    return {"rate": load.jobs / taken}


async def _fill_and_work(port: int, jobs: int) -> float:
    request = post("/events/batch", _HUNDRED)
    await http_load.saturate(port, request, connections=4, tally=Tally(jobs // 100))
    start = time.perf_counter()
    done = await asyncio.gather(*(_work(port, f"bench:{n}") for n in range(4)))
    if sum(done) != jobs:
        raise RuntimeError(f"{sum(done)} of {jobs} events were worked")
    return time.perf_counter() - start


async def _work(port: int, worker: str) -> int:
    line = await http_load.connect(port)
    subscribe = get(f"/events/subscribe?tags=email&worker_id={worker}&limit=50")
    done = 0
    while events := json.loads((await line.ask(subscribe)).body)["events"]:
        reports = [
            {"id": one["id"], "token": one["token"], "execution_time_ms": 1, "status_code": 200}
            for one in events
        ]
        body = json.dumps({"worker_id": worker, "events": reports}).encode()
        reply = await line.ask(post("/events/complete", body))
        done += sum(one["status"] == 200 for one in json.loads(reply.body)["events"])
    line.close()
    return done


def latency(contender: Contender, folder: Path, load: Load) -> Figures:
    """How long a publish takes at half of the highest rate."""
    request = post("/events", _BODY)
    with _site(contender, folder) as site:
        taken = _run(
            http_load.saturate(
                site.port, request, connections=CONNECTIONS, tally=Tally(load.jobs // 2)
            )
        )
        rate = load.jobs / 2 / taken / 2
        seconds = _run(
            http_load.at_a_rate(
                site.port,
                request,
                connections=CONNECTIONS,
                rate=rate,
                seconds=min(load.jobs / 2 / rate, 10),
            )
        )
    return {"p50": 1000 * percentile(seconds, 0.5), "p99": 1000 * percentile(seconds, 0.99)}


def health(contender: Contender, folder: Path, load: Load) -> Figures:
    """How long the health checks take while publishing is saturated, by another process."""
    with _site(contender, folder) as site, started(_saturate, site.port, load.jobs) as loading:
        live, ready = _run(_check_while(site.port, loading))
        loading.result()
    return {
        "live": 1000 * percentile(live, 0.99),
        "ready": 1000 * percentile(ready, 0.99),
    }


def _saturate(port: int, jobs: int) -> float:
    request = post("/events", _BODY)
    return _run(http_load.saturate(port, request, connections=CONNECTIONS, tally=Tally(jobs)))


async def _check_while(port: int, loading: Future[float]) -> tuple[list[float], list[float]]:
    line = await http_load.connect(port)
    taken: dict[str, list[float]] = {"/health": [], "/health/ready": []}
    while not loading.done():
        for path, seconds in taken.items():
            begun = time.perf_counter()
            await line.ask(get(path))
            seconds.append(time.perf_counter() - begun)
            await asyncio.sleep(0.005)
    line.close()
    return taken["/health"], taken["/health/ready"]


def polls(contender: Contender, folder: Path, load: Load) -> Figures:
    """What two thousand waiting workers cost while nothing happens."""
    with _site(contender, folder) as site:
        return _run(_wait_idle(site, load.idle_seconds))


async def _wait_idle(site: Site, seconds: float) -> Figures:
    process = psutil.Process(site.pid)
    lines = [await http_load.connect(site.port) for _ in range(POLLS)]
    before = process.memory_info().rss
    waiting = [
        line.ask(get(f"/events/subscribe?tags=t{n % 100}&worker_id=w:{n}&wait=60"))
        for n, line in enumerate(lines)
    ]
    await asyncio.sleep(2)
    used = sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    cpu = (sum(process.cpu_times()[:2]) - used) / seconds * 100
    memory = (process.memory_info().rss - before) / 1e6
    if any(reply.done() for reply in waiting):
        raise RuntimeError("a worker was answered while nothing happened")
    for line, reply in zip(lines, waiting, strict=True):
        reply.cancel()
        line.close()
    return {"memory": memory, "cpu": cpu}


SCENARIOS = (
    Scenario("publish", publish),
    Scenario("publish-100", publish_hundred, _OURS),
    Scenario("cycle-50", cycle, _OURS),
    Scenario("latency", latency, _OURS),
    Scenario("health", health, _OURS),
    Scenario("polls", polls, _OURS),
)

"""How fast entries are imported, written and found, beside the bare embedder."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from benchmarks import http_load
from benchmarks.contenders import Contender
from benchmarks.contenders.entries import BareEmbedder, EntriesServer
from benchmarks.http_load import get, post
from benchmarks.scenarios import Figures, Load, Scenario, percentile, timed

_OURS = ("penstock",)
_FEW = 1_000
_WARM = 300
_WORDS = 4_000
_LENGTH = 170
_CONNECTIONS = 4


def rows_of(load: Load) -> int:
    """How many rows: 100,000 unless the load is another."""
    return load.jobs * 5


def texts(n: int) -> list[str]:
    """Texts of about 1,000 characters, of words in the frequencies of a language."""
    chance = random.Random(n)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 11))) for _ in range(_WORDS)]
    weights = [1 / rank for rank in range(1, _WORDS + 1)]
    many = chance.choices(words, weights, k=200_000)
    starts = [chance.randrange(len(many) - _LENGTH) for _ in range(n)]
    return [" ".join(many[start : start + _LENGTH]) for start in starts]


def entry(n: int, text: str) -> dict[str, Any]:
    """An experience."""
    data = {"title": f"Experience {n}", "playbook": text}
    return {"entity_type": "experience", "category_code": "A", "data": data}


def lines(first: int, n: int) -> bytes:
    """A file with entries."""
    given = enumerate(texts(n), first)
    return "\n".join(
        json.dumps({"id": f"e-{place}", **entry(place, text)}) for place, text in given
    ).encode()


def import_rows(contender: Contender, folder: Path, load: Load) -> Figures:
    """All rows from the sending of the file until the last one is embedded; the model is loaded."""
    n = rows_of(load)
    if contender.name == "bare":
        bare = cast("BareEmbedder", contender.open(folder))
        bare.embed(texts(_WARM))
        given = [f"Experience {place}\n\n{text}" for place, text in enumerate(texts(n))]
        with timed():
            seconds = bare.embed(given)
        return {"rate": n / seconds}
    with cast("EntriesServer", contender.open(folder)) as server:
        server.send(lines(10**9, _FEW))
        server.until_embedded(_FEW)
        few = asyncio.run(_statuses(server.port, load))
        content = lines(0, n)
        with timed() as watch:
            job = server.send(content)
            server.until_embedded(_FEW + n)
        done = server.ask("GET", f"/api/v1/operations/jobs/{job}")
        many = asyncio.run(_statuses(server.port, load))
    if done["result"]["added"] != n:
        raise RuntimeError(f"the import came to {done}")
    return {
        "rate": n / watch.seconds,
        "status_few": 1_000 * percentile(few, 0.5),
        "status": 1_000 * percentile(many, 0.5),
        "growth": percentile(many, 0.1) / percentile(few, 0.1),
    }


async def _statuses(port: int, load: Load) -> list[float]:
    line = await http_load.connect(port)
    taken = [await _asked(line, get("/admin/queue/status")) for _ in range(load.samples)]
    line.close()
    return taken


async def _asked(line: http_load.Connection, request: bytes) -> float:
    begun = time.perf_counter()
    reply = await line.ask(request)
    if reply.status not in (200, 202):
        raise RuntimeError(f"answered {reply.status}: {reply.body[:200]!r}")
    return time.perf_counter() - begun


def write(contender: Contender, folder: Path, load: Load) -> Figures:
    """How long a write takes while rows are embedded without a pause."""
    n = rows_of(load) // 4
    with cast("EntriesServer", contender.open(folder)) as server:
        server.send(lines(10**9, _FEW))
        server.until_embedded(_FEW)
        server.send(lines(0, n))
        while server.status()["processing"]["total"] == 0:
            time.sleep(0.01)
        over = _embedding_is_over(server)
        taken = asyncio.run(_write_while(server.port, load, over))
    return {
        "p50": 1_000 * percentile(taken, 0.5),
        "p95": 1_000 * percentile(taken, 0.95),
        "p99": 1_000 * percentile(taken, 0.99),
        "written": float(len(taken)),
    }


def _embedding_is_over(server: EntriesServer) -> Callable[[], bool]:
    def is_over() -> bool:
        found = server.status()
        return bool(found["pending"]["total"] + found["processing"]["total"] < _FEW)

    return is_over


async def _write_while(port: int, load: Load, is_over: Callable[[], bool]) -> list[float]:
    line = await http_load.connect(port)
    given = texts(load.samples * 3)
    taken = []
    for n, text in enumerate(given):
        body = json.dumps(entry(n, text)).encode()
        taken.append(await _asked(line, post("/api/v1/entries/write", body)))
        if n % 50 == 49 and await asyncio.to_thread(is_over):
            break
        await asyncio.sleep(0.005)
    line.close()
    return taken


def burst(contender: Contender, folder: Path, load: Load) -> Figures:
    """A thousand writes as fast as they are answered, until the last one can be searched for."""
    n = min(_FEW, load.jobs)
    with cast("EntriesServer", contender.open(folder)) as server:
        server.send(lines(10**9, _WARM))
        server.until_embedded(_WARM)
        given = texts(n)
        server.ask("POST", "/api/v1/entries/search", {"query": given[0], "limit": 1})
        with timed() as writing:
            asyncio.run(_write_all(server.port, given))
        with timed() as following:
            server.until_embedded(_WARM + n)
            query = {"query": f"Experience {n - 1}\n\n{given[-1]}", "limit": 1}
            found = server.ask("POST", "/api/v1/entries/search", query)
    if found["results"][0]["entry"]["data"]["title"] != f"Experience {n - 1}":
        raise RuntimeError("the last one is not found")
    return {"rate": n / writing.seconds, "searchable": following.seconds}


async def _write_all(port: int, given: list[str]) -> None:
    rest = iter(list(enumerate(given)))

    async def one() -> None:
        line = await http_load.connect(port)
        for n, text in rest:
            await _asked(line, post("/api/v1/entries/write", json.dumps(entry(n, text)).encode()))
        line.close()

    await asyncio.gather(*(one() for _ in range(_CONNECTIONS)))


SCENARIOS = (
    Scenario("import", import_rows),
    Scenario("write", write, _OURS),
    Scenario("burst", burst, _OURS),
)

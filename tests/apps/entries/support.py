"""Entries on a store of the test's own, an embedder that a test can hold, and what must be true."""

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import httpx
import numpy as np

from penstock import Worker
from penstock.apps.entries import Chosen, Entries, Entry
from penstock.vectors.embedding import Vectors, normalised

SOON = 30.0
DIMENSIONS = 32


class Letters:
    """Embeds without a model: like texts are not alike, but equal ones are equal.

    Refuses texts with the word poison, and waits at those with a word that is held.
    """

    name = "letters"
    dimensions = DIMENSIONS

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.holds = ""
        self.held = threading.Event()
        self.go_on = threading.Event()

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.holds and any(self.holds in text for text in texts):
            self.held.set()
            assert self.go_on.wait(SOON)
        if any("poison" in text for text in texts):
            raise ValueError("this text is poison")
        self.calls.append(list(texts))
        return vectors_of(texts)

    def hold(self, word: str) -> None:
        self.held.clear()
        self.go_on.clear()
        self.holds = word

    def release(self) -> None:
        self.holds = ""
        self.go_on.set()

    def close(self) -> None:
        pass


def vectors_of(texts: Sequence[str]) -> Vectors:
    rows = [
        np.frombuffer(hashlib.blake2b(text.encode(), digest_size=32).digest(), np.uint8)
        for text in texts
    ]
    return normalised(np.array(rows, np.float32).reshape(-1, DIMENSIONS) - 127.5)


def worker(entries: Entries, **options: Any) -> Worker:
    """One that embeds; it looks for leases that ran out all the time."""
    usual = {"queues": ["entries", "entries-operations"], "concurrency": 40}
    return Worker(entries.penstock, **{**usual, "sweep": timedelta(milliseconds=20), **options})


async def work_off(entries: Entries, **options: Any) -> None:
    await worker(entries, **options).run(until_empty=True)


async def everything(entries: Entries) -> list[Entry]:
    found: list[Entry] = []
    while page := await entries.page(
        Chosen(), after=found[-1].number if found else None, newest=False
    ):
        found += page
    return found


async def assert_index_equals_rows(entries: Entries) -> None:
    """The rows that are embedded are those of the index, each with the vector of its text.

    The counts are those of the rows as well.
    """
    rows = await everything(entries)
    texts = {
        one.id: entries.types.get(one.type).text(one.data)
        for one in rows
        if one.embedding_status == "embedded"
    }
    shelf = await entries.shelf()
    with closing(sqlite3.connect(shelf.folder / "catalogue.db")) as db:
        stored = dict(db.execute("SELECT id, vector FROM item JOIN body USING (number)"))
    assert stored.keys() == texts.keys()
    wanted = dict(zip(texts, shelf.embedder.embed(list(texts.values())), strict=True))
    for one, vector in stored.items():
        assert np.allclose(np.frombuffer(vector, "<f4"), wanted[one], atol=1e-6), one
    for one in list(texts)[:20]:  # FAISS has them too
        (best, *_) = shelf.index.search(wanted[one], k=1, mode="vector")
        assert best.score > 0.999
        assert np.allclose(wanted[best.id], wanted[one], atol=1e-6)
    counted: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row.type, row.embedding_status
        counted[key] = counted.get(key, 0) + 1
    assert {key: n for key, n in (await entries.counts()).items() if n} == counted


class Api:
    """A client of the routes, in the process of the test."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any
    ) -> Any:
        for url in (path, f"{path}/") if method == "GET" else (f"{path}/",):
            answer = await self.client.request(method, url, json=body, **options)
            assert answer.status_code == status, answer.text
        return answer.json()

    async def entries(self, verb: str, body: Any, status: int = 200) -> Any:
        return await self("POST", f"/api/v1/entries/{verb}", body, status=status)

    async def queue(self, verb: str, status: int = 200, **params: Any) -> Any:
        return await self("POST", f"/admin/queue/{verb}", status=status, params=params)


def experience(title: str, playbook: str = "do it") -> dict[str, Any]:
    return {"title": title, "playbook": playbook}

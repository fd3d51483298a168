"""Shared by the tests of ingest: a store with collections, and a program that only knows SQL."""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from penstock import Job, JobQuery, Penstock, Worker, run_sync
from penstock.apps.ingest import Parts, Settings, assemble, checked, unified_queue
from penstock.apps.ingest.items import CollectionName
from penstock.apps.ingest.routes import completed
from penstock.apps.ingest.settings import Roots
from penstock.apps.kit import LazyEmbedder
from penstock.stores.postgres.connection import address
from penstock.vectors import Where
from tests.apps.indexing.support import HashEmbedder
from tests.environment import SOON

HERE = CollectionName("shop", "docs", "main")
STATUS = {"pending": "pending", "running": "in_progress", "done": "done"}
ACTIVE = "2099-01-01T00:00:00.000Z"


class Bench:
    """A store with items and collections, and workers on demand."""

    def __init__(self, app: Penstock, folder: Path, **settings: Any) -> None:
        self.app = app
        self.folder = folder
        self.settings = Settings(roots=(str(folder),), retry_delay=0, **settings)
        self.parts: Parts = assemble(app, self.settings, folder / "data")
        self.embedder = HashEmbedder()
        self.parts.collections.embedder = LazyEmbedder("", lambda _: self.embedder)
        self.parts.handlers.register()
        self.service = self.parts.service

    async def add(self, item_type: str, op: str, payload: Mapping[str, Any], **fields: Any) -> int:
        """Add an item, as a request does; return its job."""
        given = {"tenant_id": "shop", "collection": "docs", **fields}
        item = checked({"item_type": item_type, "op": op, "payload": payload, **given})
        roots = Roots(self.settings.roots, self.folder / "data")
        [added] = await self.service.add([completed(item, roots, 10_000)])
        return added.job_id

    async def work(self, concurrency: int = 50) -> None:
        """Run items until all have ended."""
        async with asyncio.timeout(SOON):
            while True:
                worker = Worker(self.app, queues=["ingest"], concurrency=concurrency)
                await worker.run(until_empty=True)
                counts = await self.app.count()
                if not any(n for (_, state, _), n in counts.items() if not state.final):
                    return
                await self.app.wait(0, 0.05)

    async def run(self, item_type: str, op: str, payload: Mapping[str, Any], **fields: Any) -> Job:
        """Add an item, run it, and return its job."""
        job = await self.add(item_type, op, payload, **fields)
        await self.work()
        return await self.app.get(job)

    def chunks(self, place: CollectionName = HERE) -> dict[str, str]:
        """Return the texts in a collection by path; chunks of one path are joined."""
        if not self.parts.collections.exists(place):
            return {}
        with self.parts.collections.using(place) as collection:
            hits = collection.index._run(
                lambda: collection.index._catalogue.hits(
                    dict.fromkeys(collection.index._catalogue.numbers(Where()), 0.0)
                )
            )
        found: dict[str, str] = {}
        for hit in sorted(hits.values(), key=lambda hit: hit.id):
            found[hit.path] = found.get(hit.path, "") + hit.text
        return found

    def write(self, name: str, text: str | bytes) -> str:
        """Write a file and return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)


@asynccontextmanager
async def bench(folder: Path, url: str | None = None, **settings: Any) -> AsyncIterator[Bench]:
    """Open a bench and close it afterwards."""
    async with Penstock(url or f"sqlite:///{folder}/queue.db") as app:
        made = Bench(app, folder, **settings)
        try:
            yield made
        finally:
            made.parts.close()


class Program:
    """A program that knows the table, but not Penstock."""

    def __init__(self, url: str) -> None:
        self.connection: Any
        self.is_sqlite = url.startswith("sqlite")
        if self.is_sqlite:
            path = url.removeprefix("sqlite:///")
            self.connection = sqlite3.connect(path, isolation_level=None)
        else:
            where = address(url)
            self.connection = psycopg.connect(where.conninfo, autocommit=True)
            self.connection.execute(f"SET search_path = {where.schema}, public".encode())
        self.numbers = itertools.count(1)

    def run(self, sql: str, *parameters: object) -> int:
        sql = sql if self.is_sqlite else sql.replace("?", "%s")
        return int(self.connection.execute(sql, parameters).rowcount)

    def ask(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        sql = sql if self.is_sqlite else sql.replace("?", "%s")
        return list(self.connection.execute(sql, parameters).fetchall())

    def insert(self, path: str = "", how: str = "INSERT", **columns: object) -> str:
        number = next(self.numbers)
        row: dict[str, object] = {
            "queue_id": f"q{number}",
            "item_type": "file",
            "op": "ingest",
            "tenant_id": "t",
            "collection": "c",
            "priority": 5,
            "status": "pending",
            "created_at": "2026-01-01T00:00:00.000Z",
            "updated_at": "2026-01-01T00:00:00.000Z",
            "idempotency_key": f"key {number}",
            "payload_json": json.dumps({"file_path": path or f"/f{number}"}),
            **columns,
        }
        marks = ", ".join("?" * len(row))
        self.run(f"{how} INTO unified_queue ({', '.join(row)}) VALUES ({marks})", *row.values())
        return str(row["queue_id"])

    def lease(self, queue_id: str, until: str | None = ACTIVE, worker: str = "me") -> bool:
        return bool(
            self.run(
                "UPDATE unified_queue SET status = 'in_progress', lease_until = ?, worker_id = ? "
                "WHERE queue_id = ? AND status = 'pending'",
                until,
                worker,
                queue_id,
            )
        )

    def change(self, queue_id: str, sql: str, *parameters: object) -> int:
        return self.run(f"UPDATE unified_queue SET {sql} WHERE queue_id = ?", *parameters, queue_id)  # noqa: S608 - names of our own

    def row(self, queue_id: str) -> dict[str, Any]:
        names = (
            *("status", "lease_until", "worker_id", "retry_count", "error_message", "priority"),
            "last_error_at",
        )
        sql = f"SELECT {', '.join(names)} FROM unified_queue WHERE queue_id = ?"  # noqa: S608 - names of our own
        return dict(zip(names, self.ask(sql, queue_id)[0], strict=True))


class Both:
    """A store, and a program that uses the same database."""

    def __init__(self, url: str) -> None:
        self.app = Penstock(url)
        run_sync(unified_queue.prepare(self.app))
        self.program = Program(url)

    def job(self, queue_id: str) -> Job:
        sql = "SELECT job_id FROM unified_queue_job WHERE queue_id = ?"
        found = self.app.tables.read(lambda tx: tx.execute(sql, (queue_id,)).fetchone())
        return run_sync(self.app.get(run_sync(found)[0]))

    def events(self, queue_id: str) -> list[str]:
        return [entry.event.value for entry in run_sync(self.app.log(self.job(queue_id).id))]

    def claim(self, limit: int = 10) -> list[Job]:
        return run_sync(self.app.leases.claim(worker="ours", queues=("ingest",), limit=limit))

    def settle(self, job: Job, outcome: Any) -> None:
        run_sync(self.app.leases.settle([(job, outcome)]))

    def check(self) -> None:
        """Check that rows, jobs, totals and the log agree."""
        ask = self.program.ask
        for queue_id, status, worker, retries, priority in ask(
            "SELECT queue_id, status, worker_id, retry_count, priority FROM unified_queue"
        ):
            job = self.job(queue_id)
            assert status == STATUS.get(job.state, "failed"), queue_id
            assert (worker, priority) == (job.worker, job.priority), queue_id
            assert retries == job.failed_attempts, queue_id
            log = run_sync(self.app.log(job.id))
            assert log[-1].state is job.state
            assert log[-1].id == job.version
        kept = {
            tuple(row[:4]): row[4] for row in run_sync(self.app.tables.read(unified_queue.totals))
        }
        counted = ask(
            "SELECT tenant_id, collection, item_type, status, count(*) FROM unified_queue "
            "GROUP BY tenant_id, collection, item_type, status"
        )
        assert kept == {tuple(row[:4]): row[4] for row in counted}
        totals: dict[str, int] = {}
        for (queue, state, _), n in run_sync(self.app.count()).items():
            if queue == "ingest" and n:
                totals[state] = totals.get(state, 0) + n
        states: dict[str, int] = {}
        for job in run_sync(self.app.find(JobQuery(queue="ingest", limit=10_000))):
            states[job.state] = states.get(job.state, 0) + 1
        assert totals == states


def own(number: int, *, after: Sequence[int]) -> unified_queue.Row:
    return unified_queue.Row(
        queue_id=f"own {number}",
        item_type="file",
        op="ingest",
        tenant_id="t",
        collection="c",
        priority=5,
        idempotency_key=f"own {number}",
        payload_json=json.dumps({"file_path": f"/own/{number}"}),
        key=f"ingest:t/c/main:/own/{number}",
        after=tuple(after),
    )


def opened(url: str) -> Iterator[Both]:
    """Open a store and a program; check at the end that they agree."""
    both = Both(url)
    yield both
    both.check()
    both.program.connection.close()
    run_sync(both.app.close())

"""Processes of a test: a producer and a consumer that use only SQL, and a Penstock worker.

Run as `python -m tests.apps.ingest.external_program ROLE URL NAME FILE`. Each acknowledged item is
a line in the file.
"""

import asyncio
import itertools
import json
import random
import sqlite3
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

LEASE = timedelta(seconds=3)
PATHS = 1_000
AHEAD = 300
PAUSE = 0.005
"""Seconds between two polls."""


class Database:
    """A connection to either database."""

    def __init__(self, url: str, patience: float = 5.0) -> None:
        self.connection: Any
        self.is_sqlite = url.startswith("sqlite")
        if self.is_sqlite:
            path = url.removeprefix("sqlite:///")
            # As in most programs: a timeout of five seconds, and implicit transactions.
            self.connection = sqlite3.connect(path, timeout=patience)
        else:
            base, _, schema = url.partition("?schema=")
            self.connection = psycopg.connect(base)
            self.connection.execute(f"SET search_path = {schema}, public".encode())
            self.connection.commit()

    def run(self, sql: str, *parameters: object) -> Any:
        return self.connection.execute(
            sql if self.is_sqlite else sql.replace("?", "%s"), parameters
        )


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def produce(database: Database, name: str, acknowledged: Path) -> None:
    with acknowledged.open("a") as file:
        for number in itertools.count():
            time.sleep(PAUSE)
            while waiting(database) > AHEAD:
                time.sleep(PAUSE)
            now, item = stamp(datetime.now(UTC)), str(uuid.uuid4())
            path = f"/{random.randrange(PATHS)}"
            database.run(
                "INSERT INTO unified_queue (queue_id, item_type, op, tenant_id, collection, "
                "priority, status, created_at, updated_at, idempotency_key, payload_json, "
                "max_retries) VALUES (?, 'file', 'ingest', ?, 'c', ?, 'pending', ?, ?, ?, ?, 50)",
                *(item, f"tenant {number % 3}", number % 11, now, now, f"{name} {item}"),
                json.dumps({"file_path": path}),
            )
            database.connection.commit()
            file.write(f"{item}\n")
            file.flush()


def waiting(database: Database) -> int:
    (n,) = database.run("SELECT count(*) FROM unified_queue WHERE status = 'pending'").fetchone()
    database.connection.commit()
    return int(n)


def consume(database: Database, name: str, finished: Path) -> None:
    lease = (
        "UPDATE unified_queue SET status = 'in_progress', lease_until = ?, worker_id = ?, "
        "updated_at = ? WHERE queue_id = ? AND status = 'pending'"
    )
    recover = (
        "UPDATE unified_queue SET status = 'pending', lease_until = NULL, worker_id = NULL "
        "WHERE status = 'in_progress' AND lease_until < ?"
    )
    with finished.open("a") as file:
        for turn in itertools.count():
            time.sleep(PAUSE)
            now = datetime.now(UTC)
            if turn % 20 == 0:
                database.run(recover, stamp(now))
                database.connection.commit()
            found = database.run(
                "SELECT queue_id FROM unified_queue WHERE status = 'pending' "
                "ORDER BY priority DESC, created_at LIMIT 100"
            ).fetchall()
            database.connection.commit()
            random.shuffle(found)
            for (item,) in found[:3]:
                until = stamp(now + LEASE)
                taken = database.run(lease, until, name, stamp(now), item).rowcount
                database.connection.commit()
                if taken:
                    work(database, name, item)
                    file.write(f"{item}\n")
                    file.flush()


def work(database: Database, name: str, item: str) -> None:
    held = "WHERE queue_id = ? AND status = 'in_progress' AND worker_id = ?"
    chance = random.random()
    if chance < 0.1:
        failed = "SET status = 'pending', retry_count = retry_count + 1, error_message = 'x', "
        failed += "lease_until = NULL, worker_id = NULL"
        database.run(f"UPDATE unified_queue {failed} {held}", item, name)
    else:
        if chance < 0.3:
            until = stamp(datetime.now(UTC) + LEASE)
            database.run(f"UPDATE unified_queue SET lease_until = ? {held}", until, item, name)  # noqa: S608 - names of our own
            database.connection.commit()
        database.run(
            f"UPDATE unified_queue SET status = 'done', lease_until = NULL {held}",  # noqa: S608 - names of our own
            item,
            name,
        )
    database.connection.commit()


def ours(url: str, name: str, finished: Path) -> None:
    from penstock import Penstock, Worker

    app = Penstock(url)
    file = finished.open("a")

    @app.task("ingest.item", queue="ingest")
    async def item(  # noqa: PLR0917 - the arguments of the job
        queue_id: str,
        item_type: str,
        op: str,
        tenant_id: str,
        collection: str,
        branch: str,
        payload: dict[str, Any],
        metadata: dict[str, Any],
    ) -> None:
        file.write(f"{queue_id} {item_type} {op} {tenant_id} {collection} {branch} {payload}")
        file.write(f" {metadata}\n")
        file.flush()
        await asyncio.sleep(0.05)  # simulates work, so that the program gets its share

    worker = Worker(app, queues=["ingest"], concurrency=2, name=name)
    asyncio.run(worker.run())


if __name__ == "__main__":
    role, address, called, where = sys.argv[1:]
    if role == "ours":
        ours(address, called, Path(where))
    else:
        {"produce": produce, "consume": consume}[role](Database(address), called, Path(where))

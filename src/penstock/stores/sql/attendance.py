"""Who works on the store, in the file: what the verbs about it do."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.times import from_micros, to_micros
from penstock.core.worker import Holding, WorkerInfo, roster
from penstock.stores.sql.rows import encoded
from penstock.stores.sql.transaction import Reading, Transaction

_names = msgspec.json.Decoder(tuple[str, ...])


def find(reading: Reading) -> list[WorkerInfo]:
    """Every worker that greeted or holds a lease."""
    greeted = [_worker(row) for row in reading.execute("workers")]
    return roster(greeted, [_holding(row) for row in reading.execute("holdings")])


def greet(tx: Transaction, calls: Sequence[Sequence[WorkerInfo]]) -> list[list[str]]:
    """Write what workers say of themselves; those of them that should drain. Nobody is woken."""
    return [_greet_one(tx, workers, tx.now()) for workers in calls]


def _greet_one(tx: Transaction, workers: Sequence[WorkerInfo], now: int) -> list[str]:
    asked: list[str] = []
    for worker in workers:
        ((draining,),) = tx.execute("greet", _columns(worker, now)).fetchall()
        asked += [worker.name] if draining else []
        tx.written = True
    return asked


def drain(tx: Transaction, names: Sequence[str]) -> list[bool]:
    """Ask each worker to drain; whether it has greeted. Nobody is woken."""
    return [_drain_one(tx, name) for name in names]


def _drain_one(tx: Transaction, name: str) -> bool:
    found = bool(tx.execute("drain", (name,)).fetchall())
    tx.written = tx.written or found
    return found


def dismiss(tx: Transaction, calls: Sequence[Sequence[str]]) -> list[None]:
    """Forget workers; nobody is woken."""
    for names in calls:
        if tx.execute("dismiss", (encoded(list(names)),)).fetchall():
            tx.written = True
    return [None] * len(calls)


def _columns(worker: WorkerInfo, now: int) -> tuple[Any, ...]:
    return (
        worker.name,
        worker.host,
        worker.pid,
        None if worker.queues is None else encoded(worker.queues),
        encoded(worker.tags),
        worker.concurrency,
        None if worker.started_at is None else to_micros(worker.started_at),
        now,
    )


def _worker(row: Sequence[Any]) -> WorkerInfo:
    name, host, pid, queues, tags, concurrency, started_at, seen_at, draining = row
    return WorkerInfo(
        name=name,
        host=host,
        pid=pid,
        queues=None if queues is None else _names.decode(queues),
        tags=_names.decode(tags),
        concurrency=concurrency,
        started_at=None if started_at is None else from_micros(started_at),
        seen_at=from_micros(seen_at),
        draining=bool(draining),
    )


def _holding(row: Sequence[Any]) -> Holding:
    worker, running, oldest_start, expires_at, seen_at = row
    return Holding(
        worker=worker,
        running=running,
        oldest_start=from_micros(oldest_start),
        expires_at=from_micros(expires_at),
        seen_at=from_micros(seen_at),
    )

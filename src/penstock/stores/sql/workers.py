"""The worker registry: heartbeats of workers, and what their leases tell about them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.tasks import AnnouncedTask
from penstock.core.times import from_micros, span_to_micros, to_micros
from penstock.core.workers import (
    MOST_REMEMBERED,
    REMEMBERED_FOR,
    DepartedTask,
    Holding,
    WorkerInfo,
    roster,
)
from penstock.stores.sql.database import Reader, Transaction
from penstock.stores.sql.rows import encoded

_names = msgspec.json.Decoder(tuple[str, ...])
_tasks = msgspec.json.Decoder(tuple[AnnouncedTask, ...])
_task = msgspec.json.Decoder(AnnouncedTask)


def find(reader: Reader) -> list[WorkerInfo]:
    """See `Store.workers`."""
    registered = [_worker(row) for row in reader.execute("workers")]
    return roster(registered, [_holding(row) for row in reader.execute("holdings")])


def heartbeat(tx: Transaction, calls: Sequence[Sequence[WorkerInfo]]) -> list[list[str]]:
    """See `Store.heartbeat`; wakes nobody."""
    return [_heartbeat_one(tx, workers) for workers in calls]


def _heartbeat_one(tx: Transaction, workers: Sequence[WorkerInfo]) -> list[str]:
    to_drain: list[str] = []
    for worker in workers:
        ((draining,),) = tx.execute("heartbeat", _columns(worker, tx.now)).fetchall()
        if draining:
            to_drain.append(worker.name)
        tx.written = True
    return to_drain


def drain(tx: Transaction, names: Sequence[str]) -> list[bool]:
    """See `Store.drain_worker`; wakes nobody."""
    return [_drain_one(tx, name) for name in names]


def _drain_one(tx: Transaction, name: str) -> bool:
    found = bool(tx.execute("drain_worker", (name,)).fetchall())
    tx.written = tx.written or found
    return found


def deregister(tx: Transaction, calls: Sequence[Sequence[str]]) -> list[None]:
    """See `Store.deregister`; wakes nobody."""
    for names in calls:
        gone = tx.execute("deregister", (encoded(list(names)),)).fetchall()
        for host, seen_at, tasks in gone:
            if tasks is not None:
                tx.execute("remember_tasks", (host, seen_at, tasks))
        if gone:
            oldest = tx.now - span_to_micros(REMEMBERED_FOR)
            tx.execute("forget_tasks", (oldest, MOST_REMEMBERED))
            tx.written = True
    return [None] * len(calls)


def departed_tasks(reader: Reader) -> list[DepartedTask]:
    """See `Store.departed_tasks`."""
    return [
        DepartedTask(host=host, seen_at=from_micros(seen_at), task=_task.decode(task))
        for host, seen_at, task in reader.execute("departed_tasks").fetchall()
    ]


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
        None if worker.tasks is None else encoded(worker.tasks),
    )


def _worker(row: Sequence[Any]) -> WorkerInfo:
    name, host, pid, queues, tags, concurrency, started_at, seen_at, draining, tasks = row
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
        tasks=None if tasks is None else _tasks.decode(tasks),
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

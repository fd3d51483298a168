"""The command `workers`: lists the workers of the store, busy or idle."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from penstock.cli.connection import connected
from penstock.cli.options import on_store
from penstock.cli.output import Column, emit, plain, show_table, when
from penstock.core.workers import WorkerInfo
from penstock.engine.penstock import run_sync


@click.command("workers")
@on_store
def list_workers(*, store: str, as_json: bool) -> None:
    """List the workers, busy or idle.

    A worker without a heartbeat for over 30 seconds is marked as silent: it was killed, or cannot
    reach the store. It stays in the list for a day.
    """
    with connected(store) as app:
        workers = run_sync(app.workers.list())
    now = datetime.now(UTC)
    if as_json:
        emit({"workers": [_fields(worker, now) for worker in workers]})
    elif workers:
        _print_workers(workers, now)
    else:
        click.echo("There are no workers; to start one: penstock worker MODULE:APP")


def _fields(worker: WorkerInfo, now: datetime) -> dict[str, Any]:
    return {**plain(worker), "silent": worker.is_silent(now)}


def _state(worker: WorkerInfo, now: datetime) -> str:
    if worker.is_silent(now):
        return "silent"
    return "draining" if worker.draining else ""


def _print_workers(workers: Sequence[WorkerInfo], now: datetime) -> None:
    columns = [
        Column("name", bends=True),
        Column(""),
        Column("running", right=True),
        Column("last seen"),
        Column("started"),
        Column("host", bends=True),
        Column("queues", bends=True),
        Column("tags", bends=True),
    ]
    rows = [
        [
            worker.name,
            _state(worker, now),
            _running(worker),
            when(worker.seen_at, now),
            when(worker.started_at, now),
            worker.host or "",
            _queues(worker),
            ", ".join(worker.tags),
        ]
        for worker in workers
    ]
    show_table(columns, rows)


def _running(worker: WorkerInfo) -> str:
    if worker.concurrency is None:  # a program that claims jobs without being a `Worker`
        return f"{worker.running:,}"
    return f"{worker.running:,} of {worker.concurrency:,}"


def _queues(worker: WorkerInfo) -> str:
    if worker.queues is not None:
        return ", ".join(worker.queues)
    return "" if worker.host is None else "all"


COMMANDS: Sequence[click.Command] = (list_workers,)

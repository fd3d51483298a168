"""Full disks and failing writes: the caller gets an error, nothing changes, and work continues."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import NewJob
from penstock.core.lifecycle import Done
from penstock.engine.penstock import run_sync
from penstock.stores.sqlite import database
from penstock.stores.sqlite.checkpoints import Checkpointer
from penstock.stores.sqlite.connection import connect
from tests.crash.client import Client
from tests.crash.processes import Zygote
from tests.crash.recording import Refused, read_history
from tests.crash.support import assert_promises_kept, client, finish_by_hand

NO_LIMIT = 1_000_000_000


class Disk:
    """The disk that the store of this process writes to, as far as SQLite can tell."""

    def __init__(self) -> None:
        self._connections: list[sqlite3.Connection] = []

    def connect(self, path: Path, **options: Any) -> sqlite3.Connection:
        self._connections.append(connect(path, **options))
        return self._connections[-1]

    def fill(self) -> None:
        """Leave no page that could be added to the file."""
        for connection in self._connections:
            connection.execute("PRAGMA max_page_count = 1")  # means: as many as there are

    def clear(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile
                connection.execute(f"PRAGMA max_page_count = {NO_LIMIT}")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    shared = Disk()
    monkeypatch.setattr(database, "connect", shared.connect)
    return shared


def enqueue_until_refused(app: Client) -> StoreUnavailable:
    for _ in range(1_000):
        try:
            run_sync(app.enqueue_many(several(app)))
        except StoreUnavailable as error:
            return error
    raise AssertionError("the disk does not fill up")


def several(app: Client) -> Sequence[NewJob]:
    return [app.new(does=["x" * 500], key="k"), app.new(does=["x" * 5000])]


def test_full_disk_refuses_and_changes_nothing(disk: Disk, folder: Path) -> None:
    with client(folder) as app:
        run_sync(app.enqueue_many(several(app)))
        disk.fill()
        assert "disk is full" in str(enqueue_until_refused(app))
        assert_promises_kept(folder, drained=False)
        disk.clear()
        run_sync(app.enqueue_many(several(app)))
    finish_by_hand(folder)
    assert_promises_kept(folder)


def test_full_disk_answers_every_concurrent_caller(disk: Disk, folder: Path) -> None:
    with client(folder) as app:
        asyncio.run(fill_up(disk, app))
    finish_by_hand(folder)
    assert_promises_kept(folder)


async def fill_up(disk: Disk, app: Client) -> None:
    await app.enqueue_many(several(app))
    disk.fill()
    refused = 0
    while refused < 20:
        answers = await at_once(app)
        assert all(isinstance(answer, StoreUnavailable | list) for answer in answers)
        refused += sum(isinstance(answer, StoreUnavailable) for answer in answers)
    disk.clear()
    assert all(isinstance(answer, list) for answer in await at_once(app))


async def at_once(app: Client) -> list[Any]:
    """The answers to several concurrent callers: one group commit."""
    calls = [app.enqueue_many(several(app)) for _ in range(20)]
    return list(await asyncio.gather(*calls, return_exceptions=True))


def test_work_continues_after_a_full_disk(disk: Disk, folder: Path) -> None:
    with client(folder) as app:
        run_sync(app.enqueue_many(several(app)))
        disk.fill()
        enqueue_until_refused(app)
        disk.clear()
        while jobs := run_sync(app.leases.claim(worker=app.connection.actor, limit=10)):
            run_sync(app.leases.settle([(app.handle(job), Done()) for job in jobs]))
    assert_promises_kept(folder)


def test_failing_writes_are_reported_and_work_continues(zygote: Zygote, folder: Path) -> None:
    """The child may write no file beyond a size, until it may again; then a worker does all."""
    zygote.start("limited_writer", folder).succeed()
    refusals = [note for note in read_history(folder) if isinstance(note, Refused)]
    assert refusals
    assert all(note.error.startswith("StoreUnavailable") for note in refusals)
    finish_by_hand(folder)
    assert_promises_kept(folder)


def test_worker_survives_failing_writes(zygote: Zygote, folder: Path) -> None:
    zygote.start("limited_worker", folder).succeed()
    assert_promises_kept(folder)


def test_error_after_the_commit_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """No thread can be started for a checkpoint: what was committed is acknowledged, once."""

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, client(folder) as app:
        _ = app.store
        patch.setattr(Checkpointer, "request", no_thread)
        answers = asyncio.run(at_once(app))
        assert all(isinstance(answer, list) for answer in answers), answers[:1]
        run_sync(app.enqueue_many(several(app)))
    finish_by_hand(folder)
    assert_promises_kept(folder)

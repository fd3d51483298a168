"""Disks that are full or fail: the caller gets an error, nothing changes, and work continues."""

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.lifecycle import Done
from penstock.runtime import Files
from penstock.stores.journal.journal import Journal
from penstock.stores.journal.store import JournalStore
from penstock.stores.memory.content import Content
from tests.contract.support import (
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    new,
    settle,
    take,
    take_one,
)
from tests.stores.journal.support import live, opened, said


class Disk(Files):
    """Operations on files, some of which fail on request."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        """The names of the operations that fail."""
        self.is_full = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in {"write_at", "allocate", "sync", "sync_data", "truncate"}:
            return partial(self._call, name, found)
        return found

    def _call(self, name: str, operation: Callable[..., Any], fd: int, *args: Any) -> Any:
        end = args[1] + len(args[0]) if name == "write_at" else 0
        if self.is_full and (name == "allocate" or end > os.fstat(fd).st_size):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if name in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return operation(fd, *args)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(disk: Disk, tmp_path: Path, clock: ManualClock) -> Iterator[JournalStore]:
    found = opened(tmp_path / "j", clock, disk)
    live(found, clock, rounds=1)
    yield found
    disk.failing.clear()
    drive(found.close())


def reopened(store: JournalStore, clock: ManualClock) -> Content:
    """What another process would find, if this one died now."""
    drive(store.close())
    again = opened(store._path, clock)
    drive(again.close())
    return again._content


@pytest.mark.parametrize("call", ["write_at", "sync_data"])
def test_failing_write_changes_nothing(
    disk: Disk, store: JournalStore, clock: ManualClock, call: str
) -> None:
    before = said(store._content)
    disk.failing.add(call)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="nothing was changed, try again"):
            drive(add(store, new(), new()))
        assert said(store._content) == before
    disk.failing.clear()
    jobs = drive(add(store, new(), new()))
    assert drive(store.get([job.id for job in jobs])) == jobs
    after = said(store._content)
    assert said(reopened(store, clock)) == after


def test_what_could_not_be_made_durable_is_not_there_later(
    disk: Disk, store: JournalStore, clock: ManualClock
) -> None:
    """It was written and may be in the file; but its caller was told that it is not."""
    count = len(drive(everything(store)))
    disk.failing.add("sync_data")
    with pytest.raises(StoreUnavailable):
        drive(add_one(store, task="lost"))
    disk.failing.clear()
    assert b'"lost"' in (store._path / "journal-1.jsonl").read_bytes()
    job = drive(add_one(store, task="found"))
    assert [job.task for job in drive(everything(store))[count:]] == ["found"]
    found = reopened(store, clock)
    assert [one.task for one in found.jobs.values()][count:] == ["found"]
    assert found.jobs[job.id] == job


def test_file_is_left_after_a_failed_fsync(disk: Disk, store: JournalStore) -> None:
    """A second fsync would say that all is well, and may be wrong."""
    disk.failing.add("sync_data")
    with pytest.raises(StoreUnavailable):
        drive(add_one(store))
    disk.failing.clear()
    before = (store._path / "journal-1.jsonl").read_bytes()
    drive(add_one(store))
    assert (store._path / "journal-1.jsonl").read_bytes() == before
    assert (store._path / "journal-2.jsonl").exists()


def test_full_disk_refuses_before_anything_is_changed(
    disk: Disk, store: JournalStore, clock: ManualClock
) -> None:
    """Room is made before a record is taken: nothing has to be undone."""
    content, jobs = store._content, [new(payload='{"x":"%s"}' % ("x" * 5_000))] * 4
    disk.is_full = True
    for _ in range(2):  # there are blanks left
        drive(add(store, *jobs))
    before = said(content)
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="No space left"):
            drive(add(store, *jobs))
        assert said(content) == before
    drive(add_one(store))  # which is small
    assert store._content is content  # it was never read again
    disk.is_full = False
    drive(add(store, *jobs))
    drive(add_one(store))
    after = said(store._content)
    assert said(reopened(store, clock)) == after


async def test_every_concurrent_caller_gets_the_error(disk: Disk, store: JournalStore) -> None:
    before = said(store._content)
    disk.failing.add("sync_data")
    calls = [add_one(store) for _ in range(20)]
    answers = await asyncio.gather(*calls, everything(store), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers), answers
    assert said(store._content) == before
    disk.failing.clear()
    jobs = await asyncio.gather(*(add_one(store) for _ in range(20)))
    assert len({job.id for job in jobs}) == 20


def test_work_continues_after_a_failure(
    disk: Disk, store: JournalStore, clock: ManualClock
) -> None:
    running = drive(take_one(store))
    disk.failing.add("sync_data")
    with pytest.raises(StoreUnavailable):
        drive(settle(store, running, Done()))
    with pytest.raises(StoreUnavailable):
        drive(take(store))
    disk.failing.clear()
    drive(settle(store, running, Done()))
    while jobs := drive(take(store)):
        for job in jobs:
            drive(settle(store, job, Done()))
    after = said(store._content)
    assert said(reopened(store, clock)) == after


def test_write_that_was_refused_is_not_found_by_the_next_process(
    disk: Disk, store: JournalStore, clock: ManualClock
) -> None:
    before = said(store._content)
    disk.failing.add("sync_data")
    with pytest.raises(StoreUnavailable, match="nothing was changed, try again"):
        drive(add_one(store))
    disk.failing.clear()
    assert said(reopened(store, clock)) == before


def test_next_file_that_cannot_be_made_is_tried_again(disk: Disk, store: JournalStore) -> None:
    disk.failing = {"sync_data", "sync"}
    with pytest.raises(StoreError, match="may or may not be stored"):
        drive(add_one(store))
    disk.failing = {"sync"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            drive(add_one(store))
    assert len(drive(everything(store))) > 3  # reading needs no disk
    disk.failing.clear()
    drive(add_one(store))
    assert [path.name for path in store._path.glob("*.new")] == []


def test_interrupted_caller_leaves_a_whole_store(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Ctrl-C in the midst of a change: what there is in memory is not to be trusted."""
    before = said(store._content)

    def interrupted(self: Content, _: object) -> None:
        self.jobs.pop(next(iter(self.jobs.values())).id)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Content, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drive(add_one(store))
    assert drive(everything(store)) == before_jobs(before)
    assert said(store._content) == before
    drive(add_one(store))
    after = said(store._content)
    assert said(reopened(store, clock)) == after


def before_jobs(batches: list[Any]) -> list[Any]:
    return [job for batch in batches for job in batch.jobs]


def test_content_that_cannot_be_read_again_is_not_shown(
    disk: Disk, store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.failing.add("sync_data")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "reload", unreadable)
        with pytest.raises(StoreError, match="may or may not be stored"):
            drive(add_one(store))
        with pytest.raises(StoreUnavailable):
            drive(everything(store))
    disk.failing.clear()
    drive(add_one(store))
    assert len(drive(everything(store))) > 1


def unreadable(_: object) -> Content:
    raise OSError(errno.EIO, "no")


def test_file_size_limit_is_reported_and_work_continues(tmp_path: Path, clock: ManualClock) -> None:
    """The system itself refuses to write beyond a size, until it does no more."""
    store = opened(tmp_path / "j", clock)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    stored = []
    try:
        for job in [new(payload='{"x":"%s"}' % ("x" * 9_000))] * 5:
            stored += drive(add(store, job))
        with pytest.raises(StoreUnavailable, match="File too large"):
            drive(add(store, *[job] * 30))
        assert drive(everything(store)) == stored
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    stored += drive(add(store, new()))
    drive(store.close())
    again = opened(tmp_path / "j", clock)
    assert drive(everything(again)) == stored
    drive(again.close())


def test_folder_that_cannot_be_made_is_named(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(
        StoreError, match=f"{tmp_path}/a/b cannot be used as the folder of a journal"
    ):
        opened(tmp_path / "a" / "b", clock)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used as the folder of a journal"):
        opened(tmp_path / "file", clock)

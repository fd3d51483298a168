"""Journals stay short, and snapshots take their place without anybody waiting."""

import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import StoreError
from penstock.core.job import Retention
from penstock.core.lifecycle import Done
from penstock.stores.journal import compaction
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.snapshot import read_snapshot, write_snapshot
from tests.contract.support import (
    HOUR,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    new,
    settle,
    take,
)
from tests.environment import SOON
from tests.stores.journal.support import live, opened, said


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALLEST", 20_000)


def size(folder: Path, kind: str = "") -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{kind}*.jsonl"))


def test_files_stay_as_small_as_what_is_kept(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "j"
    store = opened(folder, clock)
    for _ in range(200):
        drive(add(store, *(new() for _ in range(5))))
        for job in drive(take(store)):
            drive(settle(store, job, Done()))
        clock.advance(HOUR)
        drive(store.prune(Retention(finished=HOUR, failed=HOUR), 1_000))
        store._journal._compaction.wait()
        assert size(folder, "journal") < 200_000  # blanks of the newest file included
    before = said(store._content)
    drive(store.close())
    assert size(folder, "snapshot") + size(folder, "journal") < 60_000
    assert len(list(folder.glob("snapshot-*.jsonl"))) == 1
    again = opened(folder, clock)
    assert said(again._content) == before
    drive(again.close())


def test_journal_may_be_as_long_as_the_snapshot(tmp_path: Path, clock: ManualClock) -> None:
    """Else a large store would do nothing but write itself down."""
    folder = tmp_path / "j"
    store = opened(folder, clock)
    drive(add(store, *(new(payload='{"x":"%s"}' % ("x" * 500)) for _ in range(500))))
    snapshots = set()
    for _ in range(100):
        drive(add_one(store, payload='{"x":"%s"}' % ("x" * 500)))
        store._journal._compaction.wait()
        snapshots |= {path.name for path in folder.glob("snapshot-*.jsonl")}
    assert len(snapshots) == 1
    drive(store.close())


def test_snapshot_is_the_content(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    live(store, clock, rounds=5)
    drive(store.close())
    store = opened(tmp_path / "j", clock)
    assert list((tmp_path / "j").glob("snapshot-*.jsonl"))
    content = store._content
    head = store._journal._head("snapshot", content, 7)
    folder = store._journal._folder
    write_snapshot(folder, tmp_path / "s", head, said(content))
    read, again = read_snapshot(folder, tmp_path / "s")
    assert read == head
    assert said(again) == said(content)
    derived = ("totals", "holders", "lines", "ready", "unfinished", "entries")
    for name in ("totals", "holders", "entries"):
        assert (
            +getattr(again, name) == +getattr(content, name)
            if name == "totals"
            else (getattr(again, name) == getattr(content, name))
        ), name
    for name in derived[2:5]:
        assert getattr(again, name).keys() == getattr(content, name).keys(), name
    drive(store.close())


def test_damaged_snapshot_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    live(store, clock, rounds=1)
    head = store._journal._head("snapshot", store._content, 7)
    path = tmp_path / "snapshot-2.jsonl"
    folder = store._journal._folder
    write_snapshot(folder, path, head, said(store._content))
    drive(store.close())
    data = path.read_bytes()
    for length in [*range(0, len(data), 61), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"snapshot-2\.jsonl, line \d+"):
            read_snapshot(folder, path)
    for place in range(0, len(data), 61):
        flipped = bytearray(data)
        flipped[place] ^= 2
        path.write_bytes(bytes(flipped))
        line = 1 + data.count(b"\n", 0, place)
        with pytest.raises(StoreError, match=rf"snapshot-2\.jsonl, line {line}"):
            read_snapshot(folder, path)
    path.write_bytes(data + data.splitlines(keepends=True)[-1])
    with pytest.raises(StoreError, match="it was altered"):
        read_snapshot(folder, path)


class Held:
    """Holds a snapshot up after its first line, until it may go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.error: OSError | None = None

    def write(self, folder: Folder, path: Path, head: Any, batches: Iterable[Any]) -> int:
        def slowly() -> Iterable[Any]:
            for batch in batches:
                yield batch
                self.begun.set()
                assert self.go_on.wait(SOON)
                if self.error is not None:
                    raise self.error

        return write_snapshot(folder, path, head, slowly())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    found = Held()
    monkeypatch.setattr(compaction, "write_snapshot", found.write)
    return found


def test_calls_go_on_while_a_snapshot_is_written(
    tmp_path: Path, clock: ManualClock, held: Held
) -> None:
    folder = tmp_path / "j"
    store = opened(folder, clock)
    while not held.begun.is_set():
        drive(add(store, *(new() for _ in range(20))))
        if store._journal._compaction._writing is not None:
            assert held.begun.wait(SOON)
    for job in drive(take(store, limit=200)):  # of what is in the snapshot, all changes meanwhile
        drive(settle(store, job, Done()))
    expected = said(store._content)
    shutil.copytree(folder, tmp_path / "died")  # as a process leaves it that is killed now
    held.go_on.set()
    drive(store.close())
    for place in (folder, tmp_path / "died"):
        again = opened(place, clock)
        assert said(again._content) == expected
        assert not list(place.glob("*.new"))
        drive(again.close())
    assert sorted(path.name for path in folder.glob("*-*.jsonl")) == [
        "journal-2.jsonl",
        "snapshot-2.jsonl",
    ]


def test_process_that_died_before_it_removed_old_files_loses_nothing(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "j"
    monkeypatch.setattr(Folder, "remove_before", lambda *_: None)
    store = opened(folder, clock)
    live(store, clock, rounds=5)
    expected = said(store._content)
    drive(store.close())
    assert (folder / "journal-1.jsonl").exists()
    monkeypatch.undo()
    again = opened(folder, clock)
    assert said(again._content) == expected
    assert not (folder / "journal-1.jsonl").exists()
    drive(again.close())


def test_failed_snapshot_is_tried_again_later(
    tmp_path: Path, clock: ManualClock, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "j"
    held.error = OSError(28, "No space left on device")
    held.go_on.set()
    store = opened(folder, clock)
    while not held.begun.is_set():
        drive(add(store, *(new() for _ in range(20))))
        store._journal._compaction.wait()
    assert "the journals before it stay" in caplog.text
    assert not list(folder.glob("snapshot*"))
    held.error = None
    while not list(folder.glob("snapshot*.jsonl")):
        drive(add(store, *(new() for _ in range(20))))
        store._journal._compaction.wait()
    expected = drive(everything(store))
    drive(store.close())
    again = opened(folder, clock)
    assert drive(everything(again)) == expected
    drive(again.close())


def test_ids_of_removed_jobs_are_not_assigned_again(tmp_path: Path, clock: ManualClock) -> None:
    """The newest jobs may be removed before older ones: a snapshot still knows their ids."""
    store = opened(tmp_path / "j", clock)
    drive(add(store, new(), new(queue="other")))
    ended = [drive(settle(store, job, Done())) for job in drive(take(store, queues=["other"]))]
    assert drive(store.delete(ended)) == [job.id for job in ended]
    content, folder = store._content, store._journal._folder
    head = store._journal._head("snapshot", content, 7)
    write_snapshot(folder, tmp_path / "s", head, said(content))
    _, again = read_snapshot(folder, tmp_path / "s")
    assert (again.last_job, again.last_log) == (content.last_job, content.last_log) == (2, 4)
    drive(store.close())

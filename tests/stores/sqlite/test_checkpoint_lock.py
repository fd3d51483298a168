import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.runtime import Runtime
from penstock.stores.sqlite import checkpoint_lock
from penstock.stores.sqlite.checkpoint_lock import CheckpointLock
from tests.environment import SOON


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "jobs.db-wal").touch()
    return tmp_path / "jobs.db"


@pytest.fixture
def ours(path: Path) -> Iterator[CheckpointLock]:
    with closing(CheckpointLock(path, Runtime())) as lock:
        yield lock


@pytest.fixture
def theirs(path: Path) -> Iterator[CheckpointLock]:
    with closing(CheckpointLock(path, Runtime())) as lock:
        yield lock


def test_waiting_does_not_keep_the_lock(ours: CheckpointLock, theirs: CheckpointLock) -> None:
    theirs.wait()
    with ours.held() as held:
        assert held


def test_writer_waits_while_the_lock_is_held(ours: CheckpointLock, theirs: CheckpointLock) -> None:
    passed = threading.Event()

    def write() -> None:
        theirs.wait()
        passed.set()

    with ours.held():
        writer = threading.Thread(target=write)
        writer.start()
        assert not passed.wait(0.05)
    assert passed.wait(SOON)
    writer.join()


def test_own_writer_waits_too_and_does_not_release_it(
    ours: CheckpointLock, theirs: CheckpointLock
) -> None:
    with ours.held():
        writer = threading.Thread(target=ours.wait)
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        with theirs.held() as held:
            assert not held, "the writer released it"
    writer.join(SOON)
    assert not writer.is_alive()


def test_one_holds_it_at_a_time(ours: CheckpointLock, theirs: CheckpointLock) -> None:
    with ours.held():
        with theirs.held() as held:
            assert not held
        with theirs.held() as held:
            assert not held, "the one that did not get it released it"
    with theirs.held() as held:
        assert held


def test_lock_that_is_never_released_stops_nobody(
    ours: CheckpointLock, theirs: CheckpointLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "_PATIENCE", 0.01)
    with ours.held():
        theirs.wait()

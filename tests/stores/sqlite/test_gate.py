import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.stores.sqlite import gate
from penstock.stores.sqlite.gate import Gate
from tests.contract.support import SOON


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "jobs.db-wal").touch()
    return tmp_path / "jobs.db"


@pytest.fixture
def ours(path: Path) -> Iterator[Gate]:
    with closing(Gate(path)) as gate:
        yield gate


@pytest.fixture
def theirs(path: Path) -> Iterator[Gate]:
    with closing(Gate(path)) as gate:
        yield gate


def test_who_passes_leaves_it_open(ours: Gate, theirs: Gate) -> None:
    theirs.pass_through()
    with ours.closed() as alone:
        assert alone


def test_writer_waits_before_the_closed_gate(ours: Gate, theirs: Gate) -> None:
    passed = threading.Event()

    def write() -> None:
        theirs.pass_through()
        passed.set()

    with ours.closed():
        writer = threading.Thread(target=write)
        writer.start()
        assert not passed.wait(0.05)
    assert passed.wait(SOON)
    writer.join()


def test_own_writer_waits_too_and_does_not_open_it(ours: Gate, theirs: Gate) -> None:
    with ours.closed():
        writer = threading.Thread(target=ours.pass_through)
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        with theirs.closed() as alone:
            assert not alone, "the writer opened it"
    writer.join(SOON)
    assert not writer.is_alive()


def test_one_closes_it_at_a_time(ours: Gate, theirs: Gate) -> None:
    with ours.closed():
        with theirs.closed() as alone:
            assert not alone
        with theirs.closed() as alone:
            assert not alone, "who found it closed opened it"
    with theirs.closed() as alone:
        assert alone


def test_gate_that_nobody_opens_again_is_passed(
    ours: Gate, theirs: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_PATIENCE", 0.01)
    with ours.closed():
        theirs.pass_through()

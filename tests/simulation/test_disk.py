"""The simulated disk: what it keeps and what it loses when the power goes."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.testing.simulation.world import Process, World
from tests.simulation.disk import Disk, ProcessFiles
from tests.simulation.sqlite import Driver

SEEDS = range(12)
"""Each loses something else."""


class Machine:
    """A process and its disk."""

    def __init__(self, world: World, disk: Disk) -> None:
        self.disk = disk
        self.files = ProcessFiles(disk)
        self.process: Process = world.process("p", self.files)
        self.files.belong_to(self.process)
        self.path = disk.folder / "file"

    def write(self, text: bytes) -> int:
        fd = self.files.open(self.path, os.O_RDWR | os.O_CREAT)
        self.files.write_at(fd, text, 0)
        return fd

    def sync_folder(self) -> None:
        self.files.sync(self.files.open(self.disk.folder, os.O_RDONLY))


def machines() -> Iterator[Machine]:
    for seed in SEEDS:
        world = World(seed)
        with closing(Disk(world)) as disk, closing(world):
            yield Machine(world, disk)


def test_what_was_synced_is_kept() -> None:
    for machine in machines():
        machine.files.sync(machine.write(b"old"))
        machine.sync_folder()
        machine.disk.lose_power()
        assert machine.path.read_bytes() == b"old"


def test_what_was_not_synced_may_be_lost() -> None:
    found = set()
    for machine in machines():
        machine.files.sync(machine.write(b"old"))
        machine.sync_folder()
        machine.write(b"new")
        machine.disk.lose_power()
        found.add(machine.path.read_bytes())
    assert found == {b"old", b"new"}


def test_file_may_be_lost_until_its_folder_is_synced() -> None:
    found = set()
    for machine in machines():
        machine.files.sync(machine.write(b"new"))
        machine.disk.lose_power()
        found.add(machine.path.exists())
    assert found == {True, False}


def test_failed_sync_drops_what_a_later_one_does_not_bring_back() -> None:
    for machine in machines():
        fd = machine.write(b"old")
        machine.files.sync(fd)
        machine.sync_folder()
        machine.files.write_at(fd, b"bad", 0)
        machine.disk.strike("fail-sync-drops", machine.process, 1)
        with pytest.raises(OSError, match="Input/output error"):
            machine.files.sync(fd)
        assert machine.path.read_bytes() == b"bad"
        machine.files.write_at(fd, b"!", 3)
        machine.files.sync(fd)
        machine.disk.lose_power()
        assert machine.path.read_bytes() == b"old!"


@pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
def test_sqlite_file_may_be_lost_until_its_log_is_synced(synchronous: str) -> None:
    found = set()
    for machine in machines():
        connection = Driver(machine.disk, machine.process).connect(machine.path)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        machine.disk.lose_power()
        found.add(machine.path.exists())
    assert found == ({True} if synchronous == "FULL" else {True, False})

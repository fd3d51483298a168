"""One process at a time, one turn of the disk for many, and what is left in the folder."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.core.errors import ConfigurationError, StoreError
from penstock.core.lifecycle import Done
from penstock.runtime import Files
from penstock.stores import open_store
from penstock.stores.journal import audit
from tests.contract.support import ManualClock, add_one, drive, everything, settle, take_one
from tests.environment import SOON
from tests.stores.journal.support import opened


def test_second_store_on_a_folder_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    for _ in range(2):
        with pytest.raises(StoreError) as refused:
            opened(tmp_path / "j", clock)
        assert f"journal in {tmp_path}/j is in use by process {os.getpid()}" in str(refused.value)
    drive(add_one(store))
    drive(store.close())
    again = opened(tmp_path / "j", clock)
    assert len(drive(everything(again))) == 1
    drive(again.close())


OPENING = """
import sys
from penstock.runtime import Files
from penstock.stores import open_store
open_store(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_lock_is_held_while_its_process_lives(tmp_path: Path, clock: ManualClock) -> None:
    command = [sys.executable, "-c", OPENING, f"journal:///{tmp_path}/j"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreError, match=f"in use by process {holder.pid}: it belongs to one"):
            opened(tmp_path / "j", clock)
        holder.kill()
        holder.wait(SOON)
        drive(opened(tmp_path / "j", clock).close())


def test_forked_child_touches_nothing_and_holds_no_lock(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    drive(add_one(store))
    told, tell = os.pipe()
    stay, go = os.pipe()
    child = os.fork()
    if not child:
        try:
            drive(add_one(store))
        except StoreError as error:
            os.write(tell, str(error).encode())
        os.write(tell, b"\n")
        os.close(go)
        os.read(stay, 1)
        os._exit(0)
    os.close(stay)
    try:
        with os.fdopen(told) as answer:
            assert "belongs to the process that opened it" in answer.readline()
        drive(add_one(store))
        drive(store.close())
        drive(opened(tmp_path / "j", clock).close())  # though the child is still there
    finally:
        os.close(go)
        os.waitpid(child, 0)
        os.close(tell)


class SlowDisk(Files):
    """Makes one write to the disk wait until the test releases it."""

    def __init__(self) -> None:
        self.busy = threading.Event()
        self.go_on = threading.Event()
        self.turns = 0
        self.sync_data = self._wait

    def _wait(self, fd: Any) -> None:
        self.turns += 1
        self.busy.set()
        assert self.go_on.wait(SOON)
        os.fdatasync(fd)


@pytest.fixture
def slow() -> SlowDisk:
    return SlowDisk()


async def test_calls_that_come_while_the_disk_is_busy_share_its_next_turn(
    tmp_path: Path, clock: ManualClock, slow: SlowDisk
) -> None:
    store = opened(tmp_path / "j", clock, slow)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(add_one(store))
        assert await asyncio.to_thread(slow.busy.wait, SOON)
        rest = [tasks.create_task(add_one(store)) for _ in range(50)]
        await asyncio.sleep(0)
        slow.go_on.set()
    assert len({job.result().id for job in [first, *rest]}) == 51
    assert slow.turns == 2
    await store.close()


async def test_nobody_is_shown_what_is_not_durable(
    tmp_path: Path, clock: ManualClock, slow: SlowDisk
) -> None:
    store = opened(tmp_path / "j", clock, slow)
    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(add_one(store))
        assert await asyncio.to_thread(slow.busy.wait, SOON)
        looking = tasks.create_task(everything(store))
        waiting = tasks.create_task(store.wait(0, SOON))
        in_thread = tasks.create_task(asyncio.to_thread(lambda: drive(everything(store))))
        for _ in range(50):  # turns of the loop, in which all would have been answered
            await asyncio.sleep(0)
        assert not any(task.done() for task in (adding, looking, waiting, in_thread))
        slow.go_on.set()
    assert looking.result() == in_thread.result() == [adding.result()]
    await store.close()


def test_closed_store_says_so(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    drive(store.close())
    drive(store.close())
    with pytest.raises(StoreError, match="was closed"):
        drive(add_one(store))
    with pytest.raises(StoreError, match="was closed"):
        drive(everything(store))


async def test_calls_under_way_are_answered_when_the_store_is_closed(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = opened(tmp_path / "j", clock)
    adding = [asyncio.ensure_future(add_one(store)) for _ in range(5)]
    await asyncio.sleep(0)
    await store.close()
    assert len({job.id for job in await asyncio.gather(*adding)}) == 5


def test_foreign_transaction_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    app = Penstock(f"journal:///{tmp_path}/j", clock=clock)
    with pytest.raises(ConfigurationError, match="has no database for tables or transactions"):
        drive(app.enqueue_many([], connection=object()))
    drive(app.close())


# The folder


def test_url_names_a_folder(tmp_path: Path) -> None:
    for url in ("journal://", "journal:///", "journal://host/x", "journal:///x#y"):
        with pytest.raises(ConfigurationError, match="a journal is 'journal:///relative/folder'"):
            open_store(url)
    with pytest.raises(
        ConfigurationError, match="'durability=disk' and 'durability=process', unlike"
    ):
        open_store(f"journal:///{tmp_path}/j?durability=none")
    drive(open_store(f"journal:///{tmp_path}/a%20b").close())
    assert (tmp_path / "a b" / "journal-1.jsonl").exists()


def test_store_that_is_not_there_is_not_made_unasked(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(StoreError, match=f"there is no store at {tmp_path}/j"):
        opened(tmp_path / "j", clock, create=False)
    (tmp_path / "j").mkdir()
    with pytest.raises(StoreError, match=f"{tmp_path}/j is a folder without a store in it"):
        opened(tmp_path / "j", clock, create=False)
    drive(opened(tmp_path / "j", clock).close())
    drive(opened(tmp_path / "j", clock, create=False).close())


def test_closed_journal_has_no_blanks_and_is_json(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    drive(add_one(store, payload='{"text":"ü"}'))
    drive(settle(store, drive(take_one(store)), Done()))
    assert (tmp_path / "j" / "journal-1.jsonl").read_bytes().endswith(b" ")
    drive(store.close())
    text = (tmp_path / "j" / "journal-1.jsonl").read_text()
    assert re.search(r" $", text) is None
    head, added, claimed, ended, closed = map(json.loads, text.splitlines())
    assert (head["penstock"], head["version"], head["first"]) == ("journal", 1, 1)
    assert [line["n"] for line in (added, claimed, ended, closed)] == [1, 2, 3, 4]
    assert [line["durable"] for line in (added, claimed, ended, closed)] == [0, 1, 2, 3]
    assert added["do"]["jobs"][0]["payload"] == '{"text":"ü"}'
    assert "payload" not in claimed["changes"][0]
    assert claimed["changes"][0]["state"] == "running"


def test_audit_has_a_line_for_each_transition(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "j", clock)
    job = drive(add_one(store))
    drive(settle(store, drive(take_one(store)), Done()))
    path = tmp_path / "j" / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["job_id"], line["event"]) for line in lines] == [
        (job.id, "enqueued"),
        (job.id, "claimed"),
        (job.id, "done"),
    ]
    monkeypatch.setattr(audit, "LONGEST", 10)
    drive(add_one(store))
    drive(add_one(store))
    assert (tmp_path / "j" / "audit-earlier.jsonl").read_text().count("\n") == 1
    drive(store.close())


def test_audit_that_cannot_be_written_keeps_no_job_out(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "audit.jsonl").mkdir()
    store = opened(tmp_path / "j", clock)
    for _ in range(3):
        drive(add_one(store))
    assert len(drive(everything(store))) == 3
    assert caplog.text.count("lacks entries") == 1
    drive(store.close())

"""A journal that is read back: whole, cut off, flipped, doubled, or not ours."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.errors import StoreError
from penstock.runtime import SYSTEM
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import line_of
from penstock.stores.journal.lines import opened as opened_line
from penstock.stores.journal.replay import Replay
from penstock.stores.memory.batch import WriteBatch
from tests.contract.support import ManualClock, add, add_one, drive, everything, new
from tests.stores.journal.support import live, opened, said


class Told:
    """A journal that was written by transactions that were acknowledged one after the other."""

    def __init__(self, folder: Path, clock: ManualClock, *, rounds: int = 1) -> None:
        """Write it, and note what there was after every transaction."""
        store = opened(folder, clock)
        self.path = folder / "journal-1.jsonl"
        file = store._journal._file
        assert file is not None
        self.head = file.end
        self.states: dict[int, list[WriteBatch]] = {file.end: said(store._content)}
        """By where the records ended."""
        settle = store._journal.settle

        def noting(flight: object) -> None:
            settle(flight)  # type: ignore[arg-type] # its own argument
            self.states[file.end] = said(store._content)

        store._journal.settle = noting  # type: ignore[method-assign] # replaced for the test
        live(store, clock, rounds=rounds)
        self.end = file.end
        self.data = self.path.read_bytes()
        drive(store.close())

    def state_at(self, size: int) -> list[WriteBatch]:
        """What there was when so many bytes had been acknowledged."""
        return self.states[max(end for end in self.states if end <= size)]


def replayed(folder: Path, data: bytes) -> list[WriteBatch]:
    """Return the content of a journal with these bytes."""
    (folder / "journal-1.jsonl").write_bytes(data)
    with closing(_Unlocked(folder, SYSTEM, create=False)) as unlocked:
        return said(Replay(unlocked, 1).run().content)


def replayed_or_refused(folder: Path, data: bytes) -> list[WriteBatch] | StoreError:
    try:
        return replayed(folder, data)
    except StoreError as error:
        return error


class _Unlocked(Folder):
    """A folder that other processes may have open, for those who only read."""

    def _locked(self) -> int:
        return os.open(os.devnull, os.O_RDONLY)


def test_journal_that_is_read_back_is_the_store(tmp_path: Path, clock: ManualClock) -> None:
    store = opened(tmp_path / "j", clock)
    live(store, clock)
    before, generation = said(store._content), store._content.source
    drive(store.close())
    again = opened(tmp_path / "j", clock)
    assert said(again._content) == before
    assert again._content.source == generation
    one = drive(add_one(again))
    assert one.id > 500  # ids go on behind those of the store that was taken over
    drive(again.close())


def test_journal_cut_at_any_byte_is_a_shorter_journal(tmp_path: Path, clock: ManualClock) -> None:
    """Whatever the length, what was acknowledged before is there, and nothing by halves."""
    told = Told(tmp_path / "j", clock)
    (tmp_path / "cut").mkdir()
    for size in range(told.head, told.end + 1):
        assert replayed(tmp_path / "cut", told.data[:size]) == told.state_at(size), size
    # So it is where the rest of the file is still blank.
    for size in range(told.head, told.end + 1, 97):
        torn = told.data[:size].ljust(told.end + 500, b" \0"[size % 2 : size % 2 + 1])
        assert replayed(tmp_path / "cut", torn) == told.state_at(size), size


def test_file_that_is_cut_within_its_head_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    """It gets its name when its head is durable: no crash leaves such a file."""
    told = Told(tmp_path / "j", clock)
    (tmp_path / "cut").mkdir()
    for size in range(told.head):
        with pytest.raises(StoreError, match=r"journal-1.jsonl, line 1"):
            replayed(tmp_path / "cut", told.data[:size])


def test_flipped_bit_is_never_taken_for_content(tmp_path: Path, clock: ManualClock) -> None:
    """It is refused by file and line; in the last record, it may be its writer's death as well."""
    told = Told(tmp_path / "j", clock)
    (tmp_path / "flip").mkdir()
    last = sorted(told.states)[-2]
    refused = 0
    for place in range(0, told.end, 7):
        data = bytearray(told.data)
        data[place] ^= 1 << place % 8
        found = replayed_or_refused(tmp_path / "flip", bytes(data))
        if isinstance(found, StoreError):
            refused += 1
            line = 1 + told.data.count(b"\n", 0, place)
            assert f"journal-1.jsonl, line {line}" in str(found), place
        else:
            assert place >= last, place
            assert found == told.states[last], place
    assert refused > 100


def test_flipped_end_of_a_line_does_not_hide_two_records(
    tmp_path: Path, clock: ManualClock
) -> None:
    told = Told(tmp_path / "j", clock)
    (tmp_path / "flip").mkdir()
    for end in sorted(told.states)[1:-1]:
        for bit in range(8):
            data = bytearray(told.data)
            data[end - 1] ^= 1 << bit
            assert isinstance(replayed_or_refused(tmp_path / "flip", bytes(data)), StoreError), end


def test_flip_in_the_last_record_of_a_closed_store_is_refused(
    tmp_path: Path, clock: ManualClock
) -> None:
    told = Told(tmp_path / "j", clock)
    data = bytearray(told.path.read_bytes())
    data[told.end - 9] ^= 4
    told.path.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="was altered"):
        opened(tmp_path / "j", clock)


def test_record_that_is_there_twice_counts_once(tmp_path: Path, clock: ManualClock) -> None:
    told = Told(tmp_path / "j", clock)
    (tmp_path / "twice").mkdir()
    ends = sorted(told.states)
    for count in (1, 2, 5):
        tail = told.data[ends[-1 - count] : told.end]
        doubled = told.data[: told.end] + tail
        assert replayed(tmp_path / "twice", doubled) == told.states[told.end]
    shutil.rmtree(tmp_path / "j")
    (tmp_path / "j").mkdir()
    told.path.write_bytes(doubled)
    store = opened(tmp_path / "j", clock)
    jobs = drive(add(store, new(), new()))
    drive(store.close())
    store = opened(tmp_path / "j", clock)
    assert drive(everything(store))[-2:] == jobs
    drive(store.close())


def test_other_record_under_a_number_that_was_given_is_refused(
    tmp_path: Path, clock: ManualClock
) -> None:
    told = Told(tmp_path / "j", clock)
    (tmp_path / "twice").mkdir()
    lines = told.data[: told.end].splitlines()
    text = opened_line(lines[-1])
    assert text is not None
    other = line_of({"n": 3, "durable": 2, "at": "2030-01-01T00:00:00Z", "do": {}})
    with pytest.raises(StoreError, match=f"line {len(lines) + 1}: it was altered"):
        replayed(tmp_path / "twice", told.data[: told.end] + other)


def test_missing_record_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    told = Told(tmp_path / "j", clock)
    (tmp_path / "gap").mkdir()
    lines = told.data[: told.end].splitlines(keepends=True)
    for place in range(1, len(lines) - 2):
        with pytest.raises(StoreError, match=f"line {place + 1}: record {place} was altered"):
            replayed(tmp_path / "gap", b"".join(lines[:place] + lines[place + 1 :]))


def test_torn_group_is_dropped_though_its_end_is_there(tmp_path: Path, clock: ManualClock) -> None:
    """What was written together may reach the disk in any order, if the power goes before all."""
    told = Told(tmp_path / "j", clock)
    (tmp_path / "torn").mkdir()
    count = told.data[: told.end].count(b"\n") - 1
    group = b"".join(
        line_of({"n": n, "durable": count, "at": "2030-01-01T00:00:00Z", "do": {}})
        for n in range(count + 1, count + 4)
    )
    blank = b" " * 40 + group[40:]
    assert replayed(tmp_path / "torn", told.data[: told.end] + blank) == told.states[told.end]


def test_end_that_is_no_record_is_repaired_before_the_next(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told(tmp_path / "j", clock)
    ends = sorted(told.states)
    told.path.write_bytes(told.data[: ends[-1] - 10].ljust(told.end + 3_000))
    store = opened(tmp_path / "j", clock)
    assert "an unfinished record at its end was dropped" in caplog.text
    assert said(store._content) == told.states[ends[-2]]
    repaired = told.path.read_bytes()
    assert repaired[: ends[-2]] == told.data[: ends[-2]]
    assert repaired[ends[-2] :].isspace()
    [job] = drive(add(store, new()))
    drive(store.close())
    again = opened(tmp_path / "j", clock)
    assert drive(again.get([job.id])) == [job]
    drive(again.close())


def test_newer_format_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "j"
    drive(opened(folder, clock).close())
    (folder / "journal-1.jsonl").write_bytes(
        line_of({"penstock": "journal", "version": 2, "store": 1, "what": "ever"})
    )
    with pytest.raises(StoreError, match=r"newer Penstock \(format 2, this one knows 1\); upgrade"):
        opened(folder, clock)


@pytest.mark.parametrize("name", ["journal-1.jsonl", "journal-2.jsonl"])
def test_missing_file_is_refused(tmp_path: Path, clock: ManualClock, name: str) -> None:
    folder = tmp_path / "j"
    store = opened(folder, clock)
    drive(add_one(store))
    for _ in range(2):  # two files more
        store._journal.give_up()
        drive(add_one(store))
    drive(store.close())
    (folder / name).unlink()
    with pytest.raises(StoreError, match=f"{name} is missing"):
        opened(folder, clock)


def test_file_of_another_store_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    for name in ("a", "b"):
        store = opened(tmp_path / name, clock)
        drive(add_one(store))
        store._journal.give_up()
        drive(add_one(store))
        drive(store.close())
    (tmp_path / "a" / "journal-2.jsonl").replace(tmp_path / "b" / "journal-2.jsonl")
    with pytest.raises(StoreError, match=r"journal-2.jsonl, line 1: it belongs to another store"):
        opened(tmp_path / "b", clock)

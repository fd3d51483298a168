"""Replay: reads a journal back, and finds out where the next record goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.core.errors import StoreError
from penstock.stores.journal.file import BLANKS
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import BEFORE, Head, damaged, opened, read_head
from penstock.stores.journal.records import JournalRecord, batch_of, decode_number, decode_record
from penstock.stores.journal.snapshot import read_snapshot
from penstock.stores.memory.content import Content


class Replay:
    """What was found in a folder so far.

    `source` is the identity of the store if the folder is still empty.
    """

    def __init__(self, folder: Folder, source: int) -> None:
        self._folder = folder
        self.content = Content(source)
        self.snapshot_size = 0
        self.size = 0
        """The size of the journals without blanks."""
        self.last = 0
        """The number of the newest record."""
        self.file = 0
        """The number of the newest journal; 0 if there is none."""
        self.end = 0
        """Where the records of that file end."""
        self.certain = 0
        """Where the records of that file end that were certainly durable."""
        self.torn = False
        """Whether something follows that is not a record."""

    def run(self, until: int | None = None) -> "Replay":
        """Read everything, or up to a record that is known to exist."""
        numbers = self._start()
        heads = [self._head(number) for number in numbers]
        bounds = [*(head.first - 1 for head in heads[1:]), until]
        for number, head, bound in zip(numbers, heads, bounds, strict=False):
            self._read(number, head, bound)
        return self

    def _start(self) -> list[int]:
        """Read the newest snapshot; returns the numbers of the journals that continue it."""
        snapshots = self._folder.snapshots()
        base = snapshots[-1] if snapshots else 1
        if snapshots:
            path = self._folder.snapshot(base)
            head, self.content = read_snapshot(self._folder, path)
            self.last, self.snapshot_size = head.first - 1, self._folder.files.stat(path).st_size
        numbers = [number for number in self._folder.journals() if number >= base]
        if numbers or snapshots:
            for expected in range(base, max([base, *numbers]) + 1):
                if expected not in numbers:
                    raise StoreError(f"{self._folder.journal(expected)} is missing; restore it")
        return numbers

    def _head(self, number: int) -> Head:
        path = self._folder.journal(number)
        head = read_head(self._folder.first_line(path), "journal", path)
        if number == 1:
            self.content.source = head.store
        elif head.store != self.content.source:
            raise damaged(path, 1, "it belongs to another store")
        return head

    def _read(self, number: int, head: Head, bound: int | None) -> None:
        """Replay the records of a file, up to `bound`, which must exist then.

        A record that was altered may be the end of a file whose writer died; but one that a later
        record knows to be durable must exist.
        """
        path = self._folder.journal(number)
        if self.last != head.first - 1:
            raise damaged(path, 1, f"record {self.last + 1} should follow, not {head.first}")
        data = self._folder.read(path)
        lines = _lines(data)
        self.file, self.end = number, next(lines).end
        ends, checksums = {self.last: self.end}, {self.last: b""}
        trouble, durable = 0, self.last if bound is None else bound
        number_of_line = 1
        for line in lines:
            if bound is not None and self.last >= bound:
                break
            number_of_line = line.number
            if line.text is None:
                trouble = trouble or line.number
                continue
            found = decode_number(line.text)
            durable = max(durable, found.durable)
            if found.n > self.last + 1:
                trouble = trouble or line.number
            elif trouble or checksums.get(found.n, line.checksum) != line.checksum:
                raise damaged(path, trouble or line.number, "it was altered")
            else:
                if found.n == self.last + 1:
                    self._apply(path, line)
                    checksums[found.n] = line.checksum
                # An identical copy of an earlier record has no effect.
                self.end = ends[self.last] = line.end
        if self.last < durable:
            text = f"record {self.last + 1} was altered, or is missing"
            raise damaged(path, trouble or number_of_line + 1, text)
        self.certain = ends[durable]
        self.torn = bool(data[self.end :].strip(BLANKS))
        self.size += self.end

    def _apply(self, path: Path, line: "_ReadLine") -> None:
        try:
            record: JournalRecord = decode_record(line.text or b"")
            self.content.tick(record.at)
            self.content.apply(batch_of(record, self.content))
        except (msgspec.MsgspecError, KeyError) as error:
            raise damaged(path, line.number, f"it is invalid ({error})") from error
        self.last = record.n


class _ReadLine(NamedTuple):
    """A line that is not blank: where it ends, and its JSON unless it was altered."""

    number: int
    end: int
    text: bytes | None
    checksum: bytes


def _lines(data: bytes) -> Iterator[_ReadLine]:
    start, number = 0, 0
    while start < len(data):
        number += 1
        found = data.find(b"\n", start)
        end = len(data) if found < 0 else found
        line = data[start:end]
        start = end + 1
        if line.strip(BLANKS):
            # A line without its end may have been cut off: it does not count.
            text = opened(line) if found >= 0 else None
            yield _ReadLine(number, start, text, line[:20])
            if text is None and found >= 0:
                yield from _swallowed(line, number, start)


def _swallowed(line: bytes, number: int, end: int) -> Iterator[_ReadLine]:
    """Yield the record at the end of an altered line, if the end of the line before it was altered.

    It knows which records are durable: without it, those would pass for one that was cut off.
    """
    place = line.rfind(BEFORE)
    if place > 0 and (text := opened(line[place:])) is not None:
        yield _ReadLine(number, end, text, line[place : place + 20])

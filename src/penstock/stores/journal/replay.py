"""Reads a journal back: what the store has come to, and where the next record goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.core.errors import StoreError
from penstock.stores.journal.file import BLANKS
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import Head, damaged, opened, read_head
from penstock.stores.journal.records import Record, batch_of, decode_number, decode_record
from penstock.stores.journal.snapshot import read_snapshot
from penstock.stores.memory.content import Content


class Replay:
    """A folder that is read, and what was found in it so far."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.content = Content()
        self.snapshot_size = 0
        self.size = 0
        """The bytes of the journals, without blanks."""
        self.last = 0
        """The number of the newest record."""
        self.file = 0
        """The number of the newest journal; 0 if there is none."""
        self.end = 0
        """Where the records of that file end."""
        self.certain = 0
        """Where those of its records end that were durable for certain."""
        self.torn = False
        """Whether something follows that is no record."""

    def run(self, until: int | None = None) -> "Replay":
        """Read all there is, or up to a record that is known to be there."""
        numbers = self._start()
        heads = [self._head(number) for number in numbers]
        bounds = [*(head.first - 1 for head in heads[1:]), until]
        for number, head, bound in zip(numbers, heads, bounds, strict=False):
            self._read(number, head, bound)
        return self

    def _start(self) -> list[int]:
        """Read the newest snapshot; the numbers of the journals that go on from it."""
        snapshots = self._folder.snapshots()
        base = snapshots[-1] if snapshots else 1
        if snapshots:
            path = self._folder.snapshot(base)
            head, self.content = read_snapshot(path)
            self.last, self.snapshot_size = head.first - 1, path.stat().st_size
        numbers = [number for number in self._folder.journals() if number >= base]
        if numbers or snapshots:
            for expected in range(base, max([base, *numbers]) + 1):
                if expected not in numbers:
                    raise StoreError(f"{self._folder.journal(expected)} is missing; restore it")
        return numbers

    def _head(self, number: int) -> Head:
        path = self._folder.journal(number)
        with path.open("rb") as file:
            head = read_head(file.readline(), "journal", path)
        if number == 1:
            self.content.source = head.store
        elif head.store != self.content.source:
            raise damaged(path, 1, "it belongs to another store")
        return head

    def _read(self, number: int, head: Head, bound: int | None) -> None:
        """Replay the records of a file up to a number, which then have to be there.

        What is not as it was written may be the end of a file whose writer died. But a record
        that a later one knows to be durable has to be there.
        """
        path = self._folder.journal(number)
        if self.last != head.first - 1:
            raise damaged(path, 1, f"record {self.last + 1} should follow, not {head.first}")
        data = path.read_bytes()
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
                raise damaged(path, trouble or line.number, "it is not as it was written")
            else:
                if found.n == self.last + 1:
                    self._apply(path, line)
                    checksums[found.n] = line.checksum
                # A record that was there before, the same to the letter, says nothing new.
                self.end = ends[self.last] = line.end
        if self.last < durable:
            text = f"record {self.last + 1} is not as it was written, or not there"
            raise damaged(path, trouble or number_of_line + 1, text)
        self.certain = ends[durable]
        self.torn = bool(data[self.end :].strip(BLANKS))
        self.size += self.end

    def _apply(self, path: Path, line: "_Line") -> None:
        try:
            record: Record = decode_record(line.text or b"")
            self.content.tick(record.at)
            self.content.apply(batch_of(record, self.content))
        except (msgspec.MsgspecError, KeyError) as error:
            raise damaged(path, line.number, f"it makes no sense ({error})") from error
        self.last = record.n


class _Line(NamedTuple):
    """A line that is not blank: where its end is, and its JSON, if it is as it was written."""

    number: int
    end: int
    text: bytes | None
    checksum: bytes


def _lines(data: bytes) -> Iterator[_Line]:
    start, number = 0, 0
    while start < len(data):
        number += 1
        found = data.find(b"\n", start)
        end = len(data) if found < 0 else found
        line = data[start:end]
        start = end + 1
        if line.strip(BLANKS):
            # Without its end, a line may be cut off behind its last letter: it does not count.
            text = opened(line) if found >= 0 else None
            yield _Line(number, start, text, line[:20])

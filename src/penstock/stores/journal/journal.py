"""The journal of a store: collects records, makes them durable together, and stays short."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import LogEntry
from penstock.runtime import TRANSIENT, Runtime
from penstock.stores.journal.audit import Audit
from penstock.stores.journal.compaction import Compaction
from penstock.stores.journal.file import JournalFile
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import FORMAT, Head, Kind
from penstock.stores.journal.records import record_line
from penstock.stores.journal.replay import Replay
from penstock.stores.journal.snapshot import portions
from penstock.stores.memory.batch import NOTHING, WriteBatch
from penstock.stores.memory.content import Content

_log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """Records on their way to the disk, with a snapshot to be written after them, if any."""

    data: bytes
    records: int
    entries: list[LogEntry]
    snapshot: tuple[Head, Head, Iterator[WriteBatch]] | None


class Journal:
    """The files of a folder, which belongs to this process until the journal is closed.

    `put`, `take`, `settle` and `give_up` require that nobody else changes the content; `write`,
    `follow_up` and `rotate` must be called by one thread at a time.
    """

    def __init__(self, runtime: Runtime, folder: Folder, found: Replay, *, syncs: bool) -> None:
        self._folder = folder
        self._source = found.content.source
        self._syncs = syncs
        self._number, self._durable = found.file, found.last
        self._newest = found.last  # the newest record that was put
        self._known = 0  # the newest record that a later one knows to be durable
        self._pending: list[bytes] = []
        self._entries: list[LogEntry] = []
        self._audit = Audit(folder)
        self._compaction = Compaction(runtime, folder, found.size, found.snapshot_size)
        self._file: JournalFile | None = self._opened(found)
        folder.remove_before(max(folder.snapshots(), default=0))

    @classmethod
    def open(
        cls, path: Path, runtime: Runtime, *, create: bool, syncs: bool
    ) -> tuple["Journal", Content]:
        """Open the journal in a folder; also returns the content that its records result in."""
        try:
            folder = Folder(path, runtime, create=create)
            try:
                found = Replay(folder, runtime.random.getrandbits(63)).run()
                return cls(runtime, folder, found, syncs=syncs), found.content
            except BaseException:
                folder.close()
                raise
        except OSError as error:
            text = f"{path} cannot be used: {error}"
            if error.errno in TRANSIENT:
                raise StoreUnavailable(f"{text}; nothing was changed, try again") from error
            raise StoreError(text) from error

    @property
    def has_pending(self) -> bool:
        """Whether there are records that were not taken yet."""
        return bool(self._pending)

    def put(self, batch: WriteBatch, content: Content) -> None:
        """Add a record of what is about to change in the content.

        Raises `StoreUnavailable`, and adds nothing, if the disk has no room for it.
        """
        durable = self._durable if self._syncs else 0
        line = record_line(batch, content, n=self._newest + 1, durable=durable)
        try:
            if self._file is None:
                self.begin_file(content)
            if self._file is not None:
                self._file.reserve(len(line))
        except OSError as error:
            raise self.unavailable(error) from error
        self._newest += 1
        self._known = durable
        self._pending.append(line)
        self._entries += batch.entries

    def begin_file(self, content: Content) -> None:
        """Continue in another file after the newest record."""
        self._draft(self._head("journal", content, self._newest + 1))
        self._file = self._publish()

    def take(self, content: Content) -> _Flight:
        """Return the records that were put since the last call."""
        data, snapshot = b"".join(self._pending), None
        self._compaction.grow(len(data))
        if data and self._compaction.is_due():
            first = self._newest + 1
            heads = self._head("journal", content, first), self._head("snapshot", content, first)
            snapshot = (*heads, portions(content))
        flight = _Flight(data, len(self._pending), self._entries, snapshot)
        self._pending, self._entries = [], []
        return flight

    def write(self, flight: _Flight) -> None:
        """Write records, durable on return; more may be put meanwhile."""
        if flight.data:
            if self._file is None:
                raise OSError(errno.EIO, "there is no file to write to")
            self._file.append(flight.data)

    def settle(self, flight: _Flight) -> None:
        """Count these records as durable."""
        self._durable += flight.records

    def follow_up(self, flight: _Flight) -> bool:
        """Do what no caller waits for; returns whether to continue in another file."""
        if flight.entries:
            self._audit.write(flight.entries)
        if flight.snapshot is None:
            return False
        try:
            self._draft(flight.snapshot[0])
        except OSError as error:
            _log.warning("%s gets longer: %s", self._folder.path, error)
            self._compaction.postpone()
            return False
        return True

    def rotate(self, flight: _Flight) -> None:
        """Continue in the next file, and let a snapshot replace those before it."""
        former, self._file = self._file, None
        try:
            if former is not None:
                former.finish()
                former.close()
            self._file = self._publish()
            self._file.reserve(sum(map(len, self._pending)))
        except OSError as error:  # until there is a file, nothing can be written
            _log.warning("%s has no next file yet: %s", self._folder.path, error)
        else:
            if flight.snapshot is not None:
                _, head, batches = flight.snapshot
                self._compaction.start(self._number, head, batches)

    def give_up(self) -> bool:
        """Drop the records that are not durable; later ones go into another file.

        What the present file has after its durable records is unknown, and a second fsync would
        not tell. Returns whether a crash could bring these records back, until there is another
        file.
        """
        self._pending, self._entries, self._newest = [], [], self._durable
        in_doubt = False
        if self._file is not None:
            in_doubt = self._file.in_doubt
            self._file.close()
            self._file = None
        return in_doubt

    def reload(self) -> Content:
        """Return the content that the durable records result in."""
        return Replay(self._folder, self._source).run(self._durable).content

    def close(self, content: Content) -> None:
        """Finish and close all files."""
        self._compaction.wait()
        if self._file is not None:
            try:
                self._confirm_last(self._file, content)
                self._file.finish()
            except OSError as error:  # all that was acknowledged is there
                _log.warning("%s was left as it is: %s", self._file.path, error)
        self.abandon()

    def size(self) -> int:
        """Return the total size of the files."""
        return self._folder.size()

    def abandon(self) -> None:
        """Close all descriptors without touching a file, as a forked child has to."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._audit.close()
        self._folder.close()

    def unavailable(self, error: BaseException | None) -> StoreUnavailable:
        """Return the error for a write that failed."""
        why = (isinstance(error, OSError) and error.strerror) or "it was interrupted"
        return StoreUnavailable(
            f"the journal in {self._folder.path} could not be written: {why}; nothing was "
            "changed, try again"
        )

    def in_doubt(self, error: Exception) -> StoreError:
        """Return the error for a write that failed, but may be found on disk after a crash."""
        doubt = StoreError(
            f"the journal in {self._folder.path} could not be written; the changes may or may not "
            "be stored"
        )
        doubt.__cause__ = error
        return doubt

    def _confirm_last(self, file: JournalFile, content: Content) -> None:
        """Add a record that knows the last one to be durable, so that damage to it is noticed."""
        if self._syncs and self._known < self._durable:
            n = self._durable + 1
            file.append(record_line(NOTHING, content, n=n, durable=self._durable))

    def _opened(self, found: Replay) -> JournalFile:
        if not found.file:
            self._draft(self._head("journal", found.content, 1))
            return self._publish()
        file = JournalFile(
            self._folder, self._folder.journal(found.file), found.end, syncs=self._syncs
        )
        if found.torn:
            _log.warning("%s: an unfinished record at its end was dropped", file.path)
        if found.torn or found.certain < found.end:
            file.repair(found.certain)
        return file

    def _head(self, kind: Kind, content: Content, first: int) -> Head:
        return Head(
            penstock=kind, version=FORMAT, store=content.source, first=first, at=content.now
        )

    def _draft(self, head: Head) -> None:
        JournalFile.draft(self._folder, self._folder.journal(self._number + 1), head)

    def _publish(self) -> JournalFile:
        path = self._folder.journal(self._number + 1)
        file = JournalFile.publish(self._folder, path, syncs=self._syncs)
        self._number += 1
        return file

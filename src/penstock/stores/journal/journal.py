"""The journal of a store: takes records, makes them durable together, and stays short."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import LogEntry
from penstock.stores.journal.audit import Audit
from penstock.stores.journal.compaction import Compaction
from penstock.stores.journal.file import JournalFile
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import FORMAT, Head, Kind
from penstock.stores.journal.records import record_line
from penstock.stores.journal.replay import Replay
from penstock.stores.journal.snapshot import portions
from penstock.stores.memory.batch import NOTHING, Batch
from penstock.stores.memory.content import Content

_log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """Records on their way to the disk, and what there is with them, if that is to be kept."""

    data: bytes
    records: int
    entries: list[LogEntry]
    snapshot: tuple[Head, Head, Iterator[Batch]] | None


class Journal:
    """The files of a folder, which belongs to this process until the journal is closed.

    `put`, `take`, `settle` and `give_up` want the content to stand still, and the disk's methods
    (`write`, `follow_up`, `rotate`) to be called by one thread at a time.
    """

    def __init__(self, folder: Folder, found: Replay, *, syncs: bool) -> None:
        self._folder = folder
        self._syncs = syncs
        self._number, self._durable = found.file, found.last
        self._newest = found.last  # the newest record that was put
        self._known = 0  # the newest that another one knows to be durable
        self._pending: list[bytes] = []
        self._entries: list[LogEntry] = []
        self._audit = Audit(folder.path)
        self._compaction = Compaction(folder, found.size, found.snapshot_size)
        self._file: JournalFile | None = self._opened(found)
        folder.remove_before(max(folder.snapshots(), default=0))

    @classmethod
    def open(cls, path: Path, *, create: bool, syncs: bool) -> tuple["Journal", Content]:
        """The journal in a folder, and what its records come to."""
        folder = Folder(path, create=create)
        try:
            found = Replay(folder).run()
            return cls(folder, found, syncs=syncs), found.content
        except BaseException as error:
            folder.close()
            if isinstance(error, OSError):
                raise StoreError(f"{path} cannot be used: {error}") from error
            raise

    @property
    def has_pending(self) -> bool:
        """Whether records wait to be taken to the disk."""
        return bool(self._pending)

    def put(self, batch: Batch, content: Content) -> None:
        """Take what is about to change in the content.

        Raises `StoreUnavailable`, and takes nothing, if there is no room for it.
        """
        durable = self._durable if self._syncs else 0
        line = record_line(batch, content, n=self._newest + 1, durable=durable)
        try:
            if self._file is None:
                self._draft(self._head("journal", content, self._newest + 1))
                self._file = self._publish()
            self._file.reserve(len(line))
        except OSError as error:
            raise self.unavailable(error) from error
        self._newest += 1
        self._known = durable
        self._pending.append(line)
        self._entries += batch.entries

    def take(self, content: Content) -> _Flight:
        """The records that were put since the last time."""
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
        """Write records; durable on return. More may be put meanwhile."""
        if flight.data:
            if self._file is None:
                raise OSError(errno.EIO, "there is no file to write to")
            self._file.append(flight.data)

    def settle(self, flight: _Flight) -> None:
        """These records are durable."""
        self._durable += flight.records

    def follow_up(self, flight: _Flight) -> bool:
        """Do what nobody waits for; whether to go on in the next file."""
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
        """Go on in the next file, and let a snapshot take the place of those before."""
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

    def give_up(self) -> None:
        """Forget what was put and is not durable; whatever comes goes into another file.

        What became of this one since it was durable is not known, nor told by another fsync.
        """
        self._pending, self._entries, self._newest = [], [], self._durable
        if self._file is not None:
            self._file.close()
            self._file = None

    def reload(self) -> Content:
        """The content that the durable records come to."""
        return Replay(self._folder).run(self._durable).content

    def close(self, content: Content) -> None:
        """Let go of all files."""
        self._compaction.wait()
        if self._file is not None:
            try:
                self._leave_known(self._file, content)
                self._file.finish()
            except OSError as error:  # all that was acknowledged is there
                _log.warning("%s was left as it is: %s", self._file.path, error)
        self.let_go()

    def let_go(self) -> None:
        """Close what is open, and nothing more: for a forked child, which must touch no file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._audit.close()
        self._folder.close()

    def unavailable(self, error: BaseException | None) -> StoreUnavailable:
        """What a caller is told about a write that failed."""
        why = (isinstance(error, OSError) and error.strerror) or "it was interrupted"
        return StoreUnavailable(
            f"the journal in {self._folder.path} could not be written: {why}; nothing was "
            "changed, try again"
        )

    def _leave_known(self, file: JournalFile, content: Content) -> None:
        """Add a record that knows of the last one, so that damage to that one will be noticed."""
        if self._syncs and self._known < self._durable:
            n = self._durable + 1
            file.append(record_line(NOTHING, content, n=n, durable=self._durable))

    def _opened(self, found: Replay) -> JournalFile:
        if not found.file:
            self._draft(self._head("journal", found.content, 1))
            return self._publish()
        file = JournalFile(self._folder.journal(found.file), found.end, syncs=self._syncs)
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
        JournalFile.draft(self._folder.journal(self._number + 1), head)

    def _publish(self) -> JournalFile:
        path = self._folder.journal(self._number + 1)
        file = JournalFile.publish(path, syncs=self._syncs)
        self._number += 1
        return file

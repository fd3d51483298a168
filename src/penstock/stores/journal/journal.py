"""The journal of a store: takes records, makes them durable together, and stays short."""

import logging
from pathlib import Path

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import LogEntry
from penstock.stores.journal.audit import Audit
from penstock.stores.journal.compaction import Compaction
from penstock.stores.journal.file import JournalFile
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import FORMAT, Head, Kind
from penstock.stores.journal.records import record_line
from penstock.stores.journal.replay import Replay
from penstock.stores.memory.batch import NOTHING, Batch
from penstock.stores.memory.content import Content

_log = logging.getLogger(__name__)


class Journal:
    """The files of a folder, which belongs to this process until the journal is closed.

    Not for several threads at once: whoever uses it holds a lock.
    """

    def __init__(self, folder: Folder, found: Replay, *, syncs: bool) -> None:
        self._folder = folder
        self._syncs = syncs
        self._number, self._durable = found.file, found.last
        self._known = 0  # the newest record that another one knows to be durable
        self._pending: list[bytes] = []
        self._room = 0
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

    def put(self, batch: Batch, content: Content) -> None:
        """Take what is about to change in the content; `flush` makes it durable.

        Raises `StoreUnavailable`, and takes nothing, if there is no room for it.
        """
        durable = self._durable if self._syncs else 0
        n = self._durable + len(self._pending) + 1
        line = record_line(batch, content, n=n, durable=durable)
        try:
            if self._file is None:
                self._begin_next(content)
            if self._file is not None:
                self._file.make_room(self._room + len(line))
        except OSError as error:
            raise self.unavailable(error) from error
        self._pending.append(line)
        self._room += len(line)
        self._entries += batch.entries
        self._known = durable

    def flush(self, content: Content) -> None:
        """Make durable what was taken; raises `StoreUnavailable` if it cannot be."""
        if not self._pending or self._file is None:
            return
        data = b"".join(self._pending)
        try:
            self._file.append(data)
        except OSError as error:
            self.give_up()
            raise self.unavailable(error) from error
        self._durable += len(self._pending)
        if self._entries:
            self._audit.write(self._entries)
        self._forget()
        self._compaction.grow(len(data))
        if self._compaction.is_due():
            self._compact(content)

    def give_up(self) -> None:
        """Leave what was taken and not made durable; whatever comes goes into another file.

        What became of this one since it was durable is not known, nor told by another fsync.
        """
        self._forget()
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
                self._leave_known(content)
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

    def unavailable(self, error: OSError) -> StoreUnavailable:
        """What a caller is told about a write that failed."""
        why = error.strerror or str(error)
        return StoreUnavailable(
            f"{self._folder.path}: writing failed: {why}; nothing was changed, try again"
        )

    def _leave_known(self, content: Content) -> None:
        """Add a record that knows of the last one, so that damage to that one will be noticed."""
        if self._file is not None and self._syncs and self._known < self._durable:
            n = self._durable + 1
            self._file.append(record_line(NOTHING, content, n=n, durable=self._durable))

    def _forget(self) -> None:
        self._pending, self._entries, self._room = [], [], 0

    def _opened(self, found: Replay) -> JournalFile:
        if not found.file:
            self._number = 1
            path = self._folder.journal(1)
            JournalFile.draft(path, self._head("journal", found.content))
            return JournalFile.publish(path, syncs=self._syncs)
        file = JournalFile(self._folder.journal(found.file), found.end, syncs=self._syncs)
        if found.torn:
            _log.warning("%s: an unfinished record at its end was dropped", file.path)
        if found.torn or found.certain < found.end:
            file.repair(found.certain)
        return file

    def _head(self, kind: Kind, content: Content) -> Head:
        return Head(
            penstock=kind,
            version=FORMAT,
            store=content.source,
            first=self._durable + 1,
            at=content.now,
        )

    def _begin_next(self, content: Content) -> None:
        """Go on in another file; until that is there, nothing can be added."""
        path = self._folder.journal(self._number + 1)
        JournalFile.draft(path, self._head("journal", content))
        if (former := self._file) is not None:
            former.finish()
            former.close()
        self._file = None
        self._file = JournalFile.publish(path, syncs=self._syncs)
        self._number += 1

    def _compact(self, content: Content) -> None:
        try:
            self._begin_next(content)
        except OSError as error:
            _log.warning("%s gets longer: %s", self._folder.path, error)
            self._compaction.postpone()
        else:
            head = self._head("snapshot", content)
            self._compaction.start(self._number, head, content)

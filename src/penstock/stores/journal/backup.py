"""Backups of a journal: a snapshot of everything, read from its files while it is in use."""

import contextlib
import os
import shutil
from itertools import count
from pathlib import Path

import msgspec

from penstock.core.errors import ConfigurationError, StoreError, StoreMissing
from penstock.core.recovery import Backup, BackupProgress, RestoredStore
from penstock.runtime import Runtime
from penstock.stores import Migrate
from penstock.stores.backups import (
    Continue,
    draft,
    finish,
    publish,
    refuse_existing,
    sync_folder,
)
from penstock.stores.journal.file import BLANKS, JournalFile
from penstock.stores.journal.folder import Folder
from penstock.stores.journal.lines import FORMAT, Head, opened
from penstock.stores.journal.replay import Replay
from penstock.stores.journal.snapshot import portions, read_snapshot, write_snapshot
from penstock.stores.journal.store import JournalStore
from penstock.stores.memory.content import Content

# Compaction replaces files while they are read; two in a row take seconds.
_ATTEMPTS = 20
_PAUSE = 0.05


class LiveFolder(Folder):
    """The folder of a journal that another process may write to: only reads, and locks nothing."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path = path
        self.files = runtime.files
        self._sleep = runtime.sleep

    def close(self) -> None:
        """Release nothing."""

    def read(self, path: Path) -> bytes:
        """Return the content of a file, up to the first record that was being written."""
        data = super().read(path)
        end = _first_gap(data)
        if end is None:
            return data
        # A record may have been written after its place was read, and others behind it. If it is
        # complete by now, it was not acknowledged when the backup began. If not, it is damaged.
        for _ in range(_ATTEMPTS):
            line = super().read(path)[end:].partition(b"\n")
            if line[1] and opened(line[0]) is not None:
                return data[:end]
            self._sleep(_PAUSE)
        return data


def back_up(source: Path, target: Path, runtime: Runtime, progress: BackupProgress) -> Backup:
    """See `BackupKind.back_up`. The backup has the format of a snapshot."""
    if not (source / "journal-1.jsonl").exists() and not list(source.glob("journal-*.jsonl")):
        raise StoreMissing(f"there is no store at {source}")
    found = _replayed(source, runtime)
    content = found.content
    jobs, log = content.jobs.values(), content.log.values()
    total = len(jobs) + len(log)
    progress("copying", 0, total)
    head = Head(
        penstock="snapshot",
        version=FORMAT,
        store=content.source,
        first=found.last + 1,
        at=content.now,
    )
    with draft(target, ".backup") as folder:
        copy = folder / target.name
        files = LiveFolder(folder, runtime)
        size = write_snapshot(files, copy, head, portions(content))
        progress("copying", total, total)
        progress("checking", 0, total)
        _, again = _read(files, copy)
        read_back = (again.jobs.values(), again.log.values(), again.last_job, again.last_log)
        if read_back != (jobs, log, content.last_job, content.last_log):
            raise StoreError(f"{target} does not read as it was written; check the disk")
        progress("checking", total, total)
        copy.chmod(0o600)
        publish(copy, target, runtime)
    return Backup(
        path=str(target),
        bytes=size,
        taken_at=content.now,
        jobs=len(jobs),
        last_log=content.last_log,
    )


def restore(
    backup: Path,
    target: Path,
    proceed: Continue,
    *,
    replace: bool,
    migrate: Migrate,  # noqa: ARG001 - it has no schema
    runtime: Runtime,
    progress: BackupProgress,
) -> RestoredStore:
    """See `BackupKind.restore`. A store that exists must not be in use; its files are kept."""
    exists = target.exists() and any(target.iterdir())
    if exists and not replace:
        refuse_existing(target)
    with draft(target, ".restore") as folder, contextlib.ExitStack() as stack:
        above = 0
        if exists:  # nobody may have it open, now or until it is replaced
            held = Folder(target, runtime, create=False)
            stack.callback(held.close)
            with contextlib.suppress(StoreError):  # a damaged one is replaced as well
                former = Replay(held, 0).run().content
                above = max(former.last_job, former.last_log)
        made = folder / target.name
        made.mkdir()
        copy = made / "snapshot-1.jsonl"
        progress("copying", 0, 1)
        shutil.copyfile(backup, copy)
        progress("copying", 1, 1)
        files = LiveFolder(made, runtime)
        progress("checking", 0, 1)
        head, content = _read(files, copy, backup)
        progress("checking", 1, 1)
        start = Head(
            penstock="journal", version=FORMAT, store=head.store, first=head.first, at=head.at
        )
        JournalFile.draft(files, files.journal(1), start)
        JournalFile.publish(files, files.journal(1), syncs=True).close()
        _sync(copy, runtime)
        store = JournalStore(made, runtime, create=False)
        try:
            cut = proceed(store, content.now, above)
        finally:
            finish(store.close())
        replaced = _publish(made, target, runtime, exists=exists)
    return RestoredStore(taken_at=head.at, cut=cut, replaced=replaced)


def _replayed(source: Path, runtime: Runtime) -> Replay:
    """Read the files of a journal; again if they were replaced meanwhile."""
    attempts = 0
    while True:
        before = _names(source)
        try:
            return Replay(LiveFolder(source, runtime), 0).run()
        except (FileNotFoundError, StoreError):
            attempts += 1
            if attempts >= _ATTEMPTS or _names(source) == before:
                raise


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*-*.jsonl"))


def _read(folder: Folder, copy: Path, named: Path | None = None) -> tuple[Head, Content]:
    """Read a snapshot; raises `StoreError` for anything else, however it came about."""
    try:
        return read_snapshot(folder, copy)
    except StoreError as error:
        raise StoreError(
            str(error).replace(str(copy), str(named or copy)).replace("restore it from", "use")
        ) from error
    except (msgspec.MsgspecError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{named or copy} is not a backup of a journal ({error!s:.80}); use another copy"
        ) from error


def _first_gap(data: bytes) -> int | None:
    """Return where records are interrupted, although others follow; None if they are not."""
    start, gap = 0, None
    while start < len(data):
        found = data.find(b"\n", start)
        end = len(data) if found < 0 else found
        line = data[start:end]
        is_record = found >= 0 and opened(line.lstrip(BLANKS)) is not None
        if gap is None and (not is_record or line[:1] in (b" ", b"\0")):
            gap = start
        elif gap is not None and is_record:
            return gap
        start = end + 1
    return None


def _publish(made: Path, target: Path, runtime: Runtime, *, exists: bool) -> str | None:
    """Put a complete folder in its place; a former one is kept under another name."""
    replaced = None
    if exists:
        replaced = next(
            path
            for n in count(1)
            if not os.path.lexists(path := target.with_name(f"{target.name}.replaced-{n}"))
        )
        runtime.files.replace(target, replaced)
    try:
        runtime.files.replace(made, target)  # which may be an empty folder
    except OSError as error:
        if replaced is not None:
            runtime.files.replace(replaced, target)
        raise ConfigurationError(
            f"{target} could not be created: {error.strerror}; restore to another place"
        ) from error
    sync_folder(target.parent, runtime)
    return None if replaced is None else str(replaced)


def _sync(path: Path, runtime: Runtime) -> None:
    fd = runtime.files.open(path, os.O_RDONLY)
    try:
        runtime.files.sync(fd)
    finally:
        runtime.files.close(fd)

"""Backups of stores that are files: written while the store is in use, and restored.

`stores/sqlite/backup.py` and `stores/journal/backup.py` do the work; what both share is here.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.core.errors import ConfigurationError, NotOffered, StoreUnavailable
from penstock.core.recovery import Backup, BackupProgress, Cut, Phase, RestoredStore
from penstock.core.redaction import redacted
from penstock.core.store import Store
from penstock.runtime import SYSTEM, Runtime
from penstock.stores import Migrate, journal_path, sqlite_migrate, sqlite_path

T = TypeVar("T")

Continue = Callable[[Store, datetime | None, int], Cut]
"""Raises the floor of a restored store before anybody else can open it.

Called with the store, the moment that its backup shows, and the highest id of a store that is
replaced.
"""


class BackupKind(Protocol):
    """How one kind of store is backed up."""

    def back_up(
        self, source: Path, target: Path, runtime: Runtime, progress: BackupProgress
    ) -> Backup:
        """Write a backup of a store; on return it is durable and was read back."""
        ...

    def restore(
        self,
        backup: Path,
        target: Path,
        proceed: Continue,
        *,
        replace: bool,
        migrate: Migrate,
        runtime: Runtime,
        progress: BackupProgress,
    ) -> RestoredStore:
        """Make a store of a backup; until it is complete, there is none at the target.

        One of an earlier schema is migrated, or refused if `migrate` is manual. It is never
        switched: programs that are not seen here may have the target open.
        """
        ...


def back_up(
    url: str, target: Path, *, runtime: Runtime = SYSTEM, progress: BackupProgress | None = None
) -> Backup:
    """Write a backup of the store at a URL to a new file, while the store may be in use."""
    kind, source = _kind(url)
    if os.path.lexists(target):
        raise ConfigurationError(f"{target} already exists; name another file, or move it away")
    _check_folder(target)
    with _file_errors(target):
        return kind.back_up(source, target, runtime, progress or _ignore)


def restore(
    backup: Path,
    url: str,
    proceed: Continue,
    *,
    replace: bool = False,
    migrate: Migrate | None = None,
    runtime: Runtime = SYSTEM,
    progress: BackupProgress | None = None,
) -> RestoredStore:
    """Make a store at a URL of a backup; `proceed` raises its floor before anybody can open it.

    With `replace`, a store that exists there is replaced.
    """
    kind, target = _kind(url)
    check_readable(backup)
    _check_folder(target)
    with _file_errors(target):
        return kind.restore(
            backup,
            target,
            proceed,
            replace=replace,
            migrate=sqlite_migrate(url, migrate),
            runtime=runtime,
            progress=progress or _ignore,
        )


def check_readable(backup: Path) -> None:
    """Raise an error unless a backup is a plain file; a pipe would block whoever opens it."""
    try:
        mode = backup.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{backup} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{backup} is not a file; name the file of a backup")


def finish(verb: Coroutine[Any, Any, T]) -> T:
    """Run a verb of a store; without an event loop it does not suspend."""
    try:
        verb.send(None)
    except StopIteration as answer:
        return answer.value  # type: ignore[no-any-return] # a coroutine's own result
    raise RuntimeError("backups are restored where no event loop runs")


def refuse_existing(target: Path) -> None:
    """Raise an error because there is a store at the target."""
    raise ConfigurationError(
        f"{target} already exists; restore to another place, or replace it: --replace"
    )


@contextlib.contextmanager
def draft(target: Path, ending: str) -> Iterator[Path]:
    """Yield a new folder next to the target for files that are not complete; remove it at the end.

    Files there can be published without copying them.
    """
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=ending, dir=target.parent))
    try:
        yield folder
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()


def publish(draft: Path, target: Path, runtime: Runtime) -> None:
    """Give a complete file its name, durably; never replaces anything."""
    files = runtime.files
    fd = files.open(draft, os.O_RDONLY)
    try:
        files.sync(fd)
    finally:
        files.close(fd)
    try:
        os.link(draft, target)
    except FileExistsError:
        raise ConfigurationError(f"{target} already exists; name another file") from None
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise ConfigurationError(f"{target} already exists; name another file") from None
        files.replace(draft, target)
    sync_folder(target.parent, runtime)


def sync_folder(path: Path, runtime: Runtime) -> None:
    """Make durable which files a folder has."""
    fd = runtime.files.open(path, os.O_RDONLY)
    try:
        runtime.files.sync(fd)
    finally:
        runtime.files.close(fd)


def _kind(url: str) -> tuple[BackupKind, Path]:
    scheme = url.partition(":")[0].strip().lower()
    if scheme == "sqlite":
        from penstock.stores.sqlite import backup as sqlite_backup

        return sqlite_backup, sqlite_path(url)
    if scheme == "journal":
        from penstock.stores.journal import backup as journal_backup

        return journal_backup, journal_path(url)
    if scheme in {"postgresql", "postgres"}:
        raise NotOffered(
            f"{redacted(url)} is backed up and restored with PostgreSQL's own programs, such as "
            "pg_dump or pg_basebackup; afterwards run 'penstock restore --in-place' and 'penstock "
            "verify' (docs/how-to/backup.md)"
        )
    raise ConfigurationError(f"{redacted(url)} cannot be backed up: it is not a file store")


def _check_folder(target: Path) -> None:
    if not target.parent.is_dir():
        raise ConfigurationError(f"{target.parent} is not a folder; create it first")


@contextlib.contextmanager
def _file_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{error.filename or target} could not be written or read: {error.strerror or error}; "
            "nothing was changed"
        ) from error


def _ignore(_phase: Phase, _done: int, _total: int) -> None:
    """Show nothing."""

"""Which programs have a file open, by the schema that they know.

A program holds a shared lock on the file `jobs.db-schema-20` as long as it has the store open and
knows schema 20. The operating system releases the lock when the process ends, however it ends; a
process that is stopped keeps it. The last one removes the file.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.runtime import TRANSIENT, Files, Runtime
from penstock.stores.sql.schema import Program

# A switch holds the lock for one short transaction.
_PATIENCE = 60.0
_POLL = 0.001


class Presence:
    """An open file, as others see it."""

    def __init__(self, path: Path, schema: int, runtime: Runtime) -> None:
        self._files = runtime.files
        self._name = _lock_file(path, schema)
        deadline = runtime.monotonic() + _PATIENCE
        while (descriptor := _try_hold(self._name, runtime, exclusive=False)) is None:
            if runtime.monotonic() > deadline:
                raise StoreUnavailable(f"{self._name} stays locked; try again")
            runtime.sleep(_POLL)
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the lock."""
        if self._files.try_lock(self._descriptor, exclusive=True):
            _remove(self._name, self._files)
        self._files.close(self._descriptor)


@contextlib.contextmanager
def keep_out(path: Path, schemas: Iterable[int], runtime: Runtime) -> Iterator[list[int]]:
    """Keep programs that know these schemas from opening the file inside the block.

    Yields the schemas of those that have it open.
    """
    present: list[int] = []
    with contextlib.ExitStack() as stack:
        for schema in schemas:
            name = _lock_file(path, schema)
            descriptor = _try_hold(name, runtime, exclusive=True)
            if descriptor is None:
                present.append(schema)
            else:
                stack.callback(runtime.files.close, descriptor)
                stack.callback(_remove, name, runtime.files)
        yield present


def programs(path: Path, schemas: Iterable[int], runtime: Runtime) -> list[Program]:
    """Return the programs that have a file open, of those that know these schemas.

    Linux tells their processes; elsewhere, or if they are in other containers, there is one entry
    for all that know the same schema.
    """
    found: list[Program] = []
    for schema in schemas:
        name = _lock_file(path, schema)
        if not runtime.files.exists(name):
            continue
        with keep_out(path, [schema], runtime) as present:
            if present:
                processes = _holders(name, runtime)
                found += [Program(schema=schema, process=process) for process in processes]
                found += [] if processes else [Program(schema=schema)]
    return found


def _holders(name: Path, runtime: Runtime) -> list[int]:
    """Return the processes that hold the lock of a file, as far as the system tells."""
    try:
        number = runtime.files.stat(name).st_ino
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return []
    # 7: FLOCK  ADVISORY  READ 4711 fe:01:393230 0 EOF
    locks = [line.split() for line in lines]
    return sorted(
        {
            int(lock[4])
            for lock in locks
            if lock[1] == "FLOCK" and lock[5].endswith(f":{number}") and int(lock[4]) > 0
        }
    )


def _lock_file(path: Path, schema: int) -> Path:
    return path.with_name(f"{path.name}-schema-{schema}")


def _try_hold(name: Path, runtime: Runtime, *, exclusive: bool) -> int | None:
    """Lock a file, which is created if need be; None while others hold it."""
    files = runtime.files
    while True:
        try:
            descriptor = files.open(name, os.O_RDONLY | os.O_CREAT, 0o666)
        except OSError as error:
            text = f"{name} cannot be opened: {error.strerror or error}"
            if error.errno in TRANSIENT:
                raise StoreUnavailable(f"{text}; nothing was changed, try again") from error
            raise StoreError(text) from error
        if not files.try_lock(descriptor, exclusive=exclusive):
            files.close(descriptor)
            return None
        if _is_same(name, descriptor, files):
            return descriptor
        files.close(descriptor)


def _is_same(name: Path, descriptor: int, files: Files) -> bool:
    """Return whether an open file still has its name: the last holder may just have removed it."""
    try:
        found = files.stat(name)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, files.size(descriptor))


def _remove(name: Path, files: Files) -> None:
    with contextlib.suppress(OSError):  # Windows removes no file that is open
        files.unlink(name)

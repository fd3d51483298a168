"""The Store protocol on a journal: the in-memory store, durable."""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.store import StoreSize
from penstock.runtime import Runtime
from penstock.stores.journal.journal import Journal
from penstock.stores.memory.batch import NOTHING, WriteBatch
from penstock.stores.memory.store import MemoryStore

T = TypeVar("T")


class CommitGroup:
    """Callers whose answers depend on records that become durable together."""

    def __init__(self) -> None:
        self.wakes = False
        """Whether waiters are woken when the records are durable."""
        self.is_over = False
        self.error: Exception | None = None
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def join(self, loop: asyncio.AbstractEventLoop) -> "tuple[asyncio.Future[None], bool]":
        """Return what a caller in an event loop awaits, and whether it is the first of its loop."""
        future: asyncio.Future[None] = loop.create_future()
        if loop in self._futures:
            self._futures[loop].append(future)
            return future, False
        self._futures[loop] = [future]
        return future, True

    def end(self, error: Exception | None = None) -> None:
        """Let all callers continue; an error is raised in each of them."""
        self.is_over, self.error = True, error
        for loop, futures in self._futures.items():
            with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile
                loop.call_soon_threadsafe(self._resolve, futures)

    def _resolve(self, futures: "list[asyncio.Future[None]]") -> None:
        for future in futures:
            if future.done():  # its caller was cancelled
                continue
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(None)


class JournalStore(MemoryStore):
    """Jobs in memory and in the files of a folder, durable on return, for one process.

    A verb changes the content at once and is answered when its record is on disk. Verbs called
    meanwhile share the next write. A caller that has seen a change which is not durable yet, even
    by reading, is not answered before it is: no answer ever has to be taken back.

    With `syncs=False`, records survive the process, but not a crash of the machine.
    """

    kind = "journal"

    def __init__(
        self,
        path: str | os.PathLike[str],
        runtime: Runtime,
        *,
        create: bool = True,
        syncs: bool = True,
    ) -> None:
        super().__init__(runtime)
        self._path = Path(path)
        self._journal, self._content = Journal.open(self._path, runtime, create=create, syncs=syncs)
        # False while the content may differ from what the records result in: they are read again.
        self._is_whole = True
        # Held while the disk is busy; taken before `_lock`, which is held for moments only.
        self._disk = threading.Lock()
        self._gathering = CommitGroup()
        self._writing: CommitGroup | None = None
        self._writer = runtime.background(self._flush_pending, "penstock-journal")
        self._closed = False
        self._process = runtime.process_id()
        _opened.add(self)

    async def close(self) -> None:
        """See `Store.close`."""
        self._check_process()
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._writer.close()
        with self._disk:
            self._flush()
            self._journal.close(self._content)
        _opened.discard(self)
        self._wake()

    async def size(self) -> StoreSize:
        """See `Store.size`."""
        return StoreSize(kind=self.kind, bytes=self._journal.size())

    # Executing verbs

    async def _execute(self, act: Callable[[], T]) -> T:
        self._check_process()
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises: 2 µs a call
        if not self._is_whole:
            self._recover()
        future, error = None, None
        with self._lock:
            if self._closed:
                raise StoreError(f"the journal in {self._path} was closed")
            try:
                answer = act()
            except Exception as caught:  # noqa: BLE001 - raised when what it saw is durable
                error = caught
            group = self._gathering if self._journal.has_pending else self._writing
            if group is not None and loop is not None:
                future, is_first = group.join(loop)
                if is_first:
                    # After the callbacks that are ready now: their verbs share the write.
                    loop.call_soon(self._writer.wake)
        if future is not None:
            await future
        elif group is not None:
            self._flush_for(group)
        elif loop is not None:
            await asyncio.sleep(0)  # a caller that only reads must not starve the others
        if error is not None:
            raise error
        return answer

    def _commit(self, batch: WriteBatch, *, wake: bool = True) -> None:
        if batch == NOTHING:
            return
        try:
            self._is_whole = False
            self._journal.put(batch, self._content)
        except StoreUnavailable:
            self._is_whole = True
            raise
        self._content.apply(batch)
        self._is_whole = True
        self._gathering.wakes = self._gathering.wakes or wake

    # Writing records

    def _flush_for(self, group: CommitGroup) -> None:
        """Write the records of a group in this thread, unless another one does."""
        while not group.is_over:
            with self._disk:
                if not group.is_over:
                    self._flush()
        if group.error is not None:
            raise group.error

    def _flush_pending(self) -> None:
        while self._journal.has_pending:
            with self._disk:
                self._flush()

    def _flush(self) -> None:
        """Make the gathered records durable and answer their callers; holds the disk."""
        with self._lock:
            if not self._is_whole:
                self._abandon(StoreError(f"the journal in {self._path} was interrupted"))
                return
            group = self._writing = self._gathering
            self._gathering = CommitGroup()
            flight = self._journal.take(self._content)
        try:
            self._journal.write(flight)
        except BaseException as error:
            with self._lock:
                self._abandon(self._journal.unavailable(error))
            if not isinstance(error, OSError):
                raise
            return
        with self._lock:
            self._journal.settle(flight)
            self._writing = None
            group.end()
        if group.wakes:
            self._wake()
        if self._journal.follow_up(flight):
            with self._lock:
                self._journal.rotate(flight)

    def _recover(self) -> None:
        """Read the content again if it is not whole."""
        with self._disk, self._lock:
            if not self._is_whole:
                self._abandon(StoreError(f"the journal in {self._path} was interrupted"))
            if not self._is_whole:
                raise self._journal.unavailable(None)

    def _abandon(self, error: Exception) -> None:
        """Drop everything that is not durable, and raise the error in all who wait for it.

        Records that were being written may be on disk nevertheless, and would be found there
        after a crash, unless another file continues before them.
        """
        self._is_whole = False
        writing, gathering = self._writing, self._gathering
        self._writing, self._gathering = None, CommitGroup()
        in_doubt = self._journal.give_up()
        with contextlib.suppress(OSError):  # the next caller tries again
            self._content = self._journal.reload()
            self._is_whole = True
            if in_doubt:
                self._journal.begin_file(self._content)
                in_doubt = False
        if writing is not None:
            writing.end(self._journal.in_doubt(error) if in_doubt else error)
        gathering.end(error)

    # Forks

    def _check_process(self) -> None:
        if self._process != self._runtime.process_id():
            raise StoreError(
                f"the journal in {self._path} belongs to the process that opened it, not to its "
                "forked children"
            )

    def _abandon_in_child(self) -> None:
        self._journal.abandon()


_opened: "weakref.WeakSet[JournalStore]" = weakref.WeakSet()


def _after_fork() -> None:
    """Release what belongs to the parent: its lock would outlive it in its children."""
    for store in _opened:
        store._abandon_in_child()  # noqa: SLF001 - its own module
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)

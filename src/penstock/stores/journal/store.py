"""The Store protocol on a journal: the in-memory store, durable."""

import asyncio
import os
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.size import StoreSize
from penstock.core.store import Clock
from penstock.stores.journal.group import Group
from penstock.stores.journal.journal import Journal
from penstock.stores.memory.batch import NOTHING, Batch
from penstock.stores.memory.store import MemoryStore

T = TypeVar("T")

_GO_ON, _STOP = True, False


class JournalStore(MemoryStore):
    """Jobs in memory and in the files of a folder, durable on return, for one process.

    A verb changes the content at once, and is answered when its record is on disk. Verbs that
    come meanwhile share the next turn of the disk. Whoever has seen what is not durable yet, be
    it only by reading, is not answered before it is: nothing is told that could be taken back.
    """

    _name = "a journal"
    kind = "journal"

    def __init__(
        self, path: str | os.PathLike[str], clock: Clock, *, create: bool = True, syncs: bool = True
    ) -> None:
        super().__init__(clock)
        self._path = Path(path)
        self._journal, self._content = Journal.open(self._path, create=create, syncs=syncs)
        # False when the content may not be what the records come to: they are then read again.
        self._is_whole = True
        # Held while the disk is busy; taken before `_lock`, which is held for moments only.
        self._disk = threading.Lock()
        self._gathering = Group()
        self._flying: Group | None = None
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()
        _opened.add(self)

    async def close(self) -> None:
        """See `Store.close`."""
        self._check_process()
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        if self._thread is not None:
            self._wakeups.put(_STOP)
            self._thread.join()
        with self._disk:
            self._flush()
            self._journal.close(self._content)
        _opened.discard(self)
        self._wake()

    async def size(self) -> StoreSize:
        """See `Store.size`."""
        found = sum(file.stat().st_size for file in self._path.glob("*") if file.is_file())
        return StoreSize(kind=self.kind, bytes=found)

    # How verbs are carried out

    async def _perform(self, act: Callable[[], T]) -> T:
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
            group = self._gathering if self._journal.has_pending else self._flying
            if group is not None and loop is not None:
                future, is_first = group.join(loop)
                if is_first:
                    # Not before all have had their say that are about to: they share its turn.
                    loop.call_soon(self._wake_thread)
        if future is not None:
            await future
        elif group is not None:
            self._flush_for(group)
        elif loop is not None:
            await asyncio.sleep(0)  # or who asks again and again would let nobody else go on
        if error is not None:
            raise error
        return answer

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
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
        self._gathering.rings = self._gathering.rings or wake

    # How records get to the disk

    def _flush_for(self, group: Group) -> None:
        """Do it in this thread, unless another one has meanwhile."""
        while not group.is_over:
            with self._disk:
                if not group.is_over:
                    self._flush()
        if group.error is not None:
            raise group.error

    def _wake_thread(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._flush_forever, name="penstock-journal", daemon=True
                    )
                    self._thread.start()
        self._wakeups.put(_GO_ON)

    def _flush_forever(self) -> None:
        while self._wakeups.get():
            while self._journal.has_pending:
                with self._disk:
                    self._flush()

    def _flush(self) -> None:
        """Make durable what has gathered, and answer those who wait for it; the disk is ours."""
        with self._lock:
            if not self._is_whole:
                self._abandon(StoreError(f"the journal in {self._path} was interrupted"))
                return
            group = self._flying = self._gathering
            self._gathering = Group()
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
            self._flying = None
            group.end()
        if group.rings:
            self._wake()
        if self._journal.follow_up(flight):
            with self._lock:
                self._journal.rotate(flight)

    def _recover(self) -> None:
        """Read the content again, if it is not whole."""
        with self._disk, self._lock:
            if not self._is_whole:
                self._abandon(StoreError(f"the journal in {self._path} was interrupted"))
            if not self._is_whole:
                raise self._journal.unavailable(None)

    def _abandon(self, error: Exception) -> None:
        """Let go of all that is not durable, and tell all who wait for it."""
        self._is_whole = False
        groups = [group for group in (self._flying, self._gathering) if group is not None]
        self._flying, self._gathering = None, Group()
        self._journal.give_up()
        with suppress(OSError):  # or the next one tries again
            self._content = self._journal.reload()
            self._is_whole = True
        for group in groups:
            group.end(error)

    # Forks

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise StoreError(
                f"the journal in {self._path} belongs to the process that opened it, not to its "
                "forked children"
            )

    def _let_go(self) -> None:
        self._journal.let_go()


_opened: "weakref.WeakSet[JournalStore]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """Let go of what belongs to the parent: else its lock would outlive it in its children."""
    for store in _opened:
        store._let_go()  # noqa: SLF001 - its own module
    _opened.clear()


os.register_at_fork(after_in_child=_forget_in_child)

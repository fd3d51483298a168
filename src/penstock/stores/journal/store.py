"""The Store protocol on a journal: the in-memory store, durable."""

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.core.errors import StoreError
from penstock.core.store import Clock
from penstock.stores.journal.journal import Journal
from penstock.stores.memory.batch import NOTHING, Batch
from penstock.stores.memory.store import MemoryStore
from penstock.stores.writer import Request, Writer

T = TypeVar("T")


class JournalStore(MemoryStore):
    """Jobs in memory and in the files of a folder, durable on return, for one process.

    Nothing that is not durable is ever shown: who reads while a write is on its way to the disk
    waits for it.
    """

    _name = "a journal"

    def __init__(
        self, path: str | os.PathLike[str], clock: Clock, *, create: bool = True, syncs: bool = True
    ) -> None:
        super().__init__(clock)
        self._path = Path(path)
        self._journal, self._content = Journal.open(self._path, create=create, syncs=syncs)
        self._is_whole = True  # the content, and what the durable records come to, are the same
        self._rings = False
        self._writer = _JournalWriter(str(path), self._commit_all, self._close_files)
        self._process = os.getpid()
        _opened.add(self)

    async def close(self) -> None:
        """See `Store.close`."""
        self._check_process()
        self._writer.close()
        self._wake()

    async def _read(self, verb: Callable[[], T]) -> T:
        self._check_process()
        return await self._writer.read(lambda: self._do(verb))

    async def _write(self, verb: Callable[[], T]) -> T:
        self._check_process()
        return await self._writer.run(_each, lambda: self._do(verb))

    def _do(self, verb: Callable[[], T]) -> T:
        if not self._is_whole:
            self._reload()
        return verb()

    def _commit(self, batch: Batch, *, wake: bool = True) -> None:
        if batch == NOTHING:
            return
        self._journal.put(batch, self._content)
        self._is_whole = False
        self._content.apply(batch)
        self._is_whole = True
        self._rings = self._rings or wake

    def _commit_all(self, requests: Sequence[Request]) -> None:
        """Do these requests, and make them durable together before any is answered."""
        try:
            for request in requests:
                [request.answer] = request.verb(None, [request.call])
                if not self._is_whole:  # what the others rest on is not to be trusted
                    raise request.answer  # noqa: TRY301 - all of them fail, here as below
            self._journal.flush(self._content)
        except BaseException as error:
            self._journal.give_up()
            self._is_whole = False
            if not isinstance(error, Exception):
                raise
            for request in requests:
                request.answer = error
        else:
            if self._rings:
                self._rings = False
                self._wake()

    def _reload(self) -> None:
        self._journal.give_up()
        try:
            self._content = self._journal.reload()
        except OSError as error:
            raise self._journal.unavailable(error) from error
        self._is_whole = True

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise StoreError(
                f"the journal in {self._path} belongs to the process that opened it, not to its "
                "forked children"
            )

    def _close_files(self) -> None:
        self._journal.close(self._content)

    def _let_go(self) -> None:
        self._journal.let_go()


class _JournalWriter(Writer):
    """Lets one thread at a time have the content."""

    def __init__(
        self,
        name: str,
        commit_all: Callable[[Sequence[Request]], None],
        let_go: Callable[[], None],
    ) -> None:
        super().__init__(name)
        self._commit = commit_all
        self._close_files = let_go

    async def read(self, verb: Callable[[], T]) -> T:
        """Do what writes nothing; where that would block an event loop, with the next group."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises: 2 µs a call
        if not self._lock.acquire(blocking=loop is None):
            return await self.run(_each, verb)
        try:
            if self._closed:
                raise StoreError(f"{self.name} was closed")
            return verb()
        finally:
            self._lock.release()

    def _commit_all(self, requests: Sequence[Request]) -> None:
        self._commit(requests)

    def _let_go(self) -> None:
        self._close_files()


def _each(_: Any, calls: Sequence[Callable[[], T]]) -> Sequence[T | Exception]:
    return [_answer(call) for call in calls]


def _answer(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is raised where the answer arrives
        return error


_opened: "weakref.WeakSet[JournalStore]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """Let go of what belongs to the parent: else its lock would outlive it in its children."""
    for store in _opened:
        store._let_go()  # noqa: SLF001 - its own module
    _opened.clear()


os.register_at_fork(after_in_child=_forget_in_child)

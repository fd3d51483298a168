"""Gathers what a worker's runs say about themselves, and writes it now and then, all at once.

A run that counts to a million says so a million times; the store hears of it once a second, and
once more at the end. The writing thread is started by the first run that says anything, and does
not depend on the event loop, which a handler may block.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, Protocol

from penstock.core.errors import LeaseLost, StoreUnavailable
from penstock.core.job import Job, Lease
from penstock.core.lifecycle import Done
from penstock.core.note import LINES_KEPT, Line, Note, Progress
from penstock.core.times import from_micros
from penstock.engine import Penstock, run_sync

_log = logging.getLogger(__name__)

PACE = 1.0
"""Seconds between two writes, save for runs that end."""


class Book(Protocol):
    """Where a run says things about itself."""

    def now(self) -> datetime:
        """The time, by the clock of the queue."""
        ...

    def keep_progress(self, job: Job, progress: Progress, /) -> None:
        """Have this written soon, instead of what the run said before."""
        ...

    def keep_line(self, job: Job, line: Line, /) -> None:
        """Have this written soon."""
        ...

    async def save(self, job: Job, state: str, /) -> None:
        """Write a checkpoint at once; raises `LeaseLost` if the run has lost its job."""
        ...

    async def finish(self, ended: Sequence[tuple[Job, Done]], connection: Any, /) -> None:
        """End runs inside a transaction of their own; raises `LeaseLost` as well."""
        ...

    def saved(self, job: Job, /) -> object:
        """The job's checkpoint, read while the caller waits."""
        ...


class _Page:
    """What one run has said and is not written yet."""

    __slots__ = ("lease", "lines", "progress")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.progress: Progress | None = None
        self.lines: deque[Line] = deque(maxlen=LINES_KEPT)

    def note(self) -> Note:
        return Note(lease=self.lease, progress=self.progress, lines=tuple(self.lines))

    def precede(self, newer: "_Page") -> None:
        """Put this before what was said later."""
        newer.progress = newer.progress or self.progress
        newer.lines.extendleft(reversed(self._kept_beside(newer)))

    def _kept_beside(self, newer: "_Page") -> list[Line]:
        room = LINES_KEPT - len(newer.lines)
        return list(self.lines)[-room:] if room else []


class Notebook:
    """What the runs of one worker say; false until one of them has said anything."""

    def __init__(self, penstock: Penstock, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._penstock = penstock
        self._clock = clock
        self._last = float("-inf")
        self._change = threading.Condition()
        self._pages: dict[int, _Page] = {}
        self._in_writing: dict[int, _Page] = {}
        self._written: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __bool__(self) -> bool:
        return self._thread is not None

    def now(self) -> datetime:
        """The time, by the clock of the queue."""
        micros = self._penstock.clock()  # times of one queue are of one clock
        return from_micros.__wrapped__(micros)  # nobody asks for the same one again

    # What a run says

    def keep_progress(self, job: Job, progress: Progress) -> None:
        """Have this written soon, instead of what the run said before."""
        with self._change:
            self._page(job).progress = progress

    def keep_line(self, job: Job, line: Line) -> None:
        """Have this written soon."""
        with self._change:
            self._page(job).lines.append(line)

    async def save(self, job: Job, state: str) -> None:
        """Write a checkpoint at once; raises `LeaseLost` if the run has lost its job."""
        (held,) = await self._penstock.note([Note(lease=job.lease, state=state)])
        if not held:
            raise LeaseLost(job.id, job.token)

    async def finish(self, ended: Sequence[tuple[Job, Done]], connection: Any) -> None:
        """End runs inside a transaction of their own; raises `LeaseLost` as well."""
        await self._penstock.finish_all(ended, connection=connection)

    def saved(self, job: Job) -> object:
        """The job's checkpoint, read while the caller waits, in an event loop as well."""
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises
            return run_sync(self._penstock.checkpoint(job.id))
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(lambda: run_sync(self._penstock.checkpoint(job.id))).result()

    # Writing

    def pause(self) -> float | None:
        """Seconds until the next write is due; None while there is nothing to write."""
        return max(0.0, self._last + PACE - self._clock()) if self._pages else None

    def write(self) -> None:
        """Write all that was said, in one transaction."""
        with self._change:
            if not self._pages:
                return
            self._last = self._clock()
            self._in_writing, self._pages = self._pages, {}
            written: Future[None] = Future()
            self._written = written
            written.set_running_or_notify_cancel()  # who waits for it cannot cancel it
        try:
            run_sync(self._penstock.note(_notes(self._in_writing)))
        except StoreUnavailable as error:
            _log.warning("progress could not be written, trying again: %s", error)
            self._put_back(self._in_writing)
        except Exception:  # noqa: BLE001 - without its thread nothing would be written any more
            _log.exception("progress could not be written, and is lost")
        finally:
            self._in_writing = {}
            written.set_result(None)

    async def write_now(self, tokens: Collection[int]) -> None:
        """Write what these runs have said; on return nothing of it is under way.

        Raises `StoreUnavailable` if that is to be tried again.
        """
        while True:
            with self._change:
                if self._in_writing.keys().isdisjoint(tokens):
                    pages = {t: self._pages.pop(t) for t in tokens if t in self._pages}
                    break
                written = self._written
            await asyncio.wrap_future(written)
        if not pages:
            return
        try:
            await self._penstock.note(_notes(pages))
        except (StoreUnavailable, asyncio.CancelledError):
            self._put_back(pages)
            raise
        except Exception:  # noqa: BLE001 - nothing that a run says may keep it from its end
            _log.exception("progress could not be written, and is lost")

    def close(self) -> None:
        """Write what is left, and no more."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _page(self, job: Job) -> _Page:
        page = self._pages.get(job.token)
        if page is None:
            page = _Page(job.lease)
            if self._closed:  # a thread that outlives its worker speaks to nobody
                return page
            self._pages[job.token] = page
            if self._thread is None:
                self._start()
            elif len(self._pages) == 1:  # for the others it is awake
                self._change.notify()
        return page

    def _put_back(self, pages: Mapping[int, _Page]) -> None:
        with self._change:
            for token, page in pages.items():
                page.precede(self._pages.setdefault(token, _Page(page.lease)))

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="penstock-notes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        closed = False
        while not closed:
            with self._change:
                while not self._closed and (pause := self.pause()) != 0:
                    self._change.wait(pause)
                closed = self._closed
            self.write()


def _notes(pages: Mapping[int, _Page]) -> list[Note]:
    return [page.note() for page in pages.values()]

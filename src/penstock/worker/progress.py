"""The progress buffer: collects what a worker's runs report and writes it once a second.

A run that counts to a million reports a million times; the store is written once a second, and
once more at the end. The background thread starts with the first report, and does not depend on the
event loop, which a handler may block.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from penstock.core.errors import LeaseLost, StoreUnavailable
from penstock.core.job import Job, Lease
from penstock.core.lifecycle import Done
from penstock.core.progress import LINES_KEPT, Line, Progress, Report
from penstock.core.times import from_micros
from penstock.engine.penstock import Penstock, run_sync

_log = logging.getLogger(__name__)

PACE = 1.0
"""Seconds between two writes, except for runs that end."""


class _Unwritten:
    """What one run has reported since the last write."""

    __slots__ = ("lease", "lines", "progress")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.progress: Progress | None = None
        self.lines: deque[Line] = deque(maxlen=LINES_KEPT)

    def report(self) -> Report:
        return Report(lease=self.lease, progress=self.progress, lines=tuple(self.lines))

    def prepend_to(self, newer: "_Unwritten") -> None:
        """Put this before what was reported later, as far as there is room."""
        newer.progress = newer.progress or self.progress
        room = LINES_KEPT - len(newer.lines)
        kept = list(self.lines)[-room:] if room else []
        newer.lines.extendleft(reversed(kept))


class ProgressBuffer:
    """The reports of one worker's runs; implements `Reporter`."""

    def __init__(self, penstock: Penstock) -> None:
        self.used = False
        """Whether any run has reported anything."""
        self._penstock = penstock
        self._monotonic = penstock.runtime.monotonic
        self._last_write = float("-inf")
        self._lock = threading.Lock()
        self._unwritten: dict[int, _Unwritten] = {}
        self._writing: dict[int, _Unwritten] = {}
        self._written: Future[None] = Future()
        self._closed = False
        self._background = penstock.runtime.background(self._step, "penstock-progress")

    def now(self) -> datetime:
        """Return the time, by the clock of the store."""
        micros = self._penstock.clock()
        return from_micros.__wrapped__(micros)  # the cache would not help: every value is new

    # Reports of a run

    def report_progress(self, job: Job, progress: Progress) -> None:
        """Have this written soon, in place of what the run reported before."""
        with self._lock:
            self._of(job).progress = progress

    def report_line(self, job: Job, line: Line) -> None:
        """Have this log line written soon."""
        with self._lock:
            self._of(job).lines.append(line)

    async def save_checkpoint(self, job: Job, state: str) -> None:
        """Write a checkpoint at once; raise `LeaseLost` if the run has lost its job."""
        (held,) = await self._penstock.leases.report([Report(lease=job.lease, state=state)])
        if not held:
            raise LeaseLost(job.id, job.token)

    def load_checkpoint(self, job: Job) -> object:
        """Read the job's checkpoint while the caller waits, in an event loop as well."""
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - the public one raises
            return run_sync(self._penstock.checkpoint(job.id))
        with self._penstock.runtime.executor(1, "penstock-checkpoint") as thread:
            return thread.submit(lambda: run_sync(self._penstock.checkpoint(job.id))).result()

    async def finish(self, ended: Sequence[tuple[Job, Done]], connection: Any) -> None:
        """Complete jobs inside the handler's transaction; raise `LeaseLost` if one is lost."""
        await self._penstock.leases.finish_all(ended, connection=connection)

    # Writing

    def until_due(self) -> float | None:
        """Return the seconds until the next write, or None while there is nothing to write."""
        if not self._unwritten:
            return None
        return max(0.0, self._last_write + PACE - self._monotonic())

    async def write_now(self, tokens: Collection[int]) -> None:
        """Write the reports of these runs; on return none of them is under way.

        Raises `StoreUnavailable` if the caller should try again.
        """
        while True:
            with self._lock:
                if self._writing.keys().isdisjoint(tokens):
                    taken = {t: self._unwritten.pop(t) for t in tokens if t in self._unwritten}
                    break
                written = self._written
            await asyncio.wrap_future(written)
        if not taken:
            return
        try:
            await self._penstock.leases.report(_reports(taken))
        except (StoreUnavailable, asyncio.CancelledError):
            self._put_back(taken)
            raise
        except Exception:  # noqa: BLE001 - a report must not keep a run from being settled
            _log.exception("progress could not be written and is lost")

    async def close(self) -> None:
        """Write what is left; later reports are dropped."""
        with self._lock:
            self._closed = True
        self._background.close()
        try:
            await self.write_now(list(self._unwritten))
        except StoreUnavailable as error:
            _log.warning("progress could not be written and is lost: %s", error)

    def _of(self, job: Job) -> _Unwritten:
        unwritten = self._unwritten.get(job.token)
        if unwritten is None:
            unwritten = _Unwritten(job.lease)
            if self._closed:  # a thread has outlived its worker
                return unwritten
            self._unwritten[job.token] = unwritten
            self.used = True
            if len(self._unwritten) == 1:  # otherwise the next write is scheduled
                self._background.wake()
        return unwritten

    def _step(self) -> float | None:
        if self.until_due() == 0:
            self._write()
        return self.until_due()

    def _write(self) -> None:
        """Write all reports in one transaction."""
        with self._lock:
            if not self._unwritten:
                return
            self._last_write = self._monotonic()
            self._writing, self._unwritten = self._unwritten, {}
            written: Future[None] = Future()
            self._written = written
            written.set_running_or_notify_cancel()  # `write_now` cannot cancel it
        try:
            run_sync(self._penstock.leases.report(_reports(self._writing)))
        except StoreUnavailable as error:
            _log.warning("progress could not be written, trying again: %s", error)
            self._put_back(self._writing)
        except Exception:  # noqa: BLE001 - what cannot be written is not tried for ever
            _log.exception("progress could not be written and is lost")
        finally:
            self._writing = {}
            written.set_result(None)

    def _put_back(self, unwritten: Mapping[int, _Unwritten]) -> None:
        with self._lock:
            for token, one in unwritten.items():
                one.prepend_to(self._unwritten.setdefault(token, _Unwritten(one.lease)))
        self._background.wake()


def _reports(unwritten: Mapping[int, _Unwritten]) -> list[Report]:
    return [one.report() for one in unwritten.values()]

"""Signals: the first one stops a process gracefully, the second one immediately."""

import asyncio
import contextlib
import json
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import NoReturn

from penstock.cli.errors import Exit, leave
from penstock.cli.output import span

_log = logging.getLogger("penstock.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long a worker may take, after the grace, to cancel and settle running jobs.
_WIND_DOWN = 10.0
# How long other threads may take to end after everything else has.
LAST_BREATH = 5.0


class Watchdog:
    """Ends the process after a time limit.

    A thread cannot be stopped, and a handler may block the event loop: neither may keep a worker
    alive that was asked to stop. The watchdog's own thread exists from the start, because a signal
    handler that starts one may need a lock that the interrupted code holds.
    """

    def __init__(self, last_act: Callable[[], None] = lambda: None) -> None:
        """`last_act` is called before the process is ended, in any thread."""
        self._last_act = last_act
        self._allowed: queue.SimpleQueue[float] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True).start()

    def allow(self, seconds: float) -> None:
        """End the process after this many seconds from now. Safe in a signal handler."""
        self._allowed.put(seconds)

    def end(self) -> NoReturn:
        """End the process now, although jobs are still running."""
        _log.error("exiting while jobs are still running; they run again when their leases expire")
        with contextlib.suppress(Exception):
            self._last_act()
        leave(Exit.ABANDONED)

    def _watch(self) -> None:
        seconds = self._allowed.get()
        while True:
            try:
                seconds = self._allowed.get(timeout=seconds)
            except queue.Empty:
                self.end()


class Stopper:
    """Handles signals: the first calls `stop`, for a graceful end, the second ends the process.

    The signal handlers of asyncio wait for the event loop; these also work while it is blocked.
    """

    def __init__(
        self,
        stop: Callable[[], None],
        grace: timedelta,
        watchdog: Watchdog,
        *,
        as_json: bool,
        delay: timedelta = timedelta(0),
    ) -> None:
        """`delay` is how long it may take until the grace begins."""
        text = "stopped immediately; unfinished jobs run again"
        line = json.dumps({"error": text, "type": "Stopped"}) if as_json else f"penstock: {text}"
        self._last_words = f"{line}\n".encode()
        self._stop_gracefully = stop
        self._grace = grace
        self._most = (delay + grace).total_seconds() + _WIND_DOWN
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._signalled = False

    def install(self) -> None:
        """Handle the signals of this process."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._signalled:
            self._stop_at_once(number)
        self._signalled = True
        self._watchdog.allow(self._most)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(number).name)

    def stop_orphan(self) -> None:
        """Stop because the process that started this one is gone."""
        self._watchdog.allow(self._most)
        self._stop("the parent process has ended")

    def _stop(self, why: str) -> None:
        _log.info(
            "%s: stopping; running jobs have %s, a second signal stops immediately",
            why,
            span(self._grace),
        )
        self._stop_gracefully()

    def _stop_at_once(self, number: int) -> None:
        for each in SIGNALS:  # if exiting hangs, a third signal kills
            signal.signal(each, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # logging may be what was interrupted
            os.write(2, self._last_words)
        leave(128 + number)

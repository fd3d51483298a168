"""Stopping on a signal: gracefully on the first, at once on the second."""

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

from penstock.cli.exits import Exit, leave
from penstock.cli.output import span

_log = logging.getLogger("penstock.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# After its grace a worker still cancels what runs, and settles it: it may take this long.
_WIND_DOWN = 10.0
# Once all has ended, other threads may take this long; so may a busy machine to end it all.
LAST_BREATH = 5.0


class Watchdog:
    """Ends the process when it takes longer than it may.

    A thread cannot be stopped, and a handler may block the event loop: neither may keep a worker
    alive that was told to stop. Its thread exists from the start, because a signal handler that
    makes one may meet a lock that the interrupted code holds.
    """

    def __init__(self) -> None:
        self._allowed: queue.SimpleQueue[float] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True).start()

    def allow(self, seconds: float) -> None:
        """From now on, the process may live this long. Safe in a signal handler."""
        self._allowed.put(seconds)

    def _watch(self) -> None:
        seconds = self._allowed.get()
        while True:
            try:
                seconds = self._allowed.get(timeout=seconds)
            except queue.Empty:
                _log.error("leaving jobs behind that did not stop; they run again")
                leave(Exit.ABANDONED)


class Stopper:
    """Handles signals: the first calls `stop`, which is to end gracefully, the second leaves.

    Asyncio's own signal handlers wait for the event loop; these also work while it is blocked.
    """

    def __init__(
        self, stop: Callable[[], None], grace: timedelta, watchdog: Watchdog, *, as_json: bool
    ) -> None:
        text = "stopped at once; unfinished jobs run again"
        line = json.dumps({"error": text, "type": "Stopped"}) if as_json else f"penstock: {text}"
        self._last_words = f"{line}\n".encode()
        self._stop_gracefully = stop
        self._grace = grace
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._told = False

    def install(self) -> None:
        """Handle the signals of this process from now on."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._told:
            self._stop_at_once(number)
        self._told = True
        self._watchdog.allow(self._grace.total_seconds() + _WIND_DOWN)
        with contextlib.suppress(RuntimeError):  # the loop is closed: it ends anyway
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(number).name)

    def _stop(self, name: str) -> None:
        _log.info(
            "%s: stopping; running jobs have %s, a second signal stops at once",
            name,
            span(self._grace),
        )
        self._stop_gracefully()

    def _stop_at_once(self, number: int) -> None:
        for each in SIGNALS:  # should even leaving hang, a third one kills
            signal.signal(each, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # a logger might be the very thing interrupted
            os.write(2, self._last_words)
        leave(128 + number)

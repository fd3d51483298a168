"""Liveness: beats as long as the event loop runs and the store answers."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from penstock.engine.penstock import Penstock

_log = logging.getLogger(__name__)


class Pulse(NamedTuple):
    """What to call at each beat, and how often to beat."""

    beat: Callable[[], None]
    every: timedelta


class Liveness:
    """Beats as long as the event loop runs and the store answers.

    For a supervisor that restarts a process when its beats stop. An error counts as an answer,
    because a restart does not bring a database back. A call that does not return counts as a hang.
    """

    def __init__(self, penstock: Penstock, pulse: Pulse) -> None:
        self._penstock = penstock
        self._pulse = pulse
        self._seconds = pulse.every.total_seconds()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(self._seconds)

    async def beat(self) -> None:
        """Wait until the store answers, then beat."""
        # This changes nothing, but takes the way of all writes, through the thread and the
        # connection that claim and settle jobs.
        question = asyncio.ensure_future(self._penstock.store.deregister([]))
        try:
            silent = 0.0
            while not (await asyncio.wait({question}, timeout=self._seconds))[0]:
                silent += self._seconds
                _log.warning("the store has not answered for %.0f seconds", silent)
        finally:
            question.cancel()
        if error := question.exception():
            _log.warning("the store answers with an error: %s", error)
        self._pulse.beat()

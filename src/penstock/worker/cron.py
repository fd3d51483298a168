"""Fires the schedules that are due while workers run.

Every worker does this; the store's compare-and-set makes each run happen once.
"""

import asyncio
import logging
from datetime import timedelta

from penstock.core.errors import PenstockError
from penstock.engine import Penstock

_log = logging.getLogger(__name__)


class Cron:
    """The periodic tasks of one worker's Penstock."""

    def __init__(self, penstock: Penstock, sweep: timedelta) -> None:
        self._penstock = penstock
        self._sweep = sweep
        self._registered = False
        self._pause = sweep

    async def begin(self) -> None:
        """Store what the code says about schedules and fire what is due; never raises.

        What fails here is tried again by `run`.
        """
        try:
            if not self._registered:
                for gone in await self._penstock.register_schedules():
                    _log.warning(
                        "schedule %s is not in the code any more and rests; to remove it: "
                        "app.unschedule(%r)",
                        gone.name,
                        gone.name,
                    )
                self._registered = True
            until_next = await self._penstock.fire_due()
        except PenstockError as error:
            _log.warning("schedules could not be fired, trying again: %s", error)
            until_next = None
        # Never longer than a sweep: clocks jump, and other processes change schedules.
        self._pause = self._sweep if until_next is None else min(self._sweep, until_next)

    async def run(self) -> None:
        """Fire each run when it is due; for ever."""
        while True:
            await asyncio.sleep(self._pause.total_seconds())
            await self.begin()

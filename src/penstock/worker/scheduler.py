"""The scheduler: fires schedules when they are due.

Every worker has one; the store's compare-and-set lets each planned run happen once.
"""

import asyncio
import logging
from datetime import timedelta

from penstock.core.errors import PenstockError
from penstock.engine.penstock import Penstock

_log = logging.getLogger(__name__)


class Scheduler:
    """Fires the schedules of one Penstock, looking for due ones at least every `sweep`."""

    def __init__(self, penstock: Penstock, sweep: timedelta) -> None:
        self._penstock = penstock
        self._sweep = sweep
        self._registered = False
        self._pause = sweep

    async def fire_due(self) -> None:
        """Store the schedules that the code declares, and fire those that are due.

        Errors of the store are logged, and `run` tries again.
        """
        try:
            if not self._registered:
                for gone in await self._penstock.schedules.register():
                    _log.warning(
                        "schedule %s is no longer in the code and does not fire; to remove it: "
                        "app.schedules.remove(%r)",
                        gone.name,
                        gone.name,
                    )
                self._registered = True
            until_next = await self._penstock.schedules.fire_due()
        except PenstockError as error:
            _log.warning("schedules could not be fired, trying again: %s", error)
            until_next = None
        # At most a sweep: clocks jump, and other processes change schedules.
        self._pause = self._sweep if until_next is None else min(self._sweep, until_next)

    async def run(self) -> None:
        """Fire each schedule when it is due, for ever."""
        while True:
            await asyncio.sleep(self._pause.total_seconds())
            await self.fire_due()

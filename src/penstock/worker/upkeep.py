"""Keeps the store in order while workers run: expired leases, sums of the log, retention.

Every worker does this; the store's compare-and-set makes it safe to do at the same time.
"""

import asyncio
import logging
import random
from datetime import timedelta

from penstock.core.errors import PenstockError
from penstock.core.job import Retention
from penstock.engine import Penstock

_log = logging.getLogger(__name__)

DIGEST_EVERY = timedelta(seconds=5)
PRUNE_EVERY = timedelta(minutes=1)
# Small transactions: claims get their turn in between.
PRUNED_AT_ONCE = 500


async def run_upkeep(penstock: Penstock, sweep: timedelta, retention: Retention) -> None:
    """Sweep expired leases every `sweep`; for ever.

    Now and then sum up the log, and then remove what retention lets go.
    """
    loop = asyncio.get_running_loop()
    digest_at = prune_at = loop.time()
    while True:
        try:
            if reclaimed := await penstock.reclaim():
                jobs = "1 job whose lease" if reclaimed == 1 else f"{reclaimed} jobs whose leases"
                _log.warning("took back %s ran out", jobs)
            if loop.time() >= digest_at:
                await penstock.digest()
                digest_at = loop.time() + DIGEST_EVERY.total_seconds()
            if loop.time() >= prune_at:
                while await penstock.store.prune(retention, PRUNED_AT_ONCE) == PRUNED_AT_ONCE:
                    pass
                prune_at = loop.time() + PRUNE_EVERY.total_seconds()
        except PenstockError as error:
            _log.warning("upkeep failed, trying again: %s", error)
        # Apart from other processes that started at the same time.
        await asyncio.sleep(sweep.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311

"""Lease renewal: keeps the leases of a worker's running jobs, from a background thread.

Without a thread, a handler that blocks the event loop would lose its job and every other one that
the worker runs.
"""

import logging
import math
from collections.abc import Callable, Mapping
from datetime import timedelta

from penstock.core.job import Job
from penstock.engine.penstock import Penstock, run_sync
from penstock.worker.run import Run

_log = logging.getLogger(__name__)

# A lease is renewed when a third of it has passed: two renewals may fail before it is lost.
_SHARE = 3
# However short a lease is, renewing it must leave room for work.
_SHORTEST_PAUSE = 0.02


class LeaseRenewal:
    """Renews the leases of all `runs`, at the pace of the shortest one.

    `renewed` is called from the background thread for every run: with its job, or with None if the
    lease is lost.
    """

    def __init__(
        self,
        penstock: Penstock,
        runs: Mapping[int, Run],
        renewed: Callable[[Run, Job | None], None],
    ) -> None:
        self._penstock = penstock
        self._monotonic = penstock.runtime.monotonic
        self._runs = runs
        self._renewed = renewed
        self._shortest = math.inf
        self._due = math.inf
        self._background = penstock.runtime.background(self._step, "penstock-leases")

    def added(self, shortest: timedelta) -> None:
        """Take note of new runs, of whose leases this is the shortest."""
        if shortest.total_seconds() < self._shortest:
            self._background.wake()

    def close(self) -> None:
        """Stop renewing."""
        self._background.close()

    def _step(self) -> float | None:
        if self._monotonic() >= self._due:
            self._due = math.inf
            try:
                self._renew()
            except Exception:  # noqa: BLE001 - whatever it is, the next renewal may succeed
                _log.exception("leases could not be renewed, trying again")
        # Before the runs are read: one that is added meanwhile may be missed, and must wake this.
        self._shortest = math.inf
        leases = [run.job.lease_time.total_seconds() for run in list(self._runs.values())]
        self._shortest = min(leases, default=math.inf)
        if not leases:
            self._due = math.inf
            return None
        now = self._monotonic()
        self._due = min(self._due, now + max(self._shortest / _SHARE, _SHORTEST_PAUSE))
        return self._due - now

    def _renew(self) -> None:
        runs = [run for run in list(self._runs.values()) if not run.lost and not run.unstoppable]
        if not runs:
            return
        # Straight to the store: a run that was settled a moment ago is not a stale write to log.
        leases = [run.job.lease for run in runs]
        held = {(job.id, job.token): job for job in run_sync(self._penstock.store.renew(leases))}
        for run in runs:
            self._renewed(run, held.get((run.job.id, run.job.token)))

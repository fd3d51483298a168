"""Renews the leases of a worker's running jobs, from a thread of its own.

A handler that blocks the event loop would otherwise lose its job, and every other running one.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from penstock.core.job import Job
from penstock.engine import Penstock, run_sync
from penstock.worker.execute import Run

_log = logging.getLogger(__name__)

# A lease is renewed when a third of it is over: two renewals may fail before it is lost.
_SHARE = 3
_LONGEST = 3600.0
# However short a lease is, renewing must leave room for work.
_LEAST_PAUSE = 0.02


class LeaseKeeper:
    """Keeps the leases of a worker's runs alive, as long as they are among them."""

    def __init__(
        self,
        penstock: Penstock,
        runs: Mapping[int, Run],
        renewed: Callable[[Run, Job | None], None],
    ) -> None:
        self._penstock = penstock
        self._renewed = renewed
        self._runs = runs
        self._shortest = _LONGEST
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
        self._thread.start()

    def heed(self, lease: timedelta) -> None:
        """There are new runs; this is the shortest of their leases."""
        if lease.total_seconds() < self._shortest:
            self._wake.set()

    def stop(self) -> None:
        """Renew no more."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            # Before the look: who comes during it was perhaps not seen, and has to wake this.
            self._shortest = _LONGEST
            leases = [run.job.lease_time.total_seconds() for run in list(self._runs.values())]
            self._shortest = min(leases, default=_LONGEST)
            if self._wake.wait(max(self._shortest / _SHARE, _LEAST_PAUSE)):
                self._wake.clear()
                continue
            try:
                self._renew()
            except Exception:  # noqa: BLE001 - without this thread every lease would be lost
                _log.exception("leases could not be renewed, trying again")

    def _renew(self) -> None:
        runs = [run for run in list(self._runs.values()) if not run.lost and not run.unstoppable]
        if not runs:
            return
        # By the store itself: a run that was settled a moment ago is no stale write to be noted.
        leases = [run.job.lease for run in runs]
        held = {(job.id, job.token): job for job in run_sync(self._penstock.store.renew(leases))}
        for run in runs:
            self._renewed(run, held.get((run.job.id, run.job.token)))

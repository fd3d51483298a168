"""Renews the leases of a worker's running jobs, from a thread of its own.

A handler that blocks the event loop would otherwise lose its job, and every other running one.
"""

import logging
import threading
from collections.abc import Callable

from penstock.core.job import Job
from penstock.engine import Penstock, run_sync
from penstock.worker.execute import Run

_log = logging.getLogger(__name__)

# A lease is renewed when a third of it is over: two renewals may fail before it is lost.
_SHARE = 3


class LeaseKeeper:
    """Keeps the leases of the runs it is given alive until they are released."""

    def __init__(self, penstock: Penstock, renewed: Callable[[Run, Job | None], None]) -> None:
        self._penstock = penstock
        self._renewed = renewed
        self._runs: dict[int, Run] = {}
        self._shortest = 3600.0
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
        self._thread.start()

    def hold(self, run: Run) -> None:
        """Keep this run's lease alive from now on."""
        self._runs[run.job.id] = run
        lease = run.job.lease_time.total_seconds()
        if lease < self._shortest:
            self._shortest = lease
            self._wake.set()

    def release(self, run: Run) -> None:
        """The run is settled: its lease needs no more renewal."""
        if self._runs.get(run.job.id) is run:
            del self._runs[run.job.id]

    def stop(self) -> None:
        """Renew no more."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            if self._wake.wait(self._shortest / _SHARE):
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
        held = {
            (job.id, job.token): job
            for job in run_sync(self._penstock.renew([run.job.lease for run in runs]))
        }
        for run in runs:
            self._renewed(run, held.get((run.job.id, run.job.token)))

"""Ends leases before their time."""

from datetime import datetime, timedelta

from penstock.core.errors import (
    ConfigurationError,
    LeaseLost,
    PenstockError,
    TransitionRefused,
)
from penstock.core.job import Job, bind
from penstock.core.lifecycle import State
from penstock.core.store import Store
from penstock.core.times import from_micros
from penstock.engine import Penstock
from penstock.stores import open_store
from penstock.testing.calls import call
from penstock.testing.clock import Clock

_MARGIN = timedelta(seconds=1)
# Another thread's call may be carried out with ours, by its own idea of the time.
_TRIES = 100


def expire_lease(app: Penstock, job: Job | int) -> Job:
    """Let the lease of a running job be over now, as if its worker had long been silent.

    The next sweep takes the job back (a worker's, `drain` or `app.reclaim()`) by the same steps
    as ever. No other job is touched and no clock is moved: the lease is renewed once with a
    clock that is late by more than its time. A worker that lives may renew it before the sweep.
    """
    clock, number = app.clock, job if isinstance(job, int) else job.id
    found = call(app.get(number))
    if found.state is not State.RUNNING:
        raise TransitionRefused(f"job {found.id} is {found.state}: there is no lease to expire")
    late = from_micros(clock()) - found.lease_time - _MARGIN
    if isinstance(clock, Clock):
        return call(_expired(app, found, clock, late))
    if app.url == "memory://":
        raise ConfigurationError(
            "a store in memory goes by its own clock: give it one that can be moved, "
            "Penstock('memory://', clock=penstock.testing.Clock())"
        )
    beside = open_store(app.url, clock=Clock(late), create=False)
    try:
        return call(_renewed(app, beside, found))
    finally:
        call(beside.close())


async def _expired(app: Penstock, job: Job, clock: Clock, late: datetime) -> Job:
    for _ in range(_TRIES):
        with clock.showing(late):
            renewed = await _renewed(app, app.store, job)
        if renewed.expires_at is not None and renewed.expires_at < clock.now:
            return renewed
    raise PenstockError(f"the lease of job {job.id} does not expire; stop what works beside")


async def _renewed(app: Penstock, store: Store, job: Job) -> Job:
    held = await store.renew([job.lease])
    if not held:
        raise LeaseLost(job.id, job.token)
    return bind(held, app)[0]

"""`expire_lease`: expire a lease before its time."""

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
from penstock.engine.penstock import Penstock
from penstock.runtime import Runtime
from penstock.stores import open_store
from penstock.testing.calls import call
from penstock.testing.clock import Clock

_MARGIN = timedelta(seconds=1)
# A concurrent call of another thread may be committed with ours, at its own time.
_TRIES = 100


def expire_lease(app: Penstock, job: Job | int) -> Job:
    """Expire the lease of a running job now, as if its worker had stopped renewing it.

    The next sweep (of a worker, `drain` or `app.leases.reclaim()`) reclaims the job as usual. No
    other job is affected and no clock is moved: the lease is renewed once by a clock that is behind
    by more than its duration. A worker that is alive may renew it again before the sweep.
    """
    clock, number = app.clock, job if isinstance(job, int) else job.id
    found = call(app.get(number))
    if found.state is not State.RUNNING:
        raise TransitionRefused(f"job {found.id} is {found.state}: it has no lease to expire")
    late = from_micros(clock()) - found.lease_time - _MARGIN
    if isinstance(clock, Clock):
        return call(_expired(app, found, clock, late))
    if app.url == "memory://":
        raise ConfigurationError(
            "a store in memory uses its own clock: give it one that can be moved, "
            "Penstock('memory://', clock=penstock.testing.Clock())"
        )
    behind = open_store(app.url, runtime=Runtime(Clock(late)), create=False)
    try:
        return call(_renewed(app, behind, found))
    finally:
        call(behind.close())


async def _expired(app: Penstock, job: Job, clock: Clock, late: datetime) -> Job:
    for _ in range(_TRIES):
        with clock.showing(late):
            renewed = await _renewed(app, app.store, job)
        if renewed.expires_at is not None and renewed.expires_at < clock.now:
            return renewed
    raise PenstockError(f"the lease of job {job.id} is renewed concurrently; stop its worker first")


async def _renewed(app: Penstock, store: Store, job: Job) -> Job:
    held = await store.renew([job.lease])
    if not held:
        raise LeaseLost(job.id, job.token)
    return bind(held, app)[0]

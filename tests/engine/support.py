"""Shared by the tests of the engine."""

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    Job,
    JobQuery,
    Penstock,
    Retention,
    State,
)
from penstock.jobs import Event
from penstock.leases import Done, Failed
from tests.contract.support import new

LONG = timedelta(minutes=1)

FAILED = frozenset({State.FAILED})
PENDING = frozenset({State.PENDING})
NOTHING = Retention(finished=timedelta(0), failed=timedelta(0))


async def add_one(app: Penstock, **options: Any) -> Job:
    [job] = await app.enqueue_many([new(**options)])
    return job


async def claim_one(app: Penstock, worker: str = "w") -> Job:
    [job] = await app.leases.claim(worker=worker)
    return job


async def events_of(app: Penstock, job: Job) -> list[Event]:
    return [entry.event for entry in await app.log(job.id)]


async def enqueue(app: Penstock, n: int = 1, **options: Any) -> list[Job]:
    return await app.enqueue_many([new(**options) for _ in range(n)])


async def fail(app: Penstock, error: str = "boom") -> Job:
    (job,) = await app.leases.claim(worker="w")
    (failed,) = await app.leases.settle([(job, Failed(error, permanent=True))])
    return failed


async def finish(app: Penstock, n: int = 1) -> list[Job]:
    return await app.leases.settle(
        [(job, Done()) for job in await app.leases.claim(worker="w", limit=n)]
    )


async def states(app: Penstock) -> list[State]:
    return [job.state for job in await app.find(JobQuery(newest_first=False))]


class Rival:
    """Does something to the store just before the first write of a kind, as others might."""

    def __init__(self, app: Penstock, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.verb = verb
        self.write = getattr(app.store, verb)
        self.acted = False
        monkeypatch.setattr(app.store, verb, self)

    async def act(self) -> None:
        raise NotImplementedError

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.acted:
            self.acted = True
            await self.act()
        return await self.write(*args, **kwargs)

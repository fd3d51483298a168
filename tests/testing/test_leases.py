from pathlib import Path

import pytest

from penstock import ConfigurationError, LeaseLost, Penstock, State, TransitionRefused, run_sync
from penstock.core.lifecycle import Done
from penstock.jobs import Event
from penstock.testing import Clock, drain, expire_lease


@pytest.fixture(autouse=True)
def task(app: Penstock) -> None:
    app.task("t", lambda: None)


def test_next_sweep_takes_the_job_back(app: Penstock, time: Clock) -> None:
    jobs = [run_sync(app.enqueue("t")) for _ in range(2)]
    first, second = run_sync(app.leases.claim(worker="silent", limit=2))
    now = time.now
    assert run_sync(app.leases.reclaim()) == 0
    expired = expire_lease(app, first)
    assert expired.state is State.RUNNING
    assert time.now == now
    assert run_sync(app.leases.reclaim()) == 1
    assert run_sync(app.get(second.id)).state is State.RUNNING
    assert [job.id for job in drain(app)] == [jobs[0].id]
    entries = run_sync(app.log(first.id))
    events = [entry.event for entry in entries]
    assert events == [Event.ENQUEUED, Event.CLAIMED, Event.EXPIRED, Event.CLAIMED, Event.DONE]
    assert entries[2].error == "the lease of worker silent ran out"


def test_the_silent_worker_is_refused(app: Penstock) -> None:
    run_sync(app.enqueue("t"))
    [job] = run_sync(app.leases.claim(worker="silent"))
    expire_lease(app, job.id)
    run_sync(app.leases.reclaim())
    with pytest.raises(LeaseLost):
        run_sync(app.leases.settle([(job, Done())]))


async def test_in_an_event_loop(app: Penstock) -> None:
    await app.enqueue("t")
    [job] = await app.leases.claim(worker="silent")
    expire_lease(app, job)
    assert await app.leases.reclaim() == 1


def test_job_that_does_not_run(app: Penstock) -> None:
    job = run_sync(app.enqueue("t"))
    with pytest.raises(TransitionRefused, match="no lease to expire"):
        expire_lease(app, job)


def test_app_on_the_machine_s_clock(tmp_path: Path) -> None:
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    app.task("t", lambda: None)
    run_sync(app.enqueue("t"))
    [job] = run_sync(app.leases.claim(worker="silent"))
    expire_lease(app, job)
    assert [done.id for done in drain(app)] == [job.id]
    run_sync(app.close())


def test_memory_on_the_machine_s_clock_is_told() -> None:
    app = Penstock("memory://")
    app.task("t", lambda: None)
    run_sync(app.enqueue("t"))
    [job] = run_sync(app.leases.claim(worker="silent"))
    with pytest.raises(ConfigurationError, match=r"clock=penstock\.testing\.Clock"):
        expire_lease(app, job)

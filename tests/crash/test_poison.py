"""A job that kills every worker that runs it."""

from collections import Counter
from pathlib import Path

from penstock.core.lifecycle import Event, State
from penstock.core.retry import RetryPolicy
from penstock.engine.penstock import run_sync
from tests.crash.client import FIRM_LEASE, LATER, Client
from tests.crash.processes import Zygote, until
from tests.crash.support import assert_promises_kept, client, on_both

LIMIT = RetryPolicy(attempts=3)


def restart_until_all_is_over(zygote: Zygote, app: Client) -> int:
    """What systemd, Kubernetes or a person does after a crash; how often it was needed.

    For each worker the leases of those before it are over.
    """
    deaths = 0
    working = zygote.start("worker", app.folder, concurrency=20)

    def all_is_over() -> bool:
        nonlocal working, deaths
        if working.ended:
            working.die()
            deaths += 1
            working = zygote.start("worker", app.folder, concurrency=20, offset=deaths * LATER)
        return not run_sync(app.store.backlog())[0]

    until(all_is_over, "the jobs do not come to an end")
    working.stop()
    return deaths


@on_both
def test_job_that_kills_its_workers_ends_at_its_attempt_limit(zygote: Zygote, folder: Path) -> None:
    with client(folder) as app:
        patient = RetryPolicy(attempts=20)
        harmless = [app.new(retry=patient, lease=FIRM_LEASE) for _ in range(10)]
        poison = app.new(does=["die"], priority=9, key="k", retry=LIMIT, lease=FIRM_LEASE)
        behind = app.new(key="k", lease=FIRM_LEASE)
        jobs = run_sync(app.enqueue_many([*harmless, poison, behind]))
        assert restart_until_all_is_over(zygote, app) == 3
        killer = run_sync(app.get(jobs[-2].id))
        assert (killer.state, killer.attempt) == (State.FAILED, 3)
        assert run_sync(app.log(killer.id))[-1].event is Event.EXPIRED
        others = [run_sync(app.get(job.id)).state for job in jobs if job.id != killer.id]
        assert set(others) == {State.DONE}
    assert_promises_kept(folder)


@on_both
def test_jobs_next_to_one_that_kills_its_workers_are_done(zygote: Zygote, folder: Path) -> None:
    """Those that are claimed along with it lose their worker too, and have no more attempts."""
    with client(folder) as app:
        deeds = [*["done"] * 10, "die", *["done"] * 10]
        new = [app.new(does=[deed], retry=LIMIT, lease=FIRM_LEASE) for deed in deeds]
        jobs = run_sync(app.enqueue_many(new))
        restart_until_all_is_over(zygote, app)
        states = Counter(run_sync(app.get(job.id)).state for job in jobs)
        assert states == {State.FAILED: 1, State.DONE: 20}
    assert_promises_kept(folder)

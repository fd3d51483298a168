"""A job that kills every worker that runs it."""

from pathlib import Path

from penstock.core.lifecycle import Event, State
from penstock.core.retry import RetryPolicy
from penstock.engine import run_sync
from tests.crash.processes import Zygote, until
from tests.crash.support import assert_promises_kept, client


def test_job_that_kills_its_workers_ends_at_its_attempt_limit(
    zygote: Zygote, folder: Path
) -> None:
    with client(folder) as app:
        patient = RetryPolicy(attempts=20)
        harmless = [app.new(retry=patient) for _ in range(10)]
        poison = app.new(does=["die"], priority=9, key="k", retry=RetryPolicy(attempts=3))
        behind = app.new(key="k")
        jobs = run_sync(app.enqueue_many([*harmless, poison, behind]))
        # Who starts workers again after a crash: systemd, Kubernetes, a person.
        deaths = 0
        working = zygote.start("worker", folder)

        def all_is_over() -> bool:
            nonlocal working, deaths
            if working.ended:
                working.die()
                deaths += 1
                working = zygote.start("worker", folder)
            return not run_sync(app.store.backlog())[0]

        until(all_is_over, "the jobs do not come to an end")
        working.stop()
        assert deaths == 3
        killer = run_sync(app.get(jobs[-2].id))
        assert (killer.state, killer.attempt) == (State.FAILED, 3)
        assert run_sync(app.log(killer.id))[-1].event is Event.EXPIRED
        assert {
            run_sync(app.get(job.id)).state for job in jobs if job.id != killer.id
        } == {State.DONE}
    assert_promises_kept(folder)

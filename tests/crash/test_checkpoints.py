"""A job of many steps continues from its last checkpoint, whenever its worker dies."""

import random
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import Job
from penstock.core.lifecycle import Event, State
from penstock.core.retry import RetryPolicy
from penstock.engine.penstock import run_sync
from tests.crash.client import FIRM_LEASE, LATER, LONG_LEASE, MOMENT, Client
from tests.crash.processes import Zygote, until
from tests.crash.steps import STEPS, WAITS_AT, Walk, traces
from tests.crash.support import assert_promises_kept, client, on_both, stop_between_writes

PATIENT = RetryPolicy(attempts=50, delay=MOMENT, factor=1)


def enqueue(app: Client, task: str, **options: Any) -> Job:
    Walk(app)
    new = app.new(**{"task": task, "retry": PATIENT, "lease": LONG_LEASE, **options})
    (job,) = run_sync(app.enqueue_many([new]))
    return job


def is_done(app: Client, job: Job) -> bool:
    return run_sync(app.get(job.id)).state is State.DONE


def finish(zygote: Zygote, app: Client, job: Job, offset: int = LATER) -> None:
    if is_done(app, job):
        return
    healthy = zygote.start("walker", app.folder, offset=offset)
    until(
        lambda: healthy.ended or is_done(app, job),
        "a healthy worker does not finish the job",
    )
    healthy.stop()


@pytest.mark.parametrize("task", ["walk", "walk_plainly"])
@pytest.mark.parametrize(
    ("point", "done_before"),
    [
        ("at step 1", 0),
        ("at step 11", 10),
        ("before write_checkpoint 11", 10),
        ("after write_checkpoint 11", 10),
        ("at saved 11", 11),
        ("at saved 20", 20),
    ],
)
@on_both
def test_next_attempt_continues_from_the_last_checkpoint(
    task: str, point: str, done_before: int, zygote: Zygote, folder: Path
) -> None:
    with client(folder) as app:
        job = enqueue(app, task)
        zygote.start("walker", folder, point=point).die()
        first = traces(folder)
        assert run_sync(app.checkpoint(job.id)) == (done_before or None)
        finish(zygote, app, job)
        assert traces(folder) == first + list(range(done_before, STEPS))
        assert len(traces(folder)) <= STEPS + 1, "at most one step is done again"
        assert run_sync(app.get(job.id)).attempt == 2
        assert run_sync(app.checkpoint(job.id)) is None
        progress = run_sync(app.progress(job.id))
        assert progress is not None
        assert progress.done == STEPS - 1 or done_before == STEPS
    assert_promises_kept(folder, point)


@pytest.mark.parametrize("task", ["walk", "walk_plainly"])
@on_both
def test_each_death_costs_one_step_at_most(task: str, zygote: Zygote, folder: Path) -> None:
    rng = random.Random(task)
    with client(folder) as app:
        job = enqueue(app, task, lease=FIRM_LEASE)
        deaths = 4
        for n in range(deaths):
            wanted = len(traces(folder)) + rng.randint(1, 3)
            walking = zygote.start("walker", folder, pause=0.03, offset=n * LATER)
            until(
                lambda wanted=wanted: len(traces(folder)) >= wanted or is_done(app, job),  # type: ignore[misc] # bound at once
                "the job does not go on",
                pause=rng.uniform(0.001, 0.01),
            )
            walking.kill()
        finish(zygote, app, job, offset=deaths * LATER)
        done = traces(folder)
        assert len(done) <= STEPS + deaths
        assert sorted(set(done)) == list(range(STEPS))
        # Each step follows the one before it, or is that one again.
        assert {later - earlier for earlier, later in pairwise(done)} <= {0, 1}
    assert_promises_kept(folder)


@on_both
def test_stopped_worker_does_not_set_the_job_back(zygote: Zygote, folder: Path) -> None:
    with client(folder) as app:
        job = enqueue(app, "walk_plainly", does=["wait"])
        stopped = zygote.start("walker", folder)
        until(lambda: WAITS_AT in traces(folder), "the job does not begin")
        stop_between_writes(folder, stopped)
        other = zygote.start("walker", folder, pause=0.05, offset=LATER)
        until(lambda: WAITS_AT + 2 in traces(folder), "nobody takes the job over")
        (folder / "go").touch()
        stopped.signal(signal.SIGCONT)
        seen: list[int] = []

        def is_over() -> bool:
            seen.append(run_sync(app.checkpoint(job.id)) or STEPS)
            return is_done(app, job)

        until(is_over, "the job is not done")
        until(lambda: bool(refusals(app, job)), "the stopped one was not refused")
        other.stop()
        stopped.stop()
        assert seen == sorted(seen)
        done = run_sync(app.get(job.id))
        assert done.attempt == 2
        assert all(f"stale token {done.token}" not in reason for reason in refusals(app, job))
    assert_promises_kept(folder)


def refusals(app: Client, job: Job) -> list[str]:
    entries = run_sync(app.log(job.id))
    return [entry.reason or "" for entry in entries if entry.event is Event.REFUSED]

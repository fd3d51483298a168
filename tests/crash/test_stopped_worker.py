"""A worker that is stopped for longer than its lease, and wakes up."""

import signal
from pathlib import Path

from penstock.core.job import Job
from penstock.core.lifecycle import Event, State
from penstock.engine.penstock import run_sync
from tests.crash.client import LATER, LONG_LEASE, Client
from tests.crash.processes import Child, Zygote, until
from tests.crash.recording import Started, read_history
from tests.crash.support import assert_promises_kept, client, on_both, stop_between_writes


def starts(folder: Path) -> list[Started]:
    return [note for note in read_history(folder) if isinstance(note, Started)]


def enqueue(app: Client) -> Job:
    new = app.new(task="plain", does=["wait"], lease=LONG_LEASE)
    (job,) = run_sync(app.enqueue_many([new]))
    return job


def take_over(zygote: Zygote, app: Client, stopped: Child, job: Job) -> Child:
    """Stop a worker in its handler; another one does its job, and only then it wakes."""
    until(lambda: bool(starts(app.folder)), "the handler does not start")
    stop_between_writes(app.folder, stopped)
    other = zygote.start("worker", app.folder, offset=LATER)
    until(lambda: len(starts(app.folder)) == 2, "nobody takes the job over")
    (app.folder / "go").touch()
    until(lambda: run_sync(app.get(job.id)).state is State.DONE, "the job is not done")
    stopped.signal(signal.SIGCONT)
    return other


@on_both
def test_stale_settle_is_refused_and_logged(zygote: Zygote, folder: Path) -> None:
    with client(folder) as app:
        job = enqueue(app)
        stopped = zygote.start("hand", folder)
        other = take_over(zygote, app, stopped, job)
        stopped.succeed()
        other.stop()
        first, second = starts(folder)
        assert (folder / "lost").read_text() == str(first.token)
        assert run_sync(app.get(job.id)).returned == second.client
        events = [(entry.event, entry.actor) for entry in run_sync(app.log(job.id))]
        assert events[-2:] == [(Event.DONE, second.client), (Event.REFUSED, first.client)]
    assert_promises_kept(folder)


@on_both
def test_result_of_a_stopped_worker_is_not_taken(zygote: Zygote, folder: Path) -> None:
    with client(folder) as app:
        job = enqueue(app)
        stopped = zygote.start("worker", folder)
        other = take_over(zygote, app, stopped, job)
        # It goes on to work: losing one job has not broken it.
        other.stop()
        (more,) = run_sync(app.enqueue_many([app.new(task="plain")]))
        until(lambda: run_sync(app.get(more.id)).state is State.DONE, "the woken one is dead")
        stopped.stop()
        first, second, *_ = starts(folder)
        assert first.token < second.token
        assert run_sync(app.get(job.id)).returned == second.client
        assert run_sync(app.get(more.id)).returned == first.client
        assert sum(entry.event is Event.DONE for entry in run_sync(app.log(job.id))) == 1
    assert_promises_kept(folder)


def test_worker_that_is_stopped_before_it_began_ends_well(zygote: Zygote, folder: Path) -> None:
    """Else a busy machine would fail whatever test stops a worker that has nothing to do."""
    for _ in range(10):
        zygote.start("worker", folder).stop()

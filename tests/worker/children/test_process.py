"""Handlers in child processes: their outcomes, how they die and how they are stopped."""

import asyncio
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Job, Penstock, State, Task, Worker
from penstock.engine.task import Isolation
from penstock.jobs import AppFactory, Event
from penstock.leases import Failed, Outcome
from penstock.worker.children.pool import ChildPool
from penstock.worker.progress import ProgressBuffer
from penstock.worker.run import Run
from tests.contract.support import HOUR, SECOND, STORES, ManualClock
from tests.environment import SOON
from tests.worker.children import isolated
from tests.worker.support import (
    AT_ONCE,
    are_gone,
    eventually,
    exists,
    is_alive,
    is_final,
    pids_in,
    take_away,
    work_off,
    working,
)

MOMENT = timedelta(seconds=0.5)
PATIENT = {"kill_after": 2 * SOON * SECOND}
"""A worker that kills its children later than a test gives up."""

every_store = pytest.mark.parametrize("app", STORES, indirect=True)


async def outcome_of(app: Penstock, deed: str, folder: Path, **options: Any) -> Job:
    job = await isolated.act.using(**options).enqueue(deed, str(folder))
    await work_off(app, concurrency=2, kill_after=MOMENT)
    return await app.get(job.id)


# What it returns and reports


@every_store
async def test_result_comes_from_another_process(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "nothing", tmp_path)
    assert (job.state, job.error) == (State.DONE, None)
    assert job.returned not in (None, os.getpid())


async def test_coroutine_runs_in_a_child(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.where.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned not in (None, os.getpid())


async def test_timeout_is_final_where_it_is_a_permanent_error(tmp_path: Path) -> None:
    factory = AppFactory("tests.worker.children.isolated:made_to_last", "")
    async with Penstock(STORES["sqlite"](tmp_path), factory=factory) as app:
        app.task("last", isolated.last, isolation="process", permanent=(TimeoutError,))
        job = await app.enqueue("last", timeout=MOMENT, retry=AT_ONCE)
        await work_off(app, kill_after=MOMENT)
        job = await app.get(job.id)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert job.error == "TimeoutError: it ran longer than 0.5 s"


async def test_tasks_without_isolation_stay_in_the_worker(app: Penstock) -> None:
    job = await isolated.plain.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == os.getpid()


async def test_context_describes_the_job(app: Penstock) -> None:
    job = await isolated.tell.using(tags=["red"]).enqueue()
    await work_off(app)
    job = await app.get(job.id)
    assert job.returned == {
        "id": job.id,
        "tags": ["red"],
        "token": job.token,
        "attempt": 1,
        "cancelled": False,
        "leads its group": True,
    }


async def test_large_result_is_returned_whole(app: Penstock, tmp_path: Path) -> None:
    assert (await outcome_of(app, "return_much", tmp_path)).returned == "é" * 400_000


async def test_large_payload_arrives_whole(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "x" * 900_000, tmp_path)
    assert job.state is State.DONE


async def test_error_has_its_traceback(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "fail", tmp_path)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.startswith("RuntimeError: as requested\n")
    assert 'raise RuntimeError("as requested")' in job.error


async def test_error_that_utf8_cannot_encode_is_escaped(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "fail_with_a_surrogate", tmp_path)
    assert "no UTF-8: \\udcff" in (job.error or "")


async def test_permanent_error_is_not_retried(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "fail_for_good", tmp_path, retry=AT_ONCE)
    assert (job.state, job.attempt) == (State.FAILED, 1)


@every_store
async def test_handler_can_snooze(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "snooze", tmp_path)
    assert (job.state, job.attempt) == (State.PENDING, 0)
    assert (await app.log(job.id))[-1].reason == "later"


async def test_handler_can_cancel(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "cancel", tmp_path)
    assert job.state is State.CANCELLED
    assert (await app.log(job.id))[-1].reason == "no more"


async def test_result_that_is_not_json_is_a_failure(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "return_an_object", tmp_path)
    assert job.state is State.FAILED
    assert "not JSON" in (job.error or "")


async def test_lines_of_the_context_are_logged_by_the_worker(
    app: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        job = await outcome_of(app, "log", tmp_path)
    (line,) = [record for record in caplog.records if record.name == "penstock.task"]
    assert (line.getMessage(), line.levelno) == ("half done", logging.INFO)
    assert vars(line)["job_id"] == job.id


async def test_lines_of_libraries_are_logged_by_the_worker(
    app: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await outcome_of(app, "log_everywhere", tmp_path)
    (line,) = [record for record in caplog.records if record.name == "library"]
    assert line.getMessage() == "a line of a library"


async def test_output_is_that_of_the_worker(
    app: Penstock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = await outcome_of(app, "speak", tmp_path)
    assert job.state is State.DONE
    printed = capfd.readouterr()
    assert "on stdout" in printed.out
    assert "on stderr" in printed.err


async def test_progress_and_checkpoints_outlive_the_child(app: Penstock) -> None:
    job = await isolated.resume.using(retry=AT_ONCE).enqueue()
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, job.returned, job.attempt) == (State.DONE, [10, 11, 12, 23, 24], 2)
    progress = await app.progress(job.id)
    assert progress is not None
    assert (progress.done, progress.total) == (5, 5)
    assert [line.text for line in await app.lines(job.id)] == ["counted"]


async def test_last_progress_before_a_silence_is_visible(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.act.enqueue("report_and_sleep", str(tmp_path))
    async with working(app, **PATIENT):
        await eventually(lambda: _has_done(app, job.id, 3))
        await app.cancel(job.id)
        await eventually(lambda: is_final(app, job))


async def _has_done(app: Penstock, job_id: int, done: float) -> bool:
    progress = await app.progress(job_id)
    return progress is not None and progress.done == done


async def test_coroutine_in_a_child_saves_a_checkpoint(app: Penstock) -> None:
    job = await isolated.resume_async.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == [None, {"n": 1}]


async def run_in_child(app: Penstock, context: Context) -> Outcome:
    pool = ChildPool(app, limit=1, grace=SECOND)
    try:
        child = await pool.take(Isolation())
        return await child.run(context)
    finally:
        await pool.close()


async def test_child_whose_lease_is_lost_cannot_save_a_checkpoint(app: Penstock) -> None:
    await isolated.resume_async.enqueue()
    (job,) = await app.leases.claim(worker="w")
    await app.leases.settle([(job, Failed("taken away"))])
    buffer = ProgressBuffer(app)
    outcome = await run_in_child(app, Context(job, buffer))
    await buffer.close()
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("penstock.core.errors.LeaseLost")
    assert await app.checkpoint(job.id) is None


async def test_request_that_fails_in_the_worker_is_an_error_of_the_handler(app: Penstock) -> None:
    """In this case because nothing records the checkpoint: no worker runs the job."""
    await isolated.resume_async.enqueue()
    (job,) = await app.leases.claim(worker="w")
    outcome = await run_in_child(app, Context(job))
    assert isinstance(outcome, Failed)
    assert "PenstockError: ConfigurationError: no worker runs this job" in outcome.error


# How it dies


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("kill_itself", "the child process was killed by SIGKILL (out of memory?)"),
        ("crash", "the child process was killed by SIGSEGV (a crash in native code)"),
        ("signal_itself", "the child process was killed by signal 35"),
        ("terminate_itself", "the child process was killed by SIGTERM"),
        ("leave", "the child process exited with status 3"),
        ("leave_politely", "SystemExit: 4"),
    ],
)
async def test_dying_child_fails_its_own_attempt_only(
    app: Penstock, tmp_path: Path, deed: str, says: str
) -> None:
    other = await isolated.where.enqueue()
    job = await outcome_of(app, deed, tmp_path)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert (job.error or "").split("\n")[0] == says
    assert (await app.get(other.id)).state is State.DONE


@every_store
async def test_job_that_killed_its_child_is_retried(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.recover.enqueue()
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, job.returned) == (State.DONE, 3)
    events = [entry.event for entry in await app.log(job.id)]
    assert events.count(Event.FAILED) == 2


async def test_allocation_beyond_the_limit_fails(app: Penstock) -> None:
    little, much = await isolated.fill.enqueue(1_000), await isolated.fill.enqueue(300_000_000)
    await work_off(app)
    assert (await app.get(little.id)).returned == 1_000
    job = await app.get(much.id)
    assert job.state is State.FAILED
    assert (job.error or "").startswith("MemoryError")


@pytest.mark.parametrize("deed", ["leave_a_process_behind", "leave_a_fork_behind"])
async def test_processes_left_behind_by_a_dead_child_are_killed(
    app: Penstock, tmp_path: Path, deed: str
) -> None:
    job = await outcome_of(app, deed, tmp_path)
    assert (job.state, job.error) == (State.FAILED, "the child process exited with status 3")
    (left,) = pids_in(tmp_path / "started")
    await eventually(lambda: are_gone([left]))


async def test_child_that_sends_a_corrupt_message_is_killed(
    app: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = await outcome_of(app, "corrupt_every_descriptor", tmp_path)
    assert (job.error or "").startswith("the child process was killed by SIGKILL")
    assert "which sent a corrupt message" in caplog.text


async def test_fork_that_returns_from_its_handler_does_not_answer(
    app: Penstock, tmp_path: Path
) -> None:
    job = await outcome_of(app, "fork_and_return", tmp_path)
    assert (job.state, job.returned) == (State.DONE, "itself")


# How it is stopped


@pytest.fixture
def times_out_when_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run times out as soon as its handler has begun, however long the start took."""

    def timer(self: Run, task: Task[..., Any]) -> "asyncio.Task[None]":
        async def run_out() -> None:
            await eventually(lambda: exists(tmp_path / "began"))
            self._time_out(task)

        return asyncio.create_task(run_out())

    monkeypatch.setattr(Run, "_timer", timer)


@pytest.mark.usefixtures("times_out_when_begun")
@pytest.mark.parametrize("deed", ["loop", "sleep_in_c", "sleep", "ignore_signals"])
async def test_timeout_stops_a_child(app: Penstock, tmp_path: Path, deed: str) -> None:
    job = await outcome_of(app, deed, tmp_path, timeout=MOMENT)
    assert job.state is State.FAILED
    assert (job.error or "").startswith("TimeoutError: it ran longer than 0.5 s")
    assert not is_alive(int((tmp_path / "pid").read_text()))


@every_store
@pytest.mark.usefixtures("times_out_when_begun")
@pytest.mark.parametrize("blocking", [False, True])
async def test_timeout_stops_a_coroutine(app: Penstock, tmp_path: Path, blocking: bool) -> None:
    job = await isolated.wait.using(timeout=MOMENT).enqueue(str(tmp_path), blocking=blocking)
    await work_off(app, **PATIENT)
    assert (await app.get(job.id)).state is State.FAILED
    assert blocking or (tmp_path / "tidied").read_text() == "True"


@every_store
async def test_cancel_stops_a_child_and_lets_it_clean_up(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.act.enqueue("clean_up", str(tmp_path))
    async with working(app, **PATIENT):
        await eventually(lambda: exists(tmp_path / "begun"))
        await app.cancel(job.id)
        await eventually(lambda: is_final(app, job))
    assert (await app.get(job.id)).state is State.CANCELLED
    assert (tmp_path / "tidied").read_text() == "True"


async def test_run_that_finishes_when_asked_to_stop_is_done(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.act.enqueue("finish_anyway", str(tmp_path))
    async with working(app, **PATIENT):
        await eventually(lambda: exists(tmp_path / "begun"))
        await app.cancel(job.id)
        await eventually(lambda: is_final(app, job))
    assert (await app.get(job.id)).returned == "finished"


async def test_run_that_finishes_after_its_timeout_has_failed(
    app: Penstock, tmp_path: Path
) -> None:
    job = await outcome_of(app, "finish_anyway", tmp_path, timeout=MOMENT)
    assert job.state is State.FAILED
    assert (job.error or "").startswith("TimeoutError")


async def test_child_that_ignores_signals_is_killed_with_its_processes(
    app: Penstock, tmp_path: Path
) -> None:
    job = await isolated.act.enqueue("start_processes", str(tmp_path))
    async with working(app, kill_after=MOMENT):
        await eventually(lambda: exists(tmp_path / "begun"))
        await app.cancel(job.id)
        await eventually(lambda: is_final(app, job))
    await eventually(lambda: are_gone(pids_in(tmp_path / "started")))


@every_store
async def test_stopping_worker_releases_the_job_of_a_stubborn_child(
    app: Penstock, tmp_path: Path
) -> None:
    job = await isolated.act.enqueue("ignore_signals", str(tmp_path))
    async with working(app, grace=timedelta(0), kill_after=MOMENT) as worker:
        await eventually(lambda: exists(tmp_path / "begun"))
        worker.stop()
    job = await app.get(job.id)
    assert (job.state, job.attempt) == (State.PENDING, 0)


async def test_cancelled_worker_leaves_no_child(app: Penstock, tmp_path: Path) -> None:
    await isolated.act.enqueue("ignore_signals", str(tmp_path))
    running = asyncio.create_task(Worker(app, kill_after=MOMENT).run())
    await eventually(lambda: exists(tmp_path / "begun"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@every_store
async def test_lost_lease_stops_a_child(
    app: Penstock, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.connection, "runtime", app.runtime.with_clock(clock))
    job = await isolated.act.using(lease=MOMENT).enqueue("clean_up", str(tmp_path))
    async with working(app, sweep=HOUR, **PATIENT):
        await eventually(lambda: exists(tmp_path / "begun"))
        await take_away(app, job, clock)
        await eventually(lambda: exists(tmp_path / "tidied"))
        await eventually(lambda: are_gone([int((tmp_path / "pid").read_text())]))
    assert (await app.get(job.id)).state is State.FAILED
    assert Event.DONE not in [entry.event for entry in await app.log(job.id)]

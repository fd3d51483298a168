"""Handlers in child processes: they can be stopped, they can die, and nothing else is harmed."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    Context,
    Done,
    Event,
    Failed,
    Job,
    LeaseLost,
    NewJob,
    Origin,
    Penstock,
    State,
    Task,
    Worker,
    run_sync,
)
from penstock.isolation import Isolation
from penstock.worker.execute import Run
from penstock.worker.frames import Ask
from penstock.worker.notebook import Notebook
from penstock.worker.processes import Children
from penstock.worker.remote import RemoteBook, answering
from tests.contract.support import HOUR, SECOND, SOON, STORES, ManualClock, descriptors
from tests.worker import isolated
from tests.worker.support import AT_ONCE, ONCE, eventually, take_away, work_off, working

MOMENT = timedelta(seconds=0.5)
PATIENT = {"kill_after": 2 * SOON * SECOND}
"""A worker whose children are killed later than a test gives up."""


every_store = pytest.mark.parametrize("app", STORES, indirect=True)
"""Children never open the store, so the other tests make do with one."""


@pytest.fixture
def app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Penstock]:
    """The app of the children, with a store for this test; afterwards no child is left."""
    _OTHERS.update(_processes())  # those of other tests, such as a zygote for all of them
    monkeypatch.setattr(isolated.app, "url", STORES[getattr(request, "param", "sqlite")](tmp_path))
    yield isolated.app
    run_sync(isolated.app.close())
    assert children() == []
    _OTHERS.clear()


_OTHERS: set[int] = set()


def children() -> list[int]:
    """The processes that this one has started since the test began, zombies included."""
    return [pid for pid in _processes() if pid not in _OTHERS]


def _processes() -> list[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in found.split()]


def serving() -> list[int]:
    """Those that run handlers: all but the watchman."""
    return [
        pid
        for pid in children()
        if "penstock.worker.child" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


def lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while this is read
        return False
    return status != "Z"


def pids(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()]


async def there(file: Path) -> bool:
    return file.exists()  # noqa: ASYNC240 - nothing else runs here


async def outcome_of(app: Penstock, deed: str, folder: Path, **options: Any) -> Job:
    job = await isolated.act.using(**options).enqueue(deed, str(folder))
    await work_off(app, concurrency=2, kill_after=MOMENT)
    return await app.get(job.id)


# What comes back


@every_store
async def test_result_comes_from_another_process(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "nothing", tmp_path)
    assert (job.state, job.error) == (State.DONE, None)
    assert job.returned not in (None, os.getpid())


async def test_coroutine_runs_in_a_child_too(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.where.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned not in (None, os.getpid())


async def test_app_that_stands_in_no_module_is_made_again_by_its_origin(tmp_path: Path) -> None:
    origin = Origin("tests.worker.isolated:made", "so")
    async with Penstock(STORES["sqlite"](tmp_path), origin=origin) as app:
        app.task("echo", lambda: "here", isolation="process")
        job = await app.enqueue("echo")
        await work_off(app)
        assert (await app.get(job.id)).returned == "so"


async def test_timeout_is_final_where_it_is_a_permanent_error(tmp_path: Path) -> None:
    origin = Origin("tests.worker.isolated:made_to_last", "")
    async with Penstock(STORES["sqlite"](tmp_path), origin=origin) as app:
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


async def test_context_tells_about_the_job(app: Penstock) -> None:
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


async def test_large_result_comes_back_whole(app: Penstock, tmp_path: Path) -> None:
    assert (await outcome_of(app, "return_much", tmp_path)).returned == "é" * 400_000


async def test_large_payload_arrives_whole(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "x" * 900_000, tmp_path)
    assert job.state is State.DONE


async def test_error_comes_with_its_traceback(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "fail", tmp_path)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.startswith("RuntimeError: as it was told\n")
    assert 'raise RuntimeError("as it was told")' in job.error


async def test_error_that_is_no_text_arrives_all_the_same(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "fail_unspeakably", tmp_path)
    assert "no text: \\udcff" in (job.error or "")


async def test_permanent_error_is_not_tried_again(app: Penstock, tmp_path: Path) -> None:
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


async def test_what_libraries_log_is_logged_by_the_worker(
    app: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await outcome_of(app, "log_everywhere", tmp_path)
    (line,) = [record for record in caplog.records if record.name == "library"]
    assert line.getMessage() == "a word to the wise"


async def test_output_is_that_of_the_worker(
    app: Penstock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = await outcome_of(app, "speak", tmp_path)
    assert job.state is State.DONE
    printed = capfd.readouterr()
    assert "on stdout" in printed.out
    assert "on stderr" in printed.err


async def test_child_can_ask_its_worker(app: Penstock, tmp_path: Path) -> None:
    async def answer(context: Context, ask: Ask) -> str:
        await asyncio.sleep(0)
        return f"{ask.what} {ask.text} for job {context.job.id}"

    await isolated.act.enqueue("ask", str(tmp_path))
    (job,) = await app.claim(worker="w")
    pool = Children(app, limit=1, grace=SECOND, asked=answer)
    child = await pool.take(Isolation())
    outcome = await child.run(Context(job))
    assert outcome == Done(f'"greeting hello for job {job.id}"')
    await pool.close()


async def test_what_the_worker_does_not_know_is_an_error_of_the_handler(
    app: Penstock, tmp_path: Path
) -> None:
    job = await outcome_of(app, "ask", tmp_path)
    assert "a worker does not know what 'greeting' is" in (job.error or "")


async def test_progress_and_checkpoints_outlive_the_child(app: Penstock) -> None:
    job = await isolated.resume.using(retry=AT_ONCE).enqueue()
    await work_off(app)
    job = await app.get(job.id)
    assert (job.state, job.returned, job.attempt) == (State.DONE, [10, 11, 12, 23, 24], 2)
    progress = await app.progress(job.id)
    assert progress is not None
    assert (progress.done, progress.total) == (5, 5)
    assert [line.text for line in await app.lines(job.id)] == ["counted"]


async def test_last_progress_before_a_silence_is_seen(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.act.enqueue("fall_silent", str(tmp_path))
    async with working(app, **PATIENT):
        await eventually(lambda: _told(app, job.id, 3))
        await app.cancel(job.id)
        await eventually(lambda: is_over(app, job))


async def _told(app: Penstock, job_id: int, done: float) -> bool:
    progress = await app.progress(job_id)
    return progress is not None and progress.done == done


async def test_coroutine_in_a_child_saves_its_state(app: Penstock) -> None:
    job = await isolated.resume_async.enqueue()
    await work_off(app)
    assert (await app.get(job.id)).returned == [None, {"n": 1}]


async def test_child_whose_lease_is_lost_cannot_save(app: Penstock) -> None:
    await isolated.resume_async.enqueue()
    (job,) = await app.claim(worker="w")
    await app.settle([(job, Failed("taken away"))])
    book = RemoteBook(app, lambda _what, _text: "lost", lambda _progress: None)
    with pytest.raises(LeaseLost):
        await book.save(job, "1")
    answer = answering(app)
    context = Context(job, Notebook(app))
    assert await answer(context, Ask("checkpoint", "1")) == "lost"


# Dying


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
async def test_job_that_killed_its_child_is_tried_again_by_its_policy(
    app: Penstock, tmp_path: Path
) -> None:
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


async def test_child_that_ran_out_of_memory_is_replaced(app: Penstock) -> None:
    await isolated.fill.enqueue(300_000_000)
    (job,) = await app.claim(worker="w")
    pool = Children(app, limit=1, grace=SECOND)
    child = await pool.take(Isolation(memory=isolated.MEMORY))
    assert isinstance(await child.run(Context(job)), Failed)
    pool.give(child)
    assert (await pool.take(Isolation(memory=isolated.MEMORY))) is not child
    await pool.close()


@pytest.mark.parametrize("deed", ["leave_a_process_behind", "leave_a_fork_behind"])
async def test_processes_left_behind_by_a_dead_child_are_killed(
    app: Penstock, tmp_path: Path, deed: str
) -> None:
    job = await outcome_of(app, deed, tmp_path)
    assert (job.state, job.error) == (State.FAILED, "the child process exited with status 3")
    (left,) = pids(tmp_path / "started")
    await eventually(lambda: gone([left]))


async def gone(processes: list[int]) -> bool:
    return not any(lives(pid) for pid in processes)


async def test_child_that_sends_nonsense_is_killed(
    app: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = await outcome_of(app, "speak_nonsense", tmp_path)
    assert (job.error or "").startswith("the child process was killed by SIGKILL")
    assert "sent nonsense and is killed" in caplog.text


async def test_watchman_that_was_killed_is_replaced(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Children(app, limit=2, grace=SECOND)
    first = await pool.take(Isolation())
    (watchman,) = set(children()) - {first.pid}
    os.kill(watchman, signal.SIGKILL)
    await eventually(lambda: gone([watchman]))
    second = await pool.take(Isolation())
    (another,) = set(children()) - {first.pid, second.pid}
    assert another != watchman
    assert "starting another" in caplog.text
    await pool.close()


async def test_fork_that_comes_out_of_its_handler_does_not_answer(
    app: Penstock, tmp_path: Path
) -> None:
    job = await outcome_of(app, "fork_and_return", tmp_path)
    assert (job.state, job.returned) == (State.DONE, "itself")


# Being stopped


@pytest.fixture
def from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is out of time as soon as its handler has begun, however long that took."""

    def timer(self: Run, task: Task[..., Any]) -> "asyncio.Task[None]":
        async def run_out() -> None:
            await eventually(lambda: there(tmp_path / "began"))
            self._time_out(task)

        return asyncio.create_task(run_out())

    monkeypatch.setattr(Run, "_timer", timer)


@pytest.mark.usefixtures("from_its_beginning")
@pytest.mark.parametrize("deed", ["loop", "sleep_in_c", "sleep", "ignore_signals"])
async def test_timeout_stops_it(app: Penstock, tmp_path: Path, deed: str) -> None:
    job = await outcome_of(app, deed, tmp_path, timeout=MOMENT)
    assert job.state is State.FAILED
    assert (job.error or "").startswith("TimeoutError: it ran longer than 0.5 s")
    assert not lives(int((tmp_path / "pid").read_text()))


@every_store
@pytest.mark.usefixtures("from_its_beginning")
@pytest.mark.parametrize("blocking", [False, True])
async def test_timeout_stops_a_coroutine(app: Penstock, tmp_path: Path, blocking: bool) -> None:
    job = await isolated.wait.using(timeout=MOMENT).enqueue(str(tmp_path), blocking=blocking)
    await work_off(app, **PATIENT)
    assert (await app.get(job.id)).state is State.FAILED
    assert blocking or (tmp_path / "tidied").read_text() == "True"


@every_store
async def test_cancel_stops_it_and_lets_it_clean_up(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.act.enqueue("clean_up", str(tmp_path))
    async with working(app, **PATIENT):
        await eventually(lambda: there(tmp_path / "begun"))
        await app.cancel(job.id)
        await eventually(lambda: is_over(app, job))
    assert (await app.get(job.id)).state is State.CANCELLED
    assert (tmp_path / "tidied").read_text() == "True"


async def is_over(app: Penstock, job: Job) -> bool:
    return (await app.get(job.id)).state.final


async def test_run_that_finishes_when_told_to_stop_is_done(app: Penstock, tmp_path: Path) -> None:
    job = await isolated.act.enqueue("finish_anyway", str(tmp_path))
    async with working(app, **PATIENT):
        await eventually(lambda: there(tmp_path / "begun"))
        await app.cancel(job.id)
        await eventually(lambda: is_over(app, job))
    assert (await app.get(job.id)).returned == "finished"


async def test_run_that_finishes_after_its_time_has_failed(app: Penstock, tmp_path: Path) -> None:
    job = await outcome_of(app, "finish_anyway", tmp_path, timeout=MOMENT)
    assert job.state is State.FAILED
    assert (job.error or "").startswith("TimeoutError")


async def test_child_that_does_not_heed_is_killed_with_its_processes(
    app: Penstock, tmp_path: Path
) -> None:
    job = await isolated.act.enqueue("start_processes", str(tmp_path))
    async with working(app, kill_after=MOMENT):
        await eventually(lambda: there(tmp_path / "begun"))
        await app.cancel(job.id)
        await eventually(lambda: is_over(app, job))
    await eventually(lambda: gone(pids(tmp_path / "started")))


@every_store
async def test_stopping_worker_releases_the_job_of_a_stubborn_child(
    app: Penstock, tmp_path: Path
) -> None:
    job = await isolated.act.enqueue("ignore_signals", str(tmp_path))
    async with working(app, grace=timedelta(0), kill_after=MOMENT) as worker:
        await eventually(lambda: there(tmp_path / "begun"))
        worker.stop()
    job = await app.get(job.id)
    assert (job.state, job.attempt) == (State.PENDING, 0)


async def test_cancelled_worker_leaves_no_child(app: Penstock, tmp_path: Path) -> None:
    await isolated.act.enqueue("ignore_signals", str(tmp_path))
    running = asyncio.create_task(Worker(app, kill_after=MOMENT).run())
    await eventually(lambda: there(tmp_path / "begun"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@every_store
async def test_lost_lease_stops_it(
    app: Penstock, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_clock", clock)
    job = await isolated.act.using(lease=MOMENT).enqueue("clean_up", str(tmp_path))
    async with working(app, sweep=HOUR, **PATIENT):
        await eventually(lambda: there(tmp_path / "begun"))
        await take_away(app, job, clock)
        await eventually(lambda: there(tmp_path / "tidied"))
        await eventually(lambda: gone([int((tmp_path / "pid").read_text())]))
    assert (await app.get(job.id)).state is State.FAILED
    assert Event.DONE not in [entry.event for entry in await app.log(job.id)]


# Being used again


async def test_child_serves_many_jobs_and_is_replaced_in_time(app: Penstock) -> None:
    jobs = await app.enqueue_many([isolated.worn.new()] * 5)
    await work_off(app, concurrency=1)
    results = [(await app.get(job.id)).returned for job in jobs]
    assert [results.count(pid) for pid in dict.fromkeys(results)] == [2, 2, 1]


async def test_idle_child_is_let_go(app: Penstock) -> None:
    pool = Children(app, limit=3, grace=SECOND, idle=MOMENT / 10)
    await pool.prepare()
    await eventually(no_children)
    await pool.close()


async def no_children() -> bool:
    return serving() == []


async def test_idle_child_of_another_kind_makes_room(app: Penstock) -> None:
    pool = Children(app, limit=1, grace=SECOND)
    first = await pool.take(Isolation(recycle=7))
    pool.give(first)
    second = await pool.take(Isolation(recycle=8))
    await first.gone
    assert serving() == [second.pid]
    await pool.close()


async def test_child_that_died_idle_is_not_used(app: Penstock) -> None:
    pool = Children(app, limit=1, grace=SECOND)
    first = await pool.take(Isolation())
    pool.give(first)
    os.kill(first.pid, signal.SIGKILL)
    await first.gone
    second = await pool.take(Isolation())
    assert second.pid != first.pid
    await pool.close()


async def test_no_descriptor_is_left(app: Penstock, tmp_path: Path) -> None:
    before = descriptors()
    for deed in ("nothing", "kill_itself", "leave"):
        await isolated.act.enqueue(deed, str(tmp_path))
    await isolated.act.using(timeout=MOMENT).enqueue("sleep", str(tmp_path))
    await work_off(app)
    await app.close()
    assert descriptors() <= before


# Where it cannot work


def refused(register: Callable[[Penstock], object]) -> str:
    with pytest.raises(ConfigurationError) as error:
        register(Penstock("memory://"))
    return str(error.value)


def test_options_are_checked() -> None:
    def nothing() -> None: ...

    def with_options(**options: Any) -> str:
        return refused(lambda app: app.task("t", nothing, **options))

    assert 'isolation is "process" or None' in with_options(isolation="thread")
    assert 'memory need isolation="process"' in with_options(memory=100_000_000)
    assert "memory is a number of bytes" in with_options(isolation="process", memory=1)
    assert "memory is a number of bytes" in with_options(isolation="process", memory=1e9)
    assert "recycle is a number of jobs" in with_options(isolation="process", recycle=0)


async def test_app_that_is_in_no_module_is_refused() -> None:
    app = Penstock("memory://")
    app.task("t", lambda: None, isolation="process")
    with pytest.raises(ConfigurationError, match="an app that a child process can import"):
        await work_off(app)


async def test_task_that_the_import_does_not_register_is_refused(app: Penstock) -> None:
    app.task("local", lambda: None, isolation="process")
    try:
        with pytest.raises(ConfigurationError, match="has no task local: a task with isolation"):
            await work_off(app)
    finally:
        del app.tasks["local"]


@pytest.mark.parametrize("app", ["memory"], indirect=True)
async def test_store_in_memory_cannot_be_reached_from_a_child(
    app: Penstock, tmp_path: Path
) -> None:
    job = await outcome_of(app, "enqueue", tmp_path)
    assert "in the memory of the worker" in (job.error or "")


async def test_interpreter_that_cannot_be_started_is_told(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = descriptors()
    with pytest.raises(ConfigurationError, match=r"could not begin: .Errno 2. No such file"):
        await work_off(app)
    await app.close()
    assert descriptors() <= before


async def test_task_that_is_registered_too_late_fails(app: Penstock, tmp_path: Path) -> None:
    first = await isolated.where.enqueue()
    async with working(app):
        await eventually(lambda: is_over(app, first))
        late = app.task("late", lambda: None, isolation="process", retry=ONCE)
        try:
            job = await late.enqueue()
            await eventually(lambda: is_over(app, job))
        finally:
            del app.tasks["late"]
    assert "the child process has no handler called 'late'" in ((await app.get(job.id)).error or "")


SCRIPT = """
import asyncio, os
from penstock import Penstock, Worker, run_sync
app = Penstock("sqlite:///jobs.db")

@app.task(isolation="process"OPTIONS)
def where():
    return os.getpid()

def main():
    job = run_sync(where.enqueue())
    asyncio.run(Worker(app).run(until_empty=True))
    result = run_sync(app.get(job.id)).returned
    print(result is not None and result != os.getpid())

"""


def run_script(
    folder: Path, end: str, *, module: bool = False, options: str = ""
) -> "subprocess.CompletedProcess[str]":
    (folder / "script.py").write_text(SCRIPT.replace("OPTIONS", options) + end)
    command = ["-m", "script"] if module else [str(folder / "script.py")]
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("module", [False, True])
def test_app_of_a_script_is_found(tmp_path: Path, module: bool) -> None:
    ran = run_script(tmp_path, 'if __name__ == "__main__":\n    main()\n', module=module)
    assert (ran.stdout, ran.stderr) == ("True\n", "")


async def test_command_finds_the_app_for_its_children(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("OPTIONS", ""))
    app = Penstock(f"sqlite:///{tmp_path}/jobs.db")
    (job,) = await app.enqueue_many([NewJob(task="where", payload="{}")])
    worker = await asyncio.create_subprocess_exec(
        *[sys.executable, "-W", "error", "-m", "penstock.cli.main", "worker", "script:app"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    await eventually(lambda: is_over(app, job))
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 0
    assert (await app.get(job.id)).returned not in (None, worker.pid)
    await app.close()


def test_memory_that_does_not_suffice_for_the_import_is_told(tmp_path: Path) -> None:
    big = 'if __name__ != "__main__":\n    big = bytearray(200_000_000)\nelse:\n    main()\n'
    ran = run_script(tmp_path, big, options=", memory=100_000_000")
    assert ran.returncode == 1
    assert "ConfigurationError: a child process could not begin: MemoryError" in ran.stderr


def test_script_that_starts_its_worker_when_imported_is_told_so(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "main()\n")
    assert ran.returncode == 1
    assert "put that under if __name__ == '__main__':" in ran.stderr

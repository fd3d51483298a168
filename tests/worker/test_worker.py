"""The worker: which jobs it claims, how many at once, how it stops, and what it survives."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    Job,
    NewJob,
    Penstock,
    RetryPolicy,
    State,
    StoreError,
    StoreUnavailable,
    Task,
    Worker,
    context,
)
from penstock.core.job import Claim
from penstock.core.lifecycle import Done
from penstock.core.tasks import AnnouncedTask
from penstock.core.transition import Change
from penstock.jobs import Event, Waiting
from penstock.leases import Outcome
from penstock.worker import exchange as exchange_module
from penstock.worker import worker as worker_module
from penstock.worker.run import Run
from tests.contract.support import HOUR, ManualClock, ids
from tests.environment import SOON
from tests.worker.support import AT_ONCE, ONCE, ended, eventually, soon, work_off, working

NO_TIME = timedelta(0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry sooner than in production when the store fails."""
    monkeypatch.setattr(worker_module, "RETRY_PAUSE", 0.01)
    monkeypatch.setattr(exchange_module, "RETRY_PAUSE", 0.01)
    monkeypatch.setattr(worker_module, "_LAST_WAIT", SOON)  # as long as a busy machine may take


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up sooner on a handler that hangs."""
    monkeypatch.setattr(worker_module, "_LAST_WAIT", 0.2)


class Hold:
    """A handler that signals when it has started, and waits until the test lets it finish."""

    def __init__(self, app: Penstock, **options: Any) -> None:
        self.running = 0
        self.peak = 0
        self.started = asyncio.Semaphore(0)
        self.finish = asyncio.Event()
        self.task: Task[[], Any] = app.task("hold", self._handle, **options)

    async def _handle(self) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.started.release()
        try:
            await self.finish.wait()
        finally:
            self.running -= 1

    async def begun(self, n: int = 1) -> None:
        async with asyncio.timeout(SOON):
            for _ in range(n):
                await self.started.acquire()


async def count(app: Penstock, state: State) -> int:
    return sum(n for (_, found, _), n in (await app.count()).items() if found is state)


async def counted(app: Penstock, state: State, n: int) -> bool:
    return await count(app, state) == n


async def state_of(app: Penstock, job: Job) -> State:
    return (await app.get(job.id)).state


async def has(app: Penstock, job: Job, state: State) -> bool:
    return await state_of(app, job) is state


async def events_of(app: Penstock, job: Job) -> list[Event]:
    return [entry.event for entry in await app.log(job.id)]


# Which jobs it claims, and how many at once


async def test_no_more_coroutines_run_than_the_concurrency_allows(app: Penstock) -> None:
    hold = Hold(app)
    await app.enqueue_many([hold.task.new()] * 10)
    async with working(app, concurrency=3):
        await hold.begun(3)
        assert await count(app, State.RUNNING) == 3
        hold.finish.set()
        await eventually(lambda: counted(app, State.DONE, 10))
    assert hold.peak == 3


async def test_no_more_threads_run_than_the_concurrency_allows(app: Penstock) -> None:
    running = threading.Semaphore(3)
    together = threading.Barrier(3, timeout=SOON)

    @app.task
    def hold() -> bool:
        alone = running.acquire(blocking=False)
        together.wait()
        running.release()
        return alone

    jobs = await app.enqueue_many([hold.new()] * 9)
    await work_off(app, concurrency=3)
    assert [(await app.get(job.id)).returned for job in jobs] == [True] * 9


async def test_concurrency_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="concurrency"):
        Worker(Penstock("memory://"), concurrency=0)


async def test_free_slot_takes_the_next_job_while_others_still_run(app: Penstock) -> None:
    hold = Hold(app)

    @app.task
    async def quick() -> None:
        pass

    await hold.task.enqueue()
    async with working(app, concurrency=2):
        await hold.begun()
        await app.enqueue_many([quick.new()] * 5)
        await eventually(lambda: counted(app, State.DONE, 5))
        assert hold.running == 1
        hold.finish.set()


async def test_coroutine_that_waits_lets_the_rest_of_its_batch_run(app: Penstock) -> None:
    others_are_done = asyncio.Event()
    done: list[int] = []

    @app.task
    async def first() -> None:
        await others_are_done.wait()

    @app.task
    async def other() -> None:
        done.append(1)
        if len(done) == 3:
            others_are_done.set()

    await app.enqueue_many([first.new(), other.new(), other.new(), other.new()])
    await work_off(app, concurrency=4)
    assert await count(app, State.DONE) == 4


async def test_higher_priority_runs_first_then_first_in_first_out(app: Penstock) -> None:
    order: list[str] = []

    @app.task
    async def note(name: str) -> None:
        order.append(name)

    await note.enqueue("a")
    await note.using(priority=0).enqueue("b")
    await note.using(priority=9).enqueue("c")
    await note.enqueue("d")
    await work_off(app, concurrency=1)
    assert order == ["c", "a", "d", "b"]


async def test_jobs_of_one_key_run_in_order_one_at_a_time_also_across_retries(
    app: Penstock,
) -> None:
    inside: Counter[str] = Counter()
    order: list[tuple[str, int, int]] = []

    @app.task(retry=AT_ONCE)
    async def step(key: str, n: int) -> None:
        assert not inside[key]
        inside[key] += 1
        await asyncio.sleep(0)
        inside[key] -= 1
        order.append((key, n, context().attempt))
        if n == 1 and context().attempt < 3:
            raise ValueError("again")

    await app.enqueue_many([step.using(key=key).new(key, n) for n in range(4) for key in "xyz"])
    await work_off(app, concurrency=8)
    steps = [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    for key in "xyz":
        assert [(n, attempt) for found, n, attempt in order if found == key] == steps


async def test_only_jobs_of_the_named_queues_run(app: Penstock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    ours = await nothing.using(queue="ours").enqueue()
    theirs = await nothing.using(queue="theirs").enqueue()
    await work_off(app, queues=["ours", "empty"])
    assert (await state_of(app, ours), await state_of(app, theirs)) == (State.DONE, State.PENDING)


async def test_reserved_queues_are_for_workers_that_name_them(app: Penstock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    app.limits.reserve("events")
    ours = await nothing.enqueue()
    event = await nothing.using(queue="events").enqueue()
    await work_off(app)
    assert (await state_of(app, ours), await state_of(app, event)) == (State.DONE, State.PENDING)
    await work_off(app, queues=["events"])
    assert await state_of(app, event) == State.DONE


async def test_worker_of_another_program_learns_of_reserved_queues(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Penstock(url) as program, Penstock(url) as application:
        program.task("common", lambda: None)
        reserved = application.task("common", lambda: None, queue="events")
        application.limits.reserve("events")
        event = await reserved.enqueue()
        job = await program.enqueue("common")
        await work_off(program)
        assert await state_of(program, event) == State.PENDING
        assert await state_of(program, job) == State.DONE


async def test_jobs_of_unknown_tasks_are_left_alone(app: Penstock) -> None:
    known = app.task("known", lambda: None)
    [unknown] = await app.enqueue_many([NewJob(task="unknown", payload="{}", retry=ONCE)])
    ours = await known.enqueue()
    await work_off(app)  # it does not wait for the other one
    await work_off(app, tags=["none"])
    assert await state_of(app, ours) == State.DONE
    found = await app.get(unknown.id)
    assert (found.state, found.attempt) == (State.PENDING, 0)
    assert [entry.event for entry in await app.log(unknown.id)] == [Event.ENQUEUED]
    app.task("unknown", lambda: None)
    await work_off(app)
    assert await state_of(app, unknown) == State.DONE


async def test_task_that_is_registered_later_is_taken_from_then_on(app: Penstock) -> None:
    known = app.task("known", lambda: None)
    [unknown] = await app.enqueue_many([NewJob(task="later", payload="{}")])
    async with working(app):
        await app.result(await known.enqueue())
        app.task("later", lambda: 7)
        await app.result(await known.enqueue())
        assert await app.result(unknown) == 7


async def test_each_version_of_a_job_goes_to_a_worker_that_takes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Penstock(url) as before, Penstock(url) as present, Penstock(url) as after:
        old = before.task("send", lambda: "old")
        new = present.task("send", lambda: "present", version=3, accepts=range(2, 4))
        late = after.task("send", lambda: "after", version=4, accepts=(3, 4))
        jobs = [await task.enqueue() for task in (late, new, old)]
        assert [job.task_version for job in jobs] == [4, 3, 1]
        await work_off(present)
        await work_off(before)
        assert [(await app_job).returned for app_job in map(before.get, ids(jobs))] == [
            None,
            "present",
            "old",
        ]
        await work_off(after)
        assert (await after.get(jobs[0].id)).returned == "after"
        assert {job.attempt for job in await before.find()} == {1}


async def test_renamed_task_runs_jobs_of_its_old_names(app: Penstock) -> None:
    [old] = await app.enqueue_many([NewJob(task="mail", payload="{}")])
    send = app.task("send", lambda: "sent", aliases=["mail", "post"])
    renamed = await app.enqueue("post")
    assert (send.name, renamed.task) == ("send", "send")
    await work_off(app)
    assert [(await app.get(job.id)).returned for job in (old, renamed)] == ["sent", "sent"]


async def test_workers_announce_their_tasks(app: Penstock) -> None:
    app.task("send", lambda: None, version=2, accepts=(1, 2), aliases=["mail"], queue="post")
    async with working(app, name="w"):

        async def is_there() -> bool:
            return bool(await app.workers.list())

        await eventually(is_there)
        [info] = await app.workers.list()
        assert info.tasks == (
            AnnouncedTask(name="send", version=2, oldest=1, newest=2, queue="post"),
            AnnouncedTask(
                name="mail", version=2, oldest=1, newest=2, queue="post", alias_of="send"
            ),
        )


async def test_only_jobs_with_the_named_tags_run(app: Penstock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    ours = await nothing.using(tags=["gpu", "eu"]).enqueue()
    theirs = await nothing.using(tags=["us"]).enqueue()
    untagged = await nothing.enqueue()
    await work_off(app, tags=["eu", "asia"])
    states = [await state_of(app, job) for job in (ours, theirs, untagged)]
    assert states == [State.DONE, State.PENDING, State.PENDING]


async def test_paused_queue_starts_nothing_until_it_is_resumed(app: Penstock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await app.queues.pause("default")
    job = await nothing.enqueue()
    await work_off(app)
    assert await state_of(app, job) is State.PENDING
    async with working(app):
        await app.queues.resume("default")
        await eventually(lambda: has(app, job, State.DONE))


async def test_idle_worker_finds_a_job_that_is_enqueued(app: Penstock) -> None:
    ran = asyncio.Event()

    @app.task
    async def note() -> None:
        ran.set()

    async with working(app):
        await eventually(lambda: _idle(app))
        await note.enqueue()
        await soon(ran)


async def _idle(app: Penstock) -> bool:
    return not await app.leases.claim(worker="looking")


async def test_idle_worker_runs_a_job_when_its_time_comes(url: str) -> None:
    app = Penstock(url)
    ran = asyncio.Event()
    early: list[timedelta] = []

    @app.task
    async def note() -> None:
        early.append(context().job.run_at - datetime.now(UTC))
        ran.set()

    async with working(app):
        await note.using(delay=timedelta(milliseconds=50)).enqueue()
        await soon(ran)
    assert [by <= NO_TIME for by in early] == [True]
    await app.close()


async def test_idle_worker_finds_a_job_of_another_program(url: str) -> None:
    app, other = Penstock(url), Penstock(url)
    ran = asyncio.Event()

    @app.task
    async def note() -> None:
        ran.set()

    async with working(app):
        await other.enqueue_many([NewJob(task="note", payload="{}")])
        await soon(ran)
    await app.close()
    await other.close()


# Until it is empty


async def test_until_empty_ends_at_once_without_jobs(app: Penstock) -> None:
    await work_off(app)


async def test_until_empty_runs_what_handlers_enqueue(app: Penstock) -> None:
    @app.task
    async def shrink(n: int) -> None:
        if n:
            await shrink.enqueue(n - 1)

    await shrink.enqueue(5)
    await work_off(app)
    assert await count(app, State.DONE) == 6


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_until_empty_runs_every_job_of_a_key(app: Penstock, concurrency: int) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await app.enqueue_many([nothing.using(key="k").new()] * 20)
    await work_off(app, concurrency=concurrency)
    assert await count(app, State.DONE) == 20


async def test_settled_job_lets_the_next_of_its_key_be_claimed_at_once(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the store to report a change."""

    async def never(seen: int, timeout: float) -> int:
        await asyncio.Event().wait()
        return seen

    @app.task
    async def nothing() -> None:
        pass

    await app.enqueue_many([nothing.using(key="k").new()] * 5)
    monkeypatch.setattr(app.store, "wait", never)
    await work_off(app)
    assert await count(app, State.DONE) == 5


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_until_empty_runs_retries_without_delay(app: Penstock, concurrency: int) -> None:
    @app.task(retry=AT_ONCE)
    async def flaky() -> None:
        if context().attempt < 3:
            raise ValueError("again")

    await app.enqueue_many([flaky.new()] * 5)
    await work_off(app, concurrency=concurrency)
    assert await count(app, State.DONE) == 5


@pytest.mark.parametrize("kind", ["queue", "task", "throttle"])
@pytest.mark.parametrize("tags", [(), ("red",)])
async def test_until_empty_waits_for_a_job_held_back_by_a_limit(
    app: Penstock, kind: str, tags: tuple[str, ...]
) -> None:
    """A limit holds the second job while somebody else runs the first."""

    @app.task
    async def nothing() -> None:
        pass

    if kind == "queue":
        await app.limits.queue("default", concurrency=1)
    elif kind == "task":
        await app.limits.task("nothing", 1)
    await app.enqueue_many([nothing.using(throttle="x", tags=tags).new()] * 2)
    [first] = await app.leases.claim(worker="other")
    looked = asyncio.Event()
    worker = Worker(app, tags=tags)
    is_empty = worker._is_empty

    async def look() -> bool:
        answer = await is_empty()
        looked.set()
        return answer

    worker._is_empty = look  # type: ignore[method-assign] # replaced for the test
    running = asyncio.create_task(worker.run(until_empty=True))
    await soon(looked)
    assert not running.done()
    await app.leases.settle([(first, Done())])
    await ended(running)
    assert await count(app, State.DONE) == 2


async def test_until_empty_waits_for_a_rate(
    app: Penstock, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await app.limits.queue("default", rate=(1, HOUR))
    await app.enqueue_many([nothing.new()] * 3)
    monkeypatch.setattr(worker_module, "_LOOK_AGAIN", 0.01)
    worker = Worker(app)
    is_empty = worker._is_empty

    async def look() -> bool:
        clock.advance(HOUR)
        return await is_empty()

    worker._is_empty = look  # type: ignore[method-assign] # replaced for the test
    async with asyncio.timeout(SOON):
        await worker.run(until_empty=True)
    assert await count(app, State.DONE) == 3


@pytest.mark.parametrize("options", [{"queues": ["other"]}, {"tags": ["blue"]}])
async def test_until_empty_leaves_jobs_of_other_queues_and_tags(
    app: Penstock, options: dict[str, list[str]]
) -> None:
    @app.task
    async def nothing() -> None:
        pass

    await app.enqueue_many([nothing.using(tags=("red",)).new()] * 2)
    await work_off(app, **options)
    await app.queues.pause("default")
    await work_off(app)
    assert await count(app, State.PENDING) == 2


async def test_until_empty_leaves_jobs_that_are_not_due(app: Penstock, clock: ManualClock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    job = await nothing.using(delay=HOUR).enqueue()
    await work_off(app)
    assert (await app.get(job.id)).waiting is Waiting.SCHEDULED
    clock.advance(HOUR)
    await work_off(app)
    assert await state_of(app, job) is State.DONE


async def test_threads_and_coroutines_run_together(app: Penstock) -> None:
    @app.task
    def plain() -> None:
        pass

    @app.task
    async def loop() -> None:
        await asyncio.sleep(0)

    await app.enqueue_many([plain.new(), loop.new()] * 25)
    await work_off(app, concurrency=4)
    assert await count(app, State.DONE) == 50


async def test_two_workers_of_one_process_share_the_jobs(app: Penstock) -> None:
    runs: Counter[int] = Counter()

    @app.task
    async def note() -> None:
        await asyncio.sleep(0)
        runs[context().job.id] += 1

    jobs = await app.enqueue_many([note.new()] * 500)
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(Worker(app, concurrency=10).run(until_empty=True) for _ in range(2)))
    assert runs == {job.id: 1 for job in jobs}
    workers = {entry.actor for entry in await app.log(limit=10_000) if entry.event == "claimed"}
    assert len(workers) == 2


async def test_workers_of_two_programs_run_every_job_once(url: str) -> None:
    apps = Penstock(url), Penstock(url)
    runs: Counter[int] = Counter()

    async def note() -> None:
        runs[context().job.id] += 1

    tasks = [app.task("note", note) for app in apps]
    jobs = await apps[0].enqueue_many([tasks[0].new()] * 1000)
    async with asyncio.timeout(3 * SOON):
        await asyncio.gather(*(Worker(app).run(until_empty=True) for app in apps))
    assert runs == {job.id: 1 for job in jobs}
    assert [len(await apps[0].log(job.id)) for job in jobs] == [3] * 1000
    for app in apps:
        await app.close()


# Cancelling


async def test_running_coroutine_is_cancelled_by_another_program(url: str) -> None:
    app, other = Penstock(url), Penstock(url)
    hold = Hold(app)
    job = await hold.task.enqueue()
    async with working(app):
        await hold.begun()
        asked = await other.cancel(job.id, "changed my mind")
        assert (asked.state, asked.cancel_requested) == (State.RUNNING, True)
        await eventually(lambda: has(app, job, State.CANCELLED))
    assert hold.running == 0
    assert await events_of(app, job) == [
        Event.ENQUEUED, Event.CLAIMED, Event.CANCEL_REQUESTED, Event.CANCELLED,
    ]  # fmt: skip
    await app.close()
    await other.close()


async def test_cancelled_run_does_not_affect_the_others(app: Penstock) -> None:
    hold = Hold(app)
    jobs = await app.enqueue_many([hold.task.new()] * 3)
    async with working(app):
        await hold.begun(3)
        await app.cancel(jobs[1].id)
        await eventually(lambda: has(app, jobs[1], State.CANCELLED))
        assert hold.running == 2
        hold.finish.set()
    assert [await state_of(app, job) for job in jobs] == [
        State.DONE, State.CANCELLED, State.DONE,
    ]  # fmt: skip


async def test_running_thread_sees_that_it_is_cancelled(app: Penstock) -> None:
    started = threading.Event()

    @app.task
    def poll() -> None:
        started.set()
        pause = threading.Event()
        for _ in range(SOON * 100):
            if context().cancelled:
                raise InterruptedError("stopped half way")
            pause.wait(0.01)

    job = await poll.enqueue()
    async with working(app):
        assert await asyncio.to_thread(started.wait, SOON)
        await app.cancel(job.id)
        await eventually(lambda: has(app, job, State.CANCELLED))
    assert "half way" in ((await app.get(job.id)).error or "")


async def test_thread_that_finishes_in_spite_of_a_cancel_request_is_done(app: Penstock) -> None:
    started, finish = threading.Event(), threading.Event()

    @app.task
    def deaf() -> str:
        started.set()
        finish.wait(SOON)
        return "finished"

    job = await deaf.enqueue()
    async with working(app):
        assert await asyncio.to_thread(started.wait, SOON)
        await app.cancel(job.id)
        finish.set()
        await eventually(lambda: has(app, job, State.DONE))
    assert (await app.get(job.id)).returned == "finished"


# Stopping


async def test_stop_lets_running_jobs_finish_and_claims_no_more(app: Penstock) -> None:
    hold = Hold(app)
    worker = Worker(app, concurrency=1)
    running = asyncio.create_task(worker.run())
    first, second = await app.enqueue_many([hold.task.new()] * 2)
    await hold.begun()
    worker.stop()
    hold.finish.set()
    await ended(running)
    assert [await state_of(app, job) for job in (first, second)] == [State.DONE, State.PENDING]
    assert (await app.get(second.id)).attempt == 0


async def test_stop_releases_jobs_that_do_not_finish_within_its_grace(app: Penstock) -> None:
    hold = Hold(app, retry=ONCE)
    job = await hold.task.enqueue()
    async with working(app, grace=NO_TIME):
        await hold.begun()
    job = await app.get(job.id)
    assert (job.state, job.waiting, job.attempt) == (State.PENDING, Waiting.READY, 0)
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.reason) == (Event.SNOOZED, "the worker stopped")
    assert hold.running == 0


async def test_cancelling_the_worker_releases_its_jobs(app: Penstock) -> None:
    hold = Hold(app, retry=ONCE)
    jobs = await app.enqueue_many([hold.task.new()] * 3)
    running = asyncio.create_task(Worker(app, grace=HOUR).run())
    await hold.begun(3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(running)
    assert [(await app.get(job.id)).attempt for job in jobs] == [0, 0, 0]
    assert await count(app, State.PENDING) == 3


async def test_outcome_being_settled_is_not_lost_when_the_worker_is_cancelled(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    over = asyncio.Event()

    @app.task
    async def last() -> None:
        over.set()

    job = await last.enqueue()
    running = asyncio.create_task(Worker(app).run())
    await soon(over)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(running)
    assert await state_of(app, job) is State.DONE
    assert "did not stop" not in caplog.text


async def test_worker_runs_only_once(app: Penstock) -> None:
    worker = Worker(app)
    await worker.run(until_empty=True)
    with pytest.raises(ConfigurationError, match="once"):
        await worker.run()


async def test_job_with_a_cancel_request_is_not_released_but_cancelled(app: Penstock) -> None:
    started = asyncio.Event()

    @app.task
    async def slow_to_stop() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    job = await slow_to_stop.enqueue()
    async with working(app, grace=NO_TIME):
        await soon(started)
        await app.cancel(job.id)
    assert await state_of(app, job) is State.CANCELLED


@pytest.mark.usefixtures("hasty")
async def test_thread_that_does_not_end_does_not_keep_the_worker_from_stopping(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    started, finish = threading.Event(), threading.Event()

    @app.task
    def stuck() -> None:
        started.set()
        finish.wait(2 * SOON)

    job = await stuck.enqueue()
    worker = Worker(app, grace=NO_TIME)
    running = asyncio.create_task(worker.run())
    assert await asyncio.to_thread(started.wait, SOON)
    worker.stop()
    try:
        await ended(running)
    finally:
        finish.set()
    assert await state_of(app, job) is State.RUNNING  # until its lease expires
    assert f"job {job.id} did not stop" in caplog.text


@pytest.mark.usefixtures("hasty")
async def test_coroutine_that_does_not_end_does_not_keep_the_worker_from_stopping(
    app: Penstock,
) -> None:
    started = asyncio.Event()

    @app.task
    async def stuck() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    job = await stuck.enqueue()
    worker = Worker(app, grace=NO_TIME)
    running = asyncio.create_task(worker.run())
    await soon(started)
    worker.stop()
    await ended(running)
    assert await state_of(app, job) is State.RUNNING  # until its lease expires


async def test_stop_before_the_start_ends_at_once(app: Penstock) -> None:
    worker = Worker(app)
    worker.stop()
    await ended(asyncio.create_task(worker.run()))


async def test_stopped_worker_leaves_no_threads_behind(app: Penstock) -> None:
    @app.task
    def nothing() -> None:
        pass

    await nothing.enqueue()
    await work_off(app, name="leaves-nothing")

    async def gone() -> bool:
        names = [thread.name for thread in threading.enumerate()]
        return not any("leaves-nothing" in name or "leases" in name for name in names)

    await eventually(gone)


# What it survives


async def test_crashed_slot_is_replaced_and_its_job_is_not_stuck(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    execute, crashes = Run.execute, iter([RuntimeError("a bug in the worker")])

    async def crashing(
        self: Run,
        task: Task[..., Any],
        threads: Executor,
        slot: asyncio.Task[Any] | None,
    ) -> Outcome:
        for crash in crashes:
            raise crash
        return await execute(self, task, threads, slot)

    @app.task(retry=AT_ONCE)
    async def nothing() -> None:
        pass

    monkeypatch.setattr(Run, "execute", crashing)
    await app.enqueue_many([nothing.new()] * 3)
    with caplog.at_level(logging.ERROR):
        await work_off(app, concurrency=1)
    assert "a bug in the worker" in caplog.text
    assert await count(app, State.DONE) == 3


async def test_claim_is_retried_when_the_store_does_not_answer(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, failures = app.store.claim, iter([StoreUnavailable("locked")] * 3)

    async def failing(wanted: Claim) -> list[Job]:
        for failure in failures:
            raise failure
        return await claim(wanted)

    @app.task
    async def nothing() -> None:
        pass

    await app.enqueue_many([nothing.new()] * 3)
    monkeypatch.setattr(app.store, "claim", failing)
    with caplog.at_level(logging.WARNING):
        await work_off(app)
    assert caplog.text.count("locked") == 3
    assert await count(app, State.DONE) == 3


async def test_outcome_is_kept_until_the_store_accepts_it(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transition, failures = app.store.transition, iter([StoreUnavailable("full")] * 3)
    runs: list[int] = []

    async def failing(changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        for failure in failures:
            raise failure
        return await transition(changes, actor=actor)

    @app.task
    async def note() -> int:
        runs.append(1)
        return len(runs)

    await app.enqueue_many([note.new()] * 3)
    monkeypatch.setattr(app.store, "transition", failing)
    await work_off(app, concurrency=3)
    assert (await count(app, State.DONE), len(runs)) == (3, 3)


async def test_jobs_claimed_while_settling_failed_are_run(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settling and claiming are sent together; one may fail without the other."""
    transition, failures = app.store.transition, iter([StoreUnavailable("full")])

    async def failing(changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        for failure in failures:
            raise failure
        return await transition(changes, actor=actor)

    @app.task
    async def nothing() -> None:
        pass

    jobs = await app.enqueue_many([nothing.new()] * 5)
    monkeypatch.setattr(app.store, "transition", failing)
    await work_off(app, concurrency=1)
    assert [(await app.get(job.id)).state for job in jobs] == [State.DONE] * 5
    assert [(await app.get(job.id)).attempt for job in jobs] == [1] * 5


async def test_outcome_is_settled_when_the_store_answers_again_during_the_stop(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transition, failures = app.store.transition, iter([StoreUnavailable("full")] * 3)
    hold = Hold(app)

    async def failing(changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        for failure in failures:
            raise failure
        return await transition(changes, actor=actor)

    job = await hold.task.enqueue()
    async with working(app):
        await hold.begun()
        monkeypatch.setattr(app.store, "transition", failing)
        hold.finish.set()
    assert await state_of(app, job) is State.DONE


async def test_wait_is_retried_when_the_store_does_not_answer(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, failures = app.store.wait, iter([StoreUnavailable("locked")] * 3)

    async def failing(seen: int, timeout: float) -> int:
        for failure in failures:
            raise failure
        return await wait(seen, timeout)

    @app.task
    async def nothing() -> None:
        pass

    monkeypatch.setattr(app.store, "wait", failing)
    async with working(app):
        await eventually(lambda: _idle(app))
        job = await nothing.enqueue()
        await eventually(lambda: has(app, job, State.DONE))


async def test_worker_names_itself_in_the_log(app: Penstock) -> None:
    @app.task
    async def nothing() -> None:
        pass

    job = await nothing.enqueue()
    await work_off(app, name="mill")
    by = [entry.actor for entry in await app.log(job.id)]
    assert by == [app.connection.actor, "mill", "mill"]
    assert (await app.get(job.id)).worker == "mill"


async def test_workers_of_one_process_have_different_names() -> None:
    app = Penstock("memory://")
    assert Worker(app).name != Worker(app).name


async def test_handler_that_cancels_its_own_task_costs_neither_slot_nor_job(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=ONCE)
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @app.task
    async def good() -> None:
        pass

    bad, fine = await suicidal.enqueue(), await good.enqueue()
    async with working(app, concurrency=1):
        await eventually(lambda: counted(app, State.DONE, 1))
    assert await state_of(app, bad) is State.FAILED
    assert await state_of(app, fine) is State.DONE
    assert "opening another" in caplog.text


@pytest.mark.usefixtures("hasty")
async def test_threads_that_do_not_end_take_no_jobs_from_other_workers(url: str) -> None:
    app = Penstock(url)
    finish = threading.Event()
    started = threading.Semaphore(0)

    @app.task(
        retry=RetryPolicy(attempts=9, delay=timedelta(0), jitter=0),
        timeout=timedelta(milliseconds=50),
        lease=timedelta(milliseconds=200),
    )
    def hang() -> None:
        started.release()
        finish.wait(2 * SOON)

    @app.task
    async def innocent() -> None:
        pass

    try:
        await hang.enqueue()
        async with working(app, concurrency=2, grace=NO_TIME, sweep=timedelta(seconds=0.05)):
            for _ in range(2):  # the second time in the slot that was still free
                assert await asyncio.to_thread(started.acquire, timeout=SOON)
            job = await innocent.using(queue="another").enqueue()
            async with working(app, concurrency=1, queues=["another"]):  # it must not hang too
                await eventually(lambda: done(app, job))
    finally:
        finish.set()
        await app.close()


async def done(app: Penstock, job: Job) -> bool:
    return await state_of(app, job) is State.DONE


@pytest.mark.parametrize(
    "options",
    [{"queues": "mail"}, {"tags": "a"}, {"grace": 5}, {"sweep": 1}, {"concurrency": 0}],
    ids=str,
)
def test_invalid_setting_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Worker(Penstock("memory://"), **options)


@pytest.mark.parametrize("url", ["jobs.db", "sqlite:jobs.db", "sqlite:///no/such/folder/jobs.db"])
async def test_store_that_cannot_be_opened_ends_the_worker(url: str) -> None:
    with pytest.raises((ConfigurationError, StoreError)):
        await Worker(Penstock(url)).run(until_empty=True)


async def test_failures_are_logged_with_the_next_attempt(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=RetryPolicy(attempts=2, delay=timedelta(0)))
    async def broken() -> None:
        raise ValueError("no\nsecond line")

    job = await broken.enqueue()
    await work_off(app)
    first, last = (record for record in caplog.records if "broken" in record.getMessage())
    assert f"job {job.id} (broken) failed: ValueError: no; queue " in first.getMessage()
    assert ", attempt 1 of 2, " in first.getMessage()
    assert "; the next is due at " in first.getMessage()
    assert f"job {job.id} (broken) is failed: ValueError: no; queue " in last.getMessage()
    assert ", attempt 2 of 2, " in last.getMessage()
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert vars(last)["job_id"] == job.id

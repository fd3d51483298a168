import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path

import pytest

from penstock import (
    Cancel,
    JobNotFound,
    NewJob,
    Penstock,
    QueueFull,
    Snooze,
    State,
    UnknownTask,
    context,
    run_sync,
)
from penstock.testing import Clock, assert_enqueued, inline
from tests.contract.support import HOUR

variable: ContextVar[str] = ContextVar("variable", default="outside")


@pytest.fixture
def shop() -> Penstock:
    return Penstock("memory://")


def test_handler_runs_in_the_thread_of_the_caller(shop: Penstock) -> None:
    seen = []
    shop.task("t", lambda n: seen.append((n, threading.current_thread())))
    with inline(shop):
        run_sync(shop.enqueue("t", {"n": 1}))
    assert seen == [(1, threading.current_thread())]


def test_coroutine_handler_runs_from_synchronous_code(shop: Penstock) -> None:
    @shop.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    with inline(shop):
        job = run_sync(double.enqueue(4))
        assert (job.state, job.returned) == (State.DONE, 8)
        assert run_sync(shop.get(job.id)) == job
        assert_enqueued(shop, double, args={"n": 4})


async def test_in_an_event_loop(shop: Penstock) -> None:
    @shop.task
    async def fine(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @shop.task
    def plain(n: int) -> int:
        return run_sync(fine.enqueue(n)).returned  # type: ignore[no-any-return] # a number

    with inline(shop):
        assert (await fine.enqueue(1)).returned == 1
        assert (await plain.enqueue(2)).returned == 2


def test_error_surfaces_as_it_was_raised(shop: Penstock) -> None:
    error = KeyError("milk")

    @shop.task
    def fail() -> None:
        raise error

    with inline(shop):
        with pytest.raises(KeyError) as raised:
            run_sync(fail.enqueue())
        assert raised.value is error
        [job] = assert_enqueued(shop, fail)
        assert (job.state, job.attempt) == (State.FAILED, 1)
        assert "KeyError" in (job.error or "")


async def test_error_surfaces_in_an_event_loop(shop: Penstock) -> None:
    @shop.task
    def plain() -> None:
        raise StopIteration

    @shop.task
    async def awaited() -> None:
        raise KeyError

    with inline(shop):
        with pytest.raises(RuntimeError) as raised:  # as any coroutine that raises it
            await plain.enqueue()
        assert isinstance(raised.value.__cause__, StopIteration)
        with pytest.raises(KeyError):
            await awaited.enqueue()


def test_batch_runs_whole_before_its_errors_are_raised(shop: Penstock) -> None:
    ran = []

    @shop.task
    def check(n: int) -> None:
        ran.append(n)
        if n % 2:
            raise ValueError(n)

    with inline(shop), pytest.raises(ExceptionGroup) as raised:
        run_sync(shop.enqueue_many([check.new(n) for n in range(4)]))
    assert ran == [0, 1, 2, 3]
    assert [str(error) for error in raised.value.exceptions] == ["1", "3"]


def test_what_a_handler_enqueues_runs_inside_it(shop: Penstock) -> None:
    steps = []

    @shop.task
    def inner() -> None:
        steps.append("inner")

    @shop.task
    def outer() -> None:
        steps.append("begin")
        run_sync(inner.enqueue())
        steps.append("end")

    with inline(shop):
        run_sync(outer.enqueue())
    assert steps == ["begin", "inner", "end"]


def test_same_key_waits_for_the_one_before(shop: Penstock) -> None:
    steps: list[int] = []

    @shop.task
    def step(n: int) -> None:
        if n:
            run_sync(step.using(key="k").enqueue(n - 1))
        steps.append(n)

    with inline(shop):
        run_sync(step.using(key="k").enqueue(2))
    assert steps == [2, 1, 0]


def test_delay_is_not_waited_for(shop: Penstock) -> None:
    task = shop.task("t", lambda: 1)
    with inline(shop):
        assert run_sync(task.using(delay=HOUR).enqueue()).returned == 1


def test_no_transaction_is_joined(shop: Penstock) -> None:
    task = shop.task("t", lambda: 1)
    with inline(shop):
        assert run_sync(task.using(connection=object()).enqueue()).returned == 1


def test_context_and_its_variables_are_the_run_s_own(shop: Penstock) -> None:
    @shop.task
    def look() -> list[object]:
        before = variable.get()
        variable.set("inside")
        return [context().job.task, context().attempt, before]

    with inline(shop):
        assert run_sync(look.enqueue()).returned == ["look", 1, "outside"]
    assert variable.get() == "outside"
    with pytest.raises(LookupError):
        context()


def test_signals(shop: Penstock) -> None:
    @shop.task
    def snooze() -> None:
        raise Snooze(0 * HOUR)

    @shop.task
    def cancel() -> None:
        raise Cancel("no need")

    with inline(shop, clock=Clock()):
        assert run_sync(snooze.enqueue()).state is State.PENDING
        assert run_sync(cancel.enqueue()).state is State.CANCELLED


def test_result_that_is_not_json_is_an_error(shop: Penstock) -> None:
    task = shop.task("t", object)
    with inline(shop), pytest.raises(TypeError):
        run_sync(task.enqueue())


def test_store_refuses_as_ever(shop: Penstock) -> None:
    task = shop.task("t", lambda: None)
    with inline(shop):
        run_sync(shop.limits.queue("default", 0))
        with pytest.raises(QueueFull):
            run_sync(task.enqueue())


def test_task_of_nobody(shop: Penstock) -> None:
    with inline(shop), pytest.raises(UnknownTask, match="give inline the app that has it"):
        run_sync(shop.enqueue_many([NewJob(task="t", payload="{}")]))


def test_apps_of_one_store_run_each_other_s_tasks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    producer, worker = Penstock(url), Penstock(url)
    worker.task("t", lambda: 5)
    with inline(producer, worker):
        [job] = run_sync(producer.enqueue_many([NewJob(task="t", payload="{}")]))
        assert job.returned == 5
    assert list(tmp_path.iterdir()) == []


def test_apps_of_other_stores_do_not(shop: Penstock) -> None:
    other = Penstock("memory://")
    task = shop.task("t", lambda: "ours")
    other.task("t", lambda: "theirs")
    other.task("u", lambda: "theirs")
    with inline(shop, other):
        assert run_sync(task.enqueue()).returned == "ours"
        with pytest.raises(UnknownTask):
            run_sync(shop.enqueue_many([NewJob(task="u", payload="{}")]))


def test_nothing_runs_behind_the_block(shop: Penstock) -> None:
    task = shop.task("t", lambda: 1)
    with inline(shop):
        job = run_sync(task.enqueue())
    with pytest.raises(JobNotFound):
        run_sync(shop.get(job.id))
    assert run_sync(task.enqueue()).state is State.PENDING


def test_handler_says_how_far_it_is_and_saves_its_state() -> None:
    app = Penstock("memory://")

    @app.task
    def count() -> object:
        here = context()
        here.checkpoint([1])
        here.progress(1, 2)
        here.logger.info("half")
        return here.state

    with inline(app):
        job = run_sync(count.enqueue())
        assert job.returned == [1]
        progress = run_sync(app.progress(job.id))
        assert progress is not None
        assert progress.fraction == 0.5
        assert [line.text for line in run_sync(app.lines(job.id))] == ["half"]

"""What Django documents about task backends, on both databases."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import AsyncClient, override_settings
from django.utils import timezone

from penstock import InvalidJob, PenstockError, QueueFull, RetryPolicy, run_sync
from penstock.django.backend import PenstockBackend
from penstock.django.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from penstock.django.tasks import queue_priority
from penstock.jobs import Scope
from tests.crash.processes import until
from tests.django.project.shop import tasks

pytestmark = pytest.mark.every_store
ONCE = RetryPolicy(attempts=1)


def test_backend_supports_everything(site: Any) -> None:
    backend = task_backends["default"]
    assert isinstance(backend, PenstockBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_result_of_a_new_task(site: Any) -> None:
    before = timezone.now()
    result = tasks.add.enqueue(1, b=2)
    assert result.status == TaskResultStatus.READY
    assert (result.args, result.kwargs) == ([1], {"b": 2})
    assert result.task == tasks.add
    assert result.backend == "default"
    assert before - timedelta(seconds=5) <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert not result.is_finished
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert tasks.add.get_result(result.id) == result


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
def test_result_of_a_successful_task(site: Any, task: Any) -> None:
    result = task.enqueue(1, 2)
    site.work(name="worker-1")
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert (result.return_value, result.is_finished, result.errors) == (3, True, [])
    assert (result.worker_ids, result.attempts) == (["worker-1"], 1)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at
    assert result.started_at <= result.finished_at
    assert task.get_result(result.id).return_value == 3


@pytest.mark.parametrize(
    ("task", "kind", "path"),
    [
        (tasks.fail, tasks.OutOfTeaError, "tests.django.project.shop.tasks.OutOfTeaError"),
        (tasks.fail_async, ValueError, "builtins.ValueError"),
    ],
)
def test_result_of_a_failed_task(site: Any, task: Any, kind: type, path: str) -> None:
    result = task.using(retry=ONCE).enqueue()
    site.work()
    result.refresh()
    assert (result.status, result.is_finished) == (TaskResultStatus.FAILED, True)
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    (error,) = result.errors
    assert (error.exception_class_path, error.exception_class) == (path, kind)
    assert error.traceback.startswith("Traceback")
    assert "no tea" in error.traceback


def test_failed_attempts_are_repeated_and_counted(site: Any) -> None:
    result = tasks.attempt.enqueue(3)
    site.work(name="w")
    result.refresh()
    assert result.return_value == [3, result.id, 3]
    assert (result.attempts, result.worker_ids) == (3, ["w", "w", "w"])
    assert [error.exception_class for error in result.errors] == [tasks.OutOfTeaError] * 2
    assert result.started_at < result.last_attempted_at
    again = tasks.attempt_async.enqueue()
    site.work()
    again.refresh()
    assert again.return_value == 2


def test_task_is_ready_again_between_attempts(site: Any) -> None:
    result = tasks.fail.using(retry=RetryPolicy(delay=timedelta(hours=1))).enqueue()
    site.work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("READY", 1, 1)


def test_retry_by_hand_begins_again(site: Any) -> None:
    result = tasks.fail.using(retry=ONCE).enqueue()
    site.work()
    run_sync(site.app.retry(int(result.id)))
    result.refresh()
    assert (result.status, result.attempts, result.errors) == ("READY", 0, [])


def test_cancelled_task_has_failed(site: Any) -> None:
    waits, gives_up = tasks.add.enqueue(1, 2), tasks.give_up.enqueue()
    run_sync(site.app.cancel(int(waits.id), "not needed"))
    site.work()
    for result, reason in ((waits, "not needed"), (gives_up, "not today")):
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert [error.traceback for error in result.errors] == [reason]
        assert result.errors[0].exception_class.__name__ == "Cancel"


def test_snoozed_task_has_used_no_attempt(site: Any) -> None:
    result = tasks.rest.enqueue()
    site.work()
    result.refresh()
    assert (result.status, result.attempts, result.errors) == ("READY", 0, [])


def test_result_that_is_not_json_fails_for_good(site: Any) -> None:
    result = tasks.return_object.enqueue()
    site.work()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert issubclass(result.errors[0].exception_class, TypeError)


@pytest.mark.parametrize("given", ["", "x", "0", "-1", "1.0", "٣", "9" * 30, "12345"])
def test_unknown_result(site: Any, given: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(given)


def test_result_of_another_task_is_refused(site: Any) -> None:
    result = tasks.add.enqueue(1, 2)
    with pytest.raises(Exception, match="does not match"):
        tasks.fail.get_result(result.id)


async def test_everything_from_an_event_loop(site: Any) -> None:
    result = await tasks.add.aenqueue(1, 2)
    found = await tasks.add.aget_result(result.id)
    assert found == result
    await asyncio.to_thread(site.work)
    await result.arefresh()
    assert result.return_value == 3


async def test_asynchronous_view_enqueues(site: Any) -> None:
    answer = await AsyncClient().get("/buy-async/")
    assert (await tasks.add.aget_result(answer.content.decode())).args == [1, 2]


@pytest.mark.parametrize("given", [object(), {1, 2}, timezone.now()])
def test_arguments_that_are_not_json_are_refused(site: Any, given: Any) -> None:
    with pytest.raises(TypeError):
        tasks.add.enqueue(given, 1)
    assert run_sync(site.app.find()) == []


def test_arguments_that_no_reader_gets_back_are_refused(site: Any) -> None:
    with pytest.raises(InvalidJob):
        tasks.add.enqueue(float("nan"), 1)


def test_arguments_are_normalised(site: Any) -> None:
    result = tasks.add.enqueue((1, 2), b"text")
    assert result.args == [[1, 2], "text"]
    assert tasks.add.get_result(result.id).args == [[1, 2], "text"]


def test_deferred_task_is_not_run_before_its_time(site: Any) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(run_after=later).enqueue(1, 2)
    past = tasks.add.using(run_after=timezone.now() - timedelta(hours=1)).enqueue(1, 2)
    delayed = tasks.add.using(delay=timedelta(hours=1)).enqueue(1, 2)
    site.work()
    for one in (result, past, delayed):
        one.refresh()
    assert [one.status for one in (result, past, delayed)] == ["READY", "SUCCESSFUL", "READY"]
    assert tasks.add.get_result(result.id).task.run_after == later


@override_settings(USE_TZ=False)
def test_project_without_time_zones(site: Any) -> None:
    at = datetime(2030, 1, 1, 12, 0)  # noqa: DTZ001 - as such a project has them
    result = tasks.add.using(run_after=at).enqueue(1, 2)
    assert tasks.add.get_result(result.id).task.run_after == at
    assert result.enqueued_at.tzinfo is None
    job = run_sync(site.app.get(int(result.id)))
    assert job.run_at == datetime(2030, 1, 1, 11, 0, tzinfo=UTC)  # of Berlin


def test_order_of_priorities(site: Any, tmp_path: Path) -> None:
    for priority in (0, -100, 50, 100, -1, 1, -50, 0):
        tasks.note.using(priority=priority).enqueue(str(tmp_path / "order"), str(priority))
    site.work(concurrency=1)
    done = [int(line) for line in (tmp_path / "order").read_text().split()]
    assert done == [100, 50, 1, 0, 0, -1, -50, -100]


def test_priorities_keep_their_order_and_their_value(site: Any) -> None:
    steps = [queue_priority(priority) for priority in range(-100, 101)]
    assert steps == sorted(steps)
    assert (min(steps), steps[100], max(steps)) == (0, 5, 10)
    assert steps.count(5) == 1
    assert {steps.count(step) for step in range(11) if step != 5} == {20}
    result = tasks.add.using(priority=37).enqueue(1, 2)
    assert tasks.add.get_result(result.id).task.priority == 37


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 101},
        {"priority": -101},
        {"priority": 1.5},
        {"queue_name": "unknown"},
        {"run_after": datetime(2030, 1, 1)},  # noqa: DTZ001 - it has no zone
        {"retry": 3},
        {"key": ""},
        {"tags": "text"},
        {"delay": 5},
        {"timeout": timedelta(seconds=-1)},
        {"concurrency": 0},
    ],
)
def test_invalid_task_is_refused(site: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        tasks.add.using(**changes)


def test_unknown_option_is_refused(site: Any) -> None:
    with pytest.raises(TypeError):
        tasks.add.using(retries=3)


def test_function_inside_another_is_refused(site: Any) -> None:
    def inner() -> None:
        """Cannot be imported by a worker."""

    with pytest.raises(InvalidTask):
        type(tasks.add)(func=inner)


@contextmanager
def received(*signals: Any) -> Iterator[list[tuple[Any, Any]]]:
    """What signals say meanwhile: the signal, and the result as it was then."""
    seen: list[tuple[Any, Any]] = []

    def receive(signal: Any, sender: type, task_result: Any, **_: Any) -> None:
        assert sender is PenstockBackend
        seen.append((signal, copy(task_result)))
        raise RuntimeError("a receiver that fails changes nothing")

    for signal in signals:
        signal.connect(receive)
    try:
        yield seen
    finally:
        for signal in signals:
            signal.disconnect(receive)


def test_signals(site: Any) -> None:
    with received(task_enqueued, task_started, task_finished) as seen:
        a = tasks.add.enqueue(1, 2).id
        b = tasks.add_async.enqueue(1, 2).id
        c = tasks.attempt.enqueue(2).id
        d = tasks.fail.using(retry=ONCE).enqueue().id
        site.work(concurrency=1)
    enqueued, started, finished = (
        [(result.id, str(result.status)) for signal, result in seen if signal is wanted]
        for wanted in (task_enqueued, task_started, task_finished)
    )
    assert enqueued == [(job, "READY") for job in (a, b, c, d)]
    assert sorted(started) == sorted((job, "RUNNING") for job in (a, b, c, c, d))
    assert sorted(finished) == [
        (a, "SUCCESSFUL"),
        (b, "SUCCESSFUL"),
        (c, "SUCCESSFUL"),
        (d, "FAILED"),
    ]


LATE = {"timeout": timedelta(milliseconds=50), "retry": tasks.AT_ONCE}


@pytest.mark.parametrize(
    ("task", "status", "attempts"),
    [
        (tasks.overrun.using(**LATE), "FAILED", 3),
        (tasks.overrun_async.using(**LATE), "FAILED", 3),
        (tasks.overrun_and_notice.using(**LATE), "FAILED", 3),
        (tasks.give_up, "FAILED", 1),
        (tasks.rest, None, 1),
        (tasks.return_object, "FAILED", 1),
        (tasks.return_too_much, "FAILED", 1),
        (tasks.finish_then_fail, "SUCCESSFUL", 1),
        (tasks.finish_and_roll_back.using(retry=ONCE), "FAILED", 1),
        (tasks.raise_cancelled.using(retry=ONCE), "FAILED", 1),
        (tasks.raise_cancelled_async.using(retry=ONCE), "FAILED", 1),
    ],
)
def test_signal_of_the_end_is_the_stored_end(
    site: Any, task: Any, status: str | None, attempts: int
) -> None:
    with received(task_started, task_finished) as seen:
        result = task.enqueue()
        site.work()
    result.refresh()
    assert [signal for signal, _ in seen].count(task_started) == attempts
    sent = [one for signal, one in seen if signal is task_finished]
    assert [str(one.status) for one in sent] == ([] if status is None else [status])
    for one in sent:
        assert (one.status, one.attempts) == (result.status, result.attempts)
        assert [error.exception_class_path for error in one.errors] == [
            error.exception_class_path for error in result.errors
        ]
        assert one._return_value == result._return_value


@pytest.mark.parametrize("task", [tasks.await_cancel, tasks.await_cancel_async])
def test_signal_of_a_task_that_is_cancelled_while_it_runs(site: Any, task: Any) -> None:
    def cancel(task_result: Any, **_: Any) -> None:
        run_sync(site.app.cancel(int(task_result.id), "not needed"))

    task_started.connect(cancel)
    try:
        with received(task_finished) as seen:
            result = task.enqueue()
            site.work()
    finally:
        task_started.disconnect(cancel)
    result.refresh()
    ((_, sent),) = seen
    assert (sent.status, sent.errors) == (result.status, result.errors)
    assert sent.status == TaskResultStatus.FAILED


def test_worker_that_has_lost_its_task_sends_no_end(site: Any) -> None:
    started = []

    def take_away(task_result: Any, **_: Any) -> None:
        """Take the first run from its worker, and cancel the second one."""
        started.append(task_result)
        end = site.app.reset if len(started) == 1 else site.app.cancel
        run_sync(end(int(task_result.id)))

    task_started.connect(take_away)
    try:
        with received(task_finished) as seen:
            tasks.await_cancel.using(lease=timedelta(seconds=1)).enqueue()
            site.work(concurrency=2)
    finally:
        task_started.disconnect(take_away)
    assert (len(started), len(seen)) == (2, 1)


def test_dedupe_returns_the_task_that_waits(site: Any) -> None:
    once = tasks.add.using(dedupe="sum")
    first, second = once.enqueue(1, 2), once.enqueue(3, 4)
    assert (second.id, second.args) == (first.id, [1, 2])
    site.work()
    with transaction.atomic():
        again, hit = once.enqueue(5, 6), once.enqueue(7, 8)
    assert again.id == hit.id != first.id


def test_duplicate_has_the_attempts_of_the_task_that_waits(site: Any) -> None:
    once = tasks.fail.using(dedupe="tea", retry=RetryPolicy(delay=timedelta(hours=1)))
    first = once.enqueue()
    site.work(name="w")
    first.refresh()
    hit = once.enqueue()
    assert (hit.id, hit.attempts, hit.worker_ids) == (first.id, 1, ["w"])
    assert hit.errors == first.errors
    with transaction.atomic():
        assert once.enqueue() == hit


def test_tasks_of_a_key_run_in_their_order(site: Any, tmp_path: Path) -> None:
    path = tmp_path / "order"
    for n in range(10):
        tasks.note.using(key="customer:7", priority=n * 10).enqueue(str(path), str(n))
    site.work()
    assert path.read_text().split() == [str(n) for n in range(10)]


def test_limit_of_a_task_holds_in_all_workers(site: Any) -> None:
    limited = tasks.add.using(concurrency=1)
    try:
        tasks.add, kept = limited, tasks.add
        limited.enqueue(1, 2)
        limited.enqueue(1, 2)
        site.work()
    finally:
        tasks.add = kept
    limits = {limit.name: limit.concurrency for limit in run_sync(site.app.limits.list())}
    assert limits == {limited.module_path: 1}


def test_options_of_a_task_are_those_of_its_jobs(site: Any) -> None:
    given = {
        "throttle": "mailer",
        "tenant": "acme",
        "dedupe": "sum",
        "scope": Scope.UNFINISHED,
        "timeout": timedelta(minutes=1),
        "lease": timedelta(minutes=2),
    }
    result = tasks.add.using(**given, tags=["gpu", "eu"]).enqueue(1, 2)
    job = run_sync(site.app.get(int(result.id)))
    assert {name: getattr(job, name) for name in given if name != "lease"} == {
        name: value for name, value in given.items() if name != "lease"
    }
    assert job.lease_time == given["lease"]
    assert sorted(job.tags) == ["eu", "gpu"]
    site.work(tags=["eu"])
    result.refresh()
    assert result.return_value == 3


def test_worker_with_other_tags_leaves_a_task(site: Any) -> None:
    result = tasks.add.using(tags=["gpu"]).enqueue(1, 2)
    site.work(tags=["eu"])
    result.refresh()
    assert result.status == TaskResultStatus.READY


def test_full_queue_refuses_tasks(site: Any) -> None:
    run_sync(site.app.limits.queue("default", 1))
    tasks.add.enqueue(1, 2)
    with pytest.raises(QueueFull):
        tasks.add.enqueue(1, 2)


def test_periodic_task_is_enqueued_by_workers(site: Any) -> None:
    site.work()
    (schedule,) = run_sync(site.app.schedules.list())
    assert schedule.name == tasks.tick.module_path
    job = run_sync(site.app.schedules.run_now(schedule.name))
    site.work()
    result = tasks.tick.get_result(str(job.id))
    assert (result.return_value, result.backend, result.task.priority) == ("tock", "default", 0)


def test_task_enqueues_another(site: Any) -> None:
    result = tasks.enqueue_another.enqueue()
    site.work()
    result.refresh()
    assert tasks.add.get_result(result.return_value).return_value == 7


def connections_left() -> int:
    """How many connections other than this one have read orders last; each takes time to end."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE '%shop_order%' AND pid <> pg_backend_pid()"
        )
        (count,) = cursor.fetchone()
        return int(count)


def test_connections_of_tasks_are_closed_as_after_a_request(site: Any) -> None:
    for _ in range(30):
        tasks.settings_of_connection.enqueue()
    site.work(concurrency=3)
    if connection.vendor == "postgresql":
        until(lambda: connections_left() == 0, "connections stay open")
    assert {job.returned for job in run_sync(site.app.find())} == {True}


def test_task_that_no_module_declares_is_not_imported(site: Any) -> None:
    from penstock import NewJob

    new = NewJob(task="antigravity.fly", payload='{"args": []}')
    (job,) = run_sync(site.app.enqueue_many([new]))
    with pytest.raises(PenstockError, match="modules"):
        task_backends["default"].get_result(str(job.id))
    site.work()
    assert run_sync(site.app.get(job.id)).attempt == 0
    assert "antigravity" not in sys.modules

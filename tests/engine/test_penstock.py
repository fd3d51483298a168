"""Penstock, the object users hold: on every store, unless a test is about one of them."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from penstock import (
    ConfigurationError,
    InvalidJob,
    Job,
    JobNotFound,
    JobQuery,
    Penstock,
    QueueFull,
    State,
    Task,
    TransitionRefused,
    UnknownTask,
    run_sync,
)
from penstock.core.transition import Change
from penstock.jobs import Event, Waiting
from penstock.leases import Done, Failed
from tests.contract.support import HOUR, ids, new
from tests.engine.support import LONG, add_one, claim_one, events_of

# Synchronous callers


def test_synchronous_code_reaches_everything_through_the_bridge(
    app: Penstock, greet: Task[[str], str]
) -> None:
    job = run_sync(greet.enqueue("you"))
    [claimed] = run_sync(app.leases.claim(worker="w"))
    run_sync(app.leases.renew([claimed.lease]))
    [done] = run_sync(app.leases.settle([(claimed, Done('"hi"'))]))
    assert (done.id, done.returned) == (job.id, "hi")
    assert run_sync(app.get(job.id)) == done
    assert len(run_sync(app.log(job.id))) == 3
    assert run_sync(app.explain(job.id)).reason == "finished"
    assert run_sync(app.queues.drain(timeout=LONG)).status == "drained"


def test_threads_may_share_one_penstock(app: Penstock, greet: Task[[str], str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda n: run_sync(greet.enqueue(str(n))), range(200)))
    assert len(set(ids(jobs))) == 200
    assert {job.args["name"] for job in run_sync(app.find(JobQuery(limit=500)))} == {
        str(n) for n in range(200)
    }


async def test_thread_next_to_an_event_loop_may_use_the_bridge(
    app: Penstock, greet: Task[[str], str]
) -> None:
    job = await asyncio.to_thread(lambda: run_sync(greet.enqueue("you")))
    assert await app.get(job.id) == job


async def test_bridge_inside_an_event_loop_is_refused_and_changes_nothing(
    app: Penstock, greet: Task[[str], str]
) -> None:
    with pytest.raises(ConfigurationError, match="await"):
        run_sync(greet.enqueue("you"))
    # The store answers in order: what was left behind would come first.
    job = await greet.enqueue("me")
    assert await app.find() == [job]


def test_bridge_passes_errors_on(app: Penstock) -> None:
    with pytest.raises(JobNotFound):
        run_sync(app.get(7))


# Enqueuing


async def test_job_is_enqueued_by_name_with_arguments_by_theirs(
    app: Penstock, greet: Task[[str], str]
) -> None:
    job = await app.enqueue("greet", {"name": "you"}, priority=7, tags=["x"])
    assert (job.task, job.args, job.priority, job.tags) == ("greet", {"name": "you"}, 7, ("x",))
    assert await app.get(job.id) == job


async def test_task_without_arguments_is_enqueued_by_its_name_alone(app: Penstock) -> None:
    app.task("t", lambda: None)
    assert (await app.enqueue("t")).args == {}


async def test_unknown_task_is_refused_with_the_known_ones(
    app: Penstock, greet: Task[[str], str]
) -> None:
    with pytest.raises(UnknownTask, match=r"'great'.*greet"):
        await app.enqueue("great", {"name": "you"})
    assert await app.find() == []


@pytest.mark.parametrize("args", [["you"], "you", 5, [], "", 0, {1: "you"}, {"self": "you"}])
async def test_arguments_by_name_have_to_be_a_mapping_of_names(args: Any) -> None:
    app = Penstock("memory://")
    app.task("t", lambda: None)
    with pytest.raises(InvalidJob):
        await app.enqueue("t", args)
    assert await app.find() == []


async def test_many_jobs_are_stored_in_their_order(app: Penstock) -> None:
    jobs = await app.enqueue_many([new(task=f"t{n}") for n in range(5)])
    assert ids(jobs) == sorted(ids(jobs))
    assert [job.task for job in await app.find(JobQuery(newest_first=False))] == [
        f"t{n}" for n in range(5)
    ]


async def test_one_invalid_job_keeps_the_whole_call_from_being_stored(app: Penstock) -> None:
    with pytest.raises(InvalidJob):
        await app.enqueue_many([new(), new(priority=11), new()])
    assert await app.find() == []
    assert await app.log() == []


async def test_full_queue_keeps_the_whole_call_from_being_stored(app: Penstock) -> None:
    await app.limits.queue("small", 2)
    with pytest.raises(QueueFull):
        await app.enqueue_many([new(), *[new(queue="small")] * 3])
    assert await app.find() == []


async def test_no_jobs_are_no_trouble(app: Penstock) -> None:
    assert await app.enqueue_many([]) == []


async def test_job_for_a_task_of_another_program_can_be_stored(app: Penstock) -> None:
    job = await add_one(app, task="elsewhere", payload='{"n":1}')
    assert (job.task, job.args) == ("elsewhere", {"n": 1})


# Looking


async def test_unknown_job_is_not_found(app: Penstock) -> None:
    for call in (app.get, app.cancel, app.retry, app.explain):
        with pytest.raises(JobNotFound, match="no job 99"):
            await call(99)


async def test_log_pages_behind_an_entry(app: Penstock) -> None:
    jobs = await app.enqueue_many([new()] * 5)
    first = await app.log(limit=2)
    rest = await app.log(after=first[-1].id)
    assert [entry.job_id for entry in first + rest] == ids(jobs)
    await app.cancel(jobs[0].id)
    assert [entry.event for entry in await app.log(jobs[0].id, after=first[0].id)] == [
        Event.CANCELLED
    ]


async def test_jobs_are_found_newest_first_unless_asked_otherwise(app: Penstock) -> None:
    jobs = await app.enqueue_many([new()] * 3)
    assert ids(await app.find()) == ids(jobs)[::-1]
    assert ids(await app.find(JobQuery(newest_first=False))) == ids(jobs)


# Steering


async def test_pending_job_is_cancelled_with_its_reason(app: Penstock) -> None:
    job = await app.cancel((await add_one(app)).id, "not needed")
    assert job.state is State.CANCELLED
    *_, entry = await app.log(job.id)
    assert (entry.event, entry.reason) == (Event.CANCELLED, "not needed")


async def test_finished_job_cannot_be_cancelled(app: Penstock) -> None:
    await add_one(app)
    [job] = await app.leases.settle([(await claim_one(app), Done())])
    with pytest.raises(TransitionRefused, match=f"job {job.id} is done"):
        await app.cancel(job.id)
    assert await app.get(job.id) == job


async def test_failed_job_runs_again_with_all_its_attempts(app: Penstock) -> None:
    await add_one(app)
    [failed] = await app.leases.settle([(await claim_one(app), Failed("no", permanent=True))])
    again = await app.retry(failed.id, "fixed")
    assert (again.state, again.attempt, again.error) == (State.PENDING, 0, None)
    assert (await claim_one(app)).id == failed.id
    assert [entry.reason for entry in await app.log(failed.id)][-2] == "fixed"


async def test_reset_takes_a_running_job_from_its_worker(app: Penstock) -> None:
    job = await add_one(app)
    held = await claim_one(app)
    with pytest.raises(TransitionRefused, match="use reset to take it from its worker"):
        await app.retry(job.id)
    back = await app.reset(job.id, "silent")
    assert (back.state, back.attempt) == (State.PENDING, 0)
    assert (await app.log(job.id))[-1].reason == "silent"
    assert await app.leases.settle_held([(held, Done())]) == [None]
    assert (await claim_one(app)).token > held.token


async def test_one_job_gets_another_priority(app: Penstock) -> None:
    await add_one(app)
    late = await add_one(app)
    moved = await app.set_priority(late.id, 9, "urgent")
    assert moved.priority == 9
    assert (await app.log(late.id))[-1].reason == "urgent"
    assert (await claim_one(app)).id == late.id
    with pytest.raises(TransitionRefused, match="running"):
        await app.set_priority(late.id, 1)
    with pytest.raises(InvalidJob, match="from 0 to 10"):
        await app.set_priority(late.id, 11)
    with pytest.raises(JobNotFound):
        await app.set_priority(99, 1)


async def test_finished_job_is_removed_with_its_log(app: Penstock) -> None:
    await add_one(app)
    [job] = await app.leases.settle([(await claim_one(app), Done())])
    assert await app.delete(job.id) == job
    for call in (app.get, app.log, app.delete):
        with pytest.raises(JobNotFound):
            await call(job.id)


async def test_unfinished_job_is_not_removed(app: Penstock) -> None:
    job = await add_one(app)
    with pytest.raises(TransitionRefused, match=f"job {job.id} is pending"):
        await app.delete(job.id)
    await claim_one(app)
    with pytest.raises(TransitionRefused, match=f"job {job.id} is running"):
        await app.delete(job.id)
    assert (await app.get(job.id)).state is State.RUNNING


async def test_scheduled_job_is_made_to_run_now(app: Penstock) -> None:
    job = await add_one(app, delay=HOUR)
    assert (await app.retry(job.id)).waiting is Waiting.READY


@pytest.mark.parametrize("state", [State.RUNNING, State.DONE])
async def test_running_or_done_job_cannot_be_retried(app: Penstock, state: State) -> None:
    await add_one(app)
    job = await claim_one(app)
    if state is State.DONE:
        await app.leases.settle([(job, Done())])
    with pytest.raises(TransitionRefused, match=f"is {state}"):
        await app.retry(job.id)
    assert Event.RESET not in await events_of(app, job)


async def test_retry_is_refused_while_another_holds_the_dedupe_key(app: Penstock) -> None:
    old = await add_one(app, dedupe="d")
    await app.cancel(old.id)
    newer = await add_one(app, dedupe="d")
    with pytest.raises(TransitionRefused, match=f"job {newer.id} holds its dedupe key 'd'"):
        await app.retry(old.id)


async def test_decision_is_made_anew_when_the_job_changed_meanwhile(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker claims it between the look and the write: then it is asked to stop."""
    job = await add_one(app)
    transition = app.store.transition

    async def claimed_before(changes: Sequence[Change], *, actor: str) -> list[Job | None]:
        await app.leases.claim(worker="quick")
        return await transition(changes, actor=actor)

    monkeypatch.setattr(app.store, "transition", claimed_before)
    job = await app.cancel(job.id)
    assert (job.state, job.cancel_requested) == (State.RUNNING, True)


# What is asked for wrongly is said clearly


@pytest.mark.parametrize("wrong", [0, -1, 2**70, "x", 1.5, True, None])
async def test_limit_of_an_answer_is_checked(app: Penstock, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit must be an integer of at least 1"):
        await app.leases.claim(worker="w", limit=wrong)
    with pytest.raises(ConfigurationError, match="limit must be"):
        await app.log(limit=wrong)


@pytest.mark.parametrize("wrong", [-1, 2**70, "x", 1.5, True])
async def test_limit_of_a_queue_is_checked(app: Penstock, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit must be an integer of at least 0"):
        await app.limits.queue("q", wrong)


@pytest.mark.parametrize("wrong", [[1], [None], ["job"], 5, "jobs", None])
async def test_what_is_no_job_is_not_enqueued(app: Penstock, wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="NewJob"):
        await app.enqueue_many(wrong)


@pytest.mark.parametrize("wrong", ["failed", ["odd"], 5, {"odd"}])
def test_states_of_a_query_are_checked(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="states must be a collection of states"):
        JobQuery(states=wrong)


def test_states_of_a_query_may_be_any_collection() -> None:
    expected = JobQuery(states=frozenset({State.FAILED}))
    for states in ({State.FAILED}, [State.FAILED], ("failed",)):
        assert JobQuery(states=states) == expected  # type: ignore[arg-type] # any collection of states


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), "yesterday", 5])  # noqa: DTZ001 - without a zone on purpose
def test_instant_of_a_query_is_checked(wrong: Any) -> None:
    for name in ("since", "before"):
        with pytest.raises(ConfigurationError, match=f"{name} .* time zone"):
            JobQuery(**{name: wrong})


async def test_log_of_an_unknown_job_is_not_found(app: Penstock, greet: Task[[str], str]) -> None:
    with pytest.raises(JobNotFound, match="no job 9999"):
        await app.log(9999)
    job = await greet.enqueue("Ada")
    assert await app.log(job.id, after=job.version) == []


def test_options_of_using_are_checked_at_once(app: Penstock, greet: Task[[str], str]) -> None:
    with pytest.raises(InvalidJob, match="priority"):
        greet.using(priority=11)
    with pytest.raises(InvalidJob, match="queue"):
        greet.using(queue="")

"""Why a job is not running, or how it ended."""

from datetime import datetime
from typing import Any

import pytest

from penstock import (
    Penstock,
)
from penstock.core.tasks import AnnouncedTask
from penstock.core.workers import WorkerInfo
from penstock.engine.explanation import explain
from penstock.leases import Cancelled, Done, Failed
from tests.contract.support import HOUR, ManualClock, new
from tests.engine.support import add_one, claim_one

# Explaining


async def test_ready_job_waits_for_a_worker(app: Penstock) -> None:
    why = await app.explain((await add_one(app)).id)
    assert (why.reason, why.blocked_by) == ("ready", None)
    assert why.text == "it is ready; no free worker has claimed it yet"


async def test_scheduled_job_says_when_its_time_comes(app: Penstock) -> None:
    why = await app.explain((await add_one(app, delay=HOUR)).id)
    assert (why.reason, why.text) == ("scheduled", "it is scheduled for 2030-01-01 01:00:00 UTC")


async def test_job_that_is_tried_again_says_what_failed(app: Penstock) -> None:
    await add_one(app)
    [job] = await app.leases.settle([(await claim_one(app), Failed("Traceback\nValueError: no"))])
    why = await app.explain(job.id)
    assert why.reason == "scheduled"
    assert why.text == (
        "it is scheduled for 2030-01-01 00:00:10 UTC, after attempt 1 of 2 failed: ValueError: no"
    )


async def test_blocked_job_names_the_holder_of_its_key(app: Penstock) -> None:
    first, second, third = await app.enqueue_many([new(key="k")] * 3)
    why = await app.explain(third.id)
    assert (why.reason, why.blocked_by) == ("blocked", first.id)
    assert why.text == f"job {first.id}, which is pending, holds its key 'k'"
    await app.leases.claim(worker="w")
    why = await app.explain(second.id)
    assert (why.blocked_by, "running" in why.text) == (first.id, True)


async def test_job_whose_needs_end_while_it_is_explained(app: Penstock) -> None:
    first = await add_one(app)
    second = await add_one(app, after=(first.id,))
    await app.leases.settle([((await claim_one(app)), Done())])
    assert (await explain(app.connection, second)).reason == "ready"


async def test_job_blocked_by_a_younger_one_that_runs_names_it(app: Penstock) -> None:
    old = await add_one(app, key="k")
    await app.cancel(old.id)
    young = await add_one(app, key="k")
    await claim_one(app)
    await app.retry(old.id)
    assert (await app.explain(old.id)).blocked_by == young.id


async def test_job_of_a_paused_queue_is_held(app: Penstock) -> None:
    job = await add_one(app, queue="mail")
    await app.queues.pause("mail")
    why = await app.explain(job.id)
    assert (why.reason, why.text) == (
        "held",
        "queue 'mail' is paused; resume it to start its jobs",
    )


async def test_running_job_names_its_worker(app: Penstock) -> None:
    job = await add_one(app)
    await claim_one(app, "mill")
    why = await app.explain(job.id)
    text = "it runs on mill, attempt 1 of 2, leased until 2030-01-01 00:00:30 UTC"
    assert (why.reason, why.text) == ("running", text)
    await app.cancel(job.id)
    assert (await app.explain(job.id)).text == f"{text}; it was asked to stop"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Done(), "it finished at 2030-01-01 00:00:00 UTC"),
        (
            Failed("Traceback\nValueError: no", permanent=True),
            "it failed at 2030-01-01 00:00:00 UTC: ValueError: no",
        ),
        (Cancelled("why"), "it was cancelled at 2030-01-01 00:00:00 UTC: why"),
    ],
)
async def test_finished_job_says_how_it_ended(app: Penstock, outcome: Any, text: str) -> None:
    await add_one(app)
    [job] = await app.leases.settle([(await claim_one(app), outcome)])
    why = await app.explain(job.id)
    assert (why.reason, why.text) == ("finished", text)


@pytest.mark.parametrize("error", ["", "\n", " \n\n"])
async def test_empty_error_can_be_explained(app: Penstock, error: str) -> None:
    await add_one(app)
    [job] = await app.leases.settle([(await claim_one(app), Failed(error, permanent=True))])
    assert (await app.explain(job.id)).reason == "finished"


async def test_explain_says_what_a_job_waits_for(app: Penstock) -> None:
    @app.task
    async def step() -> None: ...

    first, second = await step.enqueue(), await step.enqueue()
    waiting = await step.using(after=[first, second]).enqueue()
    explanation = await app.explain(waiting.id)
    assert explanation.reason == "blocked"
    assert explanation.blocked_by == first.id
    assert explanation.text == f"it waits for job {first.id}, which is pending, and for 1 more"


# Unknown tasks

SEND = AnnouncedTask(name="send", oldest=2, newest=3)


def worker(name: str, now: datetime, **fields: Any) -> WorkerInfo:
    return WorkerInfo(
        name=name, host=f"host-of-{name}", pid=1, concurrency=1, seen_at=now, **fields
    )


async def why_of(app: Penstock, task: str, version: int = 1, queue: str = "default") -> str:
    [job] = await app.enqueue_many([new(task=task, task_version=version, queue=queue)])
    return (await app.explain(job.id)).text


async def test_job_of_a_task_that_no_live_worker_knows_says_so(
    app: Penstock, clock: ManualClock
) -> None:
    await app.store.heartbeat([worker("old", clock.now, tasks=(AnnouncedTask(name="gone"),))])
    clock.advance(HOUR)
    await app.store.heartbeat([worker("new", clock.now, tasks=(SEND,))])
    [job] = await app.enqueue_many([new(task="gone")])
    assert (await app.explain(job.id)).reason == "held"
    assert await why_of(app, "gone") == (
        "no live worker knows task 'gone' (last seen on host-of-old at 2030-01-01 00:00:00 UTC)"
    )
    assert await why_of(app, "never") == (
        "no live worker knows task 'never'; no worker has announced it"
    )
    assert await why_of(app, "send", 1) == (
        "no live worker takes version 1 of task 'send'; no worker has announced it"
    )
    assert await why_of(app, "send", 3) == "it is ready; no free worker has claimed it yet"


async def test_worker_that_does_not_say_its_tasks_may_know_any(
    app: Penstock, clock: ManualClock
) -> None:
    silent = (worker("new", clock.now, tasks=(SEND,)), worker("older program", clock.now))
    await app.store.heartbeat(silent)
    assert await why_of(app, "any") == "it is ready; no free worker has claimed it yet"


async def test_jobs_of_a_reserved_queue_need_no_announced_task(
    app: Penstock, clock: ManualClock
) -> None:
    app.limits.reserve("events")
    await app.store.heartbeat([worker("new", clock.now, tasks=(SEND,))])
    assert await why_of(app, "event", queue="events") == (
        "it is ready; no free worker has claimed it yet"
    )

"""Simulated runs of an app's tasks: repeatable, without real time, and they find real bugs."""

import asyncio
from datetime import timedelta

import pytest

from penstock import Penstock, RetryPolicy, State, context
from penstock.testing import simulate

SECOND = timedelta(seconds=1)
RETRY = RetryPolicy(attempts=10, delay=SECOND)


def shop(*, careful: bool) -> tuple[Penstock, dict[int, int]]:
    """An app that charges orders, and how often each was charged."""
    app = Penstock("memory://")
    charged: dict[int, int] = {}
    requests: set[str] = set()

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def charge(order: int) -> None:
        await asyncio.sleep(0.1)  # asks the payment service
        request = f"order-{order}" if careful else f"run-{context().job.token}"
        if request not in requests:
            requests.add(request)
            charged[order] = charged.get(order, 0) + 1
        await asyncio.sleep(0.1)  # stores the answer

    return app, charged


def twice(app: Penstock, charged: dict[int, int], seed: int) -> list[int]:
    charge = app.tasks["charge"]
    simulate(app, [charge.new(order=n) for n in range(5)], seed=seed)
    return [order for order, times in charged.items() if times != 1]


def test_a_handler_that_is_not_safe_to_run_twice_is_found() -> None:
    found = [seed for seed in range(10) if twice(*shop(careful=False), seed)]
    assert found


def test_a_handler_that_is_safe_passes() -> None:
    assert [seed for seed in range(10) if twice(*shop(careful=True), seed)] == []


def test_seed_tells_the_same_story_every_time() -> None:
    def story(seed: int) -> str:
        app, _ = shop(careful=True)
        return simulate(app, [app.tasks["charge"].new(order=1)], seed=seed).story

    assert story(3) == story(3)
    assert len({story(seed) for seed in range(5)}) > 1
    assert "claimed" in story(3)


def test_time_is_virtual_and_jobs_enqueue_others() -> None:
    app = Penstock("memory://")

    @app.task(retry=RETRY)
    async def later() -> None:
        await asyncio.sleep(60)

    @app.task(retry=RETRY)
    async def first() -> None:
        await later.using(delay=timedelta(minutes=9), dedupe="later").enqueue()

    result = simulate(app, [first.new()], seed=1)
    assert {job.task for job in result.jobs} == {"first", "later"}
    assert all(job.state is State.DONE for job in result.jobs)
    assert result.jobs[-1].finished_at is not None
    assert result.jobs[-1].finished_at - result.jobs[0].enqueued_at >= timedelta(minutes=10)


def test_plain_functions_run_in_simulated_threads() -> None:
    app = Penstock("memory://")
    runs: list[int] = []

    @app.task(lease=10 * SECOND, retry=RETRY)
    def plain(n: int) -> None:
        runs.append(n)

    result = simulate(app, [plain.new(n=n) for n in range(3)], seed=5, faults=0)
    assert [job.state for job in result.jobs] == [State.DONE] * 3
    assert sorted(runs) == [0, 1, 2]


def test_job_that_never_ends_is_reported() -> None:
    app = Penstock("memory://")

    @app.task(retry=RETRY)
    async def endless() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="seed 1"):
        simulate(app, [endless.new()], seed=1, faults=0, within=timedelta(minutes=5))

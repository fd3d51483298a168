"""Limits and fair shares as users set them and ask about them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigurationError, InvalidJob, Job, NewJob, Penstock, State, Worker
from penstock.jobs import Waiting
from penstock.queues import Limit
from penstock.tables import Tables
from tests.contract.support import SECOND, ManualClock
from tests.environment import SOON


@pytest.fixture(params=["memory://", "sqlite:///jobs.db"])
async def app(
    request: pytest.FixtureRequest,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Penstock]:
    monkeypatch.chdir(tmp_path)
    async with Penstock(request.param, clock=clock) as opened:
        yield opened


async def add(app: Penstock, n: int = 1, **options: Any) -> list[Job]:
    return await app.enqueue_many([NewJob(**{"task": "t", "payload": "{}", **options})] * n)


async def test_limit_changes_only_what_it_names(app: Penstock) -> None:
    await app.limits.queue("q", 7)
    await app.limits.queue("q", concurrency=5)
    queue = await app.limits.queue("q", rate=(100, SECOND), promote_after=60 * SECOND)
    assert (queue.max_pending, queue.concurrency) == (7, 5)
    queue = await app.limits.queue("q", rate=None)
    assert (queue.rate, queue.concurrency, queue.promote_after) == (None, 5, 60 * SECOND)


@pytest.mark.parametrize(
    "limits",
    [
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"rate": (0, SECOND)},
        {"rate": (1, 1)},
        {"rate": (1, timedelta(0))},
        {"rate": (True, SECOND)},
        {"rate": 5},
        {"promote_after": timedelta(0)},
        {"promote_after": 60},
        {"promote_after": -SECOND},
        {"promote_after": ()},
        {"promote_after": (SECOND, timedelta(0))},
        {"promote_after": [SECOND]},
    ],
)
async def test_limit_that_cannot_be_kept_is_refused(app: Penstock, limits: Any) -> None:
    with pytest.raises(ConfigurationError):
        await app.limits.queue("q", **limits)
    assert await app.queues.list() == []


async def test_task_and_throttle_limits_are_checked(app: Penstock) -> None:
    for wrong in (0, -1, 1.5, "3"):
        with pytest.raises(ConfigurationError, match="concurrency"):
            await app.limits.task("t", wrong)  # type: ignore[arg-type] # is what is refused
        with pytest.raises(ConfigurationError, match="concurrency"):
            await app.limits.throttle("t", wrong)  # type: ignore[arg-type] # is what is refused
    with pytest.raises(InvalidJob, match="task"):
        await app.limits.task("", 1)
    with pytest.raises(InvalidJob, match="prefix"):
        await app.limits.throttle("a\0", 1)
    assert await app.limits.list() == []


async def test_limit_of_a_task_is_stored_by_the_first_claim(app: Penstock) -> None:
    @app.task(concurrency=2)
    def slow() -> None: ...

    app.task("other", lambda: None, concurrency=3)
    await add(app, 5, task="slow")
    assert await app.limits.list() == []
    assert len(await app.leases.claim(worker="w", limit=9)) == 2
    assert await app.limits.list() == [
        Limit(kind="task", name="other", concurrency=3),
        Limit(kind="task", name="slow", concurrency=2),
    ]


async def test_limit_set_by_hand_outlasts_the_one_in_the_program(app: Penstock) -> None:
    app.task("slow", lambda: None, concurrency=2)
    await app.leases.claim(worker="w")
    await app.limits.task("slow", 4)
    await add(app, 9, task="slow")
    assert len(await app.leases.claim(worker="w", limit=9)) == 4


def test_wrong_concurrency_of_a_task_is_refused() -> None:
    app = Penstock("memory://")
    with pytest.raises(ConfigurationError, match="pause"):
        app.task("t", lambda: None, concurrency=0)
    assert app.tasks == {}


async def test_throttle_is_an_option_of_jobs(app: Penstock) -> None:
    @app.task(throttle="default")
    def call() -> None: ...

    assert (await call.enqueue()).throttle == "default"
    assert (await call.using(throttle="customer-7").enqueue()).throttle == "customer-7"
    assert (await app.enqueue("call", throttle="customer-8")).throttle == "customer-8"
    with pytest.raises(InvalidJob, match="throttle"):
        await app.enqueue("call", throttle="")


async def test_explanation_names_what_holds_a_job(app: Penstock, clock: ManualClock) -> None:
    await app.limits.queue("q", concurrency=1)
    _, waiting = await add(app, 2, queue="q")
    assert (await app.explain(waiting.id)).reason == "ready"
    await app.leases.claim(worker="w", limit=9)
    explained = await app.explain(waiting.id)
    assert (explained.reason, explained.text) == ("held", "queue 'q' runs 1 of 1")
    assert (await app.get(waiting.id)).waiting is Waiting.READY


async def test_explanation_of_task_throttle_and_rate(app: Penstock, clock: ManualClock) -> None:
    await app.limits.task("t", 1)
    await app.limits.throttle("customer-", 1)
    await app.limits.queue("q", rate=(1, SECOND))
    _, waiting = await add(app, 2, queue="q", throttle="customer-7")
    await app.leases.claim(worker="w", limit=9)
    explained = await app.explain(waiting.id)
    assert explained.reason == "held"
    assert explained.text == (
        "1 of 1 jobs of queue 'q' have started within its rate, "
        "the next can start at 2030-01-01 00:00:01 UTC; task 't' runs 1 of 1; "
        "throttle 'customer-7' runs 1 of 1"
    )


async def test_scheduled_job_is_explained_by_its_time(app: Penstock) -> None:
    await app.limits.queue("q", concurrency=1)
    [job] = await add(app, queue="q", delay=SECOND)
    await add(app, queue="q")
    await app.leases.claim(worker="w", limit=9)
    assert (await app.explain(job.id)).reason == "scheduled"


async def test_job_that_fell_due_is_explained_by_what_holds_it(
    app: Penstock, clock: ManualClock
) -> None:
    await app.limits.queue("q", concurrency=1)
    [job] = await add(app, queue="q", delay=SECOND)
    await add(app, queue="q")
    await app.leases.claim(worker="w", limit=9)
    clock.advance(SECOND)
    assert (await app.explain(job.id)).reason == "held"


async def work_off(app: Penstock, workers: int) -> None:
    async with asyncio.TaskGroup() as group:
        working = [Worker(app, concurrency=10) for _ in range(workers)]
        for worker in working:
            group.create_task(worker.run())
        assert (await app.queues.drain(timeout=SOON * SECOND)).status == "drained"
        for worker in working:
            worker.stop()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
async def test_workers_come_to_an_end_under_every_limit(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    running: dict[str, int] = {}
    highest: dict[str, int] = {}

    async with Penstock(url) as app:

        @app.task(concurrency=3)
        async def work(names: list[str]) -> None:
            for name in names:
                running[name] = running.get(name, 0) + 1
                highest[name] = max(highest.get(name, 0), running[name])
            await asyncio.sleep(0)
            for name in names:
                running[name] -= 1

        await app.limits.queue("narrow", concurrency=2)
        await app.limits.queue("rated", rate=(10, timedelta(milliseconds=50)))
        for n in range(60):
            queue, throttle = ("narrow", "rated", "wide")[n % 3], f"c{n % 4}"
            names = ["task", queue, throttle]
            tenant = f"t{n % 2}"
            await work.using(queue=queue, throttle=throttle, tenant=tenant).enqueue(names)
        await work_off(app, 2)
        assert {job.state for job in await app.find()} == {State.DONE}
        assert highest["task"] <= 3
        assert highest["narrow"] <= 2
        assert max(highest[f"c{n}"] for n in range(4)) == 1


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
async def test_worker_is_woken_when_the_rate_allows_the_next(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Looking now and then must not be what saves it, nor a look soon after the last commit.
    monkeypatch.setattr("penstock.worker.worker._LOOK_AGAIN", 600)
    async with Penstock(url) as app:
        app.task("t", lambda: None)
        await app.limits.queue("default", rate=(1, timedelta(milliseconds=300)))
        await add(app, 3)
        await work_off(app, 1)


async def test_reserved_queues_are_stored_before_the_first_job(app: Penstock) -> None:
    app.limits.reserve("events", "entries")
    assert await app.store.limits() == []
    assert await app.limits.reserved() == {"events", "entries"}
    await add(app)
    expected = [Limit(kind="reserved", name=name, concurrency=0) for name in ("entries", "events")]
    assert await app.store.limits() == expected
    app.limits.reserve("events")
    await add(app)
    assert await app.store.limits() == expected
    assert await app.limits.list() == []


async def test_reserved_queues_are_stored_with_claims(app: Penstock) -> None:
    app.limits.reserve("events")
    await app.leases.claim(worker="w")
    assert [one.name for one in await app.store.limits()] == ["events"]


async def test_reserved_queues_are_stored_with_transactions_and_tables(tmp_path: Path) -> None:
    async with Penstock(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.limits.reserve("one")
        await app.transaction(lambda tx: tx.enqueue([NewJob(task="t", payload="{}", queue="one")]))
        app.limits.reserve("two")
        await app.tables.prepare("own", Tables(sqlite=("CREATE TABLE own (n)",), postgres=()))
        assert [one.name for one in await app.store.limits()] == ["one", "two"]


async def test_name_of_a_reserved_queue_is_checked(app: Penstock) -> None:
    with pytest.raises(InvalidJob, match="queue"):
        app.limits.reserve("")

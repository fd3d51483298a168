"""Simulated runs of an app's tasks: repeatable, without real time, and they find real bugs."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from penstock import Penstock, RetryPolicy, State, context
from penstock.core.errors import PayloadTooLarge
from penstock.testing import drain, fresh, simulate, simulate_every_kill
from penstock.testing.simulation.tasks import Simulation

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


# Faults


def is_struck(played: Simulation) -> bool:
    return "is killed" in played.story or "stands still" in played.story


def test_nearly_every_seed_strikes_a_short_handler() -> None:
    struck = 0
    for seed in range(40):
        app, _ = shop(careful=True)
        struck += is_struck(simulate(app, [app.tasks["charge"].new(order=1)], seed=seed))
    assert struck >= 34


def test_killed_worker_runs_nothing_any_more() -> None:
    app = Penstock("memory://")
    begun: list[int] = []
    cleaned_up: list[int] = []
    runs: list[tuple[int, int]] = []

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def careful() -> None:
        token = context().token
        begun.append(token)
        try:
            await asyncio.sleep(1)
        finally:
            cleaned_up.append(token)

    for played in simulate_every_kill(app, careful.new()):
        [job] = played.jobs
        assert job.token in cleaned_up
        runs.append((len(begun), len(cleaned_up)))
        begun.clear()
        cleaned_up.clear()
    undisturbed, before_it_began, amid, again_amid, after_it_ended = runs
    assert undisturbed == before_it_began == (1, 1)
    assert amid == again_amid == (2, 1)
    assert after_it_ended == (2, 2)


def test_worker_that_stood_still_goes_on_with_its_run() -> None:
    """Its job has been done by another one meanwhile, and it does not know that yet."""
    app = Penstock("memory://")
    effects: list[tuple[int, int]] = []

    @app.task(lease=10 * SECOND, retry=RetryPolicy(attempts=10, delay=timedelta(0)))
    async def write() -> None:
        await asyncio.sleep(0.1)
        effects.append((context().job.id, context().token))

    late = 0
    for seed in range(20):
        effects.clear()
        simulate(app, [write.new()], seed=seed)
        late += effects != sorted(effects)
    assert late


def test_plain_function_is_struck_before_and_after_it_ran() -> None:
    app = Penstock("memory://")
    runs: list[int] = []

    @app.task(lease=10 * SECOND, retry=RETRY)
    def plain() -> None:
        runs.append(context().attempt)

    counts = []
    for _ in simulate_every_kill(app, plain.new()):
        counts.append(len(runs))
        runs.clear()
    assert counts == [1, 1, 2], "undisturbed, killed before it ran, and after it"


# Every kill


def test_every_kill_finds_the_steps_after_which_a_kill_does_harm() -> None:
    app = Penstock("memory://")
    charged: list[int] = []

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def charge() -> None:
        await asyncio.sleep(0.1)
        charged.append(context().attempt)
        await asyncio.sleep(0.1)

    harmed = []
    for n, played in enumerate(simulate_every_kill(app, charge.new())):
        assert [job.state for job in played.jobs] == [State.DONE]
        harmed.append(len(charged) > 1)
        assert is_struck(played) == (n > 0)
        charged.clear()
    assert harmed[0] is False
    assert harmed == sorted(harmed), "once it has charged, every kill charges again"
    assert 0 < sum(harmed) < len(harmed)


def test_every_kill_of_a_careful_handler_is_safe() -> None:
    app, charged = shop(careful=True)
    for played in simulate_every_kill(app, app.tasks["charge"].new(order=1)):
        assert charged == {1: 1}, played.story


def test_every_kill_strikes_later_attempts() -> None:
    app = Penstock("memory://")

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def second_time_lucky() -> None:
        await asyncio.sleep(0.1)
        if context().attempt == 1:
            raise ConnectionError
        await asyncio.sleep(0.1)

    attempts = [
        played.jobs[0].attempt for played in simulate_every_kill(app, second_time_lucky.new())
    ]
    assert attempts[0] == 2
    assert attempts.count(3) > 3


# The app as it is


def test_limit_of_a_task_holds_in_every_simulation() -> None:
    app = Penstock("memory://")
    running, most = 0, 0

    @app.task(concurrency=1, lease=10 * SECOND, retry=RETRY)
    async def alone() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.5)
        running -= 1

    with fresh(app):
        alone.sync.enqueue()
        drain(app)  # which has stored the limit, in another store
    for seed in range(2):
        simulate(app, [alone.new() for _ in range(6)], seed=seed, faults=0)
    assert most == 1


def test_limit_of_a_task_holds_in_every_fresh_store() -> None:
    app = Penstock("memory://")
    app.limits.reserve("mail")

    @app.task(concurrency=1)
    async def alone() -> None:
        pass

    for _ in range(2):
        with fresh(app):
            alone.sync.enqueue()
            drain(app)
            assert [limit.concurrency for limit in app.limits.sync.list()] == [1]
            assert app.limits.sync.reserved() == {"mail"}


def test_settings_and_results_are_those_of_the_app() -> None:
    app = Penstock("memory://", payload_limit=1_000)
    errors: list[str] = []
    results: list[object] = []

    @app.task(retry=RETRY)
    async def double(n: int) -> tuple[int, int]:
        return n, n

    @app.task(retry=RETRY)
    async def ask(text: str = "") -> None:
        try:
            await ask.enqueue("x" * 2_000)
        except PayloadTooLarge as error:
            errors.append(str(error))
        results.append(await (await double.enqueue(3)).result())

    simulate(app, [ask.new()], seed=1, faults=0)
    assert errors
    assert results == [(3, 3)], "a tuple, as the handler returned it"


def test_waiting_for_a_result_survives_the_kill_of_another_worker() -> None:
    app = Penstock("memory://")

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def part(n: int) -> int:
        await asyncio.sleep(5)
        return n

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def whole(n: int) -> int:
        return await (await part.using(dedupe=f"part-{n}").enqueue(n)).result()

    for seed in range(10):
        played = simulate(
            app, [whole.new(n) for n in range(3)], seed=seed, within=timedelta(minutes=30)
        )
        assert {job.state for job in played.jobs} == {State.DONE}, played.story


def test_schedules_fire_and_are_not_waited_for() -> None:
    app = Penstock("memory://")
    ticks: list[float] = []

    @app.task(every=timedelta(minutes=1))
    async def tick() -> None:
        ticks.append(asyncio.get_running_loop().time())
        await follow.using(delay=timedelta(days=2)).enqueue()

    @app.task(retry=RETRY)
    async def follow() -> None:
        pass

    @app.task(lease=10 * SECOND, retry=RETRY)
    async def long() -> None:
        await asyncio.sleep(300)

    played = simulate(app, [long.new()], seed=1, faults=0)
    assert 4 <= len(ticks) <= 6
    assert {job.task for job in played.jobs} == {"tick", "follow", "long"}


def test_isolated_tasks_run_in_the_world_too() -> None:
    app = Penstock("memory://")
    seen: list[int] = []

    @app.task(isolation="process", lease=10 * SECOND, retry=RETRY)
    async def isolated() -> None:
        await asyncio.sleep(60)
        seen.append(os.getpid())

    simulate(app, [isolated.new()], seed=1, faults=0)
    assert seen == [os.getpid()]
    assert isolated.isolation is not None


# Threads


@pytest.mark.parametrize("pool", [None, ThreadPoolExecutor])
def test_calls_in_threads_are_repeatable_and_take_no_virtual_time(
    pool: type[ThreadPoolExecutor] | None,
) -> None:
    def play() -> tuple[str, list[str]]:
        app = Penstock("memory://")
        order: list[str] = []

        @app.task(lease=10 * SECOND, retry=RETRY)
        async def threaded(n: int) -> None:
            own = None if pool is None else pool(1)
            loop = asyncio.get_running_loop()
            calls = [loop.run_in_executor(own, order.append, f"{n}-{i}") for i in range(3)]
            await asyncio.gather(*calls)
            await asyncio.to_thread(order.append, f"{n}-{context().job.id}")

        played = simulate(app, [threaded.new(n=n) for n in range(3)], seed=4)
        for job in played.jobs:
            assert job.started_at is not None
            assert job.finished_at is not None
            assert job.finished_at - job.started_at < SECOND
        return played.story, order

    assert play() == play()


# Repeatable


PROGRAM = """
import asyncio
from datetime import timedelta
from penstock import Penstock, RetryPolicy
from penstock.testing import simulate, simulate_every_kill

app = Penstock("memory://")

@app.task(lease=timedelta(seconds=10), retry=RetryPolicy(attempts=10), concurrency=2)
async def first(n: int) -> None:
    await asyncio.to_thread(sum, [n])
    await second.using(tags={"a", "b", "c"}).enqueue(n)

@app.task(lease=timedelta(seconds=10), retry=RetryPolicy(attempts=10))
def second(n: int) -> None:
    if n == 1:
        third.sync.enqueue()

@app.task(every=timedelta(seconds=20))
async def third() -> None:
    await asyncio.sleep(1)

for seed in range(5):
    print(simulate(app, [first.new(n) for n in range(4)], seed=seed).story)
print([played.story for played in simulate_every_kill(app, first.new(1))])
"""


def test_another_process_plays_the_same_story() -> None:
    def story(hash_seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout

    first = story(1)
    assert "killed" in first
    assert first == story(2)

"""Promises 2, 3 and 5 with many callers at once: nothing lost, nothing twice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.errors import QueueFull
from penstock.core.job import Claim, Job, Scope
from penstock.core.lifecycle import Done, State, Waiting, advance
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.core.transition import Change
from tests.contract.support import add, drive, everything, ids, new, take, totals

CALLERS = 8
EACH = 25

Act = Callable[[int], Awaitable[list[Job]]]


def in_threads(act: Act) -> list[list[Job]]:
    async def call(n: int) -> list[Job]:
        return await act(n)

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(lambda n: drive(call(n)), range(CALLERS)))


async def in_coroutines(act: Act) -> list[list[Job]]:
    return await asyncio.gather(*(act(n) for n in range(CALLERS)))


async def in_threads_and_coroutines(act: Act) -> list[list[Job]]:
    threads = asyncio.get_running_loop().run_in_executor(None, in_threads, act)
    return await in_coroutines(lambda n: act(n + CALLERS)) + await threads


async def test_concurrent_adds_are_all_stored_once(store: Store) -> None:
    async def add_many(n: int) -> list[Job]:
        return [job for _ in range(EACH) for job in await add(store, new(task=f"t{n}"))]

    answers = await in_threads_and_coroutines(add_many)
    told = sorted(job.id for jobs in answers for job in jobs)
    assert told == ids(await everything(store))
    assert len(set(told)) == 2 * CALLERS * EACH
    for jobs in answers:
        assert ids(jobs) == sorted(ids(jobs))
        assert len({job.task for job in jobs}) == 1
    assert [entry.job_id for entry in await store.log()] == told


async def test_concurrent_claims_give_every_job_once(store: Store) -> None:
    added = await add(store, *[new()] * (CALLERS * EACH))

    async def claim_all(n: int) -> list[Job]:
        given: list[Job] = []
        while batch := await store.claim(Claim(worker=f"w{n}", limit=7)):
            assert {job.worker for job in batch} == {f"w{n}"}
            given += batch
        return given

    answers = await in_threads_and_coroutines(claim_all)
    assert sorted(job.id for jobs in answers for job in jobs) == ids(added)
    tokens = [job.token for jobs in answers for job in jobs]
    assert len(set(tokens)) == len(tokens)
    for jobs in answers:
        assert [job.token for job in jobs] == sorted(job.token for job in jobs)


async def test_concurrent_settles_of_one_run_are_written_once(store: Store) -> None:
    await add(store, *[new()] * EACH)
    running = await take(store)

    async def settle_all(n: int) -> list[Job]:
        changes = [Change(job, advance(job, Done(result=str(n)))) for job in running]
        return [job for job in await store.transition(changes, actor=f"w{n}") if job]

    answers = await in_threads_and_coroutines(settle_all)
    assert sorted(job.id for jobs in answers for job in jobs) == ids(running)
    assert Counter(entry.state for entry in await store.log())[State.DONE] == EACH


@pytest.mark.parametrize("scope", Scope)
async def test_concurrent_duplicates_store_one_job(store: Store, scope: Scope) -> None:
    async def add_same(n: int) -> list[Job]:
        return await add(store, *(new(dedupe=f"d{k}", scope=scope) for k in range(EACH)))

    answers = await in_threads_and_coroutines(add_same)
    assert len(await everything(store)) == EACH
    fresh = [job.dedupe for jobs in answers for job in jobs if not job.duplicate]
    assert sorted(filter(None, fresh)) == sorted(f"d{k}" for k in range(EACH))


async def test_concurrent_adds_never_pass_the_limit(store: Store) -> None:
    await store.configure(QueueSettings(name="default", max_pending=50))

    async def add_until_full(n: int) -> list[Job]:
        stored: list[Job] = []
        for _ in range(EACH):
            try:
                stored += await add(store, new(), new())
            except QueueFull:
                break
        return stored

    answers = await in_threads_and_coroutines(add_until_full)
    assert sum(map(len, answers)) == 50
    assert await totals(store) == {("default", State.PENDING, Waiting.READY): 50}


async def test_keys_keep_their_order_under_concurrent_workers(store: Store) -> None:
    added = await add(store, *(new(key=f"k{n % 3}", priority=n % 5) for n in range(60)))

    async def work(n: int) -> list[Job]:
        seen: list[Job] = []
        while (await store.backlog())[0]:
            batch = await store.claim(Claim(worker=f"w{n}", limit=2))
            assert len({job.key for job in batch}) == len(batch)
            await store.transition(
                [Change(job, advance(job, Done())) for job in batch], actor=f"w{n}"
            )
            seen += batch
        return seen

    answers = await in_coroutines(work)
    given = sorted((job for jobs in answers for job in jobs), key=lambda job: job.token)
    for key in ("k0", "k1", "k2"):
        assert [job.id for job in given if job.key == key] == [
            job.id for job in added if job.key == key
        ]
    running: Counter[str | None] = Counter()
    keys = {job.id: job.key for job in added}
    for entry in await store.log(limit=10_000):
        running[keys[entry.job_id]] += {State.RUNNING: 1, State.DONE: -1}.get(entry.state, 0)
        assert max(running.values()) <= 1


async def test_producers_and_workers_at_once_lose_nothing(store: Store) -> None:
    produced = CALLERS * EACH

    async def produce_and_work(n: int) -> list[Job]:
        done: list[Job] = []
        for k in range(EACH):
            await add(store, new(key=f"k{k % 4}" if k % 2 else None, tags=(f"x{k % 3}",)))
            batch = await store.claim(Claim(worker=f"w{n}", limit=2))
            moved = await store.transition(
                [Change(job, advance(job, Done())) for job in batch], actor=f"w{n}"
            )
            assert None not in moved
            done += batch
        return done

    answers = await asyncio.to_thread(in_threads, produce_and_work)
    while batch := await take(store):
        await store.transition([Change(job, advance(job, Done())) for job in batch], actor="w")
        answers.append(batch)
    worked = [job.id for jobs in answers for job in jobs]
    assert sorted(worked) == ids(await everything(store))
    assert len(worked) == produced
    assert await totals(store) == {("default", State.DONE, None): produced}
    pending = await store.find(JobQuery(states=frozenset({State.PENDING, State.RUNNING})))
    assert pending == []
    assert len(await store.log(limit=10_000)) == 3 * produced

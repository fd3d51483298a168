"""A claim that names its tasks takes jobs of these; others stay where they are, in their order."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.core.job import Claim, Job, NewJob
from penstock.core.lifecycle import Done, Failed, State, Waiting, cancel, reset
from penstock.core.limits import Limit
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.core.tasks import KnownTasks
from tests import tiers
from tests.contract.support import (
    MERGED,
    SECOND,
    STORES,
    ManualClock,
    add,
    add_one,
    drive,
    everything,
    history,
    ids,
    look,
    move,
    new,
    open_named,
    settle,
    take,
    take_one,
)

TASKS = ("a", "b", "c")


def known(*tasks: str, **accepted: int) -> KnownTasks:
    """These tasks with their first version, and others with one version each."""
    return KnownTasks({**dict.fromkeys(tasks, (1,)), **{one: (n,) for one, n in accepted.items()}})


async def test_job_of_an_unknown_task_stays_pending_and_uses_no_attempt(store: Store) -> None:
    unknown, own = await add(store, new(task="later"), new(task="now"))
    assert ids(await take(store, tasks=known("now"))) == [own.id]
    assert await take(store, tasks=known("now")) == []
    found = await look(store, unknown)
    assert (found.state, found.waiting, found.attempt) == (State.PENDING, Waiting.READY, 0)
    assert [entry.event for entry in await history(store, unknown)] == ["enqueued"]
    assert (await take_one(store, tasks=known("later"))).id == unknown.id


async def test_claim_without_tasks_takes_what_others_have_set_aside(store: Store) -> None:
    jobs = await add(store, *(new(task=task) for task in "abcab"))
    assert await take(store, tasks=known("x")) == []
    assert ids(await take(store)) == ids(jobs)


async def test_order_is_that_of_all_jobs_whatever_was_set_aside(store: Store) -> None:
    first = await add(store, *(new(task=task, priority=n) for task in "ab" for n in (3, 8)))
    assert await take(store, tasks=known("x")) == []
    second = await add(store, *(new(task=task, priority=n) for task in "ab" for n in (3, 8)))
    expected = sorted([*first, *second], key=lambda job: (-job.priority, job.id))
    taken = [await take_one(store, tasks=known("a", "b")) for _ in expected]
    assert ids(taken) == ids(expected)


async def test_version_of_a_job_decides_who_takes_it(store: Store) -> None:
    old, present = await add(store, new(), new(task_version=2))
    assert (old.task_version, present.task_version) == (1, 2)
    assert ids(await take(store, tasks=known(t=2))) == [present.id]
    assert (await look(store, present)).task_version == 2
    assert ids(await take(store, tasks=known(t=1))) == [old.id]
    jobs = await add(store, *(new(task_version=n) for n in (3, 1, 2, 4)))
    assert ids(await take(store, tasks=KnownTasks({"t": range(1, 4)}))) == ids(jobs[:3])


async def test_version_survives_retries_and_resets(store: Store, clock: ManualClock) -> None:
    await add_one(store, task_version=7)
    job = await take_one(store)
    job = await settle(store, job, Failed("once"))
    clock.advance(10 * SECOND)
    assert await take(store, tasks=known(t=1)) == []
    job = await settle(store, await take_one(store, tasks=known(t=7)), Failed("twice"))
    assert job.state is State.FAILED
    assert job.task_version == (await look(store, job)).task_version == 7
    await move(store, job, reset(job))
    assert (await take_one(store, tasks=known(t=7))).task_version == 7


async def test_job_that_was_set_aside_can_fail_and_run_again(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    assert await take(store, tasks=known("x")) == []
    job = await take_one(store, tasks=known("t"))
    await settle(store, job, Failed("once"))
    clock.advance(10 * SECOND)
    assert (await take_one(store, tasks=known("t"))).attempt == 2


async def test_job_that_was_set_aside_can_be_cancelled_and_reset(store: Store) -> None:
    job = await add_one(store)
    assert await take(store, tasks=known("x")) == []
    job = await move(store, job, cancel(job))
    assert await take(store, tasks=known("t")) == []
    await move(store, job, reset(job))
    assert ids(await take(store, tasks=known("x"))) == []
    assert ids(await take(store, tasks=known("t"))) == [job.id]


@pytest.mark.parametrize("tags", [(), ("red",)])
async def test_limits_hold_for_jobs_that_were_set_aside(
    store: Store, tags: tuple[str, ...]
) -> None:
    await store.limit(Limit(kind="task", name="t", concurrency=2))
    jobs = await add(store, *[new(tags=tags, throttle="x")] * 2, *[new(tags=tags)] * 3)
    assert await take(store, tasks=known("x"), tags=tags) == []
    taken = await take(store, tasks=known("t"), tags=tags)
    assert ids(taken) == [jobs[0].id, jobs[2].id]  # one of a throttle at a time
    assert await take(store, tasks=known("t"), tags=tags) == []
    for job in taken:
        await settle(store, job, Done())
    assert await take(store, tasks=known("x"), tags=tags) == []
    assert ids(await take(store, tasks=known("t"), tags=tags)) == [jobs[1].id, jobs[3].id]


async def test_tenants_take_turns_also_when_set_aside(store: Store) -> None:
    jobs = await add(
        store,
        *(new(task=task, tenant=tenant) for tenant in ("ada", "bob") for task in ("a", "b", "a")),
    )
    assert await take(store, tasks=known("x")) == []
    taken = [await take_one(store, tasks=known("a")) for _ in range(4)]
    assert ids(taken) == [jobs[n].id for n in (0, 3, 2, 5)]
    assert await take(store, tasks=known("a")) == []
    assert ids(await take(store, tasks=known("b"))) == [jobs[1].id, jobs[4].id]


async def test_ages_count_for_jobs_that_were_set_aside(store: Store, clock: ManualClock) -> None:
    await store.configure(QueueSettings(name="default", promote_after=timedelta(seconds=10)))
    old = await add_one(store, priority=1)
    assert await take(store, tasks=known("x")) == []
    clock.advance(50 * SECOND)
    fresh = await add_one(store, priority=4)
    assert ids(await take(store, tasks=known("t"))) == [old.id, fresh.id]


async def test_paused_queues_and_queues_besides_keep_what_was_set_aside(store: Store) -> None:
    jobs = await add(store, *(new(queue=queue) for queue in ("one", "two", "three")))
    assert await take(store, tasks=known("x")) == []
    await store.configure(QueueSettings(name="one", paused=True))
    besides = frozenset({"two"})
    assert ids(await take(store, tasks=known("t"), except_queues=besides)) == [jobs[2].id]
    assert ids(await take(store, tasks=known("t"), queues=("two",))) == [jobs[1].id]


async def test_tags_choose_among_known_tasks(store: Store) -> None:
    jobs = await add(
        store, *(new(task=task, tags=("red",)) for task in ("a", "b", "a")), new(task="a")
    )
    taken = await take(store, tasks=known("a"), tags=("red", "blue"))
    assert ids(taken) == [jobs[0].id, jobs[2].id]
    assert await take(store, tasks=known("x")) == []
    assert ids(await take(store, tasks=known("b"), tags=("red",))) == [jobs[1].id]


async def test_claims_by_tag_tell_what_they_do_not_know(store: Store) -> None:
    """A fleet that claims by tags alone gets the same metric, page and alert."""
    jobs = await add(
        store,
        *(new(task=task, tags=("red",)) for task in ("a", "b", "a")),
        new(task="c", tags=("blue",)),
        new(task="d"),
    )
    assert ids(await take(store, tasks=known("b"), tags=("red",))) == [jobs[1].id]
    found = {(one.task, one.jobs) for one in await store.set_aside()}
    assert found <= {("a", 1), ("a", 2)}
    assert await take(store, tasks=known("b"), tags=("red",)) == []
    assert [(one.task, one.jobs) for one in await store.set_aside()] == [("a", 2)]
    assert await take(store, tasks=known("b"), tags=("red",)) == []
    assert ids(await take(store, tasks=known("a"), tags=("red", "blue"))) == [
        jobs[0].id,
        jobs[2].id,
    ]
    assert [one.task for one in await store.set_aside()] == ["c"]
    assert ids(await take(store)) == [jobs[3].id, jobs[4].id]


async def test_claim_by_tag_behind_many_jobs_of_unknown_tasks_finds_its_own(store: Store) -> None:
    await add(store, *[new(task=f"unknown {n % 7}", tags=("red",)) for n in range(2_500)])
    own = await add(store, *[new(tags=("red",))] * 3)
    assert ids(await take(store, tasks=known("t"), tags=("red",))) == ids(own)
    assert sum(one.jobs for one in await store.set_aside()) == 2_500


async def test_only_some_jobs_of_each_task_are_counted(store: Store) -> None:
    for task in "ab":
        await add(store, *[new(task=task, queue=queue) for queue in "qqrr"])
    assert await take(store, tasks=known("x")) == []
    for most, counted in ((1, 1), (3, 3), (4, 4), (None, 4)):
        jobs: Counter[str] = Counter()
        for one in await store.set_aside(most):
            jobs[one.task] += one.jobs
        assert jobs == {"a": counted, "b": counted}


async def test_what_is_set_aside_is_listed_and_counts_as_ready(
    store: Store, clock: ManualClock
) -> None:
    began = clock.now
    await add(store, *[new(task="a")] * 3, new(task="b", task_version=2, queue="q"))
    clock.advance(SECOND)
    await add(store, new(task="a", tenant="ada"))
    assert await store.set_aside() == []
    assert await take(store, tasks=known("x")) == []
    found = [(one.task, one.version, one.queue, one.jobs) for one in await store.set_aside()]
    assert found == [("a", 1, "default", 4), ("b", 2, "q", 1)]
    assert {one.oldest for one in await store.set_aside()} == {began}
    assert await store.oldest_ready() == {"default": began, "q": began}
    await take(store)
    assert await store.set_aside() == []


async def test_claim_behind_many_jobs_of_unknown_tasks_finds_its_own(store: Store) -> None:
    await add(store, *[new(task=f"unknown {n % 7}") for n in range(2_500)])
    own = await add(store, *[new()] * 3)
    assert ids(await take(store, tasks=known("t"))) == ids(own)
    assert sum(one.jobs for one in await store.set_aside()) == 2_500


@pytest.fixture(params=[*STORES, *MERGED])
def any_store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Store]:
    store = open_named(request.param, tmp_path, clock)
    yield store
    drive(store.close())


@pytest.mark.parametrize("seed", range(tiers.amount(3, 15)))
def test_claims_give_what_the_model_says(any_store: Store, clock: ManualClock, seed: int) -> None:
    """Random claims of workers that know different tasks: each gets the first of those it knows."""
    rng = random.Random(seed)
    waiting: dict[int, Job] = {}
    paused: set[str] = set()
    for _ in range(80):
        kind = rng.choice(["add", "add", "claim", "claim", "claim", "pause", "cancel"])
        if kind == "add":
            clock.advance(timedelta(seconds=rng.randint(0, 1)))
            jobs = [_random_job(rng) for _ in range(rng.randint(1, 6))]
            waiting |= {job.id: job for job in drive(any_store.add(jobs, actor="p"))}
        elif kind == "pause":
            queue, pauses = rng.choice("qrs"), rng.random() < 0.4
            drive(any_store.configure(QueueSettings(name=queue, paused=pauses)))
            (paused.add if pauses else paused.discard)(queue)
        elif kind == "cancel" and waiting:
            job = waiting.pop(rng.choice([*waiting]))
            drive(move(any_store, job, cancel(job)))
        elif kind == "claim":
            wanted = _random_claim(rng)
            fitting = [
                job
                for job in waiting.values()
                if job.queue not in paused and wanted.wants(job.queue) and wanted.knows(job)
                if not wanted.tags or {*wanted.tags} & {*job.tags}
            ]
            fitting.sort(key=lambda job: (-job.priority, job.run_at, job.id))
            expected = [job.id for job in fitting[: wanted.limit]]
            assert ids(drive(any_store.claim(wanted))) == expected
            for one in expected:
                del waiting[one]
    paused_now = [drive(any_store.configure(QueueSettings(name=q, paused=False))) for q in "qrs"]
    assert len(paused_now) == 3
    assert {*ids(drive(any_store.claim(Claim(worker="w", limit=500))))} == {*waiting}
    assert all(job.attempt <= 1 for job in drive(everything(any_store)))


def _random_job(rng: random.Random) -> NewJob:
    return new(
        task=rng.choice(TASKS),
        task_version=rng.choice((1, 1, 2)),
        queue=rng.choice("qrs"),
        priority=rng.choice((2, 5, 5, 9)),
        tags=rng.choice(((), ("red",), ("red", "blue"))),
    )


def _random_claim(rng: random.Random) -> Claim:
    tasks = None
    if rng.random() < 0.9:
        names = rng.sample(TASKS, rng.randint(0, 2))
        tasks = KnownTasks({name: rng.choice(((1,), (2,), (1, 2))) for name in names})
    queues = tuple(rng.sample("qrs", 2)) if rng.random() < 0.3 else None
    besides = frozenset("r") if queues is None and rng.random() < 0.3 else frozenset[str]()
    tags = rng.choice(((), (), ("red",), ("red", "blue")))
    return Claim(
        worker="w",
        limit=rng.randint(1, 5),
        queues=queues,
        except_queues=besides,
        tasks=tasks,
        tags=tags,
    )

from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from penstock.core.job import Job, JobId
from penstock.core.lifecycle import Cancelled, Done, Failed, State, Waiting, cancel
from penstock.core.query import JobQuery
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    everything,
    ids,
    move,
    new,
    settle,
    take,
    take_one,
    totals,
)


async def mixture(store: Store) -> dict[str, Job]:
    """One job for everything there is to look for."""
    await add(store, *(new(queue="a", task=task) for task in ("done", "failed", "running")))
    done, failed, running = await take(store)
    jobs = {
        "done": await settle(store, done, Done()),
        "failed": await settle(store, failed, Failed("no", permanent=True)),
        "stopping": await move(store, running, cancel(running)),
    }
    jobs["ready"], jobs["blocked"], jobs["scheduled"], jobs["cancelled"] = await add(
        store,
        new(queue="b", key="k", tags=("x",)),
        new(queue="a", key="k", tags=("x", "y")),
        new(queue="b", delay=HOUR, task="later"),
        new(queue="b"),
    )
    jobs["cancelled"] = await move(store, jobs["cancelled"], cancel(jobs["cancelled"]))
    return jobs


# get


async def test_get_keeps_the_order_of_ids_and_skips_unknown_ones(store: Store) -> None:
    one, two, three = await add(store, new(), new(), new())
    assert await store.get([three.id, JobId(999), one.id, two.id]) == [three, one, two]
    assert await store.get([]) == []


async def test_jobs_of_an_answer_are_the_callers_own(store: Store, clock: ManualClock) -> None:
    added = await add_one(store, tags=("x",))
    claimed = await take_one(store)
    (renewed,) = await store.renew([claimed.lease])
    clock.advance(HOUR)
    answers = [added, claimed, renewed, *await store.expired(1)]
    answers.append(await settle(store, claimed, Done()))
    for _ in range(2):
        answers += [*await store.get([added.id]), *await store.find(JobQuery())]
        answers += [*await store.watch([added.id])]
        answers += [record.job for record in await store.records([added.id])]
    assert len(answers) == 13
    assert len({id(job) for job in answers}) == 13


# find


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, "done failed stopping ready blocked scheduled cancelled"),
        ({"states": {State.PENDING}}, "ready blocked scheduled"),
        ({"states": {State.RUNNING}}, "stopping"),
        ({"states": {State.DONE, State.CANCELLED}}, "done cancelled"),
        ({"states": {State.FAILED}}, "failed"),
        ({"states": set()}, ""),
        ({"queue": "a"}, "done failed stopping blocked"),
        ({"queue": "nowhere"}, ""),
        ({"task": "later"}, "scheduled"),
        ({"key": "k"}, "ready blocked"),
        ({"key": "k", "states": {State.PENDING}}, "ready blocked"),
        ({"tags": ("x",)}, "ready blocked"),
        ({"tags": ("y",)}, "blocked"),
        ({"tags": ("x",), "queue": "b"}, "ready"),
        ({"cancel_requested": True}, "stopping"),
        ({"cancel_requested": True, "queue": "b"}, ""),
        ({"cancel_requested": True, "states": {State.RUNNING}}, "stopping"),
        ({"cancel_requested": False, "queue": "a"}, "done failed blocked"),
        ({"states": {State.PENDING}, "queue": "b", "task": "t"}, "ready"),
    ],
)
async def test_every_field_narrows(store: Store, query: dict[str, object], names: str) -> None:
    jobs = await mixture(store)
    if "states" in query:
        query = {**query, "states": frozenset(query["states"])}  # type: ignore[call-overload] # options as data
    asked = msgspec.convert(query, JobQuery, strict=False)
    wanted = [jobs[name].id for name in names.split()]
    assert ids(await store.find(asked)) == wanted[::-1]
    assert ids(await store.find(msgspec.structs.replace(asked, newest_first=False))) == wanted


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("states", [None, frozenset({State.RUNNING})])
async def test_pages_follow_each_other_without_gap_or_repeat(
    store: Store, newest_first: bool, states: frozenset[State] | None
) -> None:
    await add(store, *[new(queue="a"), new(queue="b")] * 5)
    await take(store)
    pages: list[int] = []
    after = None
    for size in (3, 3, 3):
        page = await store.find(
            JobQuery(queue="a", states=states, newest_first=newest_first, after=after, limit=size)
        )
        pages += ids(page)
        after = page[-1].id if page else None
        if len(page) < size:
            break
    wanted = [job.id for job in await everything(store) if job.queue == "a"]
    assert pages == (wanted[::-1] if newest_first else wanted)


async def test_new_jobs_do_not_disturb_paging_from_the_newest(store: Store) -> None:
    jobs = await add(store, *[new()] * 4)
    page = await store.find(JobQuery(limit=2))
    await add_one(store)
    page += await store.find(JobQuery(limit=2, after=page[-1].id))
    assert ids(page) == ids(jobs)[::-1]


async def test_found_jobs_are_whole(store: Store) -> None:
    jobs = await mixture(store)
    assert await everything(store) == sorted(jobs.values(), key=lambda job: job.id)


async def test_any_of_several_tags_finds_a_job_once(store: Store) -> None:
    tagged = [("a", "b"), ("b",), ("c",), (), ("a",)]
    await add(store, *[new(tags=tags) for tags in tagged])
    query = JobQuery(tags=("a", "b", "none"))
    assert ids(await store.find(query)) == [5, 2, 1]
    assert await store.find_ids(query) == [5, 2, 1]
    assert await store.find_ids(replace(query, after=JobId(5), limit=1)) == [2]
    assert await store.find_ids(replace(query, after=JobId(1), newest_first=False)) == [2, 5]
    assert await store.tally(query) == {State.PENDING: 3}


async def test_no_more_than_the_limit_are_found(store: Store) -> None:
    await add(store, *[new(tags=("x",))] * 4)
    assert len(await store.find(JobQuery(limit=3))) == 3
    assert len(await store.find(JobQuery(limit=3, tags=("x",)))) == 3
    assert await store.find(JobQuery(limit=0)) == []


# count


async def test_counts_are_what_can_be_found(store: Store, clock: ManualClock) -> None:
    assert await totals(store) == {}
    await mixture(store)
    found = Counter((job.queue, job.state, job.waiting) for job in await everything(store))
    assert await totals(store) == found
    assert found["b", State.PENDING, Waiting.SCHEDULED] == 1
    assert found["a", State.PENDING, Waiting.BLOCKED] == 1


async def test_counts_follow_jobs_that_fell_due(store: Store, clock: ManualClock) -> None:
    await add(store, *[new(delay=SECOND)] * 3)
    clock.advance(HOUR)
    await take_one(store)
    assert await totals(store) == {
        ("default", State.RUNNING, None): 1,
        ("default", State.PENDING, Waiting.READY): 2,
    }


# backlog


async def test_backlog_counts_what_is_unfinished(store: Store) -> None:
    jobs = await mixture(store)
    assert await store.backlog() == (4, jobs["scheduled"].id)
    assert await store.backlog("a") == (2, jobs["blocked"].id)
    assert await store.backlog("b") == (2, jobs["scheduled"].id)


async def test_backlog_up_to_an_id_leaves_out_the_younger(store: Store) -> None:
    one, two, three = await add(store, new(), new(queue="b"), new())
    assert await store.backlog(until=two.id) == (2, two.id)
    assert await store.backlog("default", two.id) == (1, one.id)
    await settle(store, await take_one(store), Done())
    assert await store.backlog("default", two.id) == (0, two.id)
    assert await store.backlog("default") == (1, three.id)


async def test_drain_ends_although_jobs_keep_coming(store: Store) -> None:
    await add(store, new(), new())
    left, until = await store.backlog("default")
    while left:
        await settle(store, await take_one(store), Cancelled())
        await add(store, new())
        left, _ = await store.backlog("default", until)
    assert (await store.backlog("default"))[0] == 2


async def test_backlog_of_nothing_is_nothing(store: Store) -> None:
    assert await store.backlog() == (0, 0)
    assert await store.backlog("nowhere", JobId(7)) == (0, 7)


# queues


async def test_queues_are_those_that_held_a_job_or_a_setting(store: Store) -> None:
    assert await store.queues() == []
    await add(store, new(queue="b"), new(queue="a"))
    await store.configure(QueueSettings(name="c", paused=True, max_pending=5))
    a, b, c = await store.queues()
    assert [(queue.name, queue.paused, queue.max_pending) for queue in (a, b, c)] == [
        ("a", False, None),
        ("b", False, None),
        ("c", True, 5),
    ]


async def test_unset_settings_stay(store: Store) -> None:
    await store.configure(QueueSettings(name="q", paused=True))
    queue = await store.configure(QueueSettings(name="q", max_pending=3))
    assert (queue.paused, queue.max_pending) == (True, 3)
    queue = await store.configure(QueueSettings(name="q", paused=False))
    assert (queue.paused, queue.max_pending) == (False, 3)
    assert await store.queues() == [queue]
    queue = await store.configure(QueueSettings(name="q", max_pending=None))
    assert (queue.paused, queue.max_pending) == (False, None)
    assert await store.queues() == []  # with its last setting, since it has no jobs


async def test_job_does_not_change_the_settings_of_its_queue(store: Store) -> None:
    await store.configure(QueueSettings(name="q", paused=True, max_pending=3))
    await add_one(store, queue="q")
    [queue] = await store.queues()
    assert (queue.paused, queue.max_pending) == (True, 3)

"""Calls of many callers at once, which a store may write together: what has to hold afterwards."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import pytest

from penstock.core import lifecycle
from penstock.core.errors import Overtaken, QueueFull, TransitionRefused
from penstock.core.job import Claim, Job, JobId, NewJob, OnFailure
from penstock.core.lifecycle import TRANSITIONS, Event, State, Waiting
from penstock.core.queue import QueueSettings
from penstock.core.store import Store
from penstock.core.superseding import Tail
from penstock.core.transition import Change
from tests.contract.support import SECOND, ManualClock, everything, new, totals

ROUNDS = 25
OUTCOMES = (
    lifecycle.Done(),
    lifecycle.Done(),
    lifecycle.Failed("boom"),
    lifecycle.Failed("boom", permanent=True),
    lifecycle.Snoozed(SECOND),
)


@pytest.mark.parametrize("seed", range(12))
async def test_calls_at_once_leave_nothing_that_does_not_fit(
    store: Store, clock: ManualClock, seed: int
) -> None:
    rng = random.Random(seed)
    await store.configure(QueueSettings(name="b", max_pending=6))
    for _ in range(ROUNDS):
        jobs = await everything(store)
        calls = [any_call(store, rng, jobs) for _ in range(rng.randint(2, 8))]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, Overtaken | QueueFull | TransitionRefused)
        await assert_all_fits(store)
        clock.advance(rng.choice([0, 1, 5]) * SECOND)
    while jobs := await store.claim(Claim(worker="w", limit=9)):
        changes = [Change(job, lifecycle.advance(job, lifecycle.Done())) for job in jobs]
        await store.transition(changes, actor="w")
        clock.advance(30 * SECOND)
        if late := await store.expired(99):
            changes = [Change(job, lifecycle.advance(job, lifecycle.Expired())) for job in late]
            await store.transition(changes, actor="w")
            clock.advance(30 * SECOND)
    running = [job for job in await everything(store) if job.state is State.RUNNING]
    changes = [Change(job, lifecycle.advance(job, lifecycle.Done())) for job in running]
    await store.transition(changes, actor="w")
    await assert_all_fits(store)


def any_call(store: Store, rng: random.Random, jobs: list[Job]) -> Awaitable[object]:
    pending = [job for job in jobs if job.state is State.PENDING]
    running = [job for job in jobs if job.state is State.RUNNING]
    way = rng.randrange(7)
    if way == 0 or not jobs:
        batch = [any_job(rng, jobs, n) for n in range(rng.randint(1, 3))]
        return store.add(batch, actor="p")
    if way == 1:
        key = rng.choice("kl")
        line = [job for job in pending if job.key == key]
        tail = Tail(job=line[-1] if line else None, replaces=rng.random() < 0.7)
        return store.add([any_job(rng, jobs, 0, key=key)], actor="p", tail=tail)
    if way == 2:
        return store.claim(Claim(worker="w", limit=rng.randint(1, 3)))
    changes = []
    for job in rng.sample(jobs, min(len(jobs), 2)) + rng.sample(running, min(len(running), 1)):
        if job.state is State.RUNNING:
            changes.append(Change(job, lifecycle.advance(job, rng.choice(OUTCOMES))))
        elif job.state in {State.FAILED, State.CANCELLED}:
            changes.append(Change(job, lifecycle.reset(job)))
        elif job.state is State.PENDING:
            moves = [lifecycle.reset, lifecycle.cancel, lambda one: lifecycle.reprioritise(one, 7)]
            changes.append(Change(job, rng.choice(moves)(job)))
    return store.transition(changes, actor="w")


def any_job(rng: random.Random, jobs: list[Job], place: int, **options: Any) -> NewJob:
    if jobs and rng.random() < 0.4:
        options["after"] = tuple({JobId(rng.choice(jobs[-8:]).id) for _ in range(2)})
    if place and rng.random() < 0.7:
        options["follows"] = (place - 1,)
    options.setdefault("key", rng.choice([None, None, "k", "l"]))
    return new(
        queue=rng.choice("ab"),
        dedupe=rng.choice([None, None, None, "d", "e"]),
        tenant=rng.choice([None, None, "m", "n"]),
        throttle=rng.choice([None, None, "x"]),
        trace=rng.choice([None, None, f"00-{7:032x}-{7:016x}-01"]),
        tags=rng.choice([(), ("red",)]),
        on_failure=rng.choice([*OnFailure]),
        **options,
    )


async def assert_all_fits(store: Store) -> None:
    jobs = {job.id: job for job in await everything(store)}
    found = Counter((job.queue, job.state, job.waiting) for job in jobs.values())
    assert await totals(store) == found
    await assert_logs_lead_to_states(store, jobs)
    await assert_all_wait_for_what_they_need(store, jobs)
    dedupes = Counter(job.dedupe for job in jobs.values() if job.waiting and job.dedupe)
    assert not [dedupe for dedupe, n in dedupes.items() if n > 1]
    lines: dict[str, list[Job]] = defaultdict(list)
    for job in jobs.values():
        if job.key is not None and not job.state.final:
            lines[job.key].append(job)
    await assert_none_waits_for_itself(store, lines.values())
    for line in lines.values():
        runs = [job for job in line if job.state is State.RUNNING]
        assert len(runs) < 2
        for job in line:
            visible = job is line[0] and not runs and not job.needs
            if job.state is State.PENDING:
                assert (job.waiting is not Waiting.BLOCKED) is visible


async def assert_none_waits_for_itself(store: Store, lines: Iterable[list[Job]]) -> None:
    waits: dict[int, set[int]] = defaultdict(set)
    for edge in await store.edges([job.id for job in await everything(store)]):
        if not edge.resolved:
            waits[edge.job_id].add(edge.needed)
    for line in lines:
        for before, behind in pairwise(line):
            if behind.state is State.PENDING:
                waits[behind.id].add(before.id)
    TopologicalSorter(waits).prepare()


async def assert_logs_lead_to_states(store: Store, jobs: dict[JobId, Job]) -> None:
    for job in jobs.values():
        first, *rest = log = await store.log(job.id)
        assert first.event is Event.ENQUEUED
        state = first.state
        for entry in rest:
            assert entry.state in TRANSITIONS[state, entry.event]
            state = entry.state
        assert (job.version, job.state) == (log[-1].id, state)


async def assert_all_wait_for_what_they_need(store: Store, jobs: dict[JobId, Job]) -> None:
    needs: Counter[int] = Counter()
    for edge in await store.edges([*jobs]):
        needs[edge.job_id] += not edge.resolved
        events = [entry.event for entry in await store.log(edge.job_id)]
        if not edge.resolved:
            assert not jobs[edge.needed].state.final
        elif edge.on_failure is OnFailure.CANCEL and Event.RESET not in events:
            begin = (await store.log(edge.job_id))[0].id
            log = await store.log(edge.needed)
            states = [entry.state for entry in log if entry.id < begin][-1:]
            states += [entry.state for entry in log if entry.id > begin]
            end = next(state for state in states if state.final)
            if not lifecycle.frees(end, run_anyway=False):
                assert jobs[edge.job_id].state.final
                assert Event.CLAIMED not in events
    for job in jobs.values():
        assert job.needs == needs[job.id]
        if job.needs:
            assert job.waiting is Waiting.BLOCKED or job.state.final
        elif job.key is None:
            assert job.waiting is not Waiting.BLOCKED

"""What running jobs say about themselves: kept for the holder of the lease, and no one else."""

from datetime import timedelta
from typing import Any

import pytest

from penstock.core.job import Job, JobId, Lease, Retention
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Expired,
    Failed,
    Outcome,
    Snoozed,
    cancel,
    reset,
)
from penstock.core.progress import LINES_KEPT, Line, Progress, Report
from penstock.core.store import Store
from penstock.core.transition import Change
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    drive,
    history,
    look,
    move,
    new,
    settle,
    take,
    take_one,
)


def progress(clock: ManualClock, done: float = 1, **other: Any) -> Progress:
    values: dict[str, Any] = {"total": None, "note": None, "at": clock.now, "started_at": clock.now}
    return Progress(done=done, **{**values, **other})


def line(clock: ManualClock, text: str = "hello", attempt: int = 1) -> Line:
    return Line(0, clock.now, "INFO", text, attempt)


async def say(store: Store, job: Job, **said: Any) -> bool:
    [held] = await store.report([Report(lease=job.lease, **said)])
    return held


async def running(store: Store, **options: Any) -> Job:
    await add_one(store, **options)
    return await take_one(store)


async def again(store: Store, clock: ManualClock, job: Job, outcome: Outcome) -> Job:
    """The same job in its next run, after this outcome of the last."""
    clock.advance(HOUR)
    await settle(store, job, outcome)
    clock.advance(HOUR)
    return await take_one(store)


async def texts(store: Store, job: Job, **wanted: Any) -> list[str]:
    return [line.text for line in await store.lines(job.id, **wanted)]


# Progress


@pytest.mark.parametrize(
    "said",
    [
        {"done": 3},
        {"done": 3, "total": 12, "note": "Straße ✓"},
        {"done": 0.25, "total": 1.5, "start": 0.125},
        {"done": 2**62, "total": 2**63 - 1},
    ],
)
async def test_progress_is_returned_as_reported(
    store: Store, clock: ManualClock, said: dict[str, Any]
) -> None:
    job = await running(store)
    wanted = progress(clock, started_at=clock.now - HOUR, **said)
    assert await say(store, job, progress=wanted)
    assert await store.progress([job.id]) == {job.id: wanted}


async def test_newest_progress_is_kept(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await say(store, job, progress=progress(clock, 1, total=9, note="first"))
    await say(store, job, progress=progress(clock, 2))
    assert await store.progress([job.id]) == {job.id: progress(clock, 2)}


async def test_progress_of_many_jobs_is_one_call(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 4)
    jobs = await take(store, limit=3)
    reports = [Report(lease=job.lease, progress=progress(clock, job.id)) for job in jobs]
    assert await store.report(reports) == [True] * 3
    found = await store.progress([JobId(99), *(job.id for job in reversed(jobs)), JobId(4)])
    assert found == {job.id: progress(clock, job.id) for job in jobs}


async def test_nothing_was_reported_yet(store: Store) -> None:
    job = await running(store)
    assert await store.progress([job.id, JobId(99)]) == {}
    assert await store.checkpoint(job.id) is None
    assert await store.checkpoint(JobId(99)) is None
    assert await store.lines(job.id) == await store.lines(JobId(99)) == []
    assert await store.report([]) == []


# Leases


async def test_note_with_a_stale_token_keeps_nothing(store: Store, clock: ManualClock) -> None:
    stale = await running(store)
    held = await again(store, clock, stale, Expired())
    said = {"progress": progress(clock, 7), "state": "7", "lines": (line(clock),)}
    assert not await say(store, stale, **said)
    assert await store.progress([held.id]) == {}
    assert await store.checkpoint(held.id) is None
    assert await store.lines(held.id) == []


async def test_stale_worker_does_not_overwrite_the_new_one(
    store: Store, clock: ManualClock
) -> None:
    stale = await running(store)
    held = await again(store, clock, stale, Expired())
    mine = progress(clock, 1)
    both = [
        Report(lease=held.lease, progress=mine, state='"mine"', lines=(line(clock, "mine"),)),
        Report(lease=stale.lease, progress=progress(clock, 2), state='"stale"'),
    ]
    assert await store.report(both) == [True, False]
    assert await store.progress([held.id]) == {held.id: mine}
    assert await store.checkpoint(held.id) == '"mine"'
    assert await texts(store, held) == ["mine"]


@pytest.mark.parametrize(
    "outcome", [Done(), Failed("no"), Failed("no", permanent=True), Cancelled(), Snoozed()]
)
async def test_lease_is_over_when_the_run_is_settled(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    job = await running(store)
    await settle(store, job, outcome)
    assert not await say(store, job, progress=progress(clock), state="1", lines=(line(clock),))
    assert await store.progress([job.id]) == {}
    assert await store.lines(job.id) == []


async def test_nobody_holds_a_job_that_is_not_there(store: Store, clock: ManualClock) -> None:
    pending = await add_one(store)
    assert not await say(store, pending, progress=progress(clock))
    nowhere = Report(lease=Lease(JobId(99), 1, "w"), progress=progress(clock))
    assert await store.report([nowhere]) == [False]


async def test_cancel_request_does_not_end_the_lease(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await move(store, job, cancel(job))
    assert await say(store, job, progress=progress(clock), state="1")
    assert await store.checkpoint(job.id) == "1"


@pytest.mark.usefixtures("quiet")
async def test_note_is_no_transition(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    before, log = await store.wait(0, 0), await history(store, job)
    await say(store, job, progress=progress(clock), state="1", lines=(line(clock),))
    assert await look(store, job) == job
    assert await history(store, job) == log
    assert await store.wait(before, 0) == before


# Checkpoints


@pytest.mark.parametrize("outcome", [Failed("no"), Snoozed(), Snoozed(SECOND), Expired()])
async def test_next_attempt_finds_the_last_checkpoint(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    job = await running(store)
    assert await say(store, job, state='{"page":1}')
    assert await say(store, job, state='{"page":2}')
    assert await say(store, job, progress=progress(clock))
    job = await again(store, clock, job, outcome)
    assert await store.checkpoint(job.id) == '{"page":2}'


async def test_large_checkpoint_is_kept_whole(store: Store) -> None:
    job = await running(store)
    state = '"' + "ä" * 499_999 + '"'
    assert await say(store, job, state=state)
    assert await store.checkpoint(job.id) == state


async def test_checkpoint_goes_when_the_job_is_done(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await say(store, job, state="1", progress=progress(clock, 5), lines=(line(clock),))
    await settle(store, job, Done())
    assert await store.checkpoint(job.id) is None
    assert await store.progress([job.id]) == {job.id: progress(clock, 5)}
    assert await texts(store, job) == ["hello"]


async def test_others_keep_their_checkpoints(store: Store) -> None:
    await add(store, *[new()] * 3)
    jobs = await take(store)
    for job in jobs:
        await say(store, job, state=str(job.id))
    await settle(store, jobs[1], Done())
    assert [await store.checkpoint(job.id) for job in jobs] == ["1", None, "3"]


@pytest.mark.parametrize("outcome", [Failed("no", permanent=True), Cancelled()])
async def test_checkpoint_of_a_job_that_did_not_succeed_is_kept(
    store: Store, outcome: Outcome
) -> None:
    job = await running(store)
    await say(store, job, state="1")
    await settle(store, job, outcome)
    assert await store.checkpoint(job.id) == "1"


@pytest.mark.parametrize("key", [None, "k"])
async def test_reset_starts_from_nothing_but_keeps_the_lines(
    store: Store, clock: ManualClock, key: str | None
) -> None:
    job = await running(store, key=key)
    await say(store, job, state="1", progress=progress(clock), lines=(line(clock),))
    failed = await settle(store, job, Failed("no", permanent=True))
    await move(store, failed, reset(failed))
    assert await store.checkpoint(job.id) is None
    assert await store.progress([job.id]) == {}
    assert await texts(store, job) == ["hello"]
    assert (await take_one(store)).attempt == 1


async def test_overtaken_reset_takes_nothing_away(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    await say(store, job, state="1", progress=progress(clock))
    failed = await settle(store, job, Failed("no", permanent=True))
    await move(store, failed, reset(failed))
    job = await take_one(store)
    await say(store, job, state="2", progress=progress(clock))
    # Decided on a job that has moved since: nothing is written.
    assert await store.transition([Change(failed, reset(failed))], actor="w") == [None]
    assert await store.checkpoint(job.id) == "2"
    assert await store.progress([job.id]) == {job.id: progress(clock)}


# Lines


async def test_lines_come_back_in_their_order(store: Store, clock: ManualClock) -> None:
    job = await running(store)
    first = Line(0, clock.now, "INFO", "one\ntwo", 1)
    second = Line(0, clock.now + timedelta(microseconds=1), "WARNING", "drei ü", 1)
    await say(store, job, lines=(first, second))
    job = await again(store, clock, job, Failed("no"))
    third = Line(0, clock.now, "ERROR", "", 2)
    await say(store, job, lines=(third,))
    found = await store.lines(job.id)
    assert [(one.at, one.level, one.text, one.attempt) for one in found] == [
        (one.at, one.level, one.text, one.attempt) for one in (first, second, third)
    ]
    assert [one.id for one in found] == [1, 2, 3]


async def test_lines_are_read_by_pages(store: Store, clock: ManualClock) -> None:
    job, other = await running(store), await running(store)
    for n in range(5):
        await say(store, other, lines=(line(clock, "of another"),))
        await say(store, job, lines=(line(clock, str(n)),))
    first = await store.lines(job.id, limit=2)
    assert [one.text for one in first] == ["0", "1"]
    assert await texts(store, job, after=first[-1].id, limit=2) == ["2", "3"]
    assert await texts(store, job, after=first[-1].id) == ["2", "3", "4"]
    assert await texts(store, job, after=5) == []


async def test_oldest_lines_are_dropped(store: Store, clock: ManualClock) -> None:
    job, other = await running(store), await running(store)
    await say(store, other, lines=(line(clock, "of another"),))
    many = tuple(line(clock, str(n)) for n in range(LINES_KEPT + 10))
    await say(store, job, lines=many[:600])
    await say(store, job, lines=many[600:])
    kept = await store.lines(job.id, limit=9999)
    assert [one.text for one in kept] == [one.text for one in many[10:]]
    assert [kept[0].id, kept[-1].id] == [11, LINES_KEPT + 10]
    assert await texts(store, job, after=5, limit=1) == ["10"]
    assert await texts(store, other) == ["of another"]


# Retention


async def test_reports_go_with_their_job(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 2)
    kept, gone = await take(store)
    for job in (kept, gone):
        await say(store, job, progress=progress(clock), state="1", lines=(line(clock),))
    await settle(store, gone, Failed("no", permanent=True))
    clock.advance(HOUR)
    assert await store.prune(Retention(finished=SECOND, failed=SECOND), 10) == 1
    assert await store.progress([gone.id, kept.id]) == {
        kept.id: progress(clock, at=clock.now - HOUR, started_at=clock.now - HOUR)
    }
    assert await store.checkpoint(gone.id) is None
    assert await store.lines(gone.id) == []
    assert await store.checkpoint(kept.id) == "1"
    assert await texts(store, kept) == ["hello"]


def test_reports_need_no_event_loop(store: Store, clock: ManualClock) -> None:
    drive(add(store, new()))
    [job] = drive(take(store))
    said = Report(lease=job.lease, progress=progress(clock), state="1", lines=(line(clock),))
    assert drive(store.report([said])) == [True]
    assert drive(store.progress([job.id])) == {job.id: progress(clock)}
    assert drive(store.checkpoint(job.id)) == "1"
    assert len(drive(store.lines(job.id))) == 1

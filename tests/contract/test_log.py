import pytest

from penstock.core.job import Job, JobId, LogId, Scope
from penstock.core.lifecycle import (
    Cancelled,
    Done,
    Event,
    Expired,
    Failed,
    Outcome,
    Snoozed,
    State,
    advance,
    cancel,
    refuse,
    reset,
)
from penstock.core.retry import RetryPolicy
from penstock.core.store import Store
from penstock.core.transition import Change
from tests.contract.support import (
    HOUR,
    SECOND,
    ManualClock,
    add,
    add_one,
    history,
    move,
    new,
    settle,
    take,
    take_one,
)


async def test_every_transition_leaves_one_entry(store: Store, clock: ManualClock) -> None:
    job = await add_one(store)
    versions = [job.version]

    def note(step: Job) -> Job:
        versions.append(step.version)
        return step

    for outcome in (Snoozed(reason="later"), Failed("boom"), Expired()):
        job = note(await take_one(store))
        clock.advance(HOUR)
        job = note(await settle(store, job, outcome))
        clock.advance(HOUR)
    job = note(await move(store, job, reset(job), actor="me"))
    job = note(await take_one(store))
    job = note(await move(store, job, refuse(job, 1, "late"), actor="late"))
    job = note(await move(store, job, cancel(job, "enough"), actor="me"))
    job = note(await settle(store, job, Cancelled()))
    job = note(await move(store, job, reset(job), actor="me"))
    job = note(await move(store, job, cancel(job), actor="me"))
    entries = await history(store, job)
    assert [entry.id for entry in entries] == versions
    assert versions == sorted(set(versions))
    assert [(entry.event, entry.state) for entry in entries] == [
        (Event.ENQUEUED, State.PENDING),
        (Event.CLAIMED, State.RUNNING),
        (Event.SNOOZED, State.PENDING),
        (Event.CLAIMED, State.RUNNING),
        (Event.FAILED, State.PENDING),
        (Event.CLAIMED, State.RUNNING),
        (Event.EXPIRED, State.FAILED),
        (Event.RESET, State.PENDING),
        (Event.CLAIMED, State.RUNNING),
        (Event.REFUSED, State.RUNNING),
        (Event.CANCEL_REQUESTED, State.RUNNING),
        (Event.CANCELLED, State.CANCELLED),
        (Event.RESET, State.PENDING),
        (Event.CANCELLED, State.CANCELLED),
    ]
    assert entries == await store.log()


async def test_claim_is_logged_with_worker_token_and_wait(store: Store, clock: ManualClock) -> None:
    await add_one(store)
    clock.advance(SECOND)
    job = await take_one(store, worker="w1")
    entry = (await history(store, job))[-1]
    assert (entry.job_id, entry.event, entry.state) == (job.id, Event.CLAIMED, State.RUNNING)
    assert (entry.actor, entry.token, entry.at) == ("w1", job.token, clock.now)
    assert (entry.reason, entry.error, entry.duration) == (None, None, SECOND)


async def test_end_of_a_run_is_logged_with_token_duration_and_error(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(3 * SECOND)
    await settle(store, job, Failed("boom", permanent=True))
    entry = (await history(store, job))[-1]
    assert (entry.token, entry.duration, entry.at) == (job.token, 3 * SECOND, clock.now)
    assert (entry.actor, entry.error, entry.reason) == ("w", "boom", "permanent error")


async def test_run_put_back_is_logged_with_its_token_and_duration(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    job = await take_one(store)
    clock.advance(3 * SECOND)
    await settle(store, job, Snoozed(HOUR, "rate limit"))
    entry = (await history(store, job))[-1]
    assert (entry.token, entry.duration) == (job.token, 3 * SECOND)
    assert (entry.reason, entry.error) == ("rate limit", None)


async def test_move_outside_a_run_is_logged_without_token_and_duration(
    store: Store, clock: ManualClock
) -> None:
    await add_one(store)
    ended = await settle(store, await take_one(store), Failed("no", permanent=True))
    clock.advance(SECOND)
    back = await move(store, ended, reset(ended, "fixed"), actor="me")
    await move(store, back, cancel(back, "changed my mind"), actor="you")
    entries = (await history(store, back))[-2:]
    assert [(entry.token, entry.duration, entry.error) for entry in entries] == [(None,) * 3] * 2
    assert [(entry.actor, entry.reason) for entry in entries] == [
        ("me", "fixed"),
        ("you", "changed my mind"),
    ]


async def test_cancel_request_is_logged_without_duration(store: Store) -> None:
    await add_one(store)
    job = await take_one(store)
    await move(store, job, cancel(job, "stop"), actor="me")
    entry = (await history(store, job))[-1]
    assert (entry.event, entry.actor, entry.reason) == (Event.CANCEL_REQUESTED, "me", "stop")
    assert entry.duration is None


async def test_log_pages_oldest_first_behind_an_id(store: Store) -> None:
    await add(store, *[new()] * 5)
    await take(store)
    whole = await store.log()
    assert [entry.id for entry in whole] == sorted({entry.id for entry in whole})
    assert len(whole) == 10
    pages, after = [], LogId(0)
    while page := await store.log(after=after, limit=3):
        assert len(page) <= 3
        pages += page
        after = page[-1].id
    assert pages == whole
    assert await store.log(limit=0) == []


async def test_log_of_one_job_pages_too(store: Store, clock: ManualClock) -> None:
    _, job = await add(store, new(priority=0), new(priority=9))
    for _ in range(3):
        await settle(store, await take_one(store), Snoozed())
    whole = await history(store, job)
    assert [entry.job_id for entry in whole] == [job.id] * 7
    assert await store.log(job.id, limit=2) == whole[:2]
    assert await store.log(job.id, after=whole[1].id, limit=3) == whole[2:5]
    assert await store.log(job.id, after=whole[-1].id) == []


async def test_log_of_an_unknown_job_is_empty(store: Store) -> None:
    await add_one(store)
    assert await store.log(JobId(999)) == []


async def test_job_ended_by_success_logs_its_end_last(store: Store) -> None:
    await add_one(store)
    done = await settle(store, await take_one(store), Done())
    entry = (await history(store, done))[-1]
    assert (entry.id, entry.event, entry.state) == (done.version, Event.DONE, State.DONE)


# Details


@pytest.mark.parametrize(
    "outcome",
    [
        Done(detail='{"a":1}'),
        Done("[1]", detail='{"a":1}'),
        Failed("no", detail='{"a":1}'),
        Failed("no", permanent=True, detail='{"a":1}'),
    ],
)
async def test_detail_is_in_the_entry_and_nowhere_else(store: Store, outcome: Outcome) -> None:
    await add_one(store)
    job = await take_one(store)
    ended = await settle(store, job, outcome)
    *before, entry = await history(store, job)
    assert (entry.id, entry.token, entry.detail) == (ended.version, job.token, '{"a":1}')
    assert [one.detail for one in before] == [None, None]
    assert await store.log() == [*before, entry]
    [record] = await store.records([job.id])
    assert record.log == (*before, entry)


async def test_each_job_of_a_call_keeps_its_own_detail(store: Store, clock: ManualClock) -> None:
    await add(store, *[new()] * 6, new(key="k"), new(priority=0, retry=RetryPolicy(attempts=1)))
    jobs = await take(store)
    clock.advance(SECOND)
    outcomes: list[Outcome] = [
        Done(detail='"0"'), Done(), Done(detail='"2"'), Done("2", detail='"3"'), Done("2"),
        Done(detail='"0"'), Done(detail='"6"'), Failed("no", detail='"7"'),
    ]  # fmt: skip
    changes = [Change(job, advance(job, one)) for job, one in zip(jobs, outcomes, strict=True)]
    settled = await store.transition(changes, actor="w")
    assert settled == await store.get([job.id for job in jobs])
    logs = [(await history(store, job))[-1] for job in jobs]
    assert [entry.detail for entry in logs] == [
        '"0"', None, '"2"', '"3"', None, '"0"', '"6"', '"7"',
    ]  # fmt: skip
    assert [entry.id for entry in logs] == [job.version for job in settled if job]
    assert [entry.token for entry in logs] == [job.token for job in jobs]
    assert {(entry.actor, entry.duration) for entry in logs} == {("w", SECOND)}


@pytest.mark.parametrize(
    "detail", ['"grün \\u0000 \\" \U0001f600"', '""', " [1, 2 ]\n", f'"{"x" * 100_000}"']
)
async def test_detail_comes_back_as_it_was_given(store: Store, detail: str) -> None:
    await add(store, new(), new())
    for job in await take(store):
        await settle(store, job, Done(detail=detail))
        assert (await history(store, job))[-1].detail == detail


async def test_detail_stays_with_a_run_that_gives_way(store: Store) -> None:
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    job = await take_one(store)
    await add_one(store, dedupe="d", scope=Scope.PENDING)
    ended = await settle(store, job, Failed("no", detail="[1]"))
    assert ended.state is State.SUPERSEDED
    assert (await history(store, job))[-1].detail == "[1]"
